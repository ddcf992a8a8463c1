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
pub struct PairingRule {
    objective: Seq2seq,
    seed: u64,
    /// Ids of `<extra_id_0>` and those that follow.
    sentinels: Vec<i32>,
    /// The token that ends each text.
    end: i32,
}

impl PairingRule {
    /// The rule of a recipe whose objective is this one.
    ///
    /// # Errors
    /// A tokenizer without an end of texts, or with fewer sentinels than a text has spans.
    pub fn new(recipe: &Recipe, objective: Seq2seq, tokenizer: &Tokenizer) -> Result<PairingRule> {
        let end = tokenizer.require_eos()?.cast_signed();
        let token = |number: usize| tokenizer.token_id(&format!("<extra_id_{number}>"));
        let sentinels: Vec<i32> = (0..).map_while(token).map(u32::cast_signed).collect();
        if let Some(spans) = objective.spans {
            has_sentinels(recipe, spans, sentinels.len())?;
        }
        Ok(PairingRule { objective, seed: recipe.run.seed, sentinels, end })
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

impl Rule for PairingRule {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        stage: 0,
        samples: 2,
        seq_tokens: 100,
        docs: 9,
        one_length: false,
        alone: true,
        lead: 0,
        fills: true,
    };
    const END: i32 = 1;

    fn rule(spans: Option<SpanSizes>) -> PairingRule {
        let sentinels = (0..20).map(|at| 999 - at).collect();
        PairingRule { objective: Seq2seq { spans }, seed: 7, sentinels, end: END }
    }

    /// Documents of these lengths, each with the end of texts; a row's answer begins at half of it.
    fn micro(number: u64, lengths: &[usize]) -> MicroBatch {
        let mut micro = MicroBatch { number, ..MicroBatch::default() };
        for length in lengths {
            let start = micro.ids.len();
            micro.ids.extend((1..*length).map(|at| 10 + at as i32));
            micro.ids.push(END);
            let label = |at: usize| if at + 1 < *length { micro.ids[start + at + 1] } else { -100 };
            let labels = (0..*length).map(|at| if at < length / 2 { -100 } else { label(at) });
            micro.labels.extend(labels.collect::<Vec<_>>());
            micro.positions.extend(0..*length as i32);
            micro.docs.push(start..start + length);
        }
        micro
    }

    #[test]
    fn both_streams_have_each_document_and_one_that_fills_up() {
        let spans = Some(SpanSizes { share: 0.15, mean: 3.0 });
        let mut made = micro(3, &[60, 20, 2, 1]);
        rule(spans).apply(&mut made, &SHAPE).unwrap();
        let source = made.source.as_ref().unwrap();
        let rooms = Seq2seq { spans }.streams(200, 9).unwrap();
        assert_eq!([source.ids.len(), made.ids.len()], rooms);
        assert_eq!([source.docs.len(), made.docs.len()], [5, 5]);
        assert_eq!((made.docs[4].end, source.docs[4].end), (rooms[1], rooms[0]));
        for (index, doc) in made.docs[..4].iter().enumerate() {
            let (from, labels) = (&source.docs[index], &made.labels[doc.clone()]);
            assert_eq!((made.ids[doc.start], source.ids[from.end - 1]), (TARGET_START, END));
            assert_eq!(made.positions[doc.clone()], (0..doc.len() as i32).collect::<Vec<_>>());
            assert_eq!(made.ids[doc.start + 1..doc.end], labels[..doc.len() - 1]);
            // Texts of one token and of none have nothing to drop.
            assert_eq!(*labels.last().unwrap(), if index < 2 { END } else { -100 });
        }
        assert!(made.labels[made.docs[4].clone()].iter().all(|label| *label < 0));
        let again = |number| {
            let mut made = micro(number, &[60, 20, 2, 1]);
            rule(spans).apply(&mut made, &SHAPE).unwrap();
            made
        };
        assert_eq!(again(3), made);
        assert_ne!(again(4).labels, made.labels);
    }

    #[test]
    fn rows_are_cut_where_learning_begins() {
        let mut made = micro(1, &[8, 6]);
        rule(None).apply(&mut made, &SHAPE).unwrap();
        let source = made.source.unwrap();
        assert_eq!(source.ids[source.docs[0].clone()], [11, 12, 13, 14, 15, END]);
        assert_eq!(made.labels[made.docs[0].clone()], [16, 17, END]);
        assert_eq!(made.ids[made.docs[1].clone()], [TARGET_START, 15]);
    }

    #[test]
    fn texts_without_two_tokens_and_too_many_documents_are_refused() {
        let spans = Some(SpanSizes { share: 0.15, mean: 3.0 });
        let message = rule(spans).apply(&mut micro(4, &[2, 1]), &SHAPE).unwrap_err().to_string();
        assert!(message.contains("objective.mask_share") && message.contains("chose no token"), "{message}");
        let message = rule(spans).apply(&mut micro(4, &[5; 9]), &SHAPE).unwrap_err().to_string();
        assert!(message.contains("stage.0.max_docs") && message.contains("10 documents"), "{message}");
    }
}
