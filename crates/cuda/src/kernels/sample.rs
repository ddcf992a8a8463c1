//! Random numbers and the choice of tokens.

use fathom_tensor::{DType, Tensor};

use super::launch::{Args, Launch, Sheet};
use super::table::sample as entries;

/// `out [r, c]` = a number in [0, 1) of (seed, first + r cols + c), by SplitMix64's finaliser.
#[track_caller]
pub fn random_uniform(out: &Tensor, seed: u64, first: u64) -> Launch {
    let sheet = Sheet::new(out.rows(), out.cols());
    let args = Args::new().out(out).long(sheet.rows).long(sheet.cols).sheet(sheet);
    Launch::new(entries::random_uniform, sheet.blocks(), args.bits(seed).bits(first))
}

/// `ids` i32 [1, rows]: the column of the largest of each row, the first of equals.
#[track_caller]
pub fn argmax(logits: &Tensor, ids: &Tensor) -> Launch {
    let [rows, vocab] = logits.shape();
    assert!(ids.len() == rows && vocab > 0, "argmax: {logits:?} to {ids:?}");
    let args = Args::new().mat(logits).plain_out(ids, DType::I32).long(vocab);
    Launch::new(entries::argmax, rows, args)
}

/// `ids` i32 [1, rows]: a token for each row, as the engine's sampler chooses. `settings` are four doubles (temperature, top_p,
/// min_p, none) in 8 elements of f32 storage; `counters` i64 [2, rows]: seeds, and how many numbers were drawn before.
#[track_caller]
pub fn draw(logits: &Tensor, ids: &Tensor, settings: &Tensor, top_k: usize, counters: &Tensor) -> Launch {
    let [rows, vocab] = logits.shape();
    let fits = ids.len() == rows && vocab > 0 && settings.bytes() >= 32 && counters.shape() == [2, rows];
    assert!(fits, "draw: {logits:?} to {ids:?}, settings {settings:?}, counters {counters:?}");
    let args = Args::new().mat(logits).plain_out(ids, DType::I32).long(vocab).plain(settings, DType::F32);
    let args = args.int(top_k).plain(counters, DType::I64).plain(&counters.view_rows(1..2), DType::I64);
    Launch::new(entries::draw, rows, args)
}
