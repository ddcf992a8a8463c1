//! Needle in a haystack: retrieving an inserted fact, by prompt length and depth, with the prompts of
//! [`fathom_text::recall`].
//!
//! The keys belong to the test split, so the model never saw them in training. A prompt is a function of (seed, length,
//! depth, trial): the same questions are used before and after a change of the model, and adding lengths does not
//! change the others. An answer is correct if the greedy continuation, without its leading space, begins with the
//! inserted value.

use fathom_base::clock::Deadline;
use fathom_base::metrics::events;
use fathom_base::{GenerateRequest, LanguageModel};
use fathom_text::recall::{self, RecallGenerator};
use fathom_text::{Rng, Tokenizer};
use serde::Serialize;

use crate::Moment;
use crate::error::{Error, Result};
use crate::limits::Pace;

/// Which prompts to use.
#[derive(Clone, Debug)]
pub struct NeedleSpec {
    /// Lengths of the whole prompt in tokens.
    pub lengths_tokens: Vec<usize>,
    /// Depths of the fact: 0 is the beginning of the prompt, 1 the end.
    pub depths: Vec<f64>,
    /// Trials per length and depth.
    pub trials: usize,
    /// Seed for the keys, values and filler.
    pub seed: u64,
    /// Lines of real text to use as filler; generated sentences if empty.
    pub filler: Vec<String>,
    /// No prompt is started if, judging by the previous ones, it would end after the deadline.
    pub deadline: Option<Deadline>,
}

/// The result for one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Length {
    /// Length of the whole prompt in tokens.
    pub tokens: usize,
    /// Number of correct answers per depth, in the order of [`Needles::depths`].
    pub right: Vec<usize>,
    /// Trials per depth; fewer than requested if the deadline passed.
    pub trials: usize,
}

impl Length {
    /// Share of correct answers over all depths.
    pub fn accuracy(&self) -> f64 {
        self.right.iter().sum::<usize>() as f64 / (self.trials * self.right.len()) as f64
    }
}

/// The results; includes only lengths for which every depth was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Needles {
    /// Depths, ascending.
    pub depths: Vec<f64>,
    /// Results by length, ascending.
    pub lengths: Vec<Length>,
    /// Lengths skipped for lack of time.
    pub untried_tokens: Vec<usize>,
}

impl Needles {
    /// Share of correct answers over all depths and all lengths up to `max_tokens`; `None` if none was tried.
    pub fn accuracy(&self, max_tokens: usize) -> Option<f64> {
        let tried = self.lengths.iter().filter(|length| length.tokens <= max_tokens);
        let (right, asked) = tried.fold((0, 0), |(right, asked), length| {
            (right + length.right.iter().sum::<usize>(), asked + length.trials * length.right.len())
        });
        (asked > 0).then(|| right as f64 / asked as f64)
    }

    /// The event for the metrics log. Its number of trials is the minimum over all lengths.
    pub fn to_event(&self, moment: &Moment) -> events::Needle {
        let share = |depth: usize, length: &Length| length.right[depth] as f64 / length.trials as f64;
        let row = |depth| self.lengths.iter().map(|length| share(depth, length)).collect();
        events::Needle {
            when: moment.when.clone(),
            step: moment.step,
            task: "passkey".to_owned(),
            lengths_tokens: self.lengths.iter().map(|length| length.tokens as u64).collect(),
            depths: self.depths.clone(),
            accuracy: (0..self.depths.len()).map(row).collect(),
            trials: self.lengths.iter().map(|length| length.trials as u64).min().unwrap_or(0),
            trained_tokens: moment.trained_tokens,
        }
    }
}

/// Runs all prompts of `spec`, shorter lengths first. Within a length, every depth gets one trial before any gets a
/// second, and a trial interrupted by the deadline does not count. With a deadline, the longest length that can finish
/// in time runs as soon as shorter ones have shown which one that is; then each other length gets one trial, and second
/// trials follow.
///
/// # Errors
/// `spec` names no length, depth or trial, a length is too short for a question, or the model or tokenizer fails.
pub fn find_needles(model: &dyn LanguageModel, tokenizer: &Tokenizer, spec: &NeedleSpec) -> Result<Needles> {
    if spec.lengths_tokens.is_empty() || spec.depths.is_empty() || spec.trials == 0 {
        let found = format!("{:?}, {:?}, {}", spec.lengths_tokens, spec.depths, spec.trials);
        return Err(Error::Impossible(format!("needles need lengths, depths and trials; given are {found}")));
    }
    let (mut tokens, mut depths) = (spec.lengths_tokens.clone(), spec.depths.clone());
    tokens.sort_unstable();
    tokens.dedup();
    depths.sort_by(f64::total_cmp);
    depths.dedup();
    let generator = RecallGenerator::new(spec.seed, recall::Split::Test);
    let of = |tokens: &usize| Length { tokens: *tokens, right: vec![0; depths.len()], trials: 0 };
    let mut lengths: Vec<Length> = tokens.iter().map(of).collect();
    let pace = Pace::new(spec.deadline.as_ref());
    let mut asking = Questions { model, tokenizer, spec, generator, depths: &depths, pace };
    if asking.pace.is_timed() {
        let probes = PROBES.map(|below| (lengths.len() - 1).saturating_sub(below));
        for length in probes {
            asking.trial(&mut lengths[length], 1)?;
        }
        let fits = |length: &&mut Length| asking.pace.allows(&[(depths.len(), length.tokens)], LONGEST_SHARE);
        if let Some(longest) = lengths.iter_mut().rev().find(fits) {
            asking.trial(longest, 1)?;
        }
        lengths.iter_mut().try_for_each(|length| asking.trial(length, 1).map(drop))?;
    }
    for length in &mut lengths {
        while length.trials < spec.trials && asking.trial(length, spec.trials)? {}
    }
    let (lengths, untried): (Vec<Length>, Vec<Length>) =
        lengths.into_iter().partition(|length| length.trials > 0);
    Ok(Needles { depths, lengths, untried_tokens: untried.iter().map(|length| length.tokens).collect() })
}

/// The lengths tried first are this many doublings below the longest, starting with the shortest: they cost a fiftieth
/// as much and show the cost of attention.
const PROBES: [usize; 3] = [usize::MAX, 5, 3];
/// Maximum share of the remaining time for the longest length.
const LONGEST_SHARE: f64 = 0.9;

/// State of a run over the prompts.
struct Questions<'a> {
    model: &'a dyn LanguageModel,
    tokenizer: &'a Tokenizer,
    spec: &'a NeedleSpec,
    generator: RecallGenerator,
    depths: &'a [f64],
    pace: Pace<'a>,
}

impl Questions<'_> {
    /// Runs one more trial of every depth at a length with fewer than `most` trials; returns false if there was no time
    /// for it.
    fn trial(&mut self, length: &mut Length, most: usize) -> Result<bool> {
        let tokens = length.tokens;
        if length.trials >= most || !self.pace.allows(&[(self.depths.len(), tokens)], 1.0) {
            return Ok(false);
        }
        let mut right = vec![0; self.depths.len()];
        for (depth, right) in self.depths.iter().zip(&mut right) {
            if !self.pace.allows(&[(1, tokens)], 1.0) {
                return Ok(false);
            }
            let index = Rng::keyed(&[tokens as u64, depth.to_bits(), length.trials as u64]).next_u64();
            let Questions { model, tokenizer, spec, generator, .. } = self;
            let needle = generator.needle_prompt(index, tokens, *depth, tokenizer, &spec.filler)?;
            let tokens = tokenizer.encode(&needle.prompt)?.len();
            *right = self.pace.time(tokens, || Ok(usize::from(answers(*model, tokenizer, &needle)?)))?;
        }
        length.right.iter_mut().zip(right).for_each(|(sum, right)| *sum += right);
        length.trials += 1;
        Ok(true)
    }
}

/// True if the model's greedy continuation begins with the value.
fn answers(model: &dyn LanguageModel, tokenizer: &Tokenizer, needle: &recall::Needle) -> Result<bool> {
    // The model may tokenize the value differently, but not into more than one or two extra tokens.
    let most = tokenizer.encode(&format!(" {}", needle.answer))?.len() + 2;
    let request = GenerateRequest::greedy(needle.prompt.as_str(), most);
    let said: String = model.generate_all(vec![request])?.into_iter().flatten().map(|it| it.text).collect();
    Ok(said.trim_start().starts_with(&needle.answer))
}
