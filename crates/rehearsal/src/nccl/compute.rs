//! Copies and sums.

use std::collections::BTreeMap;

use half::{bf16, f16};

use super::call::GroupedCall;
use super::types::Kind;

/// Copies bytes from memory.
///
/// # Safety
/// They are readable.
pub unsafe fn copy(at: u64, bytes: u64) -> Vec<u8> {
    if bytes == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at as usize), bytes as usize) }
        .to_vec()
}

/// Copies bytes into memory.
///
/// # Safety
/// They are writable.
unsafe fn put(at: u64, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Combines the peers' data, by rank, and writes the result of the operation.
///
/// # Safety
/// The operation's memory is readable and writable.
///
/// # Errors
/// If the operation is not supported.
pub unsafe fn reduce(
    part: &GroupedCall,
    own: usize,
    ranks: usize,
    pieces: &BTreeMap<usize, &[u8]>,
) -> Result<(), String> {
    let bytes = part.bytes();
    // SAFETY: the caller's promise, here and below.
    let mine = |at: u64| unsafe { copy(at, bytes) };
    match part.kind {
        Kind::Point => {
            if let Some(bytes) = pieces.get(&part.peer) {
                // SAFETY: as above; both ends have the same count.
                unsafe { put(part.receive, bytes) };
            }
        }
        Kind::Broadcast => {
            let whole = if own == part.peer { mine(part.send) } else { pieces[&part.peer].to_vec() };
            // SAFETY: as above.
            unsafe { put(part.receive, &whole) };
        }
        Kind::AllGather => {
            let own_bytes = mine(part.send);
            for rank in 0..ranks {
                let piece = pieces.get(&rank).copied().unwrap_or(&own_bytes);
                // SAFETY: as above.
                unsafe { put(part.receive + rank as u64 * bytes, piece) };
            }
        }
        Kind::AllReduce | Kind::ReduceScatter => {
            let at = if part.kind == Kind::AllReduce { 0 } else { own as u64 * bytes };
            let own_bytes = mine(part.send + at);
            let of = |rank: usize| pieces.get(&rank).copied().unwrap_or(&own_bytes);
            let all: Vec<&[u8]> = (0..ranks).map(of).collect();
            let whole = sum(part, &all)?;
            // SAFETY: as above.
            unsafe { put(part.receive, &whole) };
        }
    }
    Ok(())
}

/// Folds ranks' values in order; each step is rounded to the type, as in NCCL's own kernels.
fn fold<const N: usize, T: Copy>(
    all: &[&[u8]],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    step: impl Fn(T, T) -> T,
    last: impl Fn(T) -> T,
) -> Vec<u8> {
    let at = |rank: usize, index: usize| {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&all[rank][index * N..(index + 1) * N]);
        read(bytes)
    };
    let mut out = Vec::with_capacity(all[0].len());
    for index in 0..all[0].len() / N {
        let value = (1..all.len()).fold(at(0, index), |sum, rank| step(sum, at(rank, index)));
        out.extend_from_slice(&write(last(value)));
    }
    out
}

/// Reduces floats of any width, computing in a wider type.
macro_rules! floats {
    ($part:expr, $all:expr, $t:ty, $wide:ty, $to:expr, $from:expr) => {{
        let (op, ranks) = ($part.op, $all.len() as $wide);
        let step = move |a: $t, b: $t| {
            let (a, b): ($wide, $wide) = ($to(a), $to(b));
            $from(match op {
                1 => a * b,
                2 => a.max(b),
                3 => a.min(b),
                _ => a + b,
            })
        };
        let last = move |a: $t| if op == 4 { $from($to(a) / ranks) } else { a };
        fold($all, <$t>::from_le_bytes, <$t>::to_le_bytes, step, last)
    }};
}

macro_rules! integers {
    ($part:expr, $all:expr, $t:ty) => {{
        let (op, ranks) = ($part.op, $all.len() as $t);
        let step = move |a: $t, b: $t| match op {
            1 => a.wrapping_mul(b),
            2 => a.max(b),
            3 => a.min(b),
            _ => a.wrapping_add(b),
        };
        fold($all, <$t>::from_le_bytes, <$t>::to_le_bytes, step, move |a| if op == 4 { a / ranks } else { a })
    }};
}

fn sum(part: &GroupedCall, all: &[&[u8]]) -> Result<Vec<u8>, String> {
    Ok(match part.dtype.0 {
        0 => integers!(part, all, i8),
        1 => integers!(part, all, u8),
        2 => integers!(part, all, i32),
        3 => integers!(part, all, u32),
        4 => integers!(part, all, i64),
        5 => integers!(part, all, u64),
        6 => floats!(part, all, f16, f32, f16::to_f32, f16::from_f32),
        7 => floats!(part, all, f32, f32, |a| a, |a| a),
        8 => floats!(part, all, f64, f64, |a| a, |a| a),
        9 => floats!(part, all, bf16, f32, bf16::to_f32, bf16::from_f32),
        other => return Err(format!("{}: the rehearsal sums no type {other}", part.call)),
    })
}
