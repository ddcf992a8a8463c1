//! MurmurHash3, x86, 32 bits (Appleby 2011): hash of one text, and of all windows of a text at once.
//!
//! Overlapping windows share their four-byte words, so each word is scrambled once per position and each window of n
//! bytes takes n/4 cheap steps over scrambled words. Both loops run over whole arrays and auto-vectorize.

const C1: u32 = 0xcc9e_2d51;
const C2: u32 = 0x1b87_3593;

#[inline(always)]
fn scramble(word: u32) -> u32 {
    word.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2)
}

#[inline(always)]
fn step(hash: u32, scrambled: u32) -> u32 {
    (hash ^ scrambled).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

#[inline(always)]
fn finish(hash: u32, bytes: u32) -> u32 {
    let mut hash = hash ^ bytes;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// Hash of `bytes`.
pub(super) fn murmur3(bytes: &[u8], seed: u32) -> u32 {
    let mut words = bytes.chunks_exact(4);
    let mut hash = seed;
    for word in &mut words {
        hash = step(hash, scramble(u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        hash ^= scramble(rest.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte)));
    }
    finish(hash, bytes.len() as u32)
}

/// Scratch memory of [`windows`], reused between calls.
#[derive(Default)]
pub(super) struct WindowScratch {
    words: Vec<u32>,
    tails: Vec<u32>,
}

/// Writes the hashes of all windows of `width` bytes in `bytes` to `out`: `bytes.len() - width + 1` of them, or none
/// if `bytes` is shorter than the window.
#[inline(always)]
pub(super) fn windows(
    bytes: &[u8],
    width: usize,
    seed: u32,
    scratch: &mut WindowScratch,
    out: &mut Vec<u32>,
) {
    out.clear();
    if width == 0 || bytes.len() < width {
        return;
    }
    let count = bytes.len() - width + 1;
    out.resize(count, seed);
    if width >= 4 {
        let positions = bytes.len() - 3;
        scratch.words.resize(positions, 0);
        let (b1, b2, b3) = (&bytes[1..], &bytes[2..], &bytes[3..]);
        for (word, (((&b0, &b1), &b2), &b3)) in
            scratch.words[..positions].iter_mut().zip(bytes.iter().zip(b1).zip(b2).zip(b3))
        {
            let joined = u32::from(b0) | u32::from(b1) << 8 | u32::from(b2) << 16 | u32::from(b3) << 24;
            *word = scramble(joined);
        }
    }
    let whole = width / 4;
    for word in 0..whole {
        for (hash, &scrambled) in out.iter_mut().zip(&scratch.words[4 * word..]) {
            *hash = step(*hash, scrambled);
        }
    }
    let rest = width % 4;
    if rest > 0 {
        scratch.tails.clear();
        scratch.tails.resize(count, 0);
        for byte in (0..rest).rev() {
            for (tail, &next) in scratch.tails.iter_mut().zip(&bytes[4 * whole + byte..]) {
                *tail = (*tail << 8) | u32::from(next);
            }
        }
        for (hash, &tail) in out.iter_mut().zip(&scratch.tails) {
            *hash ^= scramble(tail);
        }
    }
    for hash in out.iter_mut() {
        *hash = finish(*hash, width as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_published_values() {
        assert_eq!(murmur3(b"", 0), 0);
        assert_eq!(murmur3(b"hello", 0), 613_153_351);
        assert_eq!(murmur3(b"The quick brown fox jumps over the lazy dog", 0x9747_b28c), 799_549_133);
    }

    #[test]
    fn windows_are_the_hashes_one_by_one() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * i % 251) as u8).collect();
        let mut scratch = WindowScratch::default();
        let mut out = Vec::new();
        for width in 1..40 {
            for length in [0, 1, width - 1, width, width + 1, width + 17, 300] {
                windows(&bytes[..length], width, 7, &mut scratch, &mut out);
                let slow: Vec<u32> = bytes[..length].windows(width).map(|w| murmur3(w, 7)).collect();
                assert_eq!(out, slow, "width {width}, length {length}");
            }
        }
    }
}
