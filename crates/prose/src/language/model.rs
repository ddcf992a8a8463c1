//! fastText's models (`.bin`, `.ftz`) and what such a model says of a text: the same as the library's own `predict`.

use super::layout;
use super::quantised::Head;
use crate::Error;
use fasttext::{FastText, Prediction};
use std::path::Path;

/// The word that stands for a line's end, in models and in the library's reading of lines.
const END: &str = "</s>";

/// A model that labels texts; shared by threads.
pub(super) struct Model {
    model: FastText,
    /// Of a quantised model.
    head: Option<Head>,
}

impl From<FastText> for Model {
    fn from(model: FastText) -> Model {
        let head = Head::of(&model);
        Model { model, head }
    }
}

impl Model {
    /// Opens the model at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] when the file cannot be read, [`Error::BadFile`] when it is damaged or no fastText model that labels
    /// texts.
    pub(super) fn open(path: &Path) -> Result<Model, Error> {
        layout::check(path)?;
        let bad = |error: fasttext::FastTextError| Error::BadFile {
            path: path.to_path_buf(),
            kind: "fastText model",
            detail: error.to_string(),
        };
        FastText::load_model(path).map(Model::from).map_err(bad)
    }

    /// The model's labels.
    pub(super) fn labels(&self) -> Vec<String> {
        self.model.get_labels().0
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
        self.model.dict().get_line_from_str(&line, &mut words, &mut labels);
        match &self.head {
            Some(head) => head.predict(&self.model, &words, count),
            None => self.model.predict_on_words(&words, count, 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// The first labels of every text have the probabilities that the library gives them (`oracle/fasttext_models.py`).
    #[test]
    fn scores_are_the_librarys() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fasttext");
        let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
        let texts: Vec<&str> =
            golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let mut wrong = Vec::new();
        for (name, wanted) in golden["models"].as_object().unwrap() {
            let model = Model::open(&folder.join(name)).unwrap();
            for (text, wanted) in texts.iter().zip(wanted.as_array().unwrap()) {
                let wanted = wanted.as_array().unwrap();
                // Labels of equal probability come in any order.
                let found = model.predict(text, usize::MAX);
                let near = |p: &Prediction, pair: &serde_json::Value| {
                    (f64::from(p.prob) - pair[1].as_f64().unwrap()).abs() < 1e-4
                };
                let ranked = found.iter().zip(wanted).all(|(p, pair)| near(p, pair));
                let labelled =
                    |pair: &serde_json::Value| found.iter().any(|p| pair[0] == *p.label && near(p, pair));
                let count = found.len().min(3) == wanted.len();
                if !(count && ranked && wanted.iter().all(labelled)) {
                    wrong.push(format!("{name}, {text:?}: {found:?}, not {wanted:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{} differ: {:#?}", wrong.len(), wrong);
    }
}
