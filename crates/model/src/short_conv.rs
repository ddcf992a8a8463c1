//! A short convolution between two gates (LFM2): `out(C conv(B x))`, of three projections B, C, x of the input.
//!
//! Legend of shapes: t tokens, d hidden.

use std::rc::Rc;

use fathom_grad::{ConvUse, Ctx, HeadColumns, ParamId, Val};

use crate::spec::{
    LayerSpec, Own, RankExchange, Sharers, Spec, SplitDimension, StateSpec, SubLayer, SubLayerParams,
};
use crate::weight::{
    Begins, Cut, InFiles, Kind, LinearParams, Module, Parallel, Projection, Walk, WeightSpec,
};

/// Sizes of the sub-layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Tokens that the convolution reads.
    pub width: usize,
    /// Whether its projections and the convolution have biases.
    pub bias: bool,
}

/// Its weights.
#[derive(Debug)]
struct ShortConvParams {
    /// B, C and x on top of each other: [3d, d].
    way_in: LinearParams,
    /// f32 [d, width].
    conv: ParamId,
    /// f32 [1, d].
    conv_bias: Option<ParamId>,
    /// [d, d].
    way_out: LinearParams,
}

/// Name of its state.
const STATE: &str = "conv";

impl SubLayer for ShortConv {
    fn module(&self) -> Module {
        Module::Attention
    }

    fn declare(&self, w: &mut Walk<'_>, _: &Spec, _: usize) -> Own {
        let (module, d, bias) = (Module::Attention, self.hidden, self.bias);
        let (parts, all, wide) = ([d; 3], [d], (module, Kind::Wide));
        let way_in = Projection::new("mixer.in", module, &parts, d, InFiles::one("conv.in_proj", 3 * d));
        let way_out = Projection::new("mixer.out", module, &all, d, InFiles::one("conv.out_proj", d));
        let conv = InFiles::whole("conv.conv.weight", vec![d, 1, self.width]);
        let conv = WeightSpec::new("mixer.conv", wide, [d, self.width], Cut::Rows(&all), conv);
        let of_bias = InFiles::whole("conv.conv.bias", vec![d]);
        let of_bias = WeightSpec::new("mixer.conv_bias", wide, [1, d], Cut::Rows(&all), of_bias);
        let begins = Begins::Within(self.width);
        Rc::new(ShortConvParams {
            way_in: w.linear(Projection { bias, ..way_in }),
            conv: w.weight(WeightSpec { begins, decays: true, ..conv }),
            conv_bias: bias.then(|| w.weight(WeightSpec { begins, ..of_bias })),
            way_out: w.linear(Projection { bias, parallel: Parallel::Rows, ..way_out }),
        })
    }

    fn check(&self, ranks: &Sharers) -> Result<(), (SplitDimension, String)> {
        if !self.hidden.is_multiple_of(ranks.columns) {
            let what =
                format!("{} does not divide the {} columns of a convolution", ranks.columns, self.hidden);
            return Err((SplitDimension::Columns, what));
        }
        let own = self.hidden / ranks.columns;
        ranks.check_deal([own, own], "columns of a convolution")
    }

    fn passes(&self, ranks: &Sharers) -> Option<RankExchange> {
        let columns = self.hidden / ranks.columns;
        Some(RankExchange { reach: self.width - 1, columns, state: 0, dealt: 2 * columns })
    }

    fn states(&self, ranks: &Sharers) -> Vec<StateSpec> {
        vec![StateSpec { name: STATE, shape: [self.width - 1, self.hidden / ranks.columns] }]
    }
}

impl SubLayerParams for ShortConvParams {
    fn forward(&self, cx: &mut Ctx<'_>, _: &Spec, _: &LayerSpec, h_td: Val) -> Val {
        let p_t = self.way_in.columns(cx, "mixer.in", h_td);
        let own = cx.desc(p_t).cols / 3;
        let [b_td, c_td, x_td] = cx.split(["mixer.b", "mixer.c", "mixer.x"], p_t, [own; 3], None);
        let u_td = cx.product("mixer.gated", b_td, x_td);
        let parts = [HeadColumns { columns: own, width: 1 }];
        let y_td = cx.whole(|cx| {
            let [u_td] = cx.to_heads(["mixer.gated.dealt"], [u_td], [&parts]);
            let how = ConvUse { silu: false, state: STATE, parts: &parts };
            let y_td = cx.conv("mixer.out", u_td, self.conv, self.conv_bias, how);
            cx.to_tokens("mixer.out.own", y_td, 1)
        });
        let y_td = cx.product("mixer.result", c_td, y_td);
        self.way_out.rows(cx, "mixer.proj", y_td)
    }
}
