//! Measurements of models for which the correct figures are known.

#![allow(clippy::unwrap_used)]

mod answers;
mod bits;
mod context;
mod judged;
mod languages;
mod long;
mod metrics;
mod needle;
mod position;
mod requests;
mod ruler;
mod tasks;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fathom_base::clock::Clock;
use fathom_base::{GenerateRequest, Generation, LanguageModel, Numbers, Result};
use fathom_text::Tokenizer;

/// A model whose loss per token is given by a function of (the tokens before it, the token).
struct Rule<F: FnMut(&[u32], u32) -> f64> {
    loss: RefCell<F>,
    max_tokens: usize,
}

impl<F: FnMut(&[u32], u32) -> f64> Rule<F> {
    fn new(loss: F, max_tokens: usize) -> Rule<F> {
        Rule { loss: RefCell::new(loss), max_tokens }
    }
}

impl<F: FnMut(&[u32], u32) -> f64> LanguageModel for Rule<F> {
    fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Answers have no tokens.
    fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>> {
        Ok(vec![Vec::new(); requests.len()])
    }

    fn look(&self, texts: &[Vec<u32>], _: Numbers) -> Result<Vec<Vec<f32>>> {
        let text = |ids: &Vec<u32>| {
            assert!(ids.len() <= self.max_tokens, "{} tokens", ids.len());
            let loss = &mut *self.loss.borrow_mut();
            (1..ids.len()).flat_map(|at| [-loss(&ids[..at], ids[at]) as f32, 0.0]).collect()
        };
        Ok(texts.iter().map(text).collect())
    }
}

fn tokenizer() -> Tokenizer {
    let text = "The value of key amber falcon is river. What is the value of the key? Over the hills and far away.\n";
    Tokenizer::train_bpe(std::iter::repeat_n(text.to_owned(), 4), 320, &["<|endoftext|>"]).unwrap()
}

/// A clock, and a function that advances it by seconds.
fn manual_clock() -> (Clock, impl Fn(f64)) {
    let us = Arc::new(AtomicU64::new(0));
    let shown = us.clone();
    let clock = Clock::of(move || shown.load(Ordering::Relaxed) as f64 / 1e6);
    let spend = move |seconds: f64| _ = us.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
    (clock, spend)
}
