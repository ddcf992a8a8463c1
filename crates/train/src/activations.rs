//! Every activation of a model under a table of places: name, shape, bytes, place. Segments are recorded as in a step,
//! but not run.

use std::sync::Arc;

use fathom_base::metrics::events;
use fathom_grad::schedule::{At, Schedule};
use fathom_grad::{Body, Ctx, Desc, Info, Memory, Params, Place, Places, Segments, Spread, Val, Which};
use fathom_model::{Model, Portion, Spec};
use fathom_tensor::mesh::{Axis, Grid, Mesh};
use fathom_tensor::spill::Codec;
use fathom_tensor::{Category, DType, Device, Meta, Profile, Tensor};

use crate::parallel::Ranks;
use crate::plan::Workload;

/// One activation of one segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// Its name.
    pub name: &'static str,
    /// Number of rows: the rank's tokens, or its share of them.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Its type.
    pub dtype: DType,
    /// Its place in the table.
    pub place: Place,
    /// True if it is held from forward to backward; a kept value that no gradient needs is not.
    pub held: bool,
    /// Bytes for all of the rank's tokens.
    pub bytes: u64,
}

/// The activations of one or more layers; neighbouring layers that are alike share a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Indices of the layers; -1 outside the blocks.
    pub layers: Vec<i32>,
    /// The activations, in program order.
    pub activations: Vec<Activation>,
}

impl Segment {
    /// Sum of the bytes of one layer's activations for which `which` holds.
    pub fn sum(&self, which: impl Fn(&Activation) -> bool) -> u64 {
        self.activations
            .iter()
            .filter(|activation| which(activation))
            .map(|activation| activation.bytes)
            .sum()
    }
}

/// The activations of one micro-batch of `tokens` tokens on one rank, in program order.
pub fn activations(
    profile: &Profile,
    spec: &Spec,
    dtype: DType,
    places: &Places,
    tokens: usize,
) -> Vec<Segment> {
    on_mesh(Mesh::alone(), profile, (spec, dtype), places, [tokens; 2])
}

impl Workload<'_> {
    /// The activations of one micro-batch on the first rank of each pipeline stage, layer by layer, in program order.
    pub fn activations(&self) -> Vec<Segment> {
        let grid = Grid { pp: 1, ..self.how.ranks.grid };
        let stage = Ranks { grid, rank: 0, ..self.how.ranks };
        let one = [self.tokens / grid.cp; 2];
        let tokens = self.how.goal.objective.streams(self.tokens, self.how.caps.docs).unwrap_or(one);
        on_mesh(stage.imagined(), self.profile, (&self.spec, self.dtype), &self.how.places, tokens)
    }
}

/// The activations of a model over its tokens, or over those of its source and of its main stream.
fn on_mesh(
    mesh: Mesh,
    profile: &Profile,
    (spec, dtype): (&Spec, DType),
    places: &Places,
    [source, tokens]: [usize; 2],
) -> Vec<Segment> {
    let device = Device::on_mesh(Arc::new(Meta::new(profile.clone())), u64::MAX, mesh);
    let portion = Portion::of(spec, &device.mesh, 1);
    let (model, params) = Model::declare_part(&device, spec, dtype, None, portion);
    let mut recorder =
        Recorder { device: &device, params: &params, places, tokens, grads: false, segments: Vec::new() };
    if spec.source == 0 {
        model.forward(&mut recorder);
        return recorder.segments;
    }
    if spec.retrieval.is_some() {
        let run = |tokens, grads| Recorder { tokens, grads, segments: Vec::new(), ..recorder };
        let mut runs =
            [(tokens, false), (tokens, true), (source, false), (tokens, true)].map(|(t, g)| run(t, g));
        let remember = |value: Tensor| {
            let gradient = device.zeros(value.rows(), value.cols(), DType::F32, Category::Grads);
            Memory { value, gradient: Some(gradient) }
        };
        model.forward_retrieval(runs.each_mut(), &remember);
        return runs.into_iter().flat_map(|run| run.segments).collect();
    }
    recorder.tokens = source;
    let value = model.source(&mut recorder);
    (recorder.tokens, recorder.grads) = (tokens, false);
    let gradient = device.zeros(value.rows(), value.cols(), DType::F32, Category::Grads);
    model.target(&mut recorder, Memory { value, gradient: Some(gradient) });
    recorder.segments
}

/// The segments as an event for the report.
pub fn placement_event(
    stage: &str,
    places: &Places,
    tokens: usize,
    segments: &[Segment],
) -> events::Placement {
    let placed = |activation: &Activation| events::PlacedActivation {
        name: activation.name.to_string(),
        cols: activation.cols as u64,
        dtype: activation.dtype.safetensors_name().to_lowercase(),
        bytes: activation.bytes,
        place: activation.place.name().to_string(),
        held: activation.held,
    };
    let segment = |segment: &Segment| events::PlacedSegment {
        layers: segment.layers.iter().map(|layer| i64::from(*layer)).collect(),
        activations: segment.activations.iter().map(placed).collect(),
    };
    events::Placement {
        stage: stage.to_string(),
        tokens: tokens as u64,
        offloaded_share: Some(places.offload_fraction),
        codec: match places.codec {
            Codec::AsIs => String::new(),
            Codec::Fp8Block => "fp8".to_string(),
        },
        segments: segments.iter().map(segment).collect(),
    }
}

/// Records segments instead of running them.
struct Recorder<'a> {
    device: &'a Device,
    params: &'a Params,
    places: &'a Places,
    tokens: usize,
    /// True if the next segment's input depends on something trainable.
    grads: bool,
    segments: Vec<Segment>,
}

impl<'a> Segments<'a> for Recorder<'a> {
    fn layers_per_segment(&self) -> usize {
        self.places.segment_layers
    }

    fn run(&mut self, which: Which, x: Option<Tensor>, memory: &[Memory], body: Body<'_, 'a>) -> Tensor {
        let layer = which.layer;
        let (spread, input) = (Spread::of(&self.device.mesh), x.as_ref().map(Desc::of));
        let graph = Ctx::record(self.params, spread, input, &Memory::descs(memory), body);
        let wanted: Vec<bool> = memory.iter().map(|memory| memory.gradient.is_some()).collect();
        let (places, input_grad, memory_grads) = (self.places, self.grads, &wanted[..]);
        let at = At { places, layer, input_grad, memory_grads, reaches: &Place::is_offloaded, split: false };
        let schedule = Schedule::new(&graph, self.params, at);
        self.grads = true;
        let index = self.device.mesh.index(Axis::Tp);
        let rows = |info: &Info| if info.total { 1 } else { info.rows_of(&(0..self.tokens), index) };
        let activation = |(val, info): (Val, &Info)| Activation {
            name: info.name,
            rows: rows(info),
            cols: info.cols,
            dtype: info.dtype,
            place: self.places.place(layer, info.name),
            held: if Some(val) == graph.input { schedule.keeps_input } else { schedule.kept.contains(&val) },
            bytes: (rows(info) * info.cols * info.dtype.bytes()) as u64,
        };
        let activations: Vec<Activation> = graph.activations().map(activation).collect();
        match self.segments.last_mut() {
            Some(last) if last.activations == activations && layer >= 0 => last.layers.push(layer),
            _ => self.segments.push(Segment { layers: vec![layer], activations }),
        }
        let out = graph.activations().find(|(val, _)| *val == graph.output);
        let (rows, cols, dtype) =
            out.map_or((0, 0, DType::F32), |(_, info)| (rows(info), info.cols, info.dtype));
        self.device.empty(rows, cols, dtype, Category::Activations)
    }
}
