//! Small blocks over the operations, one for each pattern of shared values and joining gradients; stacked, with a head.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_grad::{
    AdamW, AdamWSettings, AttentionUse, Batch, Context, ContextLayout, Counters, Counts, CpComm, Ctx, Grads,
    Head, HeadUse, Keys, Labels, LayoutSizes, LossTerm, Modules, Offload, Param, ParamId, Params, Place,
    Places, RopeUse, Rotation, Scope, Segments, SharedStream, Tape, Update, Val,
};
use fathom_tensor::mesh::Axis;
use fathom_tensor::spill::{Chaos, Options, Spill};
use fathom_tensor::{
    Activation, Category, DType, Device, Machine, Meta, NormKind, PoolUsage, RopeTable, Tensor,
};

pub const LAYERS: usize = 3;
const HIDDEN: usize = 32;
const HEAD_DIM: usize = 16;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FFN: usize = 72;
const VOCAB: usize = 67;
const MAX_DOCS: usize = 8;

/// Modules of a block in the tests.
pub const MODULES: &Modules = &[
    ("core_attn", &["attn.out", "attn.lse"]),
    ("layernorm", &["attn.norm", "attn.norm.stats", "mlp.norm", "mlp.norm.stats"]),
    ("mlp", &["mlp.*"]),
    ("mlp_act", &["mlp.act"]),
];

/// Patterns of shared and joined values in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Sequential: norm, attention, gate; only the block's input is read again.
    Chain,
    /// Three operations read the block's input; LayerNorm, biases, learned positions, no rotation.
    Fork,
    /// Attention's input is read again after it, twice.
    Bridge,
    /// Norms before additions, scaled sums, caps, sinks, windows in every second layer.
    Capped,
    /// Queries and keys have their own norms before the rotation; nothing after attention.
    Turned,
}

impl Variant {
    pub const ALL: [Variant; 5] =
        [Variant::Chain, Variant::Fork, Variant::Bridge, Variant::Capped, Variant::Turned];

    fn plain(self) -> bool {
        self == Variant::Fork
    }

    fn kind(self) -> NormKind {
        let (centred, plus_one) = (self.plain(), self == Variant::Capped);
        NormKind { centred, plus_one, round_first: !plus_one, eps: 1e-5 }
    }

    fn softcap(self) -> f32 {
        if self == Variant::Capped { 20.0 } else { 0.0 }
    }

    /// Projections of a block: role, columns out and in.
    fn projections(self) -> Vec<(&'static str, usize, usize)> {
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let (qkv, out, down) = (("qkv", q + 2 * kv, HIDDEN), ("attn_out", HIDDEN, q), ("down", HIDDEN, FFN));
        match self {
            Variant::Chain => vec![qkv, ("up", 2 * FFN, q), down],
            Variant::Fork => vec![qkv, out, ("up", FFN, HIDDEN), down],
            Variant::Bridge | Variant::Capped => vec![qkv, out, ("up", 2 * FFN, HIDDEN), down],
            Variant::Turned => vec![qkv, out],
        }
    }

    /// Norms of a block: role and width.
    fn norms(self) -> &'static [(&'static str, usize)] {
        match self {
            Variant::Chain | Variant::Bridge => &[("attn_norm", HIDDEN)],
            Variant::Fork => &[("mlp_norm", HIDDEN)],
            Variant::Capped => &[("attn_norm", HIDDEN), ("mlp_norm", HIDDEN)],
            Variant::Turned => &[("q_norm", HEAD_DIM), ("k_norm", HEAD_DIM)],
        }
    }
}

/// Weight and bias.
#[derive(Clone, Copy)]
struct Pair(ParamId, Option<ParamId>);

/// By role.
type Block = BTreeMap<&'static str, Pair>;

struct Model {
    variant: Variant,
    embed: ParamId,
    positions: Option<ParamId>,
    blocks: Vec<Block>,
    final_norm: Pair,
    head: ParamId,
}

/// A number in -1..1 for every element of every weight (SplitMix64).
fn noise(seed: u64, index: u64) -> f32 {
    let mut z = (seed << 32).wrapping_add(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

struct Declare<'a> {
    device: &'a Device,
    dtype: DType,
    params: Params,
    trainable: &'a dyn Fn(&str) -> bool,
}

impl Declare<'_> {
    fn push(
        &mut self,
        name: String,
        [rows, cols]: [usize; 2],
        middle: f32,
        spread: f32,
        dtype: DType,
    ) -> ParamId {
        let seed = self.params.len() as u64;
        let values: Vec<f32> = (0..rows * cols).map(|at| middle + spread * noise(seed, at as u64)).collect();
        let wide = self.device.from_f32(rows, cols, &values, Category::Data);
        let tensor = self.device.empty(rows, cols, dtype, Category::Params);
        self.device.machine.copy(&wide, &tensor);
        let (decays, trainable) = (rows > 1, (self.trainable)(&name));
        self.params.push(Param { name, value: tensor.into(), decays, trainable })
    }

    fn linear(&mut self, name: &str, out: usize, inner: usize, bias: bool) -> Pair {
        let (dtype, spread) = (self.dtype, 1.7 / (inner as f32).sqrt());
        let weight = self.push(format!("{name}.weight"), [out, inner], 0.0, spread, dtype);
        Pair(weight, bias.then(|| self.push(format!("{name}.bias"), [1, out], 0.0, 0.3, dtype)))
    }

    fn norm(&mut self, name: &str, width: usize, variant: Variant) -> Pair {
        let middle = if variant.kind().plus_one { 0.0 } else { 1.0 };
        let weight = self.push(format!("{name}.weight"), [1, width], middle, 0.3, self.dtype);
        let bias = variant.plain();
        Pair(weight, bias.then(|| self.push(format!("{name}.bias"), [1, width], 0.0, 0.3, self.dtype)))
    }

    fn block(&mut self, variant: Variant, layer: usize) -> Block {
        let at = |role: &str| format!("blocks.{layer}.{role}");
        let mut block = Block::new();
        for (role, out, inner) in variant.projections() {
            block.insert(role, self.linear(&at(role), out, inner, variant.plain()));
        }
        for (role, width) in variant.norms() {
            block.insert(role, self.norm(&at(role), *width, variant));
        }
        if variant == Variant::Capped {
            block.insert("sinks", Pair(self.push(at("sinks"), [1, HEADS], 0.0, 1.0, DType::F32), None));
        }
        block
    }
}

impl Model {
    fn declare(
        device: &Device,
        variant: Variant,
        dtype: DType,
        trainable: &dyn Fn(&str) -> bool,
    ) -> (Model, Params) {
        let mut declare = Declare { device, dtype, params: Params::default(), trainable };
        let embed = declare.push("embed".to_string(), [VOCAB, HIDDEN], 0.0, 1.0, dtype);
        let learned = variant.plain();
        let positions =
            learned.then(|| declare.push("positions".to_string(), [600, HIDDEN], 0.0, 0.5, dtype));
        let blocks = (0..LAYERS).map(|layer| declare.block(variant, layer)).collect();
        let final_norm = declare.norm("final_norm", HIDDEN, variant);
        let head = declare.linear("head", VOCAB, HIDDEN, false).0;
        (Model { variant, embed, positions, blocks, final_norm, head }, declare.params)
    }

    fn norm(&self, cx: &mut Ctx<'_>, names: [&'static str; 2], x: Val, Pair(weight, bias): Pair) -> Val {
        cx.norm(names, x, self.variant.kind(), weight, bias)
    }

    /// Projects and attends: from `h_td` to the heads' outputs.
    fn attend(&self, cx: &mut Ctx<'_>, layer: usize, h_td: Val) -> Val {
        let p = &self.blocks[layer];
        let widths = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM];
        let rope = RopeUse { table: 0, head_dim: HEAD_DIM, interleaved: false };
        let qkv = linear(cx, "attn.qkv", h_td, p["qkv"]);
        let [q_te, k_tk, v_tk] = if self.variant == Variant::Turned {
            let [q_te, k_tk, v_tk] = cx.split(["attn.q.raw", "attn.k.raw", "attn.v"], qkv, widths, None);
            let q_te = self.norm(cx, ["attn.q.norm", "attn.q.norm.stats"], q_te, p["q_norm"]);
            let k_tk = self.norm(cx, ["attn.k.norm", "attn.k.norm.stats"], k_tk, p["k_norm"]);
            [cx.rope("attn.q", q_te, rope), cx.rope("attn.k", k_tk, rope), v_tk]
        } else {
            let rope = (!self.variant.plain()).then_some(rope);
            cx.split(["attn.q", "attn.k", "attn.v"], qkv, widths, rope)
        };
        let mask = usize::from(self.variant == Variant::Capped && layer % 2 == 1);
        let (softcap, sinks) = (self.variant.softcap(), p.get("sinks").map(|sinks| sinks.0));
        let how = AttentionUse {
            keys: Keys::Own,
            mask,
            head_dim: HEAD_DIM,
            scale: 0.25,
            softcap,
            apart: None,
            slopes: false,
        };
        cx.whole(|cx| cx.attention(q_te, k_tk, v_tk, how, sinks))
    }

    /// Two projections with an activation between them.
    fn mlp(&self, cx: &mut Ctx<'_>, layer: usize, h: Val) -> Val {
        let p = &self.blocks[layer];
        let u_tf = linear(cx, "mlp.up", h, p["up"]);
        let m_tf = if self.variant.plain() {
            cx.activate("mlp.act", Activation::GeluErf, u_tf)
        } else {
            cx.gate("mlp.act", Activation::Silu, u_tf)
        };
        linear(cx, "mlp.down", m_tf, p["down"])
    }

    fn block(&self, cx: &mut Ctx<'_>, layer: usize, x_td: Val) -> Val {
        let p = &self.blocks[layer];
        let (before, after) = (["attn.norm", "attn.norm.stats"], ["mlp.norm", "mlp.norm.stats"]);
        cx.rows(|cx| match self.variant {
            Variant::Chain => {
                let h_td = self.norm(cx, before, x_td, p["attn_norm"]);
                let o_te = self.attend(cx, layer, h_td);
                let m_td = self.mlp(cx, layer, o_te);
                cx.add("block.out", x_td, m_td)
            }
            Variant::Fork => {
                let o_te = self.attend(cx, layer, x_td);
                let a_td = linear(cx, "attn.proj", o_te, p["attn_out"]);
                let h_td = self.norm(cx, after, x_td, p["mlp_norm"]);
                let m_td = self.mlp(cx, layer, h_td);
                let y_td = cx.add("block.mid", x_td, a_td);
                cx.add("block.out", y_td, m_td)
            }
            Variant::Bridge => {
                let h_td = self.norm(cx, before, x_td, p["attn_norm"]);
                let o_te = self.attend(cx, layer, h_td);
                let a_td = linear(cx, "attn.proj", o_te, p["attn_out"]);
                let y_td = cx.add("block.mid", h_td, a_td);
                let m_td = self.mlp(cx, layer, y_td);
                cx.add("block.out", m_td, h_td)
            }
            Variant::Capped => {
                let o_te = self.attend(cx, layer, x_td);
                let a_td = linear(cx, "attn.proj", o_te, p["attn_out"]);
                let a_td = self.norm(cx, before, a_td, p["attn_norm"]);
                let a_td = cx.scale("attn.scaled", a_td, 0.7);
                let y_td = cx.add("block.mid", x_td, a_td);
                let m_td = self.mlp(cx, layer, y_td);
                let m_td = self.norm(cx, after, m_td, p["mlp_norm"]);
                let m_td = cx.scale("mlp.scaled", m_td, 0.7);
                cx.add("block.out", y_td, m_td)
            }
            Variant::Turned => {
                let o_te = self.attend(cx, layer, x_td);
                let a_td = linear(cx, "attn.proj", o_te, p["attn_out"]);
                cx.add("block.out", x_td, a_td)
            }
        })
    }

    fn forward<'a>(&'a self, run: &mut impl Segments<'a>) -> Tensor {
        let mut x_td = run.segment(-1, None, &|cx, _| cx.embed(self.embed, self.positions, (1.5, false)));
        let together = run.layers_per_segment();
        for layer in (0..LAYERS).step_by(together) {
            x_td = run.segment(layer as i32, Some(x_td), &|cx, x_td| {
                (layer..LAYERS.min(layer + together)).fold(x_td, |x_td, layer| self.block(cx, layer, x_td))
            });
        }
        let names = ["final.norm", "final.norm.stats"];
        run.segment(-1, Some(x_td), &|cx, x_td| cx.rows(|cx| self.norm(cx, names, x_td, self.final_norm)))
    }
}

fn linear(cx: &mut Ctx<'_>, name: &'static str, x: Val, Pair(weight, bias): Pair) -> Val {
    cx.linear(name, x, weight, bias)
}

/// A machine with a thread count and the highest instruction set allowed, made once.
pub fn cpu(threads: usize, isa: Isa) -> Arc<dyn Machine> {
    static ALL: OnceLock<Vec<Arc<Cpu>>> = OnceLock::new();
    let make = || {
        let one = |isa: Isa| (1..=3).map(move |threads| Arc::new(Cpu::new(threads, Some(isa))));
        Isa::ALL.into_iter().flat_map(one).collect()
    };
    ALL.get_or_init(make)[isa as usize * 3 + threads - 1].clone()
}

/// A processor with this instruction set, without data, for plans independent of this processor.
pub fn described(threads: usize, isa: Isa) -> Arc<dyn Machine> {
    Arc::new(Meta::new(fathom_cpu::profile(threads, isa)))
}

/// Instruction sets of this processor.
pub fn levels() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect()).collect()
}

/// A test's configuration.
#[derive(Clone)]
pub struct Setup {
    pub variant: Variant,
    pub dtype: DType,
    pub machine: Arc<dyn Machine>,
    pub places: Places,
    pub chaos: Option<Chaos>,
    /// Exchange of keys, if the device's mesh has a context axis.
    pub comm: CpComm,
}

impl Setup {
    pub fn new(variant: Variant, dtype: DType) -> Setup {
        let (machine, places, comm) = (cpu(1, Isa::detect()), Places::none(), CpComm::P2p);
        Setup { variant, dtype, machine, places, chaos: None, comm }
    }

    /// The same configuration on the machine without data.
    pub fn plan(&self) -> Setup {
        Setup { machine: Arc::new(Meta::new(self.machine.profile().clone())), ..self.clone() }
    }

    pub fn build(&self, trainable: &dyn Fn(&str) -> bool) -> Stack {
        self.build_on(Device::new(self.machine.clone(), 1 << 30), trainable)
    }

    /// Builds the stack on one rank of a mesh.
    pub fn build_on(&self, device: Device, trainable: &dyn Fn(&str) -> bool) -> Stack {
        let (model, params) = Model::declare(&device, self.variant, self.dtype, trainable);
        let grads = Grads::zeros(&device, &params);
        let optimizer = AdamW::new(&device, &params);
        let scalar = || device.zeros(1, 1, DType::F32, Category::Data);
        let (loss, count, counters) = (scalar(), scalar(), Counters::default());
        let places = self.places.clone();
        let open = |place: Place, options: Options| {
            let options = Options { piece_bytes: 16 << 10, chaos: self.chaos, ..options };
            let spill = || Spill::open(&device, &options).unwrap_or_else(|error| panic!("{error}"));
            places.uses(place).then(spill)
        };
        let host = open(Place::Host, Options::in_memory(64 << 20));
        let disk = open(Place::Disk, Options::new(std::env::temp_dir(), 64 << 20));
        let offload = Offload { host, disk };
        let comm = self.comm;
        Stack { device, model, params, grads, optimizer, loss, count, counters, places, offload, comm }
    }

    /// Runs one accumulation with everything trained.
    pub fn run(&self, micro_batches: &[Range<usize>], docs: &[usize]) -> Outcome {
        let mut stack = self.build(&|_| true);
        stack.accumulate(micro_batches, docs);
        stack.outcome()
    }
}

/// A model with its persistent training state.
pub struct Stack {
    pub device: Device,
    model: Model,
    pub params: Params,
    pub grads: Grads,
    optimizer: AdamW,
    loss: Tensor,
    count: Tensor,
    counters: Counters,
    places: Places,
    pub offload: Offload,
    comm: CpComm,
}

/// Results of an accumulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub loss: Vec<u8>,
    /// By name.
    pub grads: Vec<(String, Vec<u8>)>,
    pub usage: PoolUsage,
    /// FLOPs of the model, and all FLOPs.
    pub flops: [u128; 2],
    pub replayed: u128,
}

impl Stack {
    /// Clears the gradients and runs the micro-batches, each a range of the tokens of documents of these lengths.
    pub fn accumulate(&mut self, micro_batches: &[Range<usize>], docs: &[usize]) {
        self.grads.clear(&self.device);
        self.device.machine.zero(&self.loss);
        for rows in micro_batches {
            self.micro_batch(rows.clone(), docs);
        }
    }

    /// An accumulation with its update.
    pub fn step(&mut self, micro_batches: &[Range<usize>], docs: &[usize]) {
        self.accumulate(micro_batches, docs);
        self.update();
    }

    /// Applies the accumulated gradients.
    pub fn update(&mut self) {
        self.device.machine.write(&self.count, &200f32.to_le_bytes());
        let (loss, count) = (&self.loss, &self.count);
        let (update, settings) = (Update { loss, count }, AdamWSettings::default());
        self.optimizer.update(&self.device, &mut self.params, &self.grads, update, &settings);
    }

    fn micro_batch(&mut self, rows: Range<usize>, docs: &[usize]) {
        let device = &self.device;
        device.pool.enter("batch", -1);
        let (batch, layout) = batch(device, rows.clone(), docs, self.comm);
        let label = |at: usize| if at % 6 == 4 { -1 } else { token(at + 1) };
        let ids: Vec<i32> = rows.clone().map(label).collect();
        let ids = layout.take(device.mesh.index(Axis::Cp), &ids);
        let labels = Labels::plain(device.from_i32(&ids, Category::Data));
        let losses = device.empty(1, batch.tokens, DType::F32, Category::Data);
        let scope = Scope { device, params: &self.params, batch: (&batch).into(), counters: &self.counters };
        let mut tape = Tape::new(scope, &self.places).with_offload(Some(&self.offload));
        let hidden = self.model.forward(&mut tape);
        let head = Head {
            weight: self.model.head,
            bias: None,
            how: HeadUse { z_loss: 1e-3, ..HeadUse::default() },
            first: 0,
            term: None,
        };
        let dhidden =
            head.loss(tape.scope(), &hidden, &labels, &[LossTerm::cross_entropy(&losses)], &mut self.grads);
        drop(hidden);
        device.machine.sum(&losses, &self.loss);
        tape.backward(dhidden, &mut self.grads);
    }

    /// The hidden states before the head, from an evaluation pass and from a tape.
    pub fn hidden_states(&self, docs: &[usize], tile_rows: Option<usize>) -> [Vec<u8>; 2] {
        let device = &self.device;
        let batch = batch(device, 0..docs.iter().sum(), docs, self.comm).0;
        let scope =
            || Scope { device, params: &self.params, batch: (&batch).into(), counters: &self.counters };
        let evaluated = self.model.forward(&mut fathom_grad::Eval::new(scope(), tile_rows, None));
        let taped = self.model.forward(&mut Tape::new(scope(), &self.places));
        [evaluated, taped].map(|hidden| device.machine.read(&hidden).wait())
    }

    pub fn outcome(&self) -> Outcome {
        let read = |tensor: &Tensor| self.device.machine.read(tensor).wait();
        let named = |(id, grad): (ParamId, &Tensor)| (self.params.get(id).name.clone(), read(grad));
        let Counts { model_flops, hardware_flops, replayed, .. } = self.counters.get();
        Outcome {
            loss: read(&self.loss),
            grads: self.grads.iter().map(named).collect(),
            usage: self.device.pool.usage(),
            flops: [model_flops, hardware_flops],
            replayed,
        }
    }
}

fn token(at: usize) -> i32 {
    ((noise(99, at as u64) + 1.0) / 2.0 * VOCAB as f32) as i32
}

/// This rank's part of the tokens `rows` of a stream of documents; a document is cut only where `rows` begins or ends.
fn batch(device: &Device, rows: Range<usize>, docs: &[usize], comm: CpComm) -> (Batch, ContextLayout) {
    let mut parts = Vec::new();
    let mut positions = Vec::new();
    let mut start = 0;
    for length in docs {
        let part = start.max(rows.start)..(start + length).min(rows.end);
        if part.start < part.end {
            positions.extend(part.clone().map(|at| (at - start) as i32));
            parts.push(part.start - rows.start..part.end - rows.start);
        }
        start += length;
    }
    let windows = [None, Some(19)];
    let cut = LayoutSizes {
        tokens: rows.len(),
        cp: device.mesh.size(Axis::Cp),
        chunk: 32,
        windows: &windows,
        dynamic: None,
        pieces: None,
    };
    let layout = ContextLayout::new(&parts, &cut).unwrap_or_else(|message| panic!("{message}"));
    let sharing = SharedStream { layout: &layout, comm: &[comm], states: None };
    let ids: Vec<i32> = rows.clone().map(token).collect();
    let ids = device.from_i32(&sharing.own(device, &ids), Category::Data);
    let own = device.from_i32(&sharing.own(device, &positions), Category::Data);
    let (masks, context) = Context::new(device, &sharing, &windows, MAX_DOCS, &positions, &own);
    let inv_freq: Vec<f32> =
        (0..HEAD_DIM / 2).map(|pair| 1e4f32.powf(-2.0 * pair as f32 / HEAD_DIM as f32)).collect();
    let inv_freq = device.from_f32(1, inv_freq.len(), &inv_freq, Category::Data);
    let table = device.empty(own.cols(), HEAD_DIM, DType::F32, Category::Data);
    let rope = RopeTable { positions: &own, inv_freq: &inv_freq, factor: 1.0, out: &table };
    device.machine.rope_table(&rope);
    let ropes = vec![Rotation::Table(table)];
    (Batch { masks, ropes, context, ..Batch::new(ids, own) }, layout)
}

/// All tokens of the documents as one micro-batch.
pub fn whole(docs: &[usize]) -> Vec<Range<usize>> {
    std::iter::once(0..docs.iter().sum()).collect()
}
