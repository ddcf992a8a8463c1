//! Common Crawl snapshots: listing the files of a crawl and selecting some of them.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::packed::{Codec, Decompressor, Expansion};
use super::remote::{Remote, RemoteOptions, is_remote};
use crate::error::Error;

fathom_base::choice! {
    /// The files of a crawl.
    pub enum CrawlFiles {
        /// Responses with their HTML.
        Warc = "warc",
        /// Text that Common Crawl extracted.
        Wet = "wet",
    }
}

fathom_base::recipe! {
    /// A choice of the files of one crawl of Common Crawl.
    pub struct Snapshot {
        /// `CC-MAIN-2024-10` or `2024-10` (year and week); news crawls are `CC-NEWS-2024-03` (year and month). Empty: no crawl.
        pub name: String,
        /// Responses (`warc`) or extracted text (`wet`).
        pub files: CrawlFiles,
        /// Skips this many files at the start.
        pub skip: usize = 0,
        /// Then reads one file in this many.
        pub stride: usize = 1,
        /// Maximum number of files; none for all.
        pub first: Option<usize>,
        /// Where the crawls are: an address, `s3://commoncrawl`, or a local copy with the same folders.
        pub base: String = "https://data.commoncrawl.org".into(),
    }
}

/// Size limit of a listing, which is normally a few megabytes.
const LARGEST_LISTING: u64 = 256 << 20;

impl Snapshot {
    /// Full name: `CC-MAIN-2024-10` even if `2024-10` was written.
    pub fn full_name(&self) -> String {
        if self.name.starts_with("CC-") { self.name.clone() } else { format!("CC-MAIN-{}", self.name) }
    }

    /// Location-independent name of a file: the snapshot and the path within it.
    pub(super) fn name_of(&self, location: &str) -> Result<String, Error> {
        let base = self.base.trim_end_matches('/');
        let below = location.strip_prefix(base).unwrap_or(location).trim_start_matches('/');
        let below = below.strip_prefix(&format!("{}/", self.folder()?)).unwrap_or(below);
        Ok(format!("{}/{below}", self.full_name()))
    }

    /// Folder of the snapshot below the base.
    fn folder(&self) -> Result<String, Error> {
        let wrong = || Error::Setting {
            key: "input.snapshot.name",
            found: format!("`{}`", self.name),
            advice: "it is named like CC-MAIN-2024-10 (year and week) or CC-NEWS-2024-03 (year and month)"
                .to_string(),
        };
        let (folder, date) = match self.name.strip_prefix("CC-NEWS-") {
            Some(date) => (format!("crawl-data/CC-NEWS/{}", date.replace('-', "/")), date),
            None => {
                let date = self.name.strip_prefix("CC-MAIN-").unwrap_or(&self.name);
                (format!("crawl-data/CC-MAIN-{date}"), date)
            }
        };
        let digits =
            |part: &str, count: usize| part.len() == count && part.bytes().all(|b| b.is_ascii_digit());
        let (year, part) = date.split_once('-').ok_or_else(wrong)?;
        if !digits(year, 4) || !digits(part, 2) {
            return Err(wrong());
        }
        if self.name.starts_with("CC-NEWS-") && self.files == CrawlFiles::Wet {
            return Err(Error::Setting {
                key: "input.snapshot.files",
                found: "`wet`".to_string(),
                advice: "news crawls have WARC files only".to_string(),
            });
        }
        Ok(folder)
    }

    /// Locations of the selected files, in the order of the crawl's listing.
    ///
    /// # Errors
    /// [`Error::Setting`] for an invalid name, [`Error::Remote`] or [`Error::Read`] if the listing cannot be read.
    pub fn locations(&self, options: &RemoteOptions) -> Result<Vec<String>, Error> {
        let kind = match self.files {
            CrawlFiles::Warc => "warc",
            CrawlFiles::Wet => "wet",
        };
        let base = self.base.trim_end_matches('/');
        let listing = format!("{base}/{}/{kind}.paths.gz", self.folder()?);
        let input: Box<dyn Read + Send> = if is_remote(&listing) {
            Box::new(Remote::open(&listing, options)?)
        } else {
            let path = Path::new(&listing);
            Box::new(std::fs::File::open(path).map_err(|e| Error::read(path, e))?)
        };
        let lines =
            BufReader::new(Decompressor::new(input, Codec::Gzip, Expansion::default()).take(LARGEST_LISTING))
                .lines();
        if self.stride == 0 {
            return Err(Error::Setting {
                key: "input.snapshot.stride",
                found: "0".to_string(),
                advice: "1 takes every file, 2 every other".to_string(),
            });
        }
        let chosen = lines.skip(self.skip).step_by(self.stride).take(self.first.unwrap_or(usize::MAX));
        chosen
            .map(|line| line.map(|path| format!("{base}/{}", path.trim())))
            .filter(|path| !path.as_ref().is_ok_and(|p| p.len() <= base.len() + 1))
            .collect::<Result<_, _>>()
            .map_err(|e| Error::read(Path::new(&listing), e))
    }
}
