//! A sample spread over the whole text, selected by hash: the same files give the same sample in any order.

use std::collections::BTreeMap;

use fathom_text::store::DocMeta;

use super::progress::{Phase, Progress};
use super::spec::{CorpusSpec, TokenizerFrom};
use super::stream::Texts;
use crate::error::Error;

/// Limit of what one text contributes to the sample, so that the sample covers many texts.
const MOST_OF_ONE_TEXT: usize = 64 << 10;
/// Sample size when only filler is needed because no tokenizer is trained.
const FILLER_SAMPLE_BYTES: usize = 1 << 20;
/// Total bytes of filler lines.
const FILLER_BYTES: usize = 2 << 20;
/// Accepted line lengths; shorter lines are brackets, longer ones tables.
const FILLER_LINE_BYTES: std::ops::RangeInclusive<usize> = 20..=160;

/// Result of the first pass.
pub(super) struct Sample {
    /// Bytes of text in the whole corpus.
    pub(super) bytes: u64,
    /// Texts for tokenizer training, in hash order.
    pub(super) texts: Vec<String>,
    /// Filler lines between facts, in their order within a text.
    pub(super) filler: Vec<String>,
}

impl Sample {
    /// Reads all texts and keeps those with the lowest hashes, as many as fit the sample.
    pub(super) fn draw(spec: &CorpusSpec, progress: &mut dyn FnMut(Progress)) -> Result<Sample, Error> {
        let most = match spec.tokenizer {
            TokenizerFrom::Train { sample_bytes, .. } => sample_bytes,
            TokenizerFrom::File(_) => FILLER_SAMPLE_BYTES,
        };
        let mut kept: BTreeMap<u128, String> = BTreeMap::new();
        let (mut kept_bytes, mut bytes) = (0, 0);
        let mut texts = Texts::open(spec)?;
        while let Some(document) = texts.next() {
            let text = document?.text;
            bytes += text.len() as u64;
            let hash = DocMeta::of_text(&text, 0).hash;
            let whole = kept_bytes < most;
            if whole || kept.last_key_value().is_some_and(|(&highest, _)| hash < highest) {
                let text = head(text);
                kept_bytes += text.len();
                kept.insert(hash, text);
            }
            // One text more than fits is kept and truncated at the end.
            while let Some(last) = kept.last_entry().filter(|last| kept_bytes - last.get().len() >= most) {
                kept_bytes -= last.remove().len();
            }
            let total_bytes = bytes + texts.estimated_bytes();
            progress(Progress { phase: Phase::Read, done_bytes: bytes, total_bytes });
        }
        if let Some(mut last) = kept.last_entry().filter(|_| kept_bytes > most) {
            let text = last.get_mut();
            let fits = text.len() - (kept_bytes - most);
            text.truncate(text.floor_char_boundary(fits));
        }
        let texts: Vec<String> = kept.into_values().collect();
        let filler = filler(&texts);
        Ok(Sample { bytes, texts, filler })
    }
}

/// Beginning of a text, cut at a line end if possible.
fn head(mut text: String) -> String {
    if text.len() > MOST_OF_ONE_TEXT {
        let most = text.floor_char_boundary(MOST_OF_ONE_TEXT);
        let cut = text[..most].rfind('\n').map_or(most, |at| at + 1);
        text.truncate(cut);
        text.shrink_to_fit();
    }
    text
}

fn filler(texts: &[String]) -> Vec<String> {
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim_end);
    let mut left = FILLER_BYTES;
    let fitting = lines.filter(|line| FILLER_LINE_BYTES.contains(&line.len())).take_while(|line| {
        let fits = line.len() <= left;
        left = left.saturating_sub(line.len());
        fits
    });
    fitting.map(str::to_owned).collect()
}
