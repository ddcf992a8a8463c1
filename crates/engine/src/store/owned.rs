//! Recognition of stores of prefixes, and of their own files: nothing else is counted or removed.
//!
//! A store has a marker file, written by its first server. A store from before markers existed is recognised by the
//! names and first bytes of its pages, and gets a marker when a server opens it.

use std::fs::{self, DirEntry, File, Metadata};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::form::{MAGIC, UNFINISHED, gone, private};

/// Marker file of a store.
const MARK: &str = ".fathom-prefixes";
/// Contents of the marker.
const MARKED: &[u8] = b"fathom: beginnings of prompts, written by `fathom serve --prefix-store`\n";
/// Prefix of the name of a page file, while it has one.
const PAGE_FILE: &str = ".pages-";

/// A page of a store, or a partly written one.
pub(super) struct Page {
    pub path: PathBuf,
    pub about: Metadata,
    /// Its index in its sequence.
    pub index: u64,
    pub whole: bool,
}

/// Makes a folder a store; it must be new, empty, or a store already.
pub(super) fn open(root: &Path) -> Result<()> {
    private(root)?;
    check(root)?;
    let mut options = File::options();
    match options.write(true).create_new(true).mode(0o600).open(root.join(MARK)) {
        Ok(mut mark) => mark.write_all(MARKED),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that a folder is empty or a store.
pub(super) fn check(root: &Path) -> Result<()> {
    // A server that ended while writing the marker leaves the beginning of it.
    if begins(&root.join(MARK), MARKED.len()).is_ok_and(|bytes| MARKED.starts_with(&bytes)) {
        return Ok(());
    }
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PAGE_FILE) && !is_model(&entry)? {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("it has no {MARK}, and {} in it is not of such a folder", entry.path().display()),
            ));
        }
    }
    Ok(())
}

/// True if this is a model's folder in a store without a marker: it has only pages, at least one unless its name is a
/// hash.
fn is_model(model: &DirEntry) -> Result<bool> {
    if !model.file_type()?.is_dir() {
        return Ok(false);
    }
    let mut pages = 0;
    for scope in fs::read_dir(model.path())? {
        let scope = scope?;
        if !scope.file_type()?.is_dir() || !is_hash(&scope.file_name().to_string_lossy(), 16) {
            return Ok(false);
        }
        for file in fs::read_dir(scope.path())? {
            if page(&file?)?.is_none() {
                return Ok(false);
            }
            pages += 1;
        }
    }
    let name = model.file_name();
    Ok(pages > 0 || is_hash(&name.to_string_lossy(), name.len().max(16)))
}

fn is_hash(name: &str, digits: usize) -> bool {
    name.len() == digits && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The first bytes of a regular file.
fn begins(path: &Path, most: usize) -> Result<Vec<u8>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The page in a file, recognised by name and first bytes.
fn page(file: &DirEntry) -> Result<Option<Page>> {
    let (path, name) = (file.path(), file.file_name());
    let Some(name) = name.to_str() else { return Ok(None) };
    let (whole, name) = name.strip_suffix(UNFINISHED).map_or((true, name), |name| (false, name));
    let Some((index, hash)) = name.split_once('-') else { return Ok(None) };
    let about = file.metadata()?;
    if index.len() < 8 || !is_hash(hash, 32) || !about.is_file() {
        return Ok(None);
    }
    let Ok(index) = index.parse() else { return Ok(None) };
    let first = begins(&path, MAGIC.len())?;
    let is = if whole { first == MAGIC } else { MAGIC.starts_with(&first) };
    Ok(is.then_some(Page { path, about, index, whole }))
}

/// The folders of models in a store.
pub(super) fn models(root: &Path) -> Result<Vec<PathBuf>> {
    folders(root, |_| true)
}

/// The folders of scopes of a model.
pub(super) fn scopes(model: &Path) -> Result<Vec<PathBuf>> {
    folders(model, |name| is_hash(name, 16))
}

pub(super) fn pages(scope: &Path) -> Result<Vec<Page>> {
    let mut all = Vec::new();
    for file in fs::read_dir(scope)? {
        match file.and_then(|file| page(&file)) {
            Ok(page) => all.extend(page),
            // Another server may remove files during the scan.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Sub-folders with names accepted by `right`, without links.
fn folders(folder: &Path, right: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && right(&entry.file_name().to_string_lossy()) {
            all.push(entry.path());
        }
    }
    Ok(all)
}

/// Removes the pages of a model, and its folders if they are empty then.
pub(super) fn erase_model(model: &Path) -> Result<()> {
    // Missing folders need not be erased.
    for scope in missing_is(scopes(model))? {
        erase_scope(&scope)?;
    }
    emptied(model)
}

/// Removes the pages of a scope, and its folder if it is empty then.
pub(super) fn erase_scope(scope: &Path) -> Result<()> {
    for page in missing_is(pages(scope))? {
        gone(fs::remove_file(&page.path))?;
    }
    emptied(scope)
}

fn missing_is<T: Default>(result: Result<T>) -> Result<T> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(T::default()) } else { Err(error) })
}

fn emptied(folder: &Path) -> Result<()> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        result => gone(result),
    }
}
