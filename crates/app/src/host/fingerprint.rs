//! Fingerprints of a model: a short one over samples of its weights, returned with answers, and one over all weights,
//! for keys and values stored beyond the life of the process.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blake3::Hasher;
use fathom_base::gguf::{self, Gguf};
use fathom_model::{header_bytes, parse_header};
use fathom_text::Tokenizer;

use crate::error::Result;

/// Bytes hashed at the beginning of a file with unknown structure.
const BEGINNING: u64 = 1 << 20;
/// Number of places in each tensor that are hashed, evenly spaced, and bytes hashed at each. Fine-tuning changes some
/// of them, and files of many gigabytes are hashed within a second.
const PLACES: u64 = 16;
const PLACE_BYTES: u64 = 256;

/// Returns the fingerprint of a model: its configuration, tokenizer, samples of each tensor, and how the weights are
/// kept.
pub(crate) fn fingerprint(folder: &Path, tokenizer: &Tokenizer, held: &[String]) -> Result<String> {
    Ok(format!("fp_{}", &hashed(folder, tokenizer, held, spread)?.to_hex()[..12]))
}

/// Returns the hash of the same with all of the weights.
pub(crate) fn identity(folder: &Path, tokenizer: &Tokenizer, held: &[String]) -> Result<String> {
    let all = |hasher: &mut Hasher, path: &Path| {
        hasher.update_reader(File::open(path)?)?;
        Ok(())
    };
    Ok(hashed(folder, tokenizer, held, all)?.to_hex()[..32].to_string())
}

/// Hashes how a model is kept, and what `take` selects from its files.
fn hashed(
    folder: &Path,
    tokenizer: &Tokenizer,
    held: &[String],
    take: impl Fn(&mut Hasher, &Path) -> Result<()>,
) -> Result<blake3::Hash> {
    let mut hasher = Hasher::new();
    hasher.update(tokenizer.hash()?.as_bytes());
    held.iter().for_each(|held| _ = hasher.update(held.as_bytes()));
    let mut files: Vec<_> = if folder.is_dir() {
        std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect()
    } else {
        vec![folder.to_path_buf()]
    };
    files.sort();
    for file in files {
        let is = |ending: &str| file.extension().is_some_and(|it| it == ending);
        if is("safetensors") || is("gguf") || file.ends_with("config.json") {
            hasher.update(&std::fs::metadata(&file)?.len().to_le_bytes());
            take(&mut hasher, &file)?;
        }
    }
    Ok(hasher.finalize())
}

/// Hashes the header of a file and samples of each tensor; for a file without tensors, its beginning.
fn spread(hasher: &mut Hasher, path: &Path) -> Result<()> {
    let file = File::open(path)?;
    // An unreadable file is refused later, when it is loaded.
    let tensors = tensors(path).unwrap_or_default();
    let before = tensors.iter().map(|tensor| tensor.start).min().unwrap_or(BEGINNING);
    hasher.update_reader((&file).take(before))?;
    for tensor in tensors {
        let bytes = tensor.end.saturating_sub(tensor.start);
        let mut place = vec![0; bytes.min(PLACE_BYTES) as usize];
        let last = bytes.saturating_sub(PLACE_BYTES);
        for at in 0..PLACES {
            file.read_exact_at(&mut place, tensor.start + last * at / (PLACES - 1))?;
            hasher.update(&place);
        }
    }
    Ok(())
}

/// Returns the byte ranges of a file's tensors, in the order of their names.
fn tensors(path: &Path) -> Result<Vec<Range<u64>>> {
    if gguf::is_file(path) {
        let all = Gguf::open(path).map_or_else(|_| Default::default(), |read| read.tensors);
        return Ok(all.into_values().map(|it| it.start..it.start + it.bytes).collect());
    }
    if path.extension().is_none_or(|end| end != "safetensors") {
        return Ok(Vec::new());
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut first = Vec::new();
    file.by_ref().take(8).read_to_end(&mut first)?;
    let mut header = vec![0; header_bytes(path, &first, length)?];
    file.read_exact(&mut header)?;
    let all = parse_header(path, &header, length)?.tensors;
    Ok(all.into_values().map(|it| it.start..it.start + it.bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &Path) -> blake3::Hash {
        let mut hasher = Hasher::new();
        spread(&mut hasher, path).unwrap();
        hasher.finalize()
    }

    /// A tensor after a large one, beyond the hashed beginning of the file.
    #[test]
    fn weights_behind_the_beginning_of_a_file_are_part_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let header = r#"{"a":{"dtype":"U8","shape":[3000000],"data_offsets":[0,3000000]},"b":{"dtype":"U8","shape":[100],"data_offsets":[3000000,3000100]}}"#;
        let file = |name: &str, at: usize| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.bytes());
            let data = bytes.len();
            bytes.resize(data + 3_000_100, 7);
            bytes[data + at] = 8;
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let first = file("a.safetensors", 0);
        assert_eq!(named(&first), named(&file("b.safetensors", 0)));
        for at in [2_999_999, 3_000_000, 3_000_099] {
            assert_ne!(named(&first), named(&file("c.safetensors", at)), "{at}");
        }
        // A file that holds no weights is identified by its beginning.
        let other = folder.path().join("config.json");
        std::fs::write(&other, "{}").unwrap();
        let short = named(&other);
        std::fs::write(&other, "{ }").unwrap();
        assert_ne!(short, named(&other));
    }

    #[test]
    fn weights_of_gguf_files_are_part_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, at: usize| {
            // One tensor of 600,000 elements, and no metadata.
            let (count, mut bytes) = (600_000_u64, b"GGUF".to_vec());
            bytes.extend(3_u32.to_le_bytes());
            [1, 0, 1].iter().for_each(|number: &u64| bytes.extend(number.to_le_bytes()));
            bytes.extend(b"w");
            bytes.extend(1_u32.to_le_bytes());
            bytes.extend(count.to_le_bytes());
            bytes.extend(0_u32.to_le_bytes());
            bytes.extend(0_u64.to_le_bytes());
            let data = bytes.len().next_multiple_of(32);
            bytes.resize(data + 4 * count as usize, 0);
            bytes[data + at] = 1;
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let first = file("a.gguf", 0);
        assert_eq!(tensors(&first).unwrap().len(), 1);
        assert_eq!(named(&first), named(&file("b.gguf", 0)));
        for at in [1_280_000, 2_399_999] {
            assert_ne!(named(&first), named(&file("c.gguf", at)), "{at}");
        }
    }
}
