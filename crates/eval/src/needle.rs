//! Finding a planted fact by length and depth: "needle in a haystack", with the prompts of [`fathom_text::recall`].
//!
//! The keys belong to the test split, so no key was seen in training. A prompt is a function of (seed, length, depth,
//! trial): before and after a change of the model the same questions are asked, and further lengths change none of
//! them. An answer is right if the greedy continuation, without leading space, begins with the planted value.

use std::time::{Duration, Instant};

use fathom_base::metrics::events;
use fathom_base::{Flow, Generate, GenerateRequest};
use fathom_text::recall::{self, RecallGenerator};
use fathom_text::{Rng, Tokenizer};

use crate::Moment;
use crate::error::{Error, Result};

/// Which prompts to ask.
#[derive(Clone, Debug)]
pub struct NeedleSpec {
    /// Lengths of the whole prompt in tokens; asked in ascending order.
    pub lengths_tokens: Vec<usize>,
    /// Depths of the fact: 0 is the beginning, 1 the end.
    pub depths: Vec<f64>,
    /// Trials per length and depth.
    pub trials: usize,
    /// Decides keys, values and filler.
    pub seed: u64,
    /// Lines of real text between; made-up sentences when empty.
    pub filler: Vec<String>,
    /// No prompt is started that would, judged by those before it, end after this time.
    pub budget: Option<Duration>,
}

/// The outcome of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Length {
    /// Length of the whole prompt in tokens.
    pub tokens: usize,
    /// Right answers per depth, in the order of [`Needles::depths`].
    pub right: Vec<usize>,
    /// Trials per depth; fewer than asked for where the budget ended.
    pub trials: usize,
}

impl Length {
    /// Share of right answers over all depths.
    pub fn accuracy(&self) -> f64 {
        self.right.iter().sum::<usize>() as f64 / (self.trials * self.right.len()) as f64
    }
}

/// The outcome: only lengths of which every depth was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Needles {
    /// Depths, ascending.
    pub depths: Vec<f64>,
    /// Ascending.
    pub lengths: Vec<Length>,
    /// Lengths that the budget left no time for.
    pub untried_tokens: Vec<usize>,
}

impl Needles {
    /// Share of right answers over all lengths up to `max_tokens` and all depths; `None` when none was tried.
    pub fn accuracy(&self, max_tokens: usize) -> Option<f64> {
        let tried = self.lengths.iter().filter(|length| length.tokens <= max_tokens);
        let (right, asked) = tried.fold((0, 0), |(right, asked), length| {
            (right + length.right.iter().sum::<usize>(), asked + length.trials * length.right.len())
        });
        (asked > 0).then(|| right as f64 / asked as f64)
    }

    /// The event of the metrics log. Its number of trials is the least of all lengths.
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

/// Asks all prompts of `spec`, shorter lengths first. Within a length, one trial of every depth comes before the
/// second trial of any, and a trial that the budget cut short does not count.
///
/// # Errors
/// `spec` names no length, depth or trial, a length cannot hold a question, or model or tokenizer fail.
pub fn find_needles(model: &mut dyn Generate, tokenizer: &Tokenizer, spec: &NeedleSpec) -> Result<Needles> {
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
    let mut clock = Clock { since: Instant::now(), budget: spec.budget, seconds_per_token: 0.0 };
    let (mut lengths, mut untried_tokens) = (Vec::new(), Vec::new());
    for tokens in tokens {
        let mut length = Length { tokens, right: vec![0; depths.len()], trials: 0 };
        for trial in 0..spec.trials {
            let mut right = vec![0; depths.len()];
            let mut complete = true;
            for (depth, right) in depths.iter().zip(&mut right) {
                complete = clock.allows(tokens);
                if !complete {
                    break;
                }
                let index = Rng::keyed(&[tokens as u64, depth.to_bits(), trial as u64]).next_u64();
                let began = Instant::now();
                let needle = generator.needle_prompt(index, tokens, *depth, tokenizer, &spec.filler)?;
                *right = usize::from(answers(model, tokenizer, &needle)?);
                clock.took(tokens, began.elapsed());
            }
            if !complete {
                break;
            }
            length.right.iter_mut().zip(right).for_each(|(sum, right)| *sum += right);
            length.trials += 1;
        }
        if length.trials > 0 { lengths.push(length) } else { untried_tokens.push(tokens) }
    }
    Ok(Needles { depths, lengths, untried_tokens })
}

/// Judges by the last prompt whether the next one ends in time.
struct Clock {
    since: Instant,
    budget: Option<Duration>,
    seconds_per_token: f64,
}

impl Clock {
    fn allows(&self, tokens: usize) -> bool {
        let ends = self.since.elapsed().as_secs_f64() + self.seconds_per_token * tokens as f64;
        self.budget.is_none_or(|budget| ends <= budget.as_secs_f64())
    }

    fn took(&mut self, tokens: usize, time: Duration) {
        self.seconds_per_token = time.as_secs_f64() / tokens.max(1) as f64;
    }
}

/// Whether the model's greedy continuation begins with the value.
fn answers(model: &mut dyn Generate, tokenizer: &Tokenizer, needle: &recall::Needle) -> Result<bool> {
    // The value in the model's own way of cutting is no shorter than ours by more than a token or two.
    let most = tokenizer.encode(&format!(" {}", needle.answer))?.len() + 2;
    let mut said = String::new();
    let request = GenerateRequest::greedy(needle.prompt.as_str(), most);
    model.generate(&request, &mut |piece| {
        said.push_str(piece);
        if said.trim_start().len() >= needle.answer.len() { Flow::Stop } else { Flow::Continue }
    })?;
    Ok(said.trim_start().starts_with(&needle.answer))
}
