//! Forward pass of a projection, with its adapter if it has one.

use fathom_grad::{Ctx, ExpertWeights, LinearCut, Val};

use crate::weight::{AdapterParams, LinearParams};

/// Activation names of an adapted projection: that of the result, and that of the base's product before the adapter.
const BEFORE: &[(&str, &str)] = &[
    ("attn.qkv", "attn.qkv.base"),
    ("attn.proj", "attn.proj.base"),
    ("attn.q.down", "attn.q.down.base"),
    ("attn.q.up", "attn.q.up.base"),
    ("attn.kv.down", "attn.kv.down.base"),
    ("attn.kv.up", "attn.kv.up.base"),
    ("attn.k.shared", "attn.k.shared.base"),
    ("mlp.up", "mlp.up.base"),
    ("mlp.down", "mlp.down.base"),
];

fn before(name: &str) -> &'static str {
    BEFORE.iter().find(|(of, _)| *of == name).map_or("adapter.base", |(_, before)| before)
}

impl LinearParams {
    /// Projects with the whole weight on every rank.
    pub fn whole(&self, cx: &mut Ctx<'_>, name: &'static str, x: Val) -> Val {
        self.project(cx, name, x, LinearCut::Whole)
    }

    /// Opens a sub-layer: each rank computes some of the columns.
    pub fn columns(&self, cx: &mut Ctx<'_>, name: &'static str, x: Val) -> Val {
        self.project(cx, name, x, LinearCut::Columns)
    }

    /// Closes a sub-layer: each rank computes one term of the sum.
    pub fn rows(&self, cx: &mut Ctx<'_>, name: &'static str, x: Val) -> Val {
        self.project(cx, name, x, LinearCut::Rows)
    }

    fn project(&self, cx: &mut Ctx<'_>, name: &'static str, x: Val, cut: LinearCut) -> Val {
        let projected = (self.weight, self.bias);
        match self.adapter {
            None => self.base(cx, name, x, cut),
            Some(AdapterParams::Experts(_)) => panic!("{name}: it is no projection of experts"),
            Some(AdapterParams::Lora(lora, None)) => cx.lora(name, x, projected, lora, cut),
            Some(AdapterParams::Lora(lora, Some(lengths))) => {
                let y = cx.lora(before(name), x, (self.weight, None), lora, cut);
                cx.rescale(name, y, lengths, projected, (lora, cut))
            }
            Some(AdapterParams::Factors { factors, runs, input: true }) => {
                let x = cx.factors(before(name), x, factors, runs);
                self.base(cx, name, x, cut)
            }
            Some(AdapterParams::Factors { factors, runs, input: false }) => {
                let y = self.base(cx, before(name), x, cut);
                cx.factors(name, y, factors, runs)
            }
        }
    }

    /// Weights in the form that an expert layer takes.
    pub(crate) fn of_experts(&self) -> ExpertWeights {
        let terms = match self.adapter {
            Some(AdapterParams::Experts(terms)) => terms,
            _ => [None; 2],
        };
        ExpertWeights { weight: self.weight, bias: self.bias, terms }
    }

    fn base(&self, cx: &mut Ctx<'_>, name: &'static str, x: Val, cut: LinearCut) -> Val {
        match cut {
            LinearCut::Whole => cx.linear(name, x, self.weight, self.bias),
            LinearCut::Columns => cx.column_parallel(name, x, self.weight, self.bias),
            LinearCut::Rows => cx.row_parallel(name, x, self.weight, self.bias),
        }
    }
}
