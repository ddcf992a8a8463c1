//! A micro batch on the machine, and numbers of its tokens in the order of the stream and of the head.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use fathom_grad::{
    Batch, ContextLayout, Head, Jitter, Labels, LayoutSizes, PIECES, Scope, SharedStream, Spread,
};
use fathom_model::{Caps, LoadedModel, Model, ModelView, PackedTokens};
use fathom_tensor::choice::kept_bytes;
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, Embed, Tensor};
use fathom_text::Rng;

use crate::in_step::InStep;
use crate::micro_batch::{MicroBatch, SourceTokens};
use crate::objective::{Goal, Noise, Weigh};
use crate::teacher_inputs::TeacherInputs;

/// Maximum tokens per chunk of the context-parallel layout if layers have different windows: the layout balances the
/// sum of their areas, and small chunks balance nearly each of them. Otherwise chunks are as large as balance allows,
/// so that each step of attention involves few groups of keys.
const CHUNK: usize = 512;

/// A micro-batch's tables on the machine: this rank's tokens, and its labels in the order of the head.
pub(crate) struct DeviceMicroBatch<'a> {
    pub batch: Rc<Batch>,
    /// The stream of the model's source.
    pub source: Option<Rc<Batch>>,
    pub(crate) labels: Labels<'static>,
    /// f32 [1, t]: weights of the labels, if micro batches have any.
    pub(crate) weights: Option<Tensor>,
    /// f32 [1, t]: the labels' losses, multiplied by their weights at the end.
    pub(crate) losses: Tensor,
    pub(crate) micro: &'a MicroBatch,
    /// The token with which the model pads its batches.
    pub(crate) padding: Option<u32>,
    /// The teacher's side, if the objective has a teacher.
    pub(crate) known: Option<TeacherInputs>,
    /// Noise on this rank's rows of the embedding, if the run adds any.
    pub jitter: Option<Jitter>,
    /// Rows of the tokens with labels, if the head runs for those alone.
    pub(crate) chosen: Option<ChosenRows>,
    /// A text's scores are at its first token.
    pub(crate) at_first: bool,
    layout: ContextLayout,
    /// This rank's tokens in the order of the head, and by the rank that has their rows, if these differ from the
    /// stream's order.
    order: Option<[Vec<usize>; 2]>,
}

/// Tokens with labels, whose rows alone go through the head.
pub(crate) struct ChosenRows {
    /// i32 [1, n]: the tokens; those that fill up have no label.
    tokens: Tensor,
    /// i32 [1, t]: each token's row among them, -1 without one.
    rows: Tensor,
}

impl ChosenRows {
    /// Those of an objective that chooses tokens, if one rank has the whole stream, and their labels; else the labels
    /// given.
    fn of(device: &Device, labels: Vec<i32>, how: &InStep, alone: bool) -> (Option<ChosenRows>, Vec<i32>) {
        let room = how.goal.objective.chosen(labels.len(), how.caps.docs);
        match room.filter(|_| alone && !how.goal.weighted) {
            Some(room) => {
                let (chosen, own) = ChosenRows::new(device, &labels, room);
                (Some(chosen), own)
            }
            None => (None, labels),
        }
    }

    /// The tokens with labels of a stream, in `room` rows, and their labels.
    fn new(device: &Device, labels: &[i32], room: usize) -> (ChosenRows, Vec<i32>) {
        let (mut tokens, mut rows, mut own) = (Vec::new(), vec![-1; labels.len()], Vec::new());
        if device.machine.has_data() {
            for (token, label) in labels.iter().enumerate().filter(|(_, label)| **label >= 0) {
                rows[token] = tokens.len() as i32;
                tokens.push(token as i32);
                own.push(*label);
            }
            assert!(tokens.len() <= room, "head: {} labels in {room} rows", tokens.len());
        }
        tokens.resize(room, 0);
        own.resize(room, -100);
        let [tokens, rows] = [&tokens, &rows].map(|ids| device.from_i32(ids, Category::Data));
        (ChosenRows { tokens, rows }, own)
    }

    /// The chosen rows of y [t, d]: [n, d].
    pub fn gather(&self, device: &Device, y: &Tensor) -> Tensor {
        let out = device.empty(self.tokens.cols(), y.cols(), y.dtype(), Category::Activations);
        let (ids, table, out_of) = (&self.tokens, y, &out);
        device.machine.embed(&Embed { ids, table, scale: 1.0, out: out_of, accumulate: false, first: None });
        out
    }

    /// Their gradients [n, d] in place, with zeros for the others: [t, d].
    pub fn scatter(&self, device: &Device, dy: &Tensor) -> Tensor {
        let out = device.empty(self.rows.cols(), dy.cols(), dy.dtype(), Category::Activations);
        let (ids, table, out_of) = (&self.rows, dy, &out);
        device.machine.embed(&Embed {
            ids,
            table,
            scale: 1.0,
            out: out_of,
            accumulate: false,
            first: Some(0),
        });
        out
    }
}

/// The objective of a step, and its accumulators.
pub(crate) struct StepObjective<'a> {
    pub goal: &'a Goal,
    /// Weight of the z-loss.
    pub z_loss: f32,
    /// f32 [1, 1]: the objective.
    pub loss: &'a Tensor,
    /// Metrics of the objective.
    pub metrics: &'a RefCell<Vec<[f64; 2]>>,
    /// f32 [sums, 1]: the same where the machine adds them up, of terms with constant weights and of what is measured at labels.
    pub terms: Option<&'a Tensor>,
    /// The teacher, if one runs with the step.
    pub teacher: Option<&'a LoadedModel>,
}

#[track_caller]
fn layout_of(docs: &[Range<usize>], sizes: &LayoutSizes<'_>) -> ContextLayout {
    ContextLayout::new(docs, sizes).unwrap_or_else(|why| panic!("step: {why}"))
}

/// The batches of a source and of the main stream. A source has no windows, so it is cut anywhere.
fn with_source(
    device: &Device,
    model: &Model,
    (source, micro): (&SourceTokens, &MicroBatch),
    caps: Caps,
    (sharing, cut): (&SharedStream<'_>, &LayoutSizes<'_>),
) -> [Batch; 2] {
    let SourceTokens { ids, positions, docs } = source;
    let main = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
    let streams = [PackedTokens { ids, positions, docs }, main];
    if model.spec.retrieval.is_some() {
        return model.retrieval_batches(device, streams, &micro.chunks, caps);
    }
    let tokens = ids.len();
    let layout = layout_of(docs, &LayoutSizes { tokens, chunk: tokens, windows: &[], pieces: None, ..*cut });
    let source = SharedStream { layout: &layout, states: None, ..*sharing };
    model.shared_batches(device, streams, caps, [&source, sharing])
}

impl<'a> DeviceMicroBatch<'a> {
    /// Copies a micro-batch to the machine.
    pub fn new(
        ModelView { device, model, params }: ModelView<'_>,
        teacher: Option<&LoadedModel>,
        micro: &'a MicroBatch,
        how: &InStep,
    ) -> Self {
        let packed = PackedTokens { ids: &micro.ids, positions: &micro.positions, docs: &micro.docs };
        let grid = device.mesh.grid();
        let (tokens, windows) = (micro.ids.len(), &model.spec.windows());
        let dynamic = how.ranks.cp_dynamic.then(|| model.spec.token_pairs());
        let chunk = if windows.iter().all(Option::is_none) { tokens } else { CHUNK };
        let states = how.ranks.passes(&model.spec, tokens, model.dtype(params));
        let pieces = states.map(|_| PIECES);
        let cut = LayoutSizes { tokens, cp: grid.cp, chunk, windows, dynamic, pieces };
        let layout = layout_of(&micro.docs, &cut);
        let sharing = SharedStream { layout: &layout, comm: &[how.ranks.cp_comm], states };
        let drops = how.goal.drops.filter(|_| model.spec.drops());
        let (source, mut batch) = match &micro.source {
            None => (None, model.batch_of(device, packed, how.caps, &sharing)),
            Some(source) => {
                let [source, main] = with_source(device, model, (source, micro), how.caps, (&sharing, &cut));
                (Some(Rc::new(source)), main)
            }
        };
        batch.keys =
            drops.map(|seed| device.from_i32(&sharing.own(device, &keys(seed, micro)), Category::Data));
        let shared = grid.tp > 1 && grid.sequence_parallel;
        let order = model.last.filter(|_| shared && device.machine.has_data()).map(|last| {
            let spread = Spread { ranks: grid.tp, rows: true, ..Spread::NONE };
            let vocab = params.shape(last.head)[0];
            let (machine, dtype) = (device.machine.as_ref(), model.dtype(params));
            let tile_rows = how.places.tile_rows;
            [
                Head::order(machine, vocab, dtype, batch.tokens, spread, tile_rows),
                Head::by_rank(batch.tokens, spread, tile_rows),
            ]
        });
        if model.spec.encoder.as_ref().is_some_and(|parts| parts.types > 1) {
            let types = how.goal.objective.types(micro);
            batch.types = types.map(|types| device.from_i32(&sharing.own(device, &types), Category::Data));
        }
        let labels = own(device, &sharing, of_head(&order), &micro.labels);
        let alone = !shared && grid.cp == 1 && model.last.is_some();
        let (chosen, labels) = ChosenRows::of(device, labels, how, alone);
        let ids = device.from_i32(&labels, Category::Data);
        let losses = device.empty(1, labels.len(), DType::F32, Category::Data);
        let weights = how.goal.weighted.then(|| {
            let ones = if micro.weights.is_empty() { vec![1.0; tokens] } else { Vec::new() };
            let weights = if micro.weights.is_empty() { &ones } else { &micro.weights };
            let own = own(device, &sharing, of_head(&order), weights);
            device.from_f32(1, own.len(), &own, Category::Data)
        });
        let head_order = || own(device, &sharing, of_head(&order), &(0..tokens).collect::<Vec<_>>());
        let known = TeacherInputs::new((device, how), teacher, micro, (&sharing, &head_order), batch.tokens);
        let noise = how.goal.noise.filter(|_| model.portion.first);
        let jitter = noise.map(|noise| jitter(device, noise, micro, (&sharing, &order), model.spec.hidden));
        let keeps = how.goal.objective.weigh().is_some_and(Weigh::keeps) && model.last.is_some();
        let kept = keeps.then(|| kept(device, micro, &head_order, (batch.tokens, model.spec.vocab)));
        let (batch, labels) = (Rc::new(batch), Labels { kept, ..Labels::plain(ids) });
        let (padding, at_first) = (model.spec.padding, model.spec.encoder.is_some());
        DeviceMicroBatch {
            batch,
            source,
            labels,
            weights,
            losses,
            micro,
            padding,
            known,
            jitter,
            chosen,
            at_first,
            layout,
            order,
        }
    }

    /// Outputs of the second head for all tokens of the stream.
    pub fn values(&self, model: &Model, scope: &Scope<'_>, y: &Tensor) -> Vec<f32> {
        self.scores(scope, &model.scores().values(scope, y))
    }

    /// The same of this rank's rows.
    pub fn scores(&self, scope: &Scope<'_>, values: &Tensor) -> Vec<f32> {
        let rows = collect(scope, values);
        self.stream(scope.device, &rows.reshape(1, rows.len()), 1, values.cols())
    }

    /// Gathers the values of all tokens in the order of the stream, `width` per token; empty on a machine without data.
    /// `rows` are those of this rank's tokens, f32 [1, t x width], in one of the two orders.
    pub fn stream(&self, device: &Device, rows: &Tensor, order: usize, width: usize) -> Vec<f32> {
        let group = device.mesh.group(&[Axis::Cp]);
        let all = if group.size() == 1 {
            rows.clone()
        } else {
            let all = device.empty(group.size(), rows.cols(), DType::F32, Category::Comm);
            let parts: Vec<Tensor> = (0..group.size()).map(|rank| all.view_rows(rank..rank + 1)).collect();
            group.all_gather(device, rows, &parts).wait();
            all
        };
        let found = device.to_f32(&all);
        let mut stream = vec![0.0; if found.is_empty() { 0 } else { self.layout.tokens() * width }];
        for (rank, found) in found.chunks(rows.cols().max(1)).enumerate() {
            let tokens: Vec<usize> = self.layout.ranges(rank).iter().cloned().flatten().collect();
            for (at, values) in found.chunks(width).enumerate() {
                let token = tokens[self.order.as_ref().map_or(at, |orders| orders[order][at])];
                stream[token * width..][..width].copy_from_slice(values);
            }
        }
        stream
    }

    /// This rank's part of one value per token of the stream, f32 [1, t] in the order of the head.
    pub fn own(&self, device: &Device, values: &[f32], tokens: usize) -> Tensor {
        if !device.machine.has_data() {
            return device.empty(1, tokens, DType::F32, Category::Data);
        }
        let sharing = SharedStream { layout: &self.layout, comm: &[], states: None };
        let own = own(device, &sharing, of_head(&self.order), values);
        device.from_f32(1, tokens, &own, Category::Data)
    }

    /// This rank's rows of `width` values per token of the stream, f32 [r, width].
    pub fn own_scores(&self, scope: &Scope<'_>, values: &[f32], width: usize) -> Tensor {
        let device = scope.device;
        let rows = self.batch.tokens / scope.spread().share();
        if !device.machine.has_data() {
            return device.empty(rows, width, DType::F32, Category::Data);
        }
        let tokens: Vec<usize> = (0..self.layout.tokens()).collect();
        let own =
            SharedStream { layout: &self.layout, comm: &[], states: None }.own(device, &tokens).into_owned();
        let first = if rows == self.batch.tokens { 0 } else { device.mesh.index(Axis::Tp) * rows };
        let token = |at: usize| own[self.order.as_ref().map_or(at, |orders| orders[1][at])];
        let of_row = |row: usize| &values[token(first + row) * width..][..width];
        let own: Vec<f32> = (0..rows).flat_map(of_row).copied().collect();
        device.from_f32(rows, width, &own, Category::Data)
    }
}

/// Masks of the tokens that each of this rank's labels was sampled from, in the order of the head: u8 [t, vocab / 8,
/// rounded up].
fn kept(
    device: &Device,
    micro: &MicroBatch,
    order: &dyn Fn() -> Vec<usize>,
    (tokens, vocab): (usize, usize),
) -> Tensor {
    let width = kept_bytes(vocab);
    let all = &micro.rolled.kept;
    if !device.machine.has_data() || all.is_empty() {
        return device.zeros(tokens, width, DType::U8, Category::Data);
    }
    let kept = device.empty(tokens, width, DType::U8, Category::Data);
    let rows: Vec<u8> = order().into_iter().flat_map(|at| &all[at * width..][..width]).copied().collect();
    device.machine.write(&kept, &rows);
    kept
}

/// Random keys for dropout, one per token of the stream: they depend on the seed, the step, the document's contents and
/// the token's place in it.
fn keys(seed: u64, micro: &MicroBatch) -> Vec<i32> {
    let mut keys = vec![0; micro.ids.len()];
    for doc in &micro.docs {
        let document = micro.ids[doc.clone()].iter().fold(0, |hash: u64, id| {
            (hash ^ u64::from(id.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        for (place, key) in keys[doc.clone()].iter_mut().enumerate() {
            let mut rng = Rng::keyed(&[seed, micro.began, document, place as u64]);
            *key = (rng.next_u64() as u32).cast_signed();
        }
    }
    keys
}

/// Keys and sizes of the noise on this rank's rows, for a model that is `hidden` wide.
fn jitter(
    device: &Device,
    noise: Noise,
    micro: &MicroBatch,
    (sharing, order): (&SharedStream<'_>, &Option<[Vec<usize>; 2]>),
    hidden: usize,
) -> Jitter {
    device.pool.enter("noise", -1);
    let own = sharing.own(device, &(0..micro.ids.len()).collect::<Vec<_>>()).into_owned();
    let rows = own.len() / Spread::of(&device.mesh).share();
    if !device.machine.has_data() {
        let row = |dtype| device.empty(1, rows, dtype, Category::Data);
        return Jitter { keys: row(DType::I32), scales: row(DType::F32) };
    }
    let first = if rows == own.len() { 0 } else { device.mesh.index(Axis::Tp) * rows };
    let token = |row: usize| own[order.as_ref().map_or(first + row, |orders| orders[1][first + row])];
    let (docs, mut keys, mut scales) = (micro.doc_of(), Vec::new(), Vec::new());
    for token in (0..rows).map(token) {
        let mut rng = Rng::keyed(&[noise.seed, micro.number, token as u64]);
        keys.push((rng.next_u64() as u32).cast_signed());
        let length = usize::try_from(docs[token]).map_or(1, |doc| micro.docs[doc].len());
        scales.push((noise.alpha / ((length * hidden) as f64).sqrt()) as f32);
    }
    let keys = device.from_i32(&keys, Category::Data);
    Jitter { keys, scales: device.from_f32(1, rows, &scales, Category::Data) }
}

/// Gathers the rows of all tensor parallel ranks if each has a share of them, in rank order.
fn collect(scope: &Scope<'_>, rows: &Tensor) -> Tensor {
    let (device, share) = (scope.device, scope.spread().share());
    if share == 1 {
        return rows.clone();
    }
    let all = device.empty(share * rows.rows(), rows.cols(), rows.dtype(), Category::Comm);
    let part = |rank: usize| all.view_rows(rank * rows.rows()..(rank + 1) * rows.rows());
    let parts: Vec<Tensor> = (0..share).map(part).collect();
    device.mesh.group(&[Axis::Tp]).all_gather(device, rows, &parts).wait();
    all
}

/// The head's order of the two.
fn of_head(order: &Option<[Vec<usize>; 2]>) -> Option<&[usize]> {
    order.as_ref().map(|[head, _]| head.as_slice())
}

/// This rank's part of one value per token of the stream, in the order of the head.
fn own<T: Copy>(
    device: &Device,
    sharing: &SharedStream<'_>,
    order: Option<&[usize]>,
    values: &[T],
) -> Vec<T> {
    let own = sharing.own(device, values);
    match order {
        Some(order) => order.iter().map(|token| own[*token]).collect(),
        None => own.into_owned(),
    }
}
