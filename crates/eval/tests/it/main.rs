//! Measurements of models for which the correct figures are known.

#![allow(clippy::unwrap_used)]

mod bits;
mod context;
mod needle;
mod position;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fathom_base::clock::Clock;
use fathom_base::{Result, Score};
use fathom_text::Tokenizer;

/// A model whose loss per token is given by `loss` of (the tokens before it, the token).
struct Rule<F: FnMut(&[u32], u32) -> f64> {
    loss: F,
    max_tokens: usize,
}

impl<F: FnMut(&[u32], u32) -> f64> Score for Rule<F> {
    fn losses(&mut self, ids: &[u32]) -> Result<Vec<f64>> {
        assert!(ids.len() <= self.max_tokens, "{} tokens", ids.len());
        Ok((1..ids.len()).map(|i| (self.loss)(&ids[..i], ids[i])).collect())
    }

    fn max_tokens(&self) -> usize {
        self.max_tokens
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
