//! The benefit of a longer context: the loss of the same tokens with the full context and with a truncated one.
//!
//! Documents are cut into pieces of the full length. The tokens in the second half of each piece are predicted twice:
//! with everything in the piece before them, and with only the most recent tokens. Both losses are of the same tokens,
//! so only the context differs. Differences are averaged over blocks of half the truncated context, and the standard
//! error is that of their mean. Blocks of one document are not quite independent, so the standard error is slightly too
//! small if there are few documents.

use fathom_base::LanguageModel;
use fathom_base::metrics::events::EvalContext;
use serde::Serialize;

use crate::error::{Result, losses};
use crate::limits::Pace;
use crate::{Limits, Moment};

/// The result, with the counts behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worth {
    /// Full context of the last token, in tokens.
    pub full_tokens: usize,
    /// Largest truncated context; the smallest is half of it.
    pub cut_tokens: usize,
    /// Mean loss with the full context.
    pub full_loss: f64,
    /// Mean loss of the same tokens with the truncated context.
    pub cut_loss: f64,
    /// Standard error of the difference; infinite for a single block.
    pub standard_error: f64,
    /// Number of tokens measured.
    pub tokens: u64,
    /// Number of blocks the differences were averaged over.
    pub blocks: usize,
}

impl Worth {
    /// The event for the metrics log.
    pub fn to_event(&self, moment: &Moment) -> EvalContext {
        EvalContext {
            when: moment.when.clone(),
            step: moment.step,
            full_tokens: self.full_tokens as u64,
            cut_tokens: self.cut_tokens as u64,
            full_loss: self.full_loss,
            cut_loss: self.cut_loss,
            standard_error: self.standard_error,
            tokens: self.tokens,
            blocks: self.blocks as u64,
        }
    }
}

/// Measures pieces of `full` tokens; if no document is that long or the time is too short, of half as many, a quarter
/// and so on. `None` if fewer than twice the truncated context would remain.
///
/// # Errors
/// The model fails.
pub fn worth_of_context(
    model: &dyn LanguageModel,
    documents: &[Vec<u32>],
    [full, cut]: [usize; 2],
    limits: &Limits,
) -> Result<Option<Worth>> {
    let block = cut / 2;
    let most = documents.iter().map(Vec::len).max().unwrap_or(0).min(model.max_tokens());
    let lengths = std::iter::successors(Some(full), |length| Some(length / 2));
    let mut lengths =
        lengths.take_while(|length| block > 0 && *length >= 2 * cut).skip_while(|length| *length > most);
    let mut pace = Pace::new(limits.deadline.as_ref());
    let costs = |full: usize| [(1, full), (full / 2 / block, 2 * block)];
    if let Some(long) = documents.iter().find(|ids| ids.len() >= 2 * cut).filter(|_| pace.is_timed()) {
        // Two lengths are enough to estimate the time of longer ones.
        for tokens in [2 * block, 4 * block] {
            pace.time(tokens, || losses(model, &long[..tokens]))?;
        }
    }
    let Some(full) = lengths.find(|full| pace.allows(&costs(*full), 1.0)) else { return Ok(None) };
    let pieces = documents.iter().flat_map(|ids| ids.chunks_exact(full)).take(limits.documents);
    let (mut sums, mut differences) = ([0.0; 2], Vec::new());
    for piece in pieces {
        if !pace.allows(&costs(full), 1.0) {
            break;
        }
        let whole = pace.time(full, || losses(model, piece))?;
        let mut start = full / 2;
        while start + block <= full {
            // The loss of position p is at p - 1.
            let with_all = whole[start - 1..start - 1 + block].iter().sum::<f64>();
            let near = &piece[start - block..start + block];
            let with_cut = pace.time(near.len(), || losses(model, near))?[block - 1..].iter().sum::<f64>();
            sums = [sums[0] + with_all, sums[1] + with_cut];
            differences.push((with_cut - with_all) / block as f64);
            start += block;
        }
    }
    if differences.is_empty() {
        return Ok(None);
    }
    let (blocks, tokens) = (differences.len(), differences.len() * block);
    let [full_loss, cut_loss] = sums.map(|sum| sum / tokens as f64);
    let standard_error = standard_error(&differences);
    Ok(Some(Worth {
        full_tokens: full,
        cut_tokens: 2 * block,
        full_loss,
        cut_loss,
        standard_error,
        tokens: tokens as u64,
        blocks,
    }))
}

/// Standard error of the mean of `numbers`.
fn standard_error(numbers: &[f64]) -> f64 {
    let count = numbers.len() as f64;
    if count < 2.0 {
        return f64::INFINITY;
    }
    let mean = numbers.iter().sum::<f64>() / count;
    let squares = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (squares / (count - 1.0) / count).sqrt()
}
