//! A model: a specification, where its weights are, and its forward pass over segments.

use std::rc::Rc;

use fathom_grad::{Ctx, Head, HeadUse, Param, ParamId, Params, Segments, StateDisk, Val};
use fathom_tensor::{DType, Device, Tensor};

use crate::block::{BlockParams, LinearParams, NormParams, block, norm};
use crate::spec::{QkNorm, Spec};

/// A specification with the ids of its weights. Holds no weights itself.
#[derive(Clone, Debug)]
pub struct Model {
    /// The architecture.
    pub spec: Spec,
    /// [vocab, d].
    pub embed: ParamId,
    /// [max_positions, d].
    pub positions: Option<ParamId>,
    /// One per layer.
    pub blocks: Vec<BlockParams>,
    /// After the last block.
    pub final_norm: NormParams,
    /// [vocab, d]; the embedding if tied.
    pub head: ParamId,
    /// [`Spec::embed_scale`] rounded to the weights' type, as Gemma's code does.
    pub embed_scale: f32,
}

/// Declares weights in their fixed order: embedding, blocks, final norm, head.
struct Declare<'a> {
    device: &'a Device,
    dtype: DType,
    /// The block at hand, or -1.
    layer: i32,
    params: Params,
}

impl Declare<'_> {
    fn push(&mut self, name: String, rows: usize, cols: usize, decays: bool) -> ParamId {
        let value = self.params.room(self.device, [rows, cols], self.dtype, self.layer);
        self.params.push(Param { name, value, decays, trainable: true })
    }

    fn linear(&mut self, name: &str, out: usize, inner: usize, bias: bool) -> LinearParams {
        let weight = self.push(format!("{name}.weight"), out, inner, true);
        let bias = bias.then(|| self.push(format!("{name}.bias"), 1, out, false));
        LinearParams { weight, bias }
    }

    fn norm(&mut self, name: &str, width: usize, bias: bool) -> NormParams {
        let weight = self.push(format!("{name}.weight"), 1, width, false);
        let bias = bias.then(|| self.push(format!("{name}.bias"), 1, width, false));
        NormParams { weight, bias }
    }

    fn block(&mut self, s: &Spec, index: usize) -> BlockParams {
        let at = |part: &str| format!("blocks.{index}.{part}");
        let (hidden, q, kv) = (s.hidden, s.q_cols(), s.kv_cols());
        let up = if s.mlp.gated { 2 * s.ffn } else { s.ffn };
        let [q_width, k_width] = match s.qk_norm {
            QkNorm::Full => [q, kv],
            _ => [s.head_dim; 2],
        };
        let (before, after, qk) = (s.residual.before(), s.residual.after(), s.qk_norm != QkNorm::None);
        BlockParams {
            attn_norm: before.then(|| self.norm(&at("attn_norm"), hidden, s.norm_bias)),
            qkv: self.linear(&at("qkv"), q + 2 * kv, hidden, s.bias.qkv),
            q_norm: qk.then(|| self.norm(&at("q_norm"), q_width, false)),
            k_norm: qk.then(|| self.norm(&at("k_norm"), k_width, false)),
            attn_out: self.linear(&at("attn_out"), hidden, q, s.bias.attn_out),
            attn_post_norm: after.then(|| self.norm(&at("attn_post_norm"), hidden, s.norm_bias)),
            mlp_norm: before.then(|| self.norm(&at("mlp_norm"), hidden, s.norm_bias)),
            up: self.linear(&at("up"), up, hidden, s.bias.mlp),
            down: self.linear(&at("down"), hidden, s.ffn, s.bias.mlp),
            mlp_post_norm: after.then(|| self.norm(&at("mlp_post_norm"), hidden, s.norm_bias)),
        }
    }
}

impl Model {
    /// Declares a model's weights, uninitialised, of `dtype` (f32 or bf16).
    pub fn declare(device: &Device, spec: &Spec, dtype: DType) -> (Model, Params) {
        Model::declare_on(device, spec, dtype, None)
    }

    /// As [`Model::declare`], with disk behind the weights and their optimizer's state.
    pub fn declare_on(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        disk: Option<Rc<StateDisk>>,
    ) -> (Model, Params) {
        device.pool.enter("weights", -1);
        let mut declare = Declare { device, dtype, layer: -1, params: Params::with_disk(disk) };
        let embed = declare.push("embed.weight".into(), spec.vocab, spec.hidden, true);
        let positions = spec
            .learned_positions
            .map(|rows| declare.push("positions.weight".into(), rows, spec.hidden, true));
        let first = declare.params.len() as u32;
        let mut walk = vec![(0..first).map(ParamId).collect::<Vec<_>>()];
        let mut blocks = Vec::new();
        for index in 0..spec.layers.len() {
            let first = declare.params.len() as u32;
            declare.layer = index as i32;
            blocks.push(declare.block(spec, index));
            walk.push((first..declare.params.len() as u32).map(ParamId).collect());
        }
        declare.layer = -1;
        let final_norm = declare.norm("final_norm", spec.hidden, spec.norm_bias);
        let head =
            if spec.tied { embed } else { declare.push("head.weight".into(), spec.vocab, spec.hidden, true) };
        walk.push(vec![head]);
        declare.params.set_walk(walk);
        let embed_scale = match dtype {
            DType::Bf16 => half::bf16::from_f32(spec.embed_scale).to_f32(),
            _ => spec.embed_scale,
        };
        let spec = spec.clone();
        (Model { spec, embed, positions, blocks, final_norm, head, embed_scale }, declare.params)
    }

    /// Token ids of the batch to the hidden states before the head: [t, hidden].
    pub fn forward<'a>(&'a self, run: &mut impl Segments<'a>) -> Tensor {
        let s = &self.spec;
        let embed = |cx: &mut Ctx<'a>, _: Val| cx.embed(self.embed, self.positions, self.embed_scale);
        let mut x_td = run.segment(-1, None, &embed);
        let blocks: Vec<_> = s.layers.iter().zip(&self.blocks).collect();
        let together = run.layers_per_segment();
        for (index, blocks) in blocks.chunks(together).enumerate() {
            x_td = run.segment((index * together) as i32, Some(x_td), &|cx, x_td| {
                blocks.iter().fold(x_td, |x_td, (layer, params)| block(cx, s, layer, params, x_td))
            });
        }
        let names = ["final.norm", "final.norm.stats"];
        run.segment(-1, Some(x_td), &|cx, x_td| cx.rows(|cx| norm(cx, s, names, x_td, Some(self.final_norm))))
    }

    /// The output projection, with the given weight of the z-loss.
    pub fn head(&self, z_loss: f32) -> Head {
        let how = HeadUse { scale: self.spec.logit_scale, softcap: self.spec.logit_softcap, z_loss };
        Head { weight: self.head, how }
    }
}
