//! A model: a specification, where its weights are, and its forward pass over segments.

use std::rc::Rc;

use fathom_grad::{Ctx, Head, HeadUse, Param, ParamId, Params, Segments, StateDisk};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, Tensor};

use crate::block::{BlockParams, DenseParams, FfnParams, LinearParams, NormParams, QkvParams, block, norm};
use crate::latent::{Latent, LatentParams};
use crate::moe::{ExpertsParams, Moe, SharedParams};
use crate::portion::{Cut, Holding, Holdings, Inside, Portion, Weight};
use crate::spec::{QkNorm, Spec};

/// A specification with the ids of the weights that a rank holds. Holds no weights itself.
#[derive(Clone, Debug)]
pub struct Model {
    /// The architecture.
    pub spec: Spec,
    /// The part of it that this rank has.
    pub portion: Portion,
    /// Before the first block, and for a tied head.
    pub embed: Option<EmbedParams>,
    /// One per layer of the portion.
    pub blocks: Vec<BlockParams>,
    /// After the last block.
    pub last: Option<LastParams>,
    /// What is here of each weight.
    pub holdings: Holdings,
    /// All weights of the model, by number.
    pub weights: Vec<Weight>,
    /// [`Spec::embed_scale`] rounded to the weights' type, as Gemma's code does.
    pub embed_scale: f32,
}

/// Weights before the first block.
#[derive(Clone, Copy, Debug)]
pub struct EmbedParams {
    /// [vocab, d].
    pub tokens: ParamId,
    /// [max_positions, d].
    pub positions: Option<ParamId>,
}

/// Weights after the last block.
#[derive(Clone, Copy, Debug)]
pub struct LastParams {
    /// After the last block.
    pub norm: NormParams,
    /// [vocab, d]; the embedding if tied.
    pub head: ParamId,
    /// [1, vocab].
    pub head_bias: Option<ParamId>,
}

/// Declares weights in their fixed order: embedding, blocks, final norm, head. What the portion does not have is counted
/// and not made.
struct Declare<'a> {
    device: &'a Device,
    dtype: DType,
    portion: &'a Portion,
    /// The block at hand, or -1.
    layer: i32,
    /// The rank has what is declared.
    here: bool,
    params: Params,
    holdings: Holdings,
    weights: Vec<Weight>,
}

/// What a weight is, besides its shape.
struct Kind {
    dtype: DType,
    decays: bool,
    trainable: bool,
}

impl Declare<'_> {
    fn push(&mut self, name: String, shape: [usize; 2], cut: Cut<'_>, partial: bool) -> ParamId {
        let kind = Kind { dtype: self.dtype, decays: shape[0] > 1, trainable: true };
        self.push_as(name, shape, cut, partial, kind)
    }

    fn push_as(
        &mut self,
        name: String,
        shape: [usize; 2],
        cut: Cut<'_>,
        partial: bool,
        kind: Kind,
    ) -> ParamId {
        let number = self.weights.len() as u32;
        self.weights.push(Weight::of(shape, cut, self.portion));
        if !self.here {
            return ParamId(u32::MAX);
        }
        let Kind { dtype, decays, trainable } = kind;
        let mut holding = Holding::of(number, shape, cut, self.portion);
        holding.partial |= partial && self.portion.tp > 1;
        let [rows, cols] = holding.shard.local();
        let value = if trainable || !self.portion.parted {
            self.params.room(self.device, [rows, cols], dtype, self.layer)
        } else {
            // What no update changes is small and stays.
            self.device.empty(rows, cols, dtype, Category::Params).into()
        };
        self.holdings.push(holding);
        self.params.push(Param { name, value, decays, trainable })
    }

    /// A vector that is f32 whatever the others are.
    fn wide(&mut self, name: String, cols: usize, cut: Cut<'_>, trainable: bool) -> ParamId {
        let kind = Kind { dtype: DType::F32, decays: false, trainable };
        self.push_as(name, [1, cols], cut, false, kind)
    }

    /// A projection that every rank has all of, of the rows between sub-layers.
    fn linear(&mut self, name: &str, out: usize, inner: usize, bias: bool) -> LinearParams {
        let partial = self.portion.shared_rows;
        let weight = self.push(format!("{name}.weight"), [out, inner], Cut::Whole, partial);
        let bias = bias.then(|| self.push(format!("{name}.bias"), [1, out], Cut::Whole, partial));
        LinearParams { weight, bias }
    }

    /// A projection whose rows are parted: each rank computes some of its columns of the output.
    fn column_parallel(&mut self, name: &str, groups: &[usize], inner: usize, bias: bool) -> LinearParams {
        let out: usize = groups.iter().sum();
        let weight = self.push(format!("{name}.weight"), [out, inner], Cut::Rows(groups), false);
        let bias = bias.then(|| self.push(format!("{name}.bias"), [1, out], Cut::Rows(groups), false));
        LinearParams { weight, bias }
    }

    /// A projection whose columns are parted: each rank computes a term of the whole output; the bias is added to the sum.
    fn row_parallel(&mut self, name: &str, out: usize, inner: usize, bias: bool) -> LinearParams {
        let weight = self.push(format!("{name}.weight"), [out, inner], Cut::Cols, false);
        let bias =
            bias.then(|| self.push(format!("{name}.bias"), [1, out], Cut::Whole, self.portion.shared_rows));
        LinearParams { weight, bias }
    }

    /// A norm; `partial` if every tensor parallel rank normalises other heads with it.
    fn norm(&mut self, name: &str, width: usize, bias: bool, partial: bool) -> NormParams {
        let partial = partial || self.portion.shared_rows;
        let weight = self.push(format!("{name}.weight"), [1, width], Cut::Whole, partial);
        let bias = bias.then(|| self.push(format!("{name}.bias"), [1, width], Cut::Whole, partial));
        NormParams { weight, bias }
    }

    /// A norm of queries or keys: every tensor parallel rank normalises its own heads, or all of them do the same with all.
    fn heads_norm(&mut self, s: &Spec, name: &str, width: usize) -> NormParams {
        let partial = s.qk_norm == QkNorm::PerHead;
        let weight = self.push(format!("{name}.weight"), [1, width], Cut::Whole, partial);
        NormParams { weight, bias: None }
    }

    fn embed(&mut self, s: &Spec) -> EmbedParams {
        let tokens = self.push("embed.weight".into(), [s.vocab, s.hidden], Cut::Rows(&[s.vocab]), false);
        // A last stage's copy is for the head, which has no use for positions.
        let here = std::mem::replace(&mut self.here, self.portion.first);
        let positions = s
            .learned_positions
            .map(|rows| self.push("positions.weight".into(), [rows, s.hidden], Cut::Whole, true));
        self.here = here;
        EmbedParams { tokens, positions: positions.filter(|_| self.portion.first) }
    }

    /// The weights declared after the first so many.
    fn since(&self, first: usize) -> Vec<ParamId> {
        (first as u32..self.params.len() as u32).map(ParamId).collect()
    }

    fn block(&mut self, s: &Spec, index: usize) -> BlockParams {
        let at = |part: &str| format!("blocks.{index}.{part}");
        let (hidden, q, kv) = (s.hidden, s.q_cols(), s.kv_cols());
        let [q_width, k_width] = match s.qk_norm {
            QkNorm::Full => [q, kv],
            _ => [s.head_dim; 2],
        };
        let (after, qk) = (s.residual.after(), s.qk_norm != QkNorm::None);
        let [before_attention, before_mlp] = [s.residual.before_attention(), s.residual.before_mlp()];
        BlockParams {
            attn_norm: before_attention.then(|| self.norm(&at("attn_norm"), hidden, s.norm_bias, false)),
            qkv: match &s.latent {
                Some(latent) => QkvParams::Latent(self.latent(s, latent, index)),
                None => QkvParams::Fused(self.column_parallel(&at("qkv"), &[q, kv, kv], hidden, s.bias.qkv)),
            },
            q_norm: qk.then(|| self.heads_norm(s, &at("q_norm"), q_width)),
            k_norm: qk.then(|| self.heads_norm(s, &at("k_norm"), k_width)),
            sinks: s.sinks.then(|| self.wide(at("sinks"), s.heads, Cut::Rows(&[s.heads]), true)),
            attn_out: self.row_parallel(&at("attn_out"), hidden, s.attention_cols(), s.bias.attn_out),
            attn_post_norm: after.then(|| self.norm(&at("attn_post_norm"), hidden, s.norm_bias, false)),
            mlp_norm: before_mlp.then(|| self.norm(&at("mlp_norm"), hidden, s.norm_bias, false)),
            ffn: match s.experts_of(index) {
                Some(moe) => FfnParams::Experts(self.experts(s, moe, index)),
                None => FfnParams::Dense(self.mlp(s, &format!("blocks.{index}"), s.ffn)),
            },
            mlp_post_norm: after.then(|| self.norm(&at("mlp_post_norm"), hidden, s.norm_bias, false)),
        }
    }
}

impl Declare<'_> {
    fn mlp(&mut self, s: &Spec, at: &str, ffn: usize) -> DenseParams {
        let up: &[usize] = if s.mlp.gated { &[ffn, ffn] } else { &[ffn] };
        DenseParams {
            up: self.column_parallel(&format!("{at}.up"), up, s.hidden, s.bias.mlp),
            down: self.row_parallel(&format!("{at}.down"), s.hidden, ffn, s.bias.mlp),
        }
    }

    fn latent(&mut self, s: &Spec, l: &Latent, index: usize) -> LatentParams {
        let at = |part: &str| format!("blocks.{index}.{part}");
        let layout = l.layout(s, &s.layers[index]);
        LatentParams {
            q_down: l.query.map(|cols| {
                let down = self.linear(&at("q_down"), cols, s.hidden, s.bias.qkv);
                (down, self.norm(&at("q_latent_norm"), cols, false, false))
            }),
            q_up: self.column_parallel(&at("q_up"), &[s.q_cols()], l.query.unwrap_or(s.hidden), false),
            kv_down: self.linear(&at("kv_down"), l.key_value, s.hidden, s.bias.qkv),
            kv_norm: self.norm(&at("kv_latent_norm"), l.key_value, false, false),
            shared: self.linear(&at("k_shared"), layout.rotated, s.hidden, s.bias.qkv),
            kv_up: self.column_parallel(
                &at("kv_up"),
                &[s.heads * (layout.own + l.value)],
                l.key_value,
                false,
            ),
        }
    }

    fn experts(&mut self, s: &Spec, m: &Moe, index: usize) -> ExpertsParams {
        let at = format!("blocks.{index}.experts");
        let router = format!("blocks.{index}.router");
        // Tensor parallel ranks route some of the tokens each, whether they share rows between sub-layers or not.
        let weight = self.push(format!("{router}.weight"), [m.experts, s.hidden], Cut::Whole, true);
        let bias =
            m.router_bias.then(|| self.push(format!("{router}.bias"), [1, m.experts], Cut::Whole, true));
        ExpertsParams {
            layer: index,
            router: LinearParams { weight, bias },
            choice_bias: m
                .choice_bias
                .then(|| self.wide(format!("{router}.choice_bias"), m.experts, Cut::Whole, false)),
            up: self.expert_up(&format!("{at}.up"), s, m),
            down: self.expert_down(&format!("{at}.down"), s, m),
            shared: m.shared.map(|shared| SharedParams {
                mlp: self.mlp(s, &format!("blocks.{index}.shared"), shared.ffn),
                gate: shared.gated.then(|| self.shared_gate(s, index)),
            }),
        }
    }

    /// The gate of the shared experts; it is a matrix of one row.
    fn shared_gate(&mut self, s: &Spec, index: usize) -> ParamId {
        let kind = Kind { dtype: self.dtype, decays: true, trainable: true };
        let name = format!("blocks.{index}.shared.gate.weight");
        self.push_as(name, [1, s.hidden], Cut::Whole, self.portion.shared_rows, kind)
    }

    /// The way into all experts, on top of each other; parts of a transposed one are pairs of gate and up.
    fn expert_up(&mut self, name: &str, s: &Spec, m: &Moe) -> LinearParams {
        let halves = [m.ffn; 2];
        let (rows, cols, inside) = if m.transposed {
            (s.hidden, 2 * m.ffn, Inside::Cols)
        } else {
            (2 * m.ffn, s.hidden, Inside::Rows(&halves))
        };
        let cut = Cut::Experts(m.experts, inside);
        let weight = self.push(format!("{name}.weight"), [m.experts * rows, cols], cut, false);
        let bias = m.expert_bias.then(|| {
            let cut = Cut::Experts(m.experts, Inside::Cols);
            self.expert_bias(name, [m.experts, 2 * m.ffn], cut)
        });
        LinearParams { weight, bias }
    }

    /// The way out of them: ranks that share an expert make terms of a sum, to which one of them adds the bias.
    fn expert_down(&mut self, name: &str, s: &Spec, m: &Moe) -> LinearParams {
        let all = [m.ffn];
        let (rows, cols, inside) = if m.transposed {
            (m.ffn, s.hidden, Inside::Rows(&all))
        } else {
            (s.hidden, m.ffn, Inside::Cols)
        };
        let cut = Cut::Experts(m.experts, inside);
        let weight = self.push(format!("{name}.weight"), [m.experts * rows, cols], cut, false);
        let bias = m.expert_bias.then(|| {
            let cut = Cut::Experts(m.experts, Inside::Whole);
            self.expert_bias(name, [m.experts, s.hidden], cut)
        });
        LinearParams { weight, bias }
    }

    fn expert_bias(&mut self, name: &str, shape: [usize; 2], cut: Cut<'_>) -> ParamId {
        let kind = Kind { dtype: self.dtype, decays: false, trainable: true };
        self.push_as(format!("{name}.bias"), shape, cut, false, kind)
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
        Model::declare_part(device, spec, dtype, disk, Portion::of(spec, &device.mesh, 1))
    }

    /// As [`Model::declare_on`], of the weights that a rank holds.
    ///
    /// # Panics
    /// If the model cannot be cut like this ([`Portion::check`] says so beforehand).
    #[track_caller]
    pub fn declare_part(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        disk: Option<Rc<StateDisk>>,
        portion: Portion,
    ) -> (Model, Params) {
        if let Err(misfit) = portion.check(spec) {
            panic!("{misfit}");
        }
        device.pool.enter("weights", -1);
        let (replicas, same_experts) =
            (device.mesh.group(&[Axis::Cp, Axis::Dp]), device.mesh.group(&[Axis::Edp]));
        let parted = portion.parted && replicas.size() * same_experts.size() > 1;
        let params = Params::with_disk(disk).parted(parted);
        let (holdings, weights) = (Holdings::new(), Vec::new());
        let here = portion.first || (portion.last && spec.tied);
        let mut declare =
            Declare { device, dtype, portion: &portion, layer: -1, here, params, holdings, weights };
        let embed = declare.embed(spec);
        let embed = here.then_some(embed);
        let before: Vec<_> = embed.filter(|_| portion.first).map(|_| declare.since(0)).into_iter().collect();
        let mut walk = vec![before];
        let mut blocks = Vec::new();
        for index in 0..spec.layers.len() {
            let first = declare.params.len();
            (declare.layer, declare.here) = (index as i32, portion.layers().any(|layer| layer == index));
            let block = declare.block(spec, index);
            if declare.here {
                blocks.push(block);
                let run = portion.chunks.iter().position(|chunk| chunk.contains(&index)).unwrap_or_default();
                walk.resize(walk.len().max(run + 1), Vec::new());
                walk[run].push(declare.since(first));
            }
        }
        (declare.layer, declare.here) = (-1, portion.last);
        let first = declare.params.len();
        let norm = declare.norm("final_norm", spec.hidden, spec.norm_bias, false);
        let norm_ids = declare.since(first);
        let head = match embed.filter(|_| spec.tied) {
            Some(embed) => embed.tokens,
            None => {
                let (shape, cut) = ([spec.vocab, spec.hidden], [spec.vocab]);
                declare.push("head.weight".into(), shape, Cut::Rows(&cut), false)
            }
        };
        let vocab = [spec.vocab];
        let bias = spec
            .head_bias
            .then(|| declare.push("head.bias".into(), [1, spec.vocab], Cut::Rows(&vocab), false));
        let last = portion.last.then_some(LastParams { norm, head, head_bias: bias });
        if let (Some(last), Some(run)) = (last, walk.last_mut()) {
            run.extend([norm_ids, [last.head].into_iter().chain(last.head_bias).collect()]);
        }
        declare.params.set_walk(walk, embed.filter(|_| spec.tied).map(|embed| embed.tokens));
        let holdings = &declare.holdings;
        declare.params.part(device, &|id| {
            if holdings[id.index()].expert { &same_experts } else { &replicas }
        });
        let embed_scale = match dtype {
            DType::Bf16 => half::bf16::from_f32(spec.embed_scale).to_f32(),
            _ => spec.embed_scale,
        };
        let (spec, Declare { params, holdings, weights, .. }) = (spec.clone(), declare);
        (Model { spec, portion, embed, blocks, last, holdings, weights, embed_scale }, params)
    }

    /// Token ids of the batch to the hidden states before the head: [t, hidden].
    ///
    /// # Panics
    /// If this rank has only some of the layers.
    #[track_caller]
    pub fn forward<'a>(&'a self, run: &mut impl Segments<'a>) -> Tensor {
        let whole = self.portion.first && self.portion.last && self.portion.chunks.len() == 1;
        assert!(
            whole,
            "forward: of {} layers this rank has {:?}",
            self.spec.layers.len(),
            self.portion.chunks
        );
        self.forward_chunk(run, 0, None)
    }

    /// One of the portion's runs of layers: the first of a pipeline takes token ids, the others what the one before gave; the
    /// last gives the hidden states before the head.
    ///
    /// # Panics
    /// If `x` is missing where it is needed.
    #[track_caller]
    pub fn forward_chunk<'a>(
        &'a self,
        run: &mut impl Segments<'a>,
        chunk: usize,
        x: Option<Tensor>,
    ) -> Tensor {
        let Portion { chunks, first, last, .. } = &self.portion;
        let layers = chunks[chunk].clone();
        let before: usize = chunks[..chunk].iter().map(|chunk| chunk.len()).sum();
        let blocks = &self.blocks[before..before + layers.len()];
        let mut x_td = match (&self.embed, x) {
            (Some(p), None) if *first && chunk == 0 => {
                let rows = (self.holdings[p.tokens.index()].shard.rows[0].start, self.portion.tp_index == 0);
                let embed =
                    |cx: &mut Ctx<'a>, _| cx.embed_parallel(p.tokens, p.positions, self.embed_scale, rows);
                run.segment(-1, None, &embed)
            }
            (_, Some(x_td)) => x_td,
            _ => panic!("forward: layers {layers:?} need what those before them give"),
        };
        let s = &self.portion.local(&self.spec);
        let together = run.layers_per_segment();
        let blocks: Vec<_> = layers.clone().zip(self.spec.layers[layers].iter().zip(blocks)).collect();
        for blocks in blocks.chunks(together) {
            x_td = run.segment(blocks[0].0 as i32, Some(x_td), &|cx, x_td| {
                blocks.iter().fold(x_td, |x_td, (_, (layer, params))| block(cx, s, layer, params, x_td))
            });
        }
        let Some(p) = self.last.filter(|_| *last && chunk + 1 == chunks.len()) else { return x_td };
        let names = ["final.norm", "final.norm.stats"];
        run.segment(-1, Some(x_td), &|cx, x_td| cx.rows(|cx| norm(cx, s, names, x_td, Some(p.norm))))
    }

    /// The type of weights and activations.
    pub fn dtype(&self, params: &Params) -> DType {
        params.dtype(ParamId(0))
    }

    /// Weights that are f32 whatever the others are.
    pub(crate) fn wide(&self) -> Vec<ParamId> {
        let of_block = |block: &BlockParams| {
            let bias = match &block.ffn {
                FfnParams::Experts(experts) => experts.choice_bias,
                FfnParams::Dense(_) => None,
            };
            block.sinks.into_iter().chain(bias)
        };
        self.blocks.iter().flat_map(of_block).collect()
    }

    /// The biases that join the choice of experts, with the layers that they belong to.
    pub fn choice_biases(&self) -> impl Iterator<Item = (usize, ParamId)> + '_ {
        self.blocks.iter().filter_map(|block| match &block.ffn {
            FfnParams::Experts(experts) => experts.choice_bias.map(|bias| (experts.layer, bias)),
            FfnParams::Dense(_) => None,
        })
    }

    /// The output projection, with the given weight of the z-loss.
    ///
    /// # Panics
    /// If this rank does not have the last layers.
    #[track_caller]
    pub fn head(&self, z_loss: f32) -> Head {
        let Some(LastParams { head, head_bias: bias, .. }) = self.last else {
            panic!("head: this rank does not hold the last layers")
        };
        let how = HeadUse { scale: self.spec.logit_scale, softcap: self.spec.logit_softcap, z_loss };
        let first = self.holdings[head.index()].shard.rows[0].start;
        Head { weight: head, bias, how, first }
    }
}
