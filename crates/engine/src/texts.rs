//! Texts to embed or score: their conversion to ids, and a queue of them. As many texts run together as fit into a
//! chunk, from all requests in turn; a text's results do not depend on the others.

use std::collections::VecDeque;

use fathom_base::{Load, Numbers, TextIds, TextPair, VectorSink};
use fathom_model::{Sentence, Task, sigmoid};
use fathom_text::Tokenizer;

use crate::error::Error;

/// Bytes of a text that are read for each token that is used: words of natural text and code are far shorter, and a
/// file of gigabytes is not tokenised for its first lines only.
pub(crate) const BYTES_PER_TOKEN: usize = 32;

/// Settings of a model for reading texts to embed or score, and the meaning of its outputs.
#[derive(Clone, Debug, Default)]
pub struct TextReading {
    /// Pooling of hidden states to a vector, if the folder specifies it.
    pub sentence: Option<Sentence>,
    /// True if texts and pairs are wrapped in the tokenizer's template, as in an encoder's training.
    pub framed: bool,
    /// Meaning of its head's outputs; `None` without a head.
    pub task: Option<Task>,
    /// True if the single score for ranking goes through a sigmoid.
    pub sigmoid: bool,
}

impl TextReading {
    /// The ids of a text or a pair, at most `most` tokens if given.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn ids(
        &self,
        tokenizer: &Tokenizer,
        (first, second): &TextPair,
        asked: Numbers,
        most: Option<usize>,
    ) -> Result<TextIds, Error> {
        let sentence = self.sentence.as_ref().filter(|_| asked == Numbers::Vector);
        if let Some(how) = sentence {
            return framed(tokenizer, &spoken(how, first), second.as_deref(), most);
        }
        if self.framed {
            return framed(tokenizer, first, second.as_deref(), most);
        }
        let mut ids = match asked {
            Numbers::Vector => plain(tokenizer, first)?,
            _ => tokenizer.encode_prompt(first)?,
        };
        if let Some(second) = second {
            ids.extend(tokenizer.encode_prompt(second)?);
        }
        ids.truncate(most.unwrap_or(usize::MAX));
        Ok(ids.into())
    }

    /// Converts a row of logits to the requested numbers.
    pub(crate) fn said(&self, asked: Numbers, mut row: Vec<f32>) -> Vec<f32> {
        match (asked, self.task) {
            (Numbers::Classes, Some(task)) => task.scores(row),
            (Numbers::Relevance, _) => {
                row.truncate(1);
                if self.sigmoid { row.into_iter().map(sigmoid).collect() } else { row }
            }
            _ => row,
        }
    }
}

/// A text as the folder's authors' code preprocesses it.
pub(crate) fn spoken(how: &Sentence, text: &str) -> String {
    let text = format!("{}{text}", how.prompt);
    if how.lower { text.to_lowercase() } else { text }
}

/// The ids of a text or a pair in the tokenizer's template.
pub(crate) fn framed(
    tokenizer: &Tokenizer,
    first: &str,
    second: Option<&str>,
    most: Option<usize>,
) -> Result<TextIds, Error> {
    let (ids, first) = tokenizer.encode_pair(first, second, most)?;
    Ok(TextIds { ids, first })
}

/// The ids of a text in which spellings of special tokens are ordinary text, after a begin-of-text token if the
/// tokenizer adds one.
pub(crate) fn plain(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Error> {
    let mut ids: Vec<u32> = tokenizer.prompt_bos().into_iter().collect();
    ids.extend(tokenizer.encode(text)?);
    if ids.is_empty() {
        ids.extend(tokenizer.bos().or(tokenizer.eos()));
    }
    Ok(ids)
}

/// Computes numbers of texts that run together.
pub(crate) trait Reads {
    /// The numbers of each text, as the model computes them.
    ///
    /// # Errors
    /// Numbers that the model has not, or that are not finite; hidden states without a direction.
    fn numbers(&self, texts: &[TextIds], at: Numbers) -> Result<Vec<Vec<f32>>, Error>;

    /// Number of tokens that run together.
    fn chunk_tokens(&self) -> usize;

    /// The numbers of all texts, chunk by chunk.
    fn all(&self, mut texts: &[TextIds], at: Numbers) -> Result<Vec<Vec<f32>>, Error> {
        let mut rows = Vec::with_capacity(texts.len());
        while let Some(first) = texts.first() {
            let mut tokens = first.ids.len();
            let more = texts[1..].iter().take_while(|text| {
                tokens += text.ids.len();
                tokens <= self.chunk_tokens()
            });
            let (together, left) = texts.split_at(1 + more.count());
            rows.extend(self.numbers(together, at)?);
            texts = left;
        }
        Ok(rows)
    }
}

/// Requests for numbers, in order of arrival.
#[derive(Default)]
pub(crate) struct Texts {
    asked: VecDeque<TextRequest>,
    /// Number of tokens computed since the start.
    pub done_tokens: u64,
}

struct TextRequest {
    id: u64,
    texts: Vec<TextIds>,
    at: Numbers,
    /// Results of the first texts.
    rows: Vec<Vec<f32>>,
    sink: VectorSink,
}

impl Texts {
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Number of open requests, and of their remaining tokens.
    fn open(&self) -> (usize, usize) {
        let left =
            |it: &TextRequest| it.texts[it.rows.len()..].iter().map(|text| text.ids.len()).sum::<usize>();
        (self.asked.len(), self.asked.iter().map(left).sum())
    }

    /// Adds this queue to a load.
    pub fn added(&self, load: Load) -> Load {
        let (requests, tokens) = self.open();
        Load {
            running: load.running + requests.min(1),
            waiting: load.waiting + requests.saturating_sub(1),
            waiting_tokens: load.waiting_tokens + tokens,
            prompt_tokens: load.prompt_tokens + self.done_tokens,
            ..load
        }
    }

    pub fn push(&mut self, id: u64, texts: Vec<TextIds>, at: Numbers, sink: VectorSink) {
        self.asked.push_back(TextRequest { id, texts, at, rows: Vec::new(), sink });
    }

    /// Removes a request.
    pub fn cancel(&mut self, id: u64) {
        self.asked.retain(|asking| asking.id != id);
    }

    /// Fails all requests.
    pub fn refuse(&mut self, why: impl Fn() -> Error) {
        for asking in self.asked.drain(..) {
            (asking.sink)(Err(why().into()));
        }
    }

    /// Computes a chunk: texts of all requests of the same kind as the first, in turn. Returns its number of tokens.
    pub fn step(&mut self, of: &dyn Reads) -> usize {
        let Some(at) = self.asked.front().map(|first| first.at) else { return 0 };
        let taken = self.chosen(at, of.chunk_tokens());
        let chosen: Vec<TextIds> =
            taken.iter().flat_map(|(at, count)| self.asked[*at].next(*count)).collect();
        let tokens = chosen.iter().map(|text| text.ids.len()).sum();
        self.done_tokens += tokens as u64;
        let mut rows = match of.all(&chosen, at) {
            Ok(rows) => rows.into_iter(),
            // If a chunk fails, its requests run separately to find the one at fault.
            Err(error) if taken.len() == 1 => {
                self.fail(taken[0].0, error);
                return tokens;
            }
            Err(_) => {
                for (index, count) in taken.into_iter().rev() {
                    let own: Vec<TextIds> = self.asked[index].next(count).collect();
                    match of.all(&own, at) {
                        Ok(rows) => self.asked[index].rows.extend(rows),
                        Err(error) => self.fail(index, error),
                    }
                }
                self.answer();
                return tokens;
            }
        };
        taken.into_iter().for_each(|(at, count)| self.asked[at].rows.extend(rows.by_ref().take(count)));
        self.answer();
        tokens
    }

    /// The number of texts that a chunk takes from each request: at least one in all.
    fn chosen(&self, at: Numbers, chunk_tokens: usize) -> Vec<(usize, usize)> {
        let mut taken = vec![0; self.asked.len()];
        let (mut tokens, mut more) = (0, true);
        while more {
            more = false;
            for (taken, asking) in taken.iter_mut().zip(&self.asked) {
                let next = asking.texts.get(asking.rows.len() + *taken).filter(|_| asking.at == at);
                let Some(next) = next else { continue };
                if tokens > 0 && tokens + next.ids.len() > chunk_tokens {
                    continue;
                }
                (tokens, more) = (tokens + next.ids.len(), true);
                *taken += 1;
            }
        }
        taken.into_iter().enumerate().filter(|(_, count)| *count > 0).collect()
    }

    fn fail(&mut self, at: usize, error: Error) {
        if let Some(asking) = self.asked.remove(at) {
            (asking.sink)(Err(error.into()));
        }
    }

    /// Sends the complete results.
    fn answer(&mut self) {
        let mut at = 0;
        while let Some(asking) = self.asked.get(at) {
            if asking.rows.len() < asking.texts.len() {
                at += 1;
            } else if let Some(asking) = self.asked.remove(at) {
                (asking.sink)(Ok(asking.rows));
            }
        }
    }
}

impl TextRequest {
    fn next(&self, count: usize) -> impl Iterator<Item = TextIds> + '_ {
        self.texts[self.rows.len()..][..count].iter().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Returns each text's first id, fails on 13, and records the chunks.
    #[derive(Default)]
    struct First(RefCell<Vec<Vec<u32>>>);

    impl Reads for First {
        fn numbers(&self, texts: &[TextIds], _: Numbers) -> Result<Vec<Vec<f32>>, Error> {
            let first: Vec<u32> = texts.iter().map(|text| text.ids[0]).collect();
            self.0.borrow_mut().push(first.clone());
            if first.contains(&13) {
                return Err(Error::Empty);
            }
            Ok(first.iter().map(|id| vec![*id as f32]).collect())
        }

        fn chunk_tokens(&self) -> usize {
            10
        }
    }

    fn ask(
        texts: &mut Texts,
        id: u64,
        asked: &[(u32, usize)],
    ) -> Receiver<fathom_base::Result<Vec<Vec<f32>>>> {
        let (send, receive) = channel();
        let of = asked.iter().map(|(id, tokens)| vec![*id; *tokens].into()).collect();
        texts.push(id, of, Numbers::Vector, Box::new(move |rows| _ = send.send(rows)));
        receive
    }

    #[test]
    fn requests_take_turns_in_chunks_and_fail_alone() {
        let (mut texts, model) = (Texts::default(), First::default());
        let long = ask(&mut texts, 1, &[(1, 4), (2, 4), (3, 4), (4, 30)]);
        let short = ask(&mut texts, 2, &[(5, 2)]);
        let gone = ask(&mut texts, 3, &[(6, 4)]);
        texts.cancel(3);
        assert!(gone.recv().is_err());
        assert_eq!(texts.step(&model), 10);
        assert_eq!(short.try_recv().unwrap().unwrap(), [[5.0]]);
        let wrong = ask(&mut texts, 4, &[(13, 1)]);
        let load = texts.added(Load::default());
        assert_eq!((load.running, load.waiting, load.waiting_tokens, load.prompt_tokens), (1, 1, 35, 10));
        // The request at fault fails, and not its neighbour.
        texts.step(&model);
        assert!(wrong.try_recv().unwrap().is_err());
        // A text longer than a chunk runs alone.
        assert_eq!(texts.step(&model), 30);
        assert_eq!(long.try_recv().unwrap().unwrap(), [[1.0], [2.0], [3.0], [4.0]]);
        assert!(texts.is_empty());
        assert_eq!(*model.0.borrow(), [vec![1, 2, 5], vec![3, 13], vec![13], vec![3], vec![4]]);
    }
}
