//! A model: a specification with the ids of its weights.

use std::collections::BTreeSet;
use std::rc::Rc;

use fathom_grad::{Head, HeadUse, Param, ParamId, Params, Projections, Scores, StateDisk};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{BlockFormat, Category, DType, Device};

use crate::block::BlockParams;
use crate::given::ExistingWeights;
use crate::portion::{Holdings, Portion, Weight, WeightPart};
use crate::spec::{Quantization, Spec};
use crate::weight::{Kind, LastParams, Module, NOWHERE, See, WeightSpec};
use crate::whole::EmbedParams;

/// A specification with the ids of the weights on this rank. Holds no weights itself.
#[derive(Clone, Debug)]
pub struct Model {
    /// The architecture.
    pub spec: Spec,
    /// This rank's part of it.
    pub portion: Portion,
    /// Weights before the first block, and the table of a tied head.
    pub embed: Option<EmbedParams>,
    /// One per layer of the portion.
    pub blocks: Vec<BlockParams>,
    /// Per block, the first layer of its kind and that layer's first weight; empty if layers share weights.
    pub alike: Vec<(usize, ParamId)>,
    /// Weights after the last block.
    pub last: Option<LastParams>,
    /// This rank's part of each weight.
    pub holdings: Holdings,
    /// All weights of the model, by number.
    pub weights: Vec<Weight>,
    /// Format of frozen weights, if quantized.
    pub quantized: Option<Quantization>,
    /// Bias tensors that belong to the adapter although the rest of its base is shared ([`crate::share_base`]).
    pub own_biases: BTreeSet<String>,
    /// [`Spec::embed_scale`] rounded to the weights' type, as Gemma's code does.
    pub embed_scale: f32,
    /// Its width over the one for which learning rate and initial deviation were chosen, by muP; 1 without it.
    pub width_ratio: f64,
}

/// Allocates the portion's weights, and counts the others.
struct Declare<'a> {
    device: &'a Device,
    dtype: DType,
    portion: &'a Portion,
    tied: bool,
    /// Numbers of the packed weights, and their format.
    packed: Option<(BlockFormat, BTreeSet<u32>)>,
    given: ExistingWeights,
    params: Params,
    holdings: Holdings,
    weights: Vec<Weight>,
    /// The allocated weights, with their layer and module.
    made: Vec<(Option<usize>, Module, ParamId)>,
}

impl Declare<'_> {
    fn weight(&mut self, layer: Option<usize>, w: &WeightSpec<'_>) -> ParamId {
        let number = self.weights.len() as u32;
        self.weights.push(Weight::of(w.shape, w.cut, self.portion));
        if !self.portion.has_weight(layer, w, self.tied) {
            return NOWHERE;
        }
        // A stage's copy of a weight of several layers is with the first of them that the stage has.
        let at = layer.and_then(|layer| self.portion.layers().find(|here| *here >= layer));
        let holding = WeightPart::of(number, w.shape, w.cut, self.portion);
        let dtype = if w.kind == Kind::Wide { DType::F32 } else { self.dtype };
        let [rows, cols] = holding.shard.local();
        let packed = self.packed.as_ref().filter(|(_, numbers)| numbers.contains(&number));
        let place = at.map_or(-1, |layer| layer as i32);
        let blocked = self.given.blocked.get(&number).cloned();
        let base = self.given.of_base(layer, w, [rows, cols]);
        // Weights that no update changes are small and stay in memory, as do f32 weights among others: buffers of a disk have
        // one type.
        let in_memory = if self.portion.parted { !w.trainable } else { dtype != self.dtype };
        let stays = packed.is_some() || blocked.is_some() || base.is_some();
        let value = if let Some(value) = base {
            value
        } else if let Some(packing) = blocked {
            self.params.blocked_room(self.device, packing, [rows, cols], dtype)
        } else if let Some((format, _)) = packed {
            self.params.packed_room(self.device, *format, [rows, cols], dtype, place)
        } else if !in_memory {
            self.params.room(self.device, [rows, cols], dtype, place)
        } else {
            self.device.empty(rows, cols, dtype, Category::Params).into()
        };
        self.holdings.push(holding);
        let (decays, trainable) = (w.decays, w.trainable && !stays);
        let id = self.params.push(Param { name: w.name(layer), value, decays, trainable });
        if w.kind == Kind::Adapter {
            self.params.set_added(id);
        }
        if w.readers > 1 {
            self.params.set_shared(id);
        }
        self.made.push((at, w.module, id));
        id
    }

    /// Weights of each segment of each chunk of layers, in forward order: those of the source's stream come first; `head`
    /// is the table of a tied head.
    fn segments(&self, split: usize, [head, head_of]: [Option<ParamId>; 2]) -> Vec<Vec<Vec<ParamId>>> {
        let of = |wanted: &dyn Fn(Option<usize>, Module) -> bool| -> Vec<ParamId> {
            let made = self.made.iter().filter(|(layer, module, _)| wanted(*layer, *module));
            made.map(|(.., id)| *id).collect()
        };
        let input = |layer: Option<usize>, module| {
            layer.is_none() && matches!(module, Module::Tokens | Module::Input)
        };
        let block = |index| of(&|layer, module| layer == Some(index) && module != Module::Source);
        let of_source = |at| of(&|layer, module| layer == at && module == Module::Source);
        let chunks = self.portion.chunks.iter().enumerate();
        let mut runs: Vec<Vec<Vec<ParamId>>> = chunks
            .map(|(run, chunk)| {
                let (mut run, begins) = (Vec::new(), self.portion.first && run == 0);
                let shared = head_of.filter(|_| of_source(None).is_empty());
                run.extend(
                    (begins && split > 0).then(|| of_source(None).into_iter().chain(shared).collect()),
                );
                for index in chunk.start..chunk.end.min(split) {
                    run.push(block(index));
                    run.extend((index + 1 == split).then(|| of_source(Some(index))));
                }
                run.extend(begins.then(|| of(&input)));
                run.extend((chunk.start.max(split)..chunk.end).map(block));
                run
            })
            .collect();
        if let (true, Some(run)) = (self.portion.last, runs.last_mut()) {
            let of_head = of(&|_, module| module == Module::Head);
            run.extend([of(&|_, module| module == Module::Last), head.into_iter().chain(of_head).collect()]);
        }
        runs
    }
}

impl Model {
    /// Declares a model's weights, uninitialised, of `dtype` (f32 or bf16).
    pub fn declare(device: &Device, spec: &Spec, dtype: DType) -> (Model, Params) {
        Model::declare_on(device, spec, dtype, None)
    }

    /// Like [`Model::declare`], with disk behind the weights and their optimizer state.
    pub fn declare_on(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        disk: Option<Rc<StateDisk>>,
    ) -> (Model, Params) {
        Model::declare_part(device, spec, dtype, disk, Portion::of(spec, &device.mesh, 1))
    }

    /// Like [`Model::declare_on`], for a rank's part of the weights.
    ///
    /// # Panics
    /// If the model cannot be split like this (see [`Portion::check`]).
    #[track_caller]
    pub fn declare_part(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        disk: Option<Rc<StateDisk>>,
        portion: Portion,
    ) -> (Model, Params) {
        Model::declare_quantized(device, spec, dtype, disk, (portion, None))
    }

    /// Like [`Model::declare_part`], with frozen projections quantized.
    ///
    /// # Panics
    /// Those of [`Model::declare_part`], and if weights cannot be packed like this (see [`Quantization::check`]).
    #[track_caller]
    pub fn declare_quantized(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        disk: Option<Rc<StateDisk>>,
        part: (Portion, Option<&Quantization>),
    ) -> (Model, Params) {
        Model::declare_held(device, spec, dtype, disk, part, ExistingWeights::default())
    }

    /// The same, with some weights in blocks, or the base's weights given.
    #[track_caller]
    pub(crate) fn declare_held(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        disk: Option<Rc<StateDisk>>,
        (portion, quantized): (Portion, Option<&Quantization>),
        given: ExistingWeights,
    ) -> (Model, Params) {
        if let Err(misfit) = portion.check(spec) {
            panic!("{misfit}");
        }
        if let Some(Err(misfit)) = quantized.map(|quantized| quantized.check(spec, &portion)) {
            panic!("{misfit}");
        }
        device.pool.enter("weights", -1);
        let (replicas, same_experts) =
            (device.mesh.group(&[Axis::Cp, Axis::Dp]), device.mesh.group(&[Axis::Edp]));
        let parted = portion.parted && replicas.size() * same_experts.size() > 1;
        let params = Params::with_disk(disk).parted(parted);
        let (holdings, weights, made) = (Holdings::new(), Vec::new(), Vec::new());
        let tied = spec.tied;
        let packed = quantized.map(|quantized| (quantized.format, quantized.numbers(spec)));
        let portion_of = &portion;
        let mut declare = Declare {
            device,
            dtype,
            portion: portion_of,
            tied,
            packed,
            given,
            params,
            holdings,
            weights,
            made,
        };
        let (embed, blocks, last) = spec.walk(&mut |layer, weight| declare.weight(layer, weight));
        declare.given.end();
        let embed = portion.has(None, Module::Tokens, tied).then_some(embed);
        let embed = embed.map(|p| EmbedParams { positions: p.positions.filter(|_| portion.first), ..p });
        let here = |index: &usize| portion.layers().any(|layer| layer == *index);
        let blocks =
            blocks.into_iter().enumerate().filter(|(index, _)| here(index)).map(|(_, p)| p).collect();
        let last = portion.last.then_some(last);
        let first_of = |index: usize| {
            let made = declare.made.iter().find(|(layer, ..)| *layer == Some(index));
            (spec.first_like(index), made.map_or(ParamId(0), |(.., id)| *id))
        };
        let alike =
            if spec.layers_share_weights() { Vec::new() } else { portion.layers().map(first_of).collect() };
        let tied_to = embed.filter(|_| tied).map(|embed| embed.tokens);
        let runs = declare.segments(spec.source, [tied_to, embed.map(|embed| embed.tokens)]);
        declare.params.set_walk(spec.in_order(runs), tied_to);
        let holdings = &declare.holdings;
        declare.params.part(device, &|id| {
            if holdings[id.index()].expert { &same_experts } else { &replicas }
        });
        let embed_scale = match dtype {
            DType::Bf16 => half::bf16::from_f32(spec.embed_scale).to_f32(),
            _ => spec.embed_scale,
        };
        let (spec, Declare { params, holdings, weights, .. }) = (spec.clone(), declare);
        let mut model = Model {
            spec,
            portion,
            embed,
            blocks,
            alike,
            last,
            holdings,
            weights,
            quantized: quantized.cloned(),
            own_biases: BTreeSet::new(),
            embed_scale,
            width_ratio: 1.0,
        };
        if model.spec.adapter.is_some() {
            model.tell_apart(&params);
        }
        (model, params)
    }

    /// The first row of a table that this rank has, and whether it is the first of those that share it.
    pub(crate) fn own_rows(&self, table: ParamId) -> (usize, bool) {
        (self.holdings[table.index()].shard.rows[0].start, self.portion.tp_index == 0)
    }

    /// Element type of weights and activations.
    pub fn dtype(&self, params: &Params) -> DType {
        params.dtype(ParamId(0))
    }

    /// Visits this rank's weights by id, each with its layer.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(ParamId, Option<usize>, &WeightSpec<'_>)) {
        let mut next = 0;
        self.spec.walk(&mut |layer, weight| {
            if !self.portion.has_weight(layer, weight, self.spec.tied) {
                return NOWHERE;
            }
            let id = ParamId(next);
            next += 1;
            visit(id, layer, weight);
            id
        });
    }

    /// Weights of this rank that other stages of the pipeline have too, each with the indices of all of them, ascending.
    /// The first has the one that counts.
    pub fn copies(&self) -> Vec<(ParamId, Vec<usize>)> {
        let mut copies = Vec::new();
        if self.portion.pp == 1 {
            return copies;
        }
        let tied = self.embed.filter(|_| self.spec.tied).map(|embed| embed.tokens);
        copies.extend(tied.map(|tokens| (tokens, vec![0, self.portion.pp - 1])));
        self.visit(&mut |id, layer, weight| {
            let Some(first) = layer.filter(|_| weight.readers > 1) else { return };
            copies.push((id, self.portion.stages_of(&self.spec, &(first..first + weight.readers))));
        });
        copies.retain(|(_, stages)| stages.len() > 1);
        copies
    }

    /// Visits the whole model's projections, with the ids of this rank's weights.
    pub(crate) fn see_projections(&self, see: See<'_>) {
        let mut next = 0;
        let mut visit = |layer: Option<usize>, weight: &WeightSpec<'_>| {
            if !self.portion.has_weight(layer, weight, self.spec.tied) {
                return NOWHERE;
            }
            next += 1;
            ParamId(next - 1)
        };
        self.spec.pass(&mut self.spec.walking(&mut visit).seen_by(see));
    }

    /// Weights that are always f32.
    pub(crate) fn wide(&self) -> Vec<ParamId> {
        let mut wide = Vec::new();
        self.visit(&mut |id, _, weight| wide.extend((weight.kind == Kind::Wide).then_some(id)));
        wide
    }

    /// Biases of the expert choice, with their layers.
    pub fn choice_biases(&self) -> impl Iterator<Item = (usize, ParamId)> + '_ {
        let experts = self.blocks.iter().filter_map(BlockParams::experts);
        experts.filter_map(|experts| experts.choice_bias.map(|bias| (experts.layer, bias)))
    }

    /// The score head, or an encoder's of labels.
    ///
    /// # Panics
    /// If the model has none, or this rank does not have the last layers.
    #[track_caller]
    pub fn scores(&self) -> Scores {
        let labels = self.spec.encoder.as_ref().is_some_and(|parts| parts.head.labels() > 0);
        match self.last {
            Some(LastParams { score: Some(weight), .. }) => Scores { weight, bias: None },
            Some(last) if labels => Scores { weight: last.head, bias: last.head_bias },
            _ => panic!("scores: this rank does not hold a head of scores"),
        }
    }

    /// Projections of hidden states, if this rank has them.
    pub fn projections(&self) -> Option<Projections> {
        let weight = self.last.and_then(|last| last.projections)?;
        Some(Projections { weight, columns: self.spec.projections?.columns })
    }

    /// The output projection, with a weight for the z-loss.
    ///
    /// # Panics
    /// If this rank does not have the last layers.
    #[track_caller]
    pub fn head(&self, z_loss: f32) -> Head {
        let Some(LastParams { head, head_bias: bias, term, .. }) = self.last else {
            panic!("head: this rank does not hold the last layers")
        };
        let how = HeadUse { scale: self.spec.logit_scale, softcap: self.spec.logit_softcap, z_loss };
        let first = self.holdings[head.index()].shard.rows[0].start;
        Head { weight: head, bias, how, first, term }
    }
}
