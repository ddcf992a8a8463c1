//! The choice of tokens that a masked-language model restores. It depends on the seed, the sample's number, which
//! grows from pass to pass, and the document's place in it, and not on ranks or threads.

use fathom_text::pack::{IGNORE, VIRTUAL};
use fathom_text::{Rng, Tokenizer};

use crate::error::{Error, Result};
use crate::micro_batch::MicroBatch;
use crate::recipe::{MaskingName, Recipe};
use crate::source::{Rule, Shape};

/// Shares of the chosen tokens that become the mask, and another token; the others stay (Devlin et al., section 3.1).
const REPLACED: [f64; 2] = [0.8, 0.1];
/// Parameter of the geometric distribution of a span's length, and the longest (SpanBERT: Joshi et al., arXiv
/// 1907.10529).
const SPAN: (f64, usize) = (0.2, 10);
/// Spellings of a mask that no file names.
const MASKS: [&str; 2] = ["[MASK]", "<mask>"];

/// Tokens that are chosen together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskingUnit {
    /// Each token alone.
    Token,
    /// All tokens of a word.
    Word,
    /// Spans of words of random lengths.
    Span,
}

/// A rule that chooses and replaces tokens.
#[derive(Clone, Debug)]
pub struct MaskingRule {
    unit: MaskingUnit,
    share: f64,
    seed: u64,
    mask: u32,
    /// The token before a text.
    first: u32,
    /// By id: whether it is ordinary, and whether it continues a word.
    kinds: Vec<(bool, bool)>,
    /// Ids that may replace a token.
    ordinary: Vec<u32>,
}

impl MaskingRule {
    /// The rule of a recipe whose objective masks tokens.
    ///
    /// # Errors
    /// A tokenizer without a mask.
    pub fn new(recipe: &Recipe, tokenizer: &Tokenizer) -> Result<MaskingRule> {
        let table = &recipe.objective;
        let named = tokenizer.named().find(|(key, _)| *key == "mask_token").map(|(_, token)| token);
        let mask = named.into_iter().chain(MASKS).find_map(|token| tokenizer.token_id(token));
        let Some(mask) = mask else {
            let message = "is `mlm`, and the tokenizer has no mask ([MASK] or <mask>, or a `mask_token` in \
                           tokenizer_config.json); take the folder of a masked-language model";
            return Err(Error::Recipe { key: "objective.method".into(), message: message.into() });
        };
        let unit = match table.masking {
            MaskingName::Tokens => MaskingUnit::Token,
            MaskingName::Words => MaskingUnit::Word,
            MaskingName::Spans => MaskingUnit::Span,
        };
        let vocab = tokenizer.vocab_size() as u32;
        let tokens: Vec<String> = (0..vocab).map(|id| tokenizer.token(id).unwrap_or_default()).collect();
        let begins = tokens.iter().any(|token| token.starts_with('Ġ') || token.starts_with('▁'));
        let continues = |token: &str| {
            if begins {
                !token.starts_with('Ġ') && !token.starts_with('▁')
            } else {
                token.starts_with("##")
            }
        };
        let kinds: Vec<(bool, bool)> = (0..vocab)
            .zip(&tokens)
            .map(|(id, token)| (!tokenizer.is_special(id) && !token.is_empty(), continues(token)))
            .collect();
        let ordinary = (0..vocab).filter(|id| kinds[*id as usize].0).collect();
        let before = tokenizer.frame().and_then(|(before, _)| before.last().copied());
        let first = before.or(tokenizer.bos()).or(tokenizer.eos()).unwrap_or(mask);
        let (share, seed) = (table.mask_share, recipe.run.seed);
        Ok(MaskingRule { unit, share, seed, mask, first, kinds, ordinary })
    }

    fn kind(&self, id: i32) -> (bool, bool) {
        usize::try_from(id).ok().and_then(|id| self.kinds.get(id)).copied().unwrap_or((false, false))
    }

    /// Chooses tokens of a micro-batch: they become labels, and are replaced.
    ///
    /// # Errors
    /// There is none to choose.
    fn mask(&self, micro: &mut MicroBatch) -> Result<()> {
        micro.labels.fill(IGNORE);
        for doc in micro.docs.clone() {
            if let Some(id) = micro.ids.get_mut(doc.start).filter(|id| id.cast_unsigned() >= VIRTUAL) {
                *id = self.first.cast_signed();
            }
            let mut rng = Rng::keyed(&[self.seed, micro.number, doc.start as u64]);
            for at in self.chosen(&micro.ids[doc.clone()], &mut rng) {
                let id = &mut micro.ids[doc.start + at];
                micro.labels[doc.start + at] = *id;
                let draw = rng.unit();
                if draw < REPLACED[0] {
                    *id = self.mask.cast_signed();
                } else if draw < REPLACED[0] + REPLACED[1] {
                    let other = rng.below(self.ordinary.len() as u64) as usize;
                    *id = self.ordinary[other].cast_signed();
                }
            }
        }
        if micro.valid() == 0 && !micro.ids.is_empty() {
            let message = format!(
                "chose no token of sample {}: its documents have none but special tokens; give other text",
                micro.number
            );
            return Err(Error::Recipe { key: "objective.mask_share".into(), message });
        }
        Ok(())
    }

    /// Places of a document's chosen tokens: its share of the ordinary ones, rounded, and at least one.
    fn chosen(&self, ids: &[i32], rng: &mut Rng) -> Vec<usize> {
        let ordinary: Vec<usize> = (0..ids.len()).filter(|at| self.kind(ids[*at]).0).collect();
        if ordinary.is_empty() {
            return Vec::new();
        }
        let wanted = ((self.share * ordinary.len() as f64).round() as usize).max(1);
        let mut units: Vec<Vec<usize>> = Vec::new();
        for at in ordinary {
            let continues = self.unit != MaskingUnit::Token && self.kind(ids[at]).1;
            match units.last_mut() {
                Some(unit) if continues && unit.last() == Some(&(at - 1)) => unit.push(at),
                _ => units.push(vec![at]),
            }
        }
        if self.unit == MaskingUnit::Span {
            return spans(&units, wanted, rng);
        }
        rng.shuffle(&mut units);
        let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
        for unit in &units {
            // A word that would be too much is left to others.
            if chosen.len() + unit.len() <= wanted {
                chosen.extend(unit);
            }
        }
        if chosen.is_empty() {
            chosen.extend(&units[0][..wanted.min(units[0].len())]);
        }
        chosen.sort_unstable();
        chosen
    }
}

impl Rule for MaskingRule {
    fn apply(&self, micro: &mut MicroBatch, _shape: &Shape) -> Result<()> {
        self.mask(micro)
    }
}

/// Spans of words until there are enough tokens.
fn spans(words: &[Vec<usize>], wanted: usize, rng: &mut Rng) -> Vec<usize> {
    let mut taken = vec![false; words.len()];
    let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
    // Most attempts succeed while few words are taken.
    for _ in 0..16 * words.len() {
        if chosen.len() >= wanted {
            break;
        }
        let mut length = 1;
        while length < SPAN.1 && rng.unit() >= SPAN.0 {
            length += 1;
        }
        let start = rng.below(words.len() as u64) as usize;
        for at in start..words.len().min(start + length) {
            if !taken[at] && chosen.len() < wanted {
                taken[at] = true;
                let room = wanted - chosen.len();
                chosen.extend(words[at].iter().take(room));
            }
        }
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids 0 to 3 are special; odd ids from 5 on continue a word.
    fn masking(unit: MaskingUnit, share: f64) -> MaskingRule {
        let kinds: Vec<(bool, bool)> = (0..100).map(|id| (id > 3, id > 4 && id % 2 == 1)).collect();
        let ordinary = (4..100).collect();
        MaskingRule { unit, share, seed: 7, mask: 3, first: 1, kinds, ordinary }
    }

    fn micro(number: u64, tokens: usize) -> MicroBatch {
        let body = (0..tokens).map(|at| 4 + (at * 7 % 96) as i32);
        let ids: Vec<i32> = [VIRTUAL.cast_signed()].into_iter().chain(body).chain([2]).collect();
        let docs = std::iter::once(0..ids.len()).collect();
        let (labels, positions) = (vec![IGNORE; ids.len()], (0..ids.len() as i32).collect());
        MicroBatch { ids, labels, positions, docs, number, ..MicroBatch::default() }
    }

    #[test]
    fn eight_of_ten_chosen_tokens_become_the_mask_and_one_another() {
        let (rule, mut counts) = (masking(MaskingUnit::Token, 0.15), [0usize; 3]);
        for number in 0..200 {
            let (before, mut micro) = (micro(number, 100), micro(number, 100));
            rule.mask(&mut micro).unwrap();
            assert_eq!((micro.valid(), micro.ids[0], micro.ids[101]), (15, 1, 2));
            for (at, label) in micro.labels.iter().enumerate() {
                if *label < 0 {
                    assert!(at == 0 || micro.ids[at] == before.ids[at]);
                    continue;
                }
                assert_eq!(*label, before.ids[at]);
                let kind = if micro.ids[at] == 3 { 0 } else { 1 + usize::from(micro.ids[at] == *label) };
                counts[kind] += 1;
            }
        }
        let share = |at: usize| counts[at] as f64 / 3000.0;
        assert!((share(0) - 0.8).abs() < 0.03, "{counts:?}");
        assert!((share(1) - 0.1).abs() < 0.03 && (share(2) - 0.1).abs() < 0.03, "{counts:?}");
    }

    #[test]
    fn the_same_sample_is_masked_alike_and_the_next_pass_differently() {
        let rule = masking(MaskingUnit::Token, 0.15);
        let masked = |number| {
            let mut micro = micro(number, 60);
            rule.mask(&mut micro).unwrap();
            micro
        };
        assert_eq!(masked(5), masked(5));
        assert_ne!(masked(5).labels, masked(6).labels);
    }

    #[test]
    fn words_are_chosen_whole_and_spans_are_long() {
        let rule = masking(MaskingUnit::Word, 0.3);
        let (mut before, mut after) = (micro(1, 80), micro(1, 80));
        before.ids[0] = 1;
        rule.mask(&mut after).unwrap();
        for at in 2..81 {
            if before.ids[at] % 2 == 1 {
                assert_eq!(after.labels[at] >= 0, after.labels[at - 1] >= 0, "{at}");
            }
        }
        let runs = |unit| {
            let mut micro = micro(2, 400);
            masking(unit, 0.15).mask(&mut micro).unwrap();
            assert_eq!(micro.valid(), 60);
            (1..micro.labels.len()).filter(|at| micro.labels[*at] >= 0 && micro.labels[at - 1] < 0).count()
        };
        assert!(runs(MaskingUnit::Span) * 2 < runs(MaskingUnit::Token));
    }

    #[test]
    fn a_text_of_special_tokens_is_refused() {
        let mut micro = micro(4, 0);
        let message = masking(MaskingUnit::Token, 0.15).mask(&mut micro).unwrap_err().to_string();
        assert!(message.contains("objective.mask_share") && message.contains("chose no token"), "{message}");
    }
}
