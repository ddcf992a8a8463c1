//! ggml's reference quantizers, without importance matrices.

use half::{bf16, f16};

use super::{Kind, half_at, scale_min};

/// Groups whose largest magnitude is below this are zero.
const LEAST: f32 = 1e-15;

/// Quantizes elements to whole blocks.
///
/// # Panics
/// If the sizes of `x` and `out` do not fit.
#[track_caller]
pub fn quantise(kind: Kind, x: &[f32], out: &mut [u8]) {
    assert!(
        x.len().is_multiple_of(kind.block()) && out.len() == kind.bytes(x.len()),
        "quantise {}: {} elements to {} bytes",
        kind.name(),
        x.len(),
        out.len()
    );
    let blocks = x.chunks_exact(kind.block()).zip(out.chunks_exact_mut(kind.block_bytes()));
    match kind {
        Kind::F32 => blocks.for_each(|(x, block)| block.copy_from_slice(&x[0].to_le_bytes())),
        Kind::F16 => blocks.for_each(|(x, block)| put_half(block, 0, x[0])),
        Kind::Bf16 => {
            blocks.for_each(|(x, block)| block.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()))
        }
        Kind::Q8_0 => blocks.for_each(|(x, block)| q8_0(x, block)),
        Kind::Q4_0 => blocks.for_each(|(x, block)| pairs::<false, false>(x, block)),
        Kind::Q4_1 => blocks.for_each(|(x, block)| pairs::<false, true>(x, block)),
        Kind::Q5_0 => blocks.for_each(|(x, block)| pairs::<true, false>(x, block)),
        Kind::Q5_1 => blocks.for_each(|(x, block)| pairs::<true, true>(x, block)),
        Kind::Q4K => blocks.for_each(|(x, block)| q4_k(x, block)),
        Kind::Q5K => blocks.for_each(|(x, block)| q5_k(x, block)),
        Kind::Q6K => blocks.for_each(|(x, block)| q6_k(x, block)),
    }
}

fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The nearest integer, ties to even.
fn nearest(x: f32) -> i32 {
    x.round_ties_even() as i32
}

/// The element of largest magnitude, the first of equals.
fn extreme(x: &[f32]) -> f32 {
    let mut most = 0.0f32;
    for x in x {
        if x.abs() > most.abs() {
            most = *x;
        }
    }
    most
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn q8_0(x: &[f32], block: &mut [u8]) {
    let d = extreme(x).abs() / 127.0;
    let by = inverse(d);
    put_half(block, 0, d);
    for (code, x) in block[2..].iter_mut().zip(x) {
        *code = ((x * by).round() as i8).cast_unsigned();
    }
}

/// Q4_0, Q4_1, Q5_0 and Q5_1, laid out as in [`super::pairs`].
fn pairs<const FIVE: bool, const ADDS: bool>(x: &[f32], block: &mut [u8]) {
    let most = if FIVE { 31.0 } else { 15.0 };
    let (min, max) = x.iter().fold((f32::MAX, f32::MIN), |(min, max), x| {
        (if *x < min { *x } else { min }, if *x > max { *x } else { max })
    });
    let middle = (most + 1.0) / 2.0;
    let d = if ADDS { (max - min) / most } else { extreme(x) / -middle };
    let (by, from, to) = (inverse(d), if ADDS { min } else { 0.0 }, if ADDS { 0.5 } else { middle + 0.5 });
    put_half(block, 0, d);
    if ADDS {
        put_half(block, 2, min);
    }
    let (fifths, fours) = block[if ADDS { 4 } else { 2 }..].split_at_mut(if FIVE { 4 } else { 0 });
    fifths.fill(0);
    for at in 0..32 {
        let code = (((x[at] - from) * by + to) as i8).min(most as i8).cast_unsigned();
        let (pair, code_low) = (&mut fours[at % 16], code & 15);
        *pair = if at < 16 { code_low } else { *pair | code_low << 4 };
        if FIVE {
            fifths[at / 8] |= (code >> 4) << (at % 8);
        }
    }
}

/// Scale, offset and codes from 0 to `most` of 32 elements (`make_qkx2_quants`): tries several scales around that of
/// the range and keeps the one whose least-squares fit has the smallest weighted error.
fn fit_offset(x: &[f32], most: i32, first: f32, steps: usize, codes: &mut [u8]) -> (f32, f32) {
    let squares: f32 = x.iter().fold(0.0, |sum, x| sum + x * x);
    let mean = (squares / 32.0).sqrt();
    let weights: Vec<f32> = x.iter().map(|x| mean + x.abs()).collect();
    let (mut min, mut max) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (weights[0], weights[0] * x[0]);
    for (x, w) in x.iter().zip(&weights).skip(1) {
        (min, max) = (if *x < min { *x } else { min }, if *x > max { *x } else { max });
        sum_w += w;
        sum_x += w * x;
    }
    min = if min > 0.0 { 0.0 } else { min };
    if max == min {
        codes.fill(0);
        return (0.0, -min);
    }
    // All attempts start from the range; only the fit changes what is kept.
    let least = min;
    let code = |by: f32, x: f32| nearest(by * (x - least)).clamp(0, most);
    let error = |scale: f32, min: f32, codes: &[u8]| {
        let terms = x.iter().zip(&weights).zip(codes);
        terms.fold(0.0f32, |sum, ((x, w), code)| {
            let diff = scale * f32::from(*code) + min - x;
            sum + w * (diff * diff)
        })
    };
    let by = most as f32 / (max - min);
    let mut scale = 1.0 / by;
    codes.iter_mut().zip(x).for_each(|(code_out, x)| *code_out = code(by, *x) as u8);
    let mut best = error(scale, min, codes);
    let mut tried = [0u8; 32];
    for step in 0..=steps {
        // The kept offset takes part in the next attempt's codes, as in the original.
        let by = (first + 0.1 * step as f32 + most as f32) / (max - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for ((x, w), tried) in x.iter().zip(&weights).zip(&mut tried) {
            let l = nearest(by * (x - min)).clamp(0, most);
            *tried = l as u8;
            let l = l as f32;
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                (this_min, this_scale) = (0.0, sum_xl / sum_l2);
            }
            let this = error(this_scale, this_min, &tried);
            if this < best {
                codes.copy_from_slice(&tried);
                (best, scale, min) = (this, this_scale, this_min);
            }
        }
    }
    (scale, -min)
}

/// Writes the first twelve bytes after the two units, six-bit scales and offsets of eight groups, and returns the
/// codes.
fn groups(x: &[f32], most: i32, first: f32, steps: usize, block: &mut [u8]) -> [u8; 256] {
    let mut codes = [0u8; 256];
    let (mut scales, mut mins) = ([0.0f32; 8], [0.0f32; 8]);
    for (group, (x, codes)) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).enumerate() {
        (scales[group], mins[group]) = fit_offset(x, most, first, steps, codes);
    }
    let largest = |list: &[f32; 8]| list.iter().fold(0.0f32, |most, x| if *x > most { *x } else { most });
    let (max_scale, max_min) = (largest(&scales), largest(&mins));
    let by = |most: f32| if most > 0.0 { 63.0 / most } else { 0.0 };
    let (by_scale, by_min) = (by(max_scale), by(max_min));
    block[4..16].fill(0);
    for group in 0..8 {
        let scale = (nearest(by_scale * scales[group]) as u8).min(63);
        let min = (nearest(by_min * mins[group]) as u8).min(63);
        let packed = &mut block[4..16];
        if group < 4 {
            (packed[group], packed[group + 4]) = (scale, min);
        } else {
            packed[group + 4] = scale & 15 | (min & 15) << 4;
            packed[group - 4] |= scale >> 4 << 6;
            packed[group] |= min >> 4 << 6;
        }
    }
    put_half(block, 0, max_scale / 63.0);
    put_half(block, 2, max_min / 63.0);
    let (unit, unit_min) = (half_at(block, 0), half_at(block, 2));
    for group in 0..8 {
        let (scale, min) = scale_min(&block[4..16], group);
        let (d, dm) = (unit * f32::from(scale), unit_min * f32::from(min));
        if d != 0.0 {
            for at in 32 * group..32 * (group + 1) {
                codes[at] = nearest((x[at] + dm) / d).clamp(0, most) as u8;
            }
        }
    }
    codes
}

fn q4_k(x: &[f32], block: &mut [u8]) {
    let codes = groups(x, 15, -1.0, 20, block);
    for (codes, out) in codes.chunks_exact(64).zip(block[16..].chunks_exact_mut(32)) {
        for at in 0..32 {
            out[at] = codes[at] | codes[at + 32] << 4;
        }
    }
}

fn q5_k(x: &[f32], block: &mut [u8]) {
    let codes = groups(x, 31, -0.5, 15, block);
    let (fifths, out) = block[16..].split_at_mut(32);
    fifths.fill(0);
    for (index, (codes, out)) in codes.chunks_exact(64).zip(out.chunks_exact_mut(32)).enumerate() {
        for at in 0..32 {
            let (low, high) = (codes[at], codes[at + 32]);
            out[at] = low & 15 | (high & 15) << 4;
            fifths[at] |= (low >> 4) << (2 * index) | (high >> 4) << (2 * index + 1);
        }
    }
}

/// Scale and codes from 0 to 63 of 16 elements (`make_qx_quants`, weighted by squares).
fn fit(x: &[f32], codes: &mut [u8]) -> f32 {
    const MOST: i32 = 32;
    let most = extreme(x);
    if most.abs() < LEAST {
        codes.fill(0);
        return 0.0;
    }
    let code = |by: f32, x: f32| nearest(by * x).clamp(-MOST, MOST - 1);
    let sums = |by: f32| {
        x.iter().fold((0.0f32, 0.0f32), |(lx, l2), x| {
            let (l, w) = (code(by, *x) as f32, x * x);
            (lx + w * x * l, l2 + w * l * l)
        })
    };
    let mut take = |by: f32| codes.iter_mut().zip(x).for_each(|(out, x)| *out = (code(by, *x) + MOST) as u8);
    let by = -(MOST as f32) / most;
    take(by);
    let (lx, l2) = sums(by);
    let mut scale = if l2 == 0.0 { 0.0 } else { lx / l2 };
    let mut best = scale * lx;
    for step in (-9..=9).filter(|step| *step != 0) {
        let by = -(MOST as f32 + 0.1 * step as f32) / most;
        let (lx, l2) = sums(by);
        if l2 > 0.0 && lx * lx > best * l2 {
            take(by);
            scale = lx / l2;
            best = scale * lx;
        }
    }
    scale
}

fn q6_k(x: &[f32], block: &mut [u8]) {
    let (mut codes, mut scales) = ([0u8; 256], [0.0f32; 16]);
    for (group, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        scales[group] = fit(x, codes);
    }
    let most = extreme(&scales);
    if most.abs() < LEAST {
        block.fill(0);
        return;
    }
    let by = -128.0 / most;
    put_half(block, 208, 1.0 / by);
    let unit = half_at(block, 208);
    for group in 0..16 {
        let scale = nearest(by * scales[group]).min(127) as i8;
        block[192 + group] = scale.cast_unsigned();
        let d = unit * f32::from(scale);
        if d != 0.0 {
            for at in 16 * group..16 * (group + 1) {
                codes[at] = (nearest(x[at] / d).clamp(-32, 31) + 32) as u8;
            }
        }
    }
    for half in 0..2 {
        let codes = &codes[128 * half..][..128];
        for at in 0..32 {
            let [a, b, c, d] = [0, 32, 64, 96].map(|part| codes[part + at]);
            block[64 * half + at] = a & 15 | (c & 15) << 4;
            block[64 * half + 32 + at] = b & 15 | (d & 15) << 4;
            block[128 + 32 * half + at] = a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6;
        }
    }
}
