//! Houlsby adapters (2019), small networks after sub-layers: a sub-layer's result `a` becomes `a +
//! Up(act(Down(norm(a))))`, with NeMo's settings: norm first, SiLU inside, Up initially zero. Every rank has the
//! whole network, for its own rows.

use fathom_grad::{Ctx, Val};
use fathom_tensor::{Activation, NormKind};

use crate::spec::Spec;
use crate::weight::{
    Begins, Cut, InFiles, InputSharing, Kind, LinearParams, Module, NormParams, Walk, WeightSpec,
};

/// Weights of one network.
#[derive(Clone, Copy, Debug)]
pub struct HoulsbyParams {
    norm: NormParams,
    /// [width, d].
    down: LinearParams,
    /// [d, width].
    up: LinearParams,
    place: &'static Place,
}

/// Names of one network's weights and activations.
#[derive(Debug)]
struct Place {
    roles: [&'static str; 3],
    files: [&'static str; 3],
    activations: [&'static str; 6],
}

/// After attention, and after the MLP.
static PLACES: [Place; 2] = [
    Place {
        roles: ["attn_adapter_norm", "attn_adapter_down", "attn_adapter_up"],
        files: ["attention_adapter.norm", "attention_adapter.down", "attention_adapter.up"],
        activations: [
            "attn.adapter.norm",
            "attn.adapter.norm.stats",
            "attn.adapter.down",
            "attn.adapter.act",
            "attn.adapter.up",
            "attn.adapted",
        ],
    },
    Place {
        roles: ["mlp_adapter_norm", "mlp_adapter_down", "mlp_adapter_up"],
        files: ["mlp_adapter.norm", "mlp_adapter.down", "mlp_adapter.up"],
        activations: [
            "mlp.adapter.norm",
            "mlp.adapter.norm.stats",
            "mlp.adapter.down",
            "mlp.adapter.act",
            "mlp.adapter.up",
            "mlp.adapted",
        ],
    },
];

impl HoulsbyParams {
    /// Declares the network after a sub-layer of this module.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, module: Module) -> Option<HoulsbyParams> {
        let width = s.adapter.as_ref()?.network().filter(|_| module != Module::Cross)?;
        let place = &PLACES[usize::from(module == Module::Mlp)];
        let Place { roles, files, .. } = place;
        let mut weight = |part: usize, shape: [usize; 2], begins| {
            let stored = InFiles::one(files[part], shape[0].max(if part == 0 { shape[1] } else { 0 }));
            let at = (module, Kind::Adapter);
            let spec = WeightSpec::new(roles[part], at, shape, Cut::Whole(InputSharing::Rows), stored);
            w.weight(WeightSpec { begins, decays: part > 0, ..spec })
        };
        let norm = NormParams { weight: weight(0, [1, s.hidden], Begins::Identity), bias: None };
        let mut linear = |part, shape, begins| LinearParams {
            weight: weight(part, shape, begins),
            bias: None,
            adapter: None,
        };
        let down = linear(1, [width, s.hidden], Begins::Uniform);
        Some(HoulsbyParams { norm, down, up: linear(2, [s.hidden, width], Begins::Zeros), place })
    }

    /// Adds the network's result to `a_td`.
    pub(crate) fn forward(&self, cx: &mut Ctx<'_>, s: &Spec, a_td: Val) -> Val {
        let [norm, stats, down, act, up, sum] = self.place.activations;
        let kind = NormKind { plus_one: false, centred: false, ..s.norm };
        let h_td = cx.norm([norm, stats], a_td, kind, self.norm.weight, None);
        let u_tw = self.down.whole(cx, down, h_td);
        let u_tw = cx.activate(act, Activation::Silu, u_tw);
        let u_td = self.up.whole(cx, up, u_tw);
        cx.add(sum, a_td, u_td)
    }
}
