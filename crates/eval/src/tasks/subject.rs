//! The model that is evaluated, asked by texts with the token rules of lm-evaluation-harness's `hf` backend.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use fathom_base::{Continuation, GenerateRequest, LanguageModel, Numbers, Sampling};
use fathom_text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::python::is_space;

/// Tokens that are scored together.
const BATCH_TOKENS: usize = 4096;
/// Answers that are generated together.
const BATCH_ANSWERS: usize = 16;
/// Tokens of an answer, if a task does not say.
const ANSWER_TOKENS: usize = 256;
/// Value of `generation_kwargs.truncation` for which long prompts lose their middle, by LongBench's rule.
const MIDDLE: &str = "middle";
/// Refusal of tasks that ask for the likelihood of whole texts.
pub const NO_ROLLING: &str = "an encoder-decoder gives likelihoods of answers to a source, and none of a whole text (output_type: loglikelihood_rolling)";
/// Seed of sampled answers.
const SEED: u64 = 1234;

/// A model under evaluation.
pub struct Subject<'m> {
    /// The model.
    pub model: &'m dyn LanguageModel,
    /// Its tokenizer.
    pub tokenizer: &'m Tokenizer,
    /// True if it is an encoder-decoder: contexts are its sources, and continuations its answers.
    pub source: bool,
    /// Tokens of its context; of a source and of an answer each.
    pub max_length: usize,
    /// Answers of earlier requests.
    pub cache: Cache,
    /// Number of requests whose context was cut from the left.
    pub cut: usize,
    /// Number of requests.
    pub asked: usize,
}

/// Tokens that an answer may have by a task's `generation_kwargs`.
pub fn answer_tokens(settings: &Map<String, Value>) -> usize {
    let keys = ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"];
    let given = keys.iter().find_map(|key| settings.get(*key).and_then(Value::as_f64));
    given.map_or(ANSWER_TOKENS, |count| count as usize)
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("max_length", &self.max_length).finish_non_exhaustive()
    }
}

/// A sequence to score: its ids, and the number of ids at its end that count.
struct Sequence {
    ids: Vec<u32>,
    counted: usize,
}

impl<'m> Subject<'m> {
    /// A decoder that has answered nothing.
    pub fn new(model: &'m dyn LanguageModel, tokenizer: &'m Tokenizer, max_length: usize) -> Subject<'m> {
        let cache = Cache::default();
        Subject { model, tokenizer, source: false, max_length, cache, cut: 0, asked: 0 }
    }
}

impl Subject<'_> {
    /// Log-likelihood of each continuation after its context, and whether greedy generation would give it.
    ///
    /// # Errors
    /// A continuation that is empty or longer than the context; the model fails.
    pub fn likelihoods(&mut self, pairs: &[(String, String)]) -> Result<Vec<(f64, bool)>> {
        let wanted: Vec<Sequence> = pairs.iter().map(|pair| self.pair(pair)).collect::<Result<_>>()?;
        self.scored(&wanted)
    }

    /// Log-likelihood of each whole text, in windows of the context that share one token.
    ///
    /// # Errors
    /// An encoder-decoder, which has no likelihood of a text alone; the model fails.
    pub fn rolling(&mut self, texts: &[String]) -> Result<Vec<f64>> {
        if self.source {
            return Err(Error::Impossible(NO_ROLLING.into()));
        }
        let (mut windows, mut counts) = (Vec::new(), Vec::new());
        for text in texts {
            let ids = self.encode(text)?;
            let before = windows.len();
            let mut done = 0;
            while done < ids.len() {
                let counted = self.max_length.min(ids.len() - done);
                let end = done + counted;
                // Windows after the first have a whole context, of which only the last tokens count.
                let ids = match end.checked_sub(self.max_length + 1).filter(|_| done > 0) {
                    Some(start) => ids[start..end].to_vec(),
                    None => [&[self.prefix()?], &ids[..end]].concat(),
                };
                windows.push(Sequence { ids, counted });
                done = end;
            }
            counts.push(windows.len() - before);
        }
        let mut found = self.scored(&windows)?.into_iter();
        Ok(counts.into_iter().map(|count| found.by_ref().take(count).map(|(sum, _)| sum).sum()).collect())
    }

    /// The token before every text: the begin-of-text token of the tokenizer, or else its end-of-text token.
    fn prefix(&self) -> Result<u32> {
        let found = self.tokenizer.own_bos().or(self.tokenizer.eos());
        found.ok_or_else(|| {
            Error::Impossible("the tokenizer has neither a begin- nor an end-of-text token".into())
        })
    }

    /// Ids of a text as Transformers makes them, without a second begin-of-text token.
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let prefix = self.tokenizer.decode(&[self.prefix()?]);
        let has_prefix = !prefix.is_empty() && text.starts_with(&prefix);
        let mut ids = if has_prefix {
            self.tokenizer.encode_special(text)?
        } else {
            self.tokenizer.encode_prompt(text)?
        };
        if self.source {
            // T5's tokenizers end each source so.
            ids.extend(self.tokenizer.eos().filter(|end| ids.last() != Some(end)));
        }
        Ok(ids)
    }

    /// Ids of a context and its continuation in one list, and the number of those of the context.
    fn joined(&self, context: &str, continuation: &str) -> Result<(Vec<u32>, usize)> {
        if context.is_empty() {
            let (prefix, ids) = (self.prefix()?, self.tokenizer.encode_special(continuation)?);
            return Ok(if ids.first() == Some(&prefix) {
                (ids, 1)
            } else {
                ([vec![prefix], ids].concat(), 1)
            });
        }
        // White space at the end of the context belongs to the continuation's first word.
        let trimmed = context.trim_end_matches(is_space);
        let before = self.encode(trimmed)?;
        let from = before.len();
        if self.source {
            let answer = format!("{}{continuation}", &context[trimmed.len()..]);
            return Ok(([before, self.tokenizer.encode_special(&answer)?].concat(), from));
        }
        Ok((self.encode(&format!("{context}{continuation}"))?, from))
    }

    fn pair(&mut self, (context, continuation): &(String, String)) -> Result<Sequence> {
        let (mut ids, from) = self.joined(context, continuation)?;
        let counted = ids.len().saturating_sub(from);
        let shown = || -> String { continuation.chars().take(60).collect() };
        if from == 0 {
            return Err(Error::Impossible(format!("the context of `{}` is white space alone", shown())));
        }
        if counted == 0 {
            return Err(Error::Impossible(format!("the continuation `{}` has no token of its own", shown())));
        }
        if counted > self.max_length {
            return Err(Error::Impossible(format!(
                "the continuation `{}` has {counted} tokens, and the model's context {}",
                shown(),
                self.max_length
            )));
        }
        let room = if self.source { self.max_length + counted } else { self.max_length + 1 };
        if ids.len() > room {
            self.cut += 1;
            ids.drain(..ids.len() - room);
        }
        Ok(Sequence { ids, counted })
    }

    fn scored(&mut self, wanted: &[Sequence]) -> Result<Vec<(f64, bool)>> {
        self.asked += wanted.len();
        let keys: Vec<String> =
            wanted.iter().map(|one| key("score", &json!([one.ids, one.counted]))).collect();
        let mut open: Vec<usize> = Vec::new();
        let mut first: HashMap<&str, usize> = HashMap::new();
        for (at, key) in keys.iter().enumerate() {
            if self.cache.get(key).is_none() && first.insert(key, at).is_none() {
                open.push(at);
            }
        }
        // Equal contexts are neighbours, long ones first.
        let context = |at: &usize| &wanted[*at].ids[..wanted[*at].ids.len() - wanted[*at].counted];
        open.sort_by(|a, b| {
            let (a_ids, b_ids) = (context(a), context(b));
            b_ids.len().cmp(&a_ids.len()).then_with(|| a_ids.cmp(b_ids)).then_with(|| a.cmp(b))
        });
        let mut rest = &open[..];
        while !rest.is_empty() {
            let (mut count, mut tokens) = (0, 0);
            while let Some(next) = rest.get(count) {
                let again = count > 0 && context(next) == context(&rest[count - 1]);
                let own = if again { wanted[*next].counted } else { wanted[*next].ids.len() };
                // A context is not parted from its continuations unless they are very many.
                let most = if again { 4 * BATCH_TOKENS } else { BATCH_TOKENS };
                if count > 0 && tokens + own > most {
                    break;
                }
                (count, tokens) = (count + 1, tokens + own);
            }
            let (batch, after) = rest.split_at(count);
            let batch_of: Vec<&Sequence> = batch.iter().map(|at| &wanted[*at]).collect();
            for (at, (sum, greedy)) in batch.iter().zip(self.score(&batch_of)?) {
                self.cache.put(&keys[*at], json!([sum, greedy]))?;
            }
            self.cache.flush()?;
            rest = after;
        }
        let found = |key: &String| {
            let value = self.cache.get(key).cloned().unwrap_or_default();
            (value[0].as_f64().unwrap_or(f64::NAN), value[1] == true)
        };
        Ok(keys.iter().map(found).collect())
    }

    /// Scores sequences in one pass. One that is a token longer than the model takes is a context whose last token is a
    /// label alone: its probability is read from the logits.
    fn score(&self, batch: &[&Sequence]) -> Result<Vec<(f64, bool)>> {
        let most = if self.source { usize::MAX } else { self.model.max_tokens().min(self.max_length + 1) };
        let texts: Vec<Vec<u32>> =
            batch.iter().map(|one| one.ids[..one.ids.len().min(most)].to_vec()).collect();
        let parted = texts.iter().zip(batch).map(|(text, one)| {
            let context = (one.ids.len() - one.counted).min(text.len() - 1);
            Continuation { context: text[..context].to_vec(), continuation: text[context..].to_vec() }
        });
        let rows = self.model.log_likelihoods(&parted.collect::<Vec<_>>())?;
        let mut found = Vec::with_capacity(batch.len());
        for ((one, text), row) in batch.iter().zip(&texts).zip(rows) {
            let mut tokens: Vec<(f64, bool)> = row.logprobs.into_iter().zip(row.hits).collect();
            if text.len() < one.ids.len() {
                let logits =
                    self.model.look(std::slice::from_ref(text), Numbers::Logits { last: 1 })?.concat();
                tokens.push(of_logits(&logits, one.ids[one.ids.len() - 1]));
            }
            if tokens.len() < one.counted {
                return Err(Error::WrongCount { got: tokens.len(), tokens: one.counted + 1 });
            }
            let own = &tokens[tokens.len() - one.counted..];
            found.push((own.iter().map(|token| token.0).sum(), own.iter().all(|token| token.1)));
        }
        Ok(found)
    }

    /// Answers to prompts, each with its `generation_kwargs`; `repeat` tells apart repeats that are sampled.
    ///
    /// # Errors
    /// Settings that are unknown, or leave no context; the model fails.
    pub fn generate(&mut self, asks: &[(String, Map<String, Value>)], repeat: usize) -> Result<Vec<String>> {
        self.asked += asks.len();
        let mut made: Vec<(String, AnswerRequest)> = Vec::with_capacity(asks.len());
        for (prompt, settings) in asks {
            let mut one = self.generating(prompt, settings)?;
            one.request.sampling.seed = SEED + repeat as u64;
            let repeat = if one.request.sampling.temperature > 0.0 { repeat } else { 0 };
            made.push((key("generate", &json!([one.ids, settings, repeat])), one));
        }
        let mut first: HashMap<&str, usize> = HashMap::new();
        let open: Vec<usize> = (0..made.len())
            .filter(|at| self.cache.get(&made[*at].0).is_none() && first.insert(&made[*at].0, *at).is_none())
            .collect();
        for batch in open.chunks(BATCH_ANSWERS) {
            let requests = batch.iter().map(|at| made[*at].1.request.clone()).collect();
            let answers = self.model.generate_all(requests)?;
            for (at, answer) in batch.iter().zip(answers) {
                let ids = answer.into_iter().next().map(|it| it.ids).unwrap_or_default();
                let mut text = self.tokenizer.decode_text(&ids);
                for stop in made[*at].1.until.iter().filter(|stop| !stop.is_empty()) {
                    text.truncate(text.find(stop.as_str()).unwrap_or(text.len()));
                }
                self.cache.put(&made[*at].0, text.into())?;
            }
            self.cache.flush()?;
        }
        let said = |(key, _): &(String, AnswerRequest)| {
            self.cache.get(key).and_then(Value::as_str).unwrap_or_default().to_string()
        };
        Ok(made.iter().map(said).collect())
    }

    fn generating(&mut self, prompt: &str, settings: &Map<String, Value>) -> Result<AnswerRequest> {
        let number = |key: &str| settings.get(key).and_then(Value::as_f64);
        let most = answer_tokens(settings);
        let room = self.max_length.saturating_sub(if self.source { 0 } else { most });
        if room == 0 {
            return Err(Error::Impossible(format!(
                "answers of {most} tokens (max_gen_toks) leave no room for a prompt in a context of {}",
                self.max_length
            )));
        }
        let mut sampling = Sampling { max_tokens: most, ..Sampling::default() };
        let temperature = number("temperature").unwrap_or(0.0);
        let samples = settings.get("do_sample").and_then(Value::as_bool).unwrap_or(temperature > 0.0);
        sampling.temperature = if samples { if temperature > 0.0 { temperature } else { 1.0 } } else { 0.0 };
        for (name, value) in settings {
            match (name.as_str(), value.as_f64()) {
                ("until" | "do_sample" | "temperature" | "use_cache" | "num_beams", _) => {}
                ("truncation", _) if value == MIDDLE => {}
                (name, _) if name.starts_with("max_") => {}
                ("top_p", Some(p)) if samples => sampling.top_p = p,
                ("top_k", Some(k)) if samples => sampling.top_k = k as usize,
                ("top_p" | "top_k" | "min_p", _) if !samples => {}
                ("repetition_penalty", Some(penalty)) => sampling.repetition_penalty = penalty,
                _ => return Err(Error::Impossible(format!("`generation_kwargs.{name}` is not supported"))),
            }
        }
        if number("num_beams").is_some_and(|beams| beams != 1.0) {
            return Err(Error::Impossible("`generation_kwargs.num_beams` is not supported".into()));
        }
        let until = settings.get("until").cloned().unwrap_or_default();
        let until = until.as_array().cloned().unwrap_or_else(|| vec![until]);
        let mut until: Vec<String> =
            until.iter().filter_map(|stop| stop.as_str().map(str::to_string)).collect();
        if let Some(eos) =
            self.tokenizer.eos().map(|eos| self.tokenizer.decode(&[eos])).filter(|eos| !until.contains(eos))
        {
            until.push(eos);
        }
        sampling.stop = until.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        let mut ids = self.encode(prompt)?;
        if ids.len() > room {
            self.cut += 1;
            if settings.get("truncation").is_some_and(|it| it == MIDDLE) {
                let half = room / 2;
                let [first, last] =
                    [&ids[..half], &ids[ids.len() - half..]].map(|part| self.tokenizer.decode_text(part));
                ids = self.encode(&(first + &last))?;
            }
            ids.drain(..ids.len().saturating_sub(room));
        }
        let request = GenerateRequest::new(ids.clone(), sampling);
        Ok(AnswerRequest { ids, request, until })
    }
}

/// An answer to generate.
struct AnswerRequest {
    ids: Vec<u32>,
    request: GenerateRequest,
    until: Vec<String>,
}

/// Log-probability of a token, and whether none is more likely.
fn of_logits(logits: &[f32], id: u32) -> (f64, bool) {
    let most = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
    let mass = logits.iter().map(|logit| f64::from(logit - most).exp()).sum::<f64>().ln();
    let own = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let first = logits.iter().position(|logit| *logit == most);
    (f64::from(own - most) - mass, first == Some(id as usize))
}

fn key(kind: &str, asked: &Value) -> String {
    blake3::hash(format!("{kind} {asked}").as_bytes()).to_hex()[..32].to_string()
}

/// Answers by the hash of what was asked, kept in a file so that a run that was killed goes on.
#[derive(Debug, Default)]
pub struct Cache {
    answers: HashMap<String, Value>,
    file: Option<File>,
    pending: String,
    /// Answers that the file held.
    pub found: usize,
}

impl Cache {
    /// Opens a file of answers of the model with this fingerprint; answers of other models in it are kept and not used.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(path: &Path, model: &str) -> Result<Cache> {
        let failed =
            |error: std::io::Error| Error::Impossible(format!("cannot use {}: {error}", path.display()));
        let text = match std::fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let mut cache = Cache::default();
        let mut is_own = false;
        // The last line of a run that was killed may be torn.
        for row in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            match (row["model"].as_str(), row[0].as_str()) {
                (Some(other), _) => is_own = other == model,
                (None, Some(key)) if is_own => _ = cache.answers.insert(key.to_string(), row[1].clone()),
                _ => {}
            }
        }
        cache.found = cache.answers.len();
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        cache.pending = format!("\n{}\n", json!({ "model": model }));
        cache.file = Some(file);
        Ok(cache)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.answers.get(key)
    }

    fn put(&mut self, key: &str, value: Value) -> Result<()> {
        if self.file.is_some() {
            self.pending.push_str(&format!("{}\n", json!([key, value])));
        }
        self.answers.insert(key.to_string(), value);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if let Some(file) = &mut self.file {
            let written = file.write_all(self.pending.as_bytes());
            written
                .map_err(|error| Error::Impossible(format!("cannot write the file of answers: {error}")))?;
            self.pending.clear();
        }
        Ok(())
    }
}
