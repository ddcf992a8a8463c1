//! One row of a document in generation: the state is read twice and written once, where it is.
#![allow(unsafe_op_in_unsafe_fn)] // the kernels of this folder, see `Family`

use std::ops::Range;

use super::super::CHUNK;
use super::super::chunk;
use super::super::decays::Decays;
use super::super::family::Family;
use super::normalised;
use super::pass::{Beta, Pass};
use crate::attention::pack::{put, row_f32};
use crate::attention::simd::LANES;
use crate::elementwise::level::madd;
use crate::mat::{Elem, MatMut};

/// The value heads of a key head in one row. `states` are those of all heads.
///
/// # Safety
/// See [`super::forward::delta_forward`].
#[inline(always)]
pub unsafe fn row<F: Family>(
    pass: &Pass<'_>,
    row: usize,
    heads: Range<usize>,
    states: *mut f32,
    out: &MatMut,
) {
    let (of, layout, sizes) = (pass.of, &pass.layout, &pass.of.sizes);
    let (rows, value, key) = (row..row + 1, sizes.value, sizes.key);
    let (q, k, v, o) = (pass.at(layout.q), pass.at(layout.k), pass.at(layout.w), pass.at(layout.out));
    let (mut scales, root) = ([0.0; CHUNK], 1.0 / (key as f32).sqrt());
    normalised::<F>(of, &rows, sizes.q(pass.key_head), (root, &mut scales), q);
    normalised::<F>(of, &rows, sizes.k(pass.key_head), (1.0, &mut scales), k);
    let [q, k] = [q, k].map(|x| std::slice::from_raw_parts(x.cast_const(), key));
    let (mut decays, mut beta) = (Decays::ZERO, Beta::ZERO);
    for head in heads {
        decays.read::<F>(&of.steps, rows.clone(), head);
        beta.read::<F>(of, &rows, head);
        chunk::rows::<F>(&of.u, &rows, sizes.v(head), sizes.wide(), v);
        let decay = decays.enter[0];
        let (v, o) = (std::slice::from_raw_parts_mut(v, value), std::slice::from_raw_parts_mut(o, value));
        let state = std::slice::from_raw_parts_mut(states.add(head * sizes.state()), sizes.state());
        for (k, s) in k.iter().zip(state.chunks_exact(value)) {
            let factor = -decay * k;
            v.iter_mut().zip(s).for_each(|(v, s)| *v = madd::<F::L>(factor, *s, *v));
        }
        v.iter_mut().for_each(|v| *v *= beta.step[0]);
        o.fill(0.0);
        for ((q, k), s) in q.iter().zip(k).zip(state.chunks_exact_mut(value)) {
            for ((s, v), o) in s.iter_mut().zip(&*v).zip(&mut *o) {
                *s = madd::<F::L>(*k, *v, decay * *s);
                *o = madd::<F::L>(*q, *s, *o);
            }
        }
        let to = out.ptr.add((row * out.stride + head * value) * out.elem.bytes());
        for at in (0..value).step_by(LANES) {
            let v = row_f32::<F::S>(o.as_ptr().cast(), Elem::F32, at, value);
            put::<F::S>(to, out.elem, at, value, v);
        }
    }
}
