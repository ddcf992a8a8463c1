//! Loops over tiles of tokens. A machine without data runs as many tiles as differ and counts the rest: their charges,
//! FLOPs and seconds equal those of the preceding tile.

use std::ops::Range;

use fathom_tensor::Device;

use crate::counters::Counters;

/// Number of tiles that run before the rest is counted: the second looks like every later one.
const FIRST: usize = 2;

/// Every tile, ascending.
pub(crate) fn all(tokens: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(rows).map(move |start| start..tokens.min(start + rows))
}

/// Runs `work` for each tile of `rows` rows of `tokens`, ascending.
pub(crate) fn each(
    device: &Device,
    counters: &Counters,
    tokens: usize,
    rows: usize,
    mut work: impl FnMut(Range<usize>),
) {
    let tile = |index: usize| index * rows..tokens.min((index + 1) * rows);
    let count = tokens.div_ceil(rows);
    if device.machine.has_data() || device.pool.is_recording() || count <= FIRST + 1 {
        return (0..count).for_each(|index| work(tile(index)));
    }
    (0..FIRST - 1).for_each(|index| work(tile(index)));
    let (worked, more) = (counters.work(), count - FIRST - 1);
    device.count_again(more, || work(tile(FIRST - 1)));
    counters.repeat_since(worked, more as u64);
    work(tile(count - 1));
}
