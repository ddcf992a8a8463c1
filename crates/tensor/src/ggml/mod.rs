//! ggml's block formats by reference definition: dequantization of blocks of codes with scales, with the bits of
//! `ggml-quants.c`, and quantization as in its reference quantizers ([`quantise`]).
//!
//! Q8_0, Q4_0 and Q5_0: 32 elements under one f16 scale; Q4_1 and Q5_1 add an f16 offset. The K types have 256
//! elements: Q4_K and Q5_K eight groups of 32, each with a six-bit scale and offset in units of two f16; Q6_K sixteen
//! groups of 16, each with an eight-bit scale in units of one f16.

pub mod octets;
mod quantise;
#[cfg(test)]
mod tests;

pub use fathom_base::gguf::Kind;
use half::{bf16, f16};

pub use quantise::quantise;

/// The f16 in two bytes.
#[inline(always)]
pub fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Scale and offset of one of a block's eight groups, from the twelve bytes that hold them (`get_scale_min_k4`).
#[inline(always)]
pub fn scale_min(scales: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (scales[group] & 63, scales[group + 4] & 63)
    } else {
        let low = scales[group + 4];
        (low & 15 | scales[group - 4] >> 6 << 4, low >> 4 | scales[group] >> 6 << 4)
    }
}

/// Dequantizes whole blocks.
///
/// # Panics
/// If the sizes of `bytes` and `out` do not fit.
#[track_caller]
pub fn dequantise(kind: Kind, bytes: &[u8], out: &mut [f32]) {
    assert!(
        out.len().is_multiple_of(kind.block()) && bytes.len() == kind.bytes(out.len()),
        "dequantise {}: {} bytes to {} elements",
        kind.name(),
        bytes.len(),
        out.len()
    );
    let blocks = bytes.chunks_exact(kind.block_bytes()).zip(out.chunks_exact_mut(kind.block()));
    match kind {
        Kind::F32 => blocks
            .for_each(|(block, out)| out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
        Kind::F16 => blocks.for_each(|(block, out)| out[0] = half_at(block, 0)),
        Kind::Bf16 => {
            blocks.for_each(|(block, out)| out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32())
        }
        Kind::Q8_0 => blocks.for_each(|(block, out)| q8_0(block, out)),
        Kind::Q4_0 => blocks.for_each(|(block, out)| pairs::<false, false>(block, out)),
        Kind::Q4_1 => blocks.for_each(|(block, out)| pairs::<false, true>(block, out)),
        Kind::Q5_0 => blocks.for_each(|(block, out)| pairs::<true, false>(block, out)),
        Kind::Q5_1 => blocks.for_each(|(block, out)| pairs::<true, true>(block, out)),
        Kind::Q4K => blocks.for_each(|(block, out)| q4_k(block, out)),
        Kind::Q5K => blocks.for_each(|(block, out)| q5_k(block, out)),
        Kind::Q6K => blocks.for_each(|(block, out)| q6_k(block, out)),
    }
}

#[inline(always)]
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, code) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(code.cast_signed()) * d;
    }
}

/// Q4_0, Q4_1, Q5_0 and Q5_1: codes in pairs, one from the first sixteen and one from the second. Five-bit codes have
/// their fifth bits in a word before them, in the order of elements. Codes have a constant subtracted, or an f16 offset
/// is added.
#[inline(always)]
fn pairs<const FIVE: bool, const ADDS: bool>(block: &[u8], out: &mut [f32]) {
    let (head, codes) = block.split_at(if ADDS { 4 } else { 2 });
    let (fifths, fours) = codes.split_at(if FIVE { 4 } else { 0 });
    let (d, bias) = (half_at(head, 0), if FIVE { 16.0 } else { 8.0 });
    let least = if ADDS { half_at(head, 2) } else { 0.0 };
    for (at, out) in out.iter_mut().enumerate() {
        let fifth = if FIVE { (fifths[at / 8] >> (at % 8) & 1) << 4 } else { 0 };
        let code = f32::from(fours[at % 16] >> (at / 16 * 4) & 15 | fifth);
        *out = if ADDS { code * d + least } else { (code - bias) * d };
    }
}

#[inline(always)]
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, least) = (half_at(block, 0), half_at(block, 2));
    let pairs = block[16..].chunks_exact(32).zip(out.chunks_exact_mut(64));
    for (index, (codes, out)) in pairs.enumerate() {
        let (low, high) = out.split_at_mut(32);
        for (part, out) in [low, high].into_iter().enumerate() {
            let (scale, min) = scale_min(&block[4..16], 2 * index + part);
            let (scale, min) = (d * f32::from(scale), least * f32::from(min));
            for (out, code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code >> (4 * part) & 15) - min;
            }
        }
    }
}

#[inline(always)]
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, least) = (half_at(block, 0), half_at(block, 2));
    let (fifths, codes) = block[16..].split_at(32);
    for (index, (codes, out)) in codes.chunks_exact(32).zip(out.chunks_exact_mut(64)).enumerate() {
        let (low, high) = out.split_at_mut(32);
        for (part, out) in [low, high].into_iter().enumerate() {
            let group = 2 * index + part;
            let (scale, min) = scale_min(&block[4..16], group);
            let (scale, min) = (d * f32::from(scale), least * f32::from(min));
            for ((out, code), fifth) in out.iter_mut().zip(codes).zip(fifths) {
                let code = code >> (4 * part) & 15 | (fifth >> group & 1) << 4;
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high, scales) =
            (&block[64 * half..][..64], &block[128 + 32 * half..][..32], &block[192 + 8 * half..][..8]);
        for (part, out) in out.chunks_exact_mut(32).enumerate() {
            let low = &low[32 * (part % 2)..][..32];
            for (at, out) in out.iter_mut().enumerate() {
                let code = low[at] >> (4 * (part / 2)) & 15 | (high[at] >> (2 * part) & 3) << 4;
                let scale = d * f32::from(scales[2 * part + at / 16].cast_signed());
                *out = scale * (f32::from(code) - 32.0);
            }
        }
    }
}
