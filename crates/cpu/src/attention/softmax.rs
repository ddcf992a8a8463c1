//! The row-wise parts: the running softmax of the forward pass, its end, and the score gradients of the backward pass.
//!
//! A row keeps a reference `m` (log2 units), sixteen partial sums `l` and an output, both relative to `m`. `m` moves
//! only when a score exceeds it by more than 2^8, which depends only on the row's own scores; otherwise a block costs
//! one pass. A masked score adds an exact zero.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over caller-checked extents, see each `# Safety`

use super::pack::{View, ask, put, row_f32};
use super::scores::Scores;
use super::shape::KEYS;
use super::simd::{LANES, Simd};

/// Reference of a row that has seen no key.
pub const NONE: f32 = -1e20;
/// Value of a masked score; far below `NONE` at any scale.
const MASKED: f32 = -1e30;
/// Largest excess, in log2, of a score over its row's reference.
const SLACK: f32 = 8.0;
/// u16 mask words per row of a block.
pub const MASK_WORDS: usize = KEYS / LANES;

/// One block of scores: some rows by the keys `cols` of a key block.
pub struct Softmax {
    pub s: *mut f32,
    /// Probabilities, as the A operand of the product with V.
    pub p: *mut u32,
    pub ldp: usize,
    pub rows: usize,
    /// Range of columns, multiples of 32.
    pub cols: (usize, usize),
    pub m: *mut f32,
    /// Sixteen sums per row.
    pub l: *mut f32,
    pub o: *mut f32,
    pub ldo: usize,
    pub scores: Scores,
    /// `MASK_WORDS` per row, or null if every pair attends.
    pub mask: *const u16,
}

/// Turns scores into probabilities and updates `m`, `l` and, if `m` moved, `o`.
///
/// # Safety
/// The pointers cover the extents; `s` has rows of `KEYS`.
#[inline(always)]
pub unsafe fn softmax<S: Simd>(b: &Softmax) {
    let scale = if b.scores.cap_in > 0.0 { 1.0 } else { b.scores.scale };
    for r in 0..b.rows {
        let s = b.s.add(r * KEYS);
        if b.scores.cap_in > 0.0 {
            cap_row::<S>(b, s);
        }
        if !b.mask.is_null() {
            mask_row::<S>(b, s, b.mask.add(r * MASK_WORDS));
        }
        let m = *b.m.add(r);
        let l = b.l.add(r * LANES);
        let old = S::load(l);
        let p = b.p.add(r * b.ldp);
        if m != NONE {
            let (sums, peak) = row::<S>(b, s, p, m, old, scale);
            if !S::exceeds(S::mul(peak, S::splat(scale)), m + SLACK) {
                S::store(l, sums);
                continue;
            }
        }
        let peak = row_peak::<S>(b, s) * scale;
        if peak <= m + SLACK {
            S::store(l, row::<S>(b, s, p, m, old, scale).0);
            continue;
        }
        let fade = S::exp2(S::splat(m - peak));
        *b.m.add(r) = peak;
        S::store(l, row::<S>(b, s, p, peak, S::mul(old, fade), scale).0);
        let o = b.o.add(r * b.ldo);
        let mut c = 0;
        while c < b.ldo {
            S::store(o.add(c), S::mul(S::load(o.add(c)), fade));
            c += LANES;
        }
    }
}

/// Probabilities of a row relative to `m`; returns the sums added to `old`, and the largest score of each lane.
#[inline(always)]
unsafe fn row<S: Simd>(
    b: &Softmax,
    s: *const f32,
    p: *mut u32,
    m: f32,
    old: S::V,
    scale: f32,
) -> (S::V, S::V) {
    let (scale, minus) = (S::splat(scale), S::splat(-m));
    let (mut sum0, mut sum1) = (old, S::splat(0.0));
    let (mut peak0, mut peak1) = (S::splat(MASKED), S::splat(MASKED));
    let mut c = b.cols.0;
    while c < b.cols.1 {
        let (x0, x1) = (S::load(s.add(c)), S::load(s.add(c + LANES)));
        (peak0, peak1) = (S::max(peak0, x0), S::max(peak1, x1));
        let e0 = S::exp2(S::fma(x0, scale, minus));
        let e1 = S::exp2(S::fma(x1, scale, minus));
        (sum0, sum1) = (S::add(sum0, e0), S::add(sum1, e1));
        put_words::<S>(p, c, e0, e1);
        c += 2 * LANES;
    }
    (S::add(sum0, sum1), S::max(peak0, peak1))
}

/// Elements `c..c + 32` of a row of words.
#[inline(always)]
unsafe fn put_words<S: Simd>(row: *mut u32, c: usize, low: S::V, high: S::V) {
    if S::PAIRS {
        S::store(row.add(c / 2).cast(), S::pair(low, high));
    } else {
        S::store(row.add(c).cast(), low);
        S::store(row.add(c + LANES).cast(), high);
    }
}

#[inline(always)]
unsafe fn row_peak<S: Simd>(b: &Softmax, s: *const f32) -> f32 {
    let mut peak = S::splat(MASKED);
    let mut c = b.cols.0;
    while c < b.cols.1 {
        peak = S::max(peak, S::load(s.add(c)));
        c += LANES;
    }
    S::peak(peak)
}

#[inline(always)]
unsafe fn mask_row<S: Simd>(b: &Softmax, s: *mut f32, bits: *const u16) {
    let masked = S::splat(MASKED);
    for word in b.cols.0 / LANES..b.cols.1 / LANES {
        let at = s.add(word * LANES);
        S::store(at, S::select(*bits.add(word), S::load(at), masked));
    }
}

/// `tanh(s cap_in)`.
#[inline(always)]
unsafe fn tanh<S: Simd>(s: S::V, cap_in: f32) -> S::V {
    let one = S::splat(1.0);
    let x = S::mul(s, S::splat(cap_in * 2.0 * std::f32::consts::LOG2_E));
    // |x| <= 60 keeps 2^x finite; beyond it the quotient is one anyway.
    let x = S::max(S::sub(S::splat(0.0), S::max(S::sub(S::splat(0.0), x), S::splat(-60.0))), S::splat(-60.0));
    let e = S::exp2(x);
    S::div(S::sub(e, one), S::add(e, one))
}

#[inline(always)]
unsafe fn cap_row<S: Simd>(b: &Softmax, s: *mut f32) {
    let out = S::splat(b.scores.cap_out);
    let mut c = b.cols.0;
    while c < b.cols.1 {
        let at = s.add(c);
        S::store(at, S::mul(tanh::<S>(S::load(at), b.scores.cap_in), out));
        c += LANES;
    }
}

/// Start of a tile that continues from results over other keys.
pub struct Resume {
    pub out: View,
    /// Log-sum-exps of the view's head 0.
    pub lse: *const f32,
    /// Heads per token, the row stride of `lse`.
    pub heads: usize,
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub m: *mut f32,
    pub l: *mut f32,
    pub o: *mut f32,
    pub ldo: usize,
}

/// Sets `m`, `l` and `o` of the rows that have seen a key. They are relative to the log-sum-exp, so the sum is one,
/// except for the rounding of `m`.
///
/// # Safety
/// The pointers cover the extents; `l` holds zeros.
#[inline(always)]
pub unsafe fn resume<S: Simd>(p: &Resume) {
    for r in 0..p.rows {
        let (token, head) = ((p.first + r) / p.out.group, (p.first + r) % p.out.group);
        let lse = *p.lse.add(token * p.heads + head);
        if lse == f32::NEG_INFINITY {
            continue;
        }
        let exact = f64::from(lse) * std::f64::consts::LOG2_E;
        let m = exact as f32;
        let sum = (exact - f64::from(m)).exp2() as f32;
        *p.m.add(r) = m;
        *p.l.add(r * LANES) = sum;
        let (row, sum) = (p.out.row(p.first + r), S::splat(sum));
        let mut c = 0;
        while c < p.cols {
            S::store(p.o.add(r * p.ldo + c), S::mul(row_f32::<S>(row, p.out.elem, c, p.cols), sum));
            c += LANES;
        }
    }
}

/// End of a tile: rows of `o` divided by their sums, and log-sum-exp.
pub struct Finish {
    pub m: *const f32,
    pub l: *const f32,
    pub o: *const f32,
    pub ldo: usize,
    pub rows: usize,
    pub cols: usize,
    pub first: usize,
    pub out: View,
    /// Log-sum-exps of the view's head 0, or null.
    pub lse: *mut f32,
    /// Heads per token, the row stride of `lse`.
    pub heads: usize,
    /// Sink logits of the view's heads, or null.
    pub sinks: *const f32,
}

/// Writes `out` and `lse`; a row that saw no key is 0 and minus infinity.
///
/// # Safety
/// The pointers cover the extents.
#[inline(always)]
pub unsafe fn finish<S: Simd>(f: &Finish) {
    for r in 0..f.rows {
        let (m, sum) = (*f.m.add(r), S::sum(S::load(f.l.add(r * LANES))));
        let (token, head) = ((f.first + r) / f.out.group, (f.first + r) % f.out.group);
        let (mut factor, mut lse) = (0.0, f32::NEG_INFINITY);
        if m != NONE {
            let (mut total, mut top) = (f64::from(sum), f64::from(m));
            if !f.sinks.is_null() {
                let sink = f64::from(*f.sinks.add(head)) * std::f64::consts::LOG2_E;
                top = top.max(sink);
                total = total * (f64::from(m) - top).exp2() + (sink - top).exp2();
            }
            factor = ((f64::from(m) - top).exp2() / total) as f32;
            lse = (top * std::f64::consts::LN_2 + total.ln()) as f32;
        }
        if !f.lse.is_null() {
            *f.lse.add(token * f.heads + head) = lse;
        }
        let (to, factor) = (f.out.row(f.first + r), S::splat(factor));
        let mut c = 0;
        while c < f.cols {
            put::<S>(to, f.out.elem, c, f.cols, S::mul(S::load(f.o.add(r * f.ldo + c)), factor));
            c += LANES;
        }
    }
}

/// One block of the backward pass: some keys (rows) by the query rows `cols` of a block.
pub struct Gradient {
    /// `K Q^T` and `V dO^T`, rows of `KEYS`.
    pub s: *const f32,
    pub dp: *mut f32,
    /// Stores the score gradients in `dp`.
    pub store: bool,
    pub rows: usize,
    /// Range of columns, multiples of 32.
    pub cols: (usize, usize),
    /// Log-sum-exp in log2 units, and `rowsum(dO o)`, per column.
    pub lse2: *const f32,
    pub delta: *const f32,
    pub scores: Scores,
    /// `MASK_WORDS` per row, or null.
    pub mask: *const u16,
    /// Probabilities and score gradients as A operands, rows `ldp` words apart.
    pub p: *mut u32,
    pub ds: *mut u32,
    pub ldp: usize,
    /// Score gradients as a B operand: panels of 16 columns `ldb` words apart; first row's word.
    pub turned: *mut u32,
    pub ldb: usize,
}

/// Computes probabilities from the saved log-sum-exp, and `dS = P (dP - delta)` without the scale factor.
///
/// # Safety
/// The pointers cover the extents; `rows` is even.
#[inline(always)]
pub unsafe fn gradient<S: Simd>(g: &Gradient) {
    let mut r = 0;
    while r < g.rows {
        let mut c = g.cols.0;
        while c < g.cols.1 {
            let first = gradient_pair::<S>(g, r, c);
            let second = gradient_pair::<S>(g, r + 1, c);
            let at = g.turned.add((c / LANES) * g.ldb);
            if S::PAIRS {
                let (low, high) = S::zip(S::pair(first.0, first.1), S::pair(second.0, second.1));
                S::store(at.add(r / 2 * LANES).cast(), low);
                S::store(at.add(g.ldb + r / 2 * LANES).cast(), high);
            } else {
                S::store(at.add(r * LANES).cast(), first.0);
                S::store(at.add(g.ldb + r * LANES).cast(), first.1);
                S::store(at.add((r + 1) * LANES).cast(), second.0);
                S::store(at.add(g.ldb + (r + 1) * LANES).cast(), second.1);
            }
            c += 2 * LANES;
        }
        r += 2;
    }
}

/// Thirty-two columns of one row; returns the score gradients.
#[inline(always)]
unsafe fn gradient_pair<S: Simd>(g: &Gradient, r: usize, c: usize) -> (S::V, S::V) {
    let (p0, d0) = gradient_lanes::<S>(g, r, c);
    let (p1, d1) = gradient_lanes::<S>(g, r, c + LANES);
    put_words::<S>(g.p.add(r * g.ldp), c, p0, p1);
    put_words::<S>(g.ds.add(r * g.ldp), c, d0, d1);
    (d0, d1)
}

#[inline(always)]
unsafe fn gradient_lanes<S: Simd>(g: &Gradient, r: usize, c: usize) -> (S::V, S::V) {
    let s = S::load(g.s.add(r * KEYS + c));
    let minus = S::sub(S::splat(0.0), S::load(g.lse2.add(c)));
    let slope = S::sub(S::load(g.dp.add(r * KEYS + c)), S::load(g.delta.add(c)));
    let (mut p, slope) = if g.scores.cap_in > 0.0 {
        let t = tanh::<S>(s, g.scores.cap_in);
        let flat = S::sub(S::splat(1.0), S::mul(t, t));
        (S::exp2(S::fma(t, S::splat(g.scores.cap_out), minus)), S::mul(slope, flat))
    } else {
        (S::exp2(S::fma(s, S::splat(g.scores.scale), minus)), slope)
    };
    if !g.mask.is_null() {
        p = S::select(*g.mask.add(r * MASK_WORDS + c / LANES), p, S::splat(0.0));
    }
    let slope = S::mul(p, slope);
    if g.store {
        S::store(g.dp.add(r * KEYS + c), slope);
    }
    (p, slope)
}

/// Rows of `rowsum(dO o)`.
pub struct Delta {
    pub out: View,
    pub dout: View,
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub to: *mut f32,
}

/// See [`Delta`].
///
/// # Safety
/// The views have the rows, `to` has room for them.
#[inline(always)]
pub unsafe fn delta<S: Simd>(d: &Delta) {
    for r in 0..d.rows {
        if r % LANES == 0 {
            for view in [&d.out, &d.dout] {
                ask::<S>(view, d.first + r + LANES, d.first + d.rows, d.cols * view.elem.bytes());
            }
        }
        let (o, g) = (d.out.row(d.first + r), d.dout.row(d.first + r));
        let mut sum = S::splat(0.0);
        let mut c = 0;
        while c < d.cols {
            let a = row_f32::<S>(o, d.out.elem, c, d.cols);
            sum = S::fma(a, row_f32::<S>(g, d.dout.elem, c, d.cols), sum);
            c += LANES;
        }
        *d.to.add(r) = S::sum(sum);
    }
}
