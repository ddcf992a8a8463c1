//! fastText's `.bin` files, read with their header checked before anything is allocated, and what such a model says of a
//! text: the same as the library's own `predict`.

use crate::Error;
use fasttext::{FastText, Prediction};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const MAGIC: i32 = 793_712_314;
const HEADER_BYTES: usize = 8 + 56 + 28;

/// The word that stands for a line's end, in models and in the library's reading of lines.
const END: &str = "</s>";

/// A model that labels texts; shared by threads.
pub(super) struct Model(FastText);

impl From<FastText> for Model {
    fn from(model: FastText) -> Model {
        Model(model)
    }
}

impl Model {
    /// Opens the model at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] when the file cannot be read, [`Error::BadFile`] when it is quantised (`.ftz`), damaged, or no
    /// fastText model.
    pub(super) fn open(path: &Path) -> Result<Model, Error> {
        let bad =
            |detail: String| Error::BadFile { path: path.to_path_buf(), kind: "fastText model", detail };
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("ftz")) {
            return Err(bad(QUANTISED.to_string()));
        }
        check_header(path)?;
        let model = FastText::load_model(path).map_err(|e| bad(e.to_string()))?;
        if model.is_quant() {
            return Err(bad(QUANTISED.to_string()));
        }
        Ok(Model(model))
    }

    /// The model's labels.
    pub(super) fn labels(&self) -> Vec<String> {
        self.0.get_labels().0
    }

    /// The likeliest label of `text`, read as one line; none where the model has neither its words nor a line's end.
    pub(super) fn best(&self, text: &str) -> Option<Prediction> {
        self.predict(text, 1).into_iter().next()
    }

    /// At most `count` labels of `text`, the likeliest first.
    ///
    /// The library reads a line's end as a word like others, with its place in n-grams. The crate's `predict` adds it
    /// behind the n-grams and says nothing of a line that has no other known word, so it is written out here.
    fn predict(&self, text: &str, count: usize) -> Vec<Prediction> {
        // What the library takes for spaces and the crate does not, and ends of lines inside.
        let mut line = text.replace(['\n', '\x0b', '\0'], " ");
        line.push(' ');
        line.push_str(END);
        let (mut words, mut labels) = (Vec::new(), Vec::new());
        self.0.dict().get_line_from_str(&line, &mut words, &mut labels);
        self.0.predict_on_words(&words, count, 0.0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Every label of every text has the probability that the library gives it (`oracle/fasttext_models.py`).
    #[test]
    fn scores_are_the_librarys() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fasttext");
        let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
        let texts: Vec<&str> =
            golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let mut wrong = Vec::new();
        for (name, wanted) in golden["models"].as_object().unwrap() {
            let model = Model::open(&folder.join(format!("{name}.bin"))).unwrap();
            for (text, wanted) in texts.iter().zip(wanted.as_array().unwrap()) {
                let wanted = wanted.as_array().unwrap();
                let found = model.predict(text, wanted.len().max(1));
                let same = |pair: &serde_json::Value| {
                    let near = |p: &&Prediction| (f64::from(p.prob) - pair[1].as_f64().unwrap()).abs() < 1e-4;
                    found.iter().filter(near).any(|p| p.label == pair[0])
                };
                if found.len() != wanted.len() || !wanted.iter().all(same) {
                    wrong.push(format!("{name}, {text:?}: {found:?}, not {wanted:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{} differ: {:#?}", wrong.len(), wrong);
    }
}
