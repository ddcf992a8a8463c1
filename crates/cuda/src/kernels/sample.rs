//! Random numbers and the choice of tokens.

use fathom_tensor::choice::{Draw, LeaveOut, kept_bytes};
use fathom_tensor::{DType, Dropout, Tensor};

use super::launch::{Args, Launch, Sheet, expect};
use super::table::sample as entries;

/// `out[r, c]` = a number in [0, 1) from (seed, first + r cols + c), by SplitMix64's finaliser.
#[track_caller]
pub fn random_uniform(out: &Tensor, seed: u64, first: u64) -> Launch {
    let sheet = Sheet::new(out.rows(), out.cols());
    let args = Args::new().out(out).long(sheet.rows).long(sheet.cols).sheet(sheet);
    Launch::new(entries::random_uniform, sheet.blocks(), args.bits(seed).bits(first))
}

/// Adds noise to rows.
#[track_caller]
pub fn jitter(x: &Tensor, keys: &Tensor, scales: &Tensor) -> Launch {
    expect("jitter", "keys", keys, [1, x.rows()]);
    expect("jitter", "scales", scales, [1, x.rows()]);
    let sheet = Sheet::new(x.rows(), x.cols());
    let args = Args::new().out(x).plain(keys, DType::I32).plain(scales, DType::F32);
    Launch::new(entries::jitter, sheet.blocks(), args.long(sheet.rows).long(sheet.cols).sheet(sheet))
}

/// Counter-based dropout.
#[track_caller]
pub fn dropout(x: &Tensor, keys: &Tensor, how: Dropout) -> Launch {
    expect("dropout", "keys", keys, [1, x.rows()]);
    let sheet = Sheet::new(x.rows(), x.cols());
    let args = Args::new().out(x).plain(keys, DType::I32).long(sheet.rows).long(sheet.cols).sheet(sheet);
    let args = args.int_bits(how.salt.cast_signed()).int_bits(how.threshold.cast_signed());
    Launch::new(entries::dropout, sheet.blocks(), args.long(how.first).float(how.factor))
}

/// Chooses a column of each row of logits, where row i uses the draw's counter plus i, and writes the columns that its
/// draw keeps.
#[track_caller]
pub fn choose(logits: &Tensor, ids: &Tensor, draw: Option<Draw>, kept: Option<&Tensor>) -> Launch {
    let [rows, vocab] = logits.shape();
    assert!(ids.len() == rows && vocab > 0, "choose: {logits:?} to {ids:?}");
    let width = kept_bytes(vocab);
    kept.iter().for_each(|kept| expect("choose", "kept", kept, [rows, width]));
    let args = Args::new().mat(logits).plain_out(ids, DType::I32).long(vocab);
    let with_kept = |args: Args| match kept {
        Some(kept) => args.plain_out(kept, DType::U8).long(width),
        None => args.address(0).long(width),
    };
    let Some(Draw { temperature, top_k, top_p, min_p, seed, drawn }) = draw else {
        return Launch::new(entries::argmax, rows, with_kept(args));
    };
    let args = [temperature, top_p, min_p].iter().fold(args, |args, x| args.bits(x.to_bits()));
    let args = with_kept(args.int(top_k.min(vocab)).bits(seed).bits(drawn));
    Launch::new(entries::draw, rows, args)
}

/// Masks logits.
#[track_caller]
pub fn leave_out(op: &LeaveOut<'_>) -> Launch {
    let [rows, cols] = op.logits.shape();
    let width = op.kept.cols();
    assert!(
        op.kept.rows() == rows && op.first + cols <= 8 * width,
        "leave out: {:?} of {:?}",
        op.kept,
        op.logits
    );
    assert_eq!(op.logits.dtype(), DType::F32, "leave out: logits are f32");
    let sheet = Sheet::new(rows, cols);
    let args = Args::new().out(op.logits).plain(op.kept, DType::U8).long(width).long(op.first);
    Launch::new(entries::leave_out, sheet.blocks(), args.long(rows).long(cols).sheet(sheet))
}
