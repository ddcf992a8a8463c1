//! The MLP of every family.
//!
//! Legend of shapes: t tokens, d hidden, f ffn.

use fathom_grad::{Ctx, Val};

use crate::spec::Spec;
use crate::weight::{LinearParams, Module, Parallel, Projection, Walk};

/// Weights of an MLP.
#[derive(Clone, Copy, Debug)]
pub struct DenseParams {
    /// [f, d], or gate and up on top of each other [2f, d].
    pub up: LinearParams,
    /// [d, f].
    pub down: LinearParams,
}

impl DenseParams {
    /// Declares an MLP with `ffn` inner columns; its parts are named like the block's, under `inside` if given.
    pub(crate) fn declare(
        w: &mut Walk<'_>,
        s: &Spec,
        [up, down]: [&'static str; 2],
        ffn: usize,
        inside: Option<&str>,
    ) -> DenseParams {
        let (bias, halves, out) = (s.bias.mlp, [ffn, ffn], [s.hidden]);
        let groups = if s.mlp.gated { &halves[..] } else { &halves[..1] };
        let (way_in, way_out) = (w.names.up(s, ffn, inside), w.names.down(s, inside));
        let up = Projection { bias, ..Projection::new(up, Module::Mlp, groups, s.hidden, way_in) };
        let down = Projection::new(down, Module::Mlp, &out, ffn, way_out);
        let down = Projection { bias, parallel: Parallel::Rows, ..down };
        DenseParams { up: w.linear(up), down: w.linear(down) }
    }
}

/// One MLP for all tokens; `factor` multiplies its gate.
pub(crate) fn mlp(
    cx: &mut Ctx<'_>,
    s: &Spec,
    names: [&'static str; 3],
    (p, factor): (&DenseParams, f32),
    h_td: Val,
) -> Val {
    let u_tf = p.up.columns(cx, names[0], h_td);
    let m_tf = if s.mlp.gated {
        let half = cx.desc(u_tf).cols / 2;
        let u_tf = cx.scale_columns("mlp.up.scaled", u_tf, &[(half, factor), (half, 1.0)]);
        cx.gate(names[1], s.mlp.activation, u_tf)
    } else {
        cx.activate(names[1], s.mlp.activation, u_tf)
    };
    p.down.rows(cx, names[2], m_tf)
}
