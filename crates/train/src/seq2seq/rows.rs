//! The rule that makes two streams of packed texts: spans that a target restores, chosen by the seed, the sample's number and the
//! document's place in it, or prompts with their answers.

use fathom_model::TARGET_START;
use fathom_text::{Rng, Tokenizer};

use super::Seq2seq;
use super::spans::SpanSizes;
use super::streams::TwoStreams;
use crate::error::{Error, Result};
use crate::micro_batch::MicroBatch;
use crate::objective::Objective;
use crate::recipe::Recipe;
use crate::source::{Rule, Shape};

/// The rule.
#[derive(Clone, Debug)]
pub struct Streams {
    objective: Seq2seq,
    seed: u64,
    /// Ids of `<extra_id_0>` and those that follow.
    sentinels: Vec<i32>,
    /// The token that ends each text.
    end: i32,
}

impl Streams {
    /// The rule of a recipe whose objective is this one.
    ///
    /// # Errors
    /// A tokenizer without an end of texts, or with fewer sentinels than a text has spans.
    pub fn new(recipe: &Recipe, objective: Seq2seq, tokenizer: &Tokenizer) -> Result<Streams> {
        let end = tokenizer.require_eos()?.cast_signed();
        let token = |number: usize| tokenizer.token_id(&format!("<extra_id_{number}>"));
        let sentinels: Vec<i32> = (0..).map_while(token).map(u32::cast_signed).collect();
        if let Some(spans) = objective.spans {
            has_sentinels(recipe, spans, sentinels.len())?;
        }
        Ok(Streams { objective, seed: recipe.run.seed, sentinels, end })
    }
}

/// Refuses a stage whose longest text has more spans than there are sentinels.
fn has_sentinels(recipe: &Recipe, sizes: SpanSizes, sentinels: usize) -> Result<()> {
    if sentinels == 0 {
        let message = "is `span_corruption`, and the tokenizer has no sentinels (<extra_id_0>, <extra_id_1>, ..), which stand for \
                       dropped spans; take T5's, or one that the run trains (no data.tokenizer and no model.from)";
        return Err(Error::Recipe { key: "objective.method".into(), message: message.into() });
    }
    for (index, stage) in recipe.stage.iter().enumerate() {
        let spans = sizes.spans(stage.seq_tokens);
        if spans > sentinels {
            let message = format!(
                "is {}: such a text has {spans} dropped spans, and the tokenizer {sentinels} sentinels; give a shorter one, or \
                 longer spans (objective.span_tokens)",
                stage.seq_tokens
            );
            return Err(Error::Recipe { key: format!("stage.{index}.seq_tokens"), message });
        }
    }
    Ok(())
}

impl Rule for Streams {
    fn apply(&self, micro: &mut MicroBatch, shape: &Shape) -> Result<()> {
        shape.check_docs(micro.docs.len() + 1)?;
        let (mut streams, any) = (TwoStreams::default(), !micro.ids.is_empty());
        for doc in &micro.docs {
            let ids = &micro.ids[doc.clone()];
            let text = ids.strip_suffix(&[self.end]).unwrap_or(ids);
            let [mut source, mut target] = match self.objective.spans {
                Some(spans) => {
                    let mut rng = Rng::keyed(&[self.seed, micro.number, doc.start as u64]);
                    spans.corrupt(text, &self.sentinels, &mut rng)
                }
                None => answered(text, &micro.labels[doc.clone()]),
            };
            source.push(self.end);
            if !target.is_empty() {
                target.push(self.end);
            }
            streams.push(&source, &target, TARGET_START);
        }
        let tokens = shape.samples * shape.seq_tokens;
        let Some(rooms) = self.objective.streams(tokens, shape.docs) else { return Ok(()) };
        streams.fill(micro, rooms, shape.seq_tokens);
        micro.weights.clear();
        if any && micro.valid() == 0 {
            let message = format!(
                "chose no token of sample {}: its documents have fewer than two tokens; give other text",
                micro.number
            );
            return Err(Error::Recipe { key: "objective.mask_share".into(), message });
        }
        Ok(())
    }
}

/// A prompt and its answer, which begins with the first token that is learned.
fn answered(text: &[i32], labels: &[i32]) -> [Vec<i32>; 2] {
    let learned = labels.iter().position(|label| *label >= 0).map_or(text.len(), |at| at + 1);
    let (prompt, answer) = text.split_at(learned.min(text.len()));
    [prompt.to_vec(), answer.to_vec()]
}
