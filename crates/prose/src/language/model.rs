//! Reading fastText's `.bin` files, with their header checked before anything is allocated.

use crate::Error;
use fasttext::FastText;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const MAGIC: i32 = 793_712_314;
const HEADER_BYTES: usize = 8 + 56 + 28;

/// Opens the model at `path`.
///
/// # Errors
/// [`Error::Read`] when the file cannot be read, [`Error::BadFile`] when it is quantised (`.ftz`), damaged, or no
/// fastText model.
pub(super) fn open(path: &Path) -> Result<FastText, Error> {
    let bad = |detail: String| Error::BadFile { path: path.to_path_buf(), kind: "fastText model", detail };
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("ftz")) {
        return Err(bad(QUANTISED.to_string()));
    }
    check_header(path)?;
    let model = FastText::load_model(path).map_err(|e| bad(e.to_string()))?;
    if model.is_quant() {
        return Err(bad(QUANTISED.to_string()));
    }
    Ok(model)
}

const QUANTISED: &str = "quantised models (.ftz) are not read, their predictions differ from fastText's; give the .bin of the same model";

/// The matrices that the header announces must fit into the file.
fn check_header(path: &Path) -> Result<(), Error> {
    let bad = |detail: String| Error::BadFile { path: path.to_path_buf(), kind: "fastText model", detail };
    let mut file = std::fs::File::open(path).map_err(|e| Error::read(path, e))?;
    let length = file.metadata().map_err(|e| Error::read(path, e))?.len();
    let mut header = [0u8; HEADER_BYTES];
    file.read_exact(&mut header).map_err(|_| bad(format!("{length} bytes are too few for a header")))?;
    let field = |i: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[4 * i..4 * i + 4]);
        i32::from_le_bytes(bytes)
    };
    if field(0) != MAGIC {
        return Err(bad("the first four bytes are not fastText's".to_string()));
    }
    // magic, version, dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t (8
    // bytes), then the dictionary: size, words, labels.
    let (dim, bucket, words, labels) = (field(2), field(10), field(17), field(18));
    if dim <= 0 || bucket < 0 || words < 0 || labels < 0 {
        return Err(bad(format!(
            "dimension {dim}, {bucket} buckets, {words} words and {labels} labels cannot be"
        )));
    }
    let rows = words as u64 + bucket as u64 + labels as u64;
    let pruned = i64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| header[4 * 21 + i]));
    if pruned < 0 && rows * dim as u64 * 4 > length {
        if is_quantised(file, words as u64 + labels as u64).unwrap_or(false) {
            return Err(bad(QUANTISED.to_string()));
        }
        return Err(bad(format!(
            "{rows} rows of {dim} numbers do not fit into {length} bytes; copy the file again"
        )));
    }
    Ok(())
}

/// Whether the mark of quantised models stands behind the dictionary, at whose beginning `file` is.
fn is_quantised(file: std::fs::File, entries: u64) -> std::io::Result<bool> {
    let mut file = BufReader::new(file);
    // A word with its 0, its count (8 bytes) and its kind (1 byte).
    for _ in 0..entries {
        file.skip_until(0)?;
        file.read_exact(&mut [0; 9])?;
    }
    let mut mark = [0];
    file.read_exact(&mut mark)?;
    Ok(mark[0] == 1)
}
