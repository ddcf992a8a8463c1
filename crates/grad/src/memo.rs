//! Cache of recorded and scheduled segments: a model's blocks are mostly alike, so they share a graph and a schedule,
//! in every step, for every generated token and in plans. On a machine without data they also share the effects of
//! their tiles and operations ([`fathom_tensor::Summary`]), so that a plan runs each of them once and adds up the rest.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use fathom_tensor::{DType, Device, Packing, Summary};

use crate::batch::Batch;
use crate::counters::Counters;
use crate::grads::{GradState, Grads};
use crate::graph::{Graph, Spread};
use crate::param_id::ParamId;
use crate::params::Params;
use crate::places::Places;
use crate::schedule::Schedule;

/// Properties that a segment shares with others of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alike {
    /// Segments of one kind name the same operations, over weights at the same distances from the first.
    pub kind: Vec<u32>,
    /// The first of its weights.
    pub first: ParamId,
}

/// Identifies a segment.
#[derive(Clone, Debug)]
pub struct Which {
    /// Its layer, or the first of several; -1 outside the blocks.
    pub layer: i32,
    /// Its kind; a segment without one is recorded each time it runs.
    pub alike: Option<Alike>,
}

impl From<i32> for Which {
    fn from(layer: i32) -> Which {
        Which { layer, alike: None }
    }
}

/// Everything on which a graph and its schedule depend, with the kind of segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub kind: Vec<u32>,
    /// Columns and type of the input.
    pub input: Option<(usize, DType)>,
    /// Columns, type and rows of further inputs, and whether their gradients are wanted.
    pub memory: Vec<(usize, DType, usize, bool)>,
    pub spread: Spread,
    pub pass: Pass,
}

/// Kind of a pass over a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    /// Without a backward pass, in tiles of this height.
    Eval(Option<usize>),
    /// With a backward pass.
    Tape {
        /// The table of places, by its index in the memo.
        places: usize,
        /// The rules that concern the layer.
        rules: Vec<u16>,
        input_grad: bool,
        /// True if there is a host and a disk for offloading, respectively.
        behind: [bool; 2],
        split: bool,
    },
}

/// The cache for one set of weights.
#[derive(Default)]
pub(crate) struct Memo {
    segments: RefCell<HashMap<Key, Rc<Segment>>>,
    places: RefCell<Vec<Places>>,
    batches: RefCell<Vec<Vec<u64>>>,
}

impl Memo {
    /// That of a set of weights.
    pub fn of(params: &Params) -> &Memo {
        params.segments().get()
    }

    /// Index of a table of places.
    pub fn places(&self, places: &Places) -> usize {
        number(&self.places, places)
    }

    /// Index of all batches with the same work on a machine without data.
    pub fn batch(&self, batch: &Batch) -> usize {
        number(&self.batches, &batch.sizes())
    }

    /// The segment of a key, created by `record` if missing.
    pub fn segment(&self, key: Key, record: impl FnOnce() -> Segment) -> Rc<Segment> {
        if let Some(known) = self.segments.borrow().get(&key) {
            return known.clone();
        }
        let segment = Rc::new(record());
        self.segments.borrow_mut().insert(key, segment.clone());
        segment
    }
}

fn number<T: Clone + PartialEq>(list: &RefCell<Vec<T>>, one: &T) -> usize {
    let mut list = list.borrow_mut();
    list.iter().position(|known| known == one).unwrap_or_else(|| {
        list.push(one.clone());
        list.len() - 1
    })
}

/// A recorded segment with its steps.
pub(crate) struct Segment {
    pub graph: Graph,
    pub schedule: Schedule,
    /// The weights that its forward pass and its backward pass need, as recorded.
    weights: Vec<ParamId>,
    reread: Vec<ParamId>,
    first: ParamId,
    layer: i32,
    /// Cached effects of its steps, by the state a pass starts from.
    runs: RefCell<HashMap<PassKey, Rc<Steps>>>,
}

impl Segment {
    /// From a graph that was recorded at a layer, over weights from `first` on.
    pub fn new(graph: Graph, schedule: Schedule, which: &Which) -> Segment {
        let nodes = graph.nodes.iter().enumerate();
        let needs = nodes.filter(|(index, node)| node.rereads_weights() || schedule.replays(*index));
        let reread = if schedule.backward.is_empty() {
            Vec::new()
        } else {
            needs.flat_map(|(_, node)| node.params.iter().copied()).collect()
        };
        let first = which.alike.as_ref().map_or(ParamId(0), |alike| alike.first);
        let (weights, layer, runs) = (graph.weights(), which.layer, RefCell::default());
        Segment { graph, schedule, weights, reread, first, layer, runs }
    }
}

/// A segment at a place other than where it was recorded. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PlacedSegment {
    segment: Rc<Segment>,
    pub layer: i32,
    /// Distance from the recorded weights to its own.
    shift: u32,
    /// True if it shares the segment with others, so that effects of steps are worth caching.
    shares: bool,
}

impl PlacedSegment {
    pub fn new(segment: Rc<Segment>, which: &Which) -> PlacedSegment {
        let first = which.alike.as_ref().map_or(ParamId(0), |alike| alike.first);
        let shift = first.0.wrapping_sub(segment.first.0);
        PlacedSegment { segment, layer: which.layer, shift, shares: which.alike.is_some() }
    }

    pub fn graph(&self) -> &Graph {
        &self.segment.graph
    }

    pub fn schedule(&self) -> &Schedule {
        &self.segment.schedule
    }

    /// Number of layers between the recorded place and this one.
    pub fn layers_on(&self) -> i32 {
        self.layer - self.segment.layer
    }

    /// Its own weight for a recorded one.
    pub fn id(&self, recorded: ParamId) -> ParamId {
        ParamId(recorded.0.wrapping_add(self.shift))
    }

    /// The weights that its operations name, in order.
    pub fn weights(&self) -> impl Iterator<Item = ParamId> + Clone {
        self.segment.weights.iter().map(|id| self.id(*id))
    }

    /// The weights that its backward pass reads.
    pub fn reread(&self) -> impl Iterator<Item = ParamId> {
        self.segment.reread.iter().map(|id| self.id(*id))
    }

    /// The cached effects of the steps of a pass that finds this; `None` if steps have to run.
    pub fn steps(&self, device: &Device, found: impl FnOnce() -> PassKey) -> Option<Rc<Steps>> {
        let runs = self.shares && !device.machine.has_data();
        runs.then(|| self.segment.runs.borrow_mut().entry(found()).or_default().clone())
    }
}

/// Everything on which the steps of a pass depend besides graph and schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PassKey {
    pub backward: bool,
    /// The layer, if layers differ in how they exchange keys.
    pub layer: i32,
    /// Index of the batch.
    pub batch: usize,
    /// Contents of gradients.
    pub grads: Vec<Option<GradState>>,
    /// Packing of weights that are stored as blocks.
    pub packings: Vec<Packing>,
    /// True if every tile runs.
    pub all_tiles: bool,
    /// True if routers count.
    pub counts: bool,
}

/// Effects of the steps of one pass, by their indices.
#[derive(Default)]
pub(crate) struct Steps {
    list: RefCell<Vec<StepSummary>>,
    /// True while a step runs to be cached; steps inside it just run.
    inside: Cell<bool>,
}

#[derive(Clone, Default)]
enum StepSummary {
    /// Unknown.
    #[default]
    Nothing,
    /// Not repeatable.
    Runs,
    Repeats(Rc<Repeats>),
}

struct Repeats {
    summary: Summary,
    /// FLOPs of the model, FLOPs executed, operations replayed.
    work: [u128; 3],
    /// Contents of gradients afterwards.
    grads: Vec<Option<GradState>>,
}

impl Steps {
    /// Cached information about a step: whether its effects are known and can be repeated.
    fn at(&self, step: usize) -> StepSummary {
        if self.inside.get() {
            StepSummary::Runs
        } else {
            self.list.borrow().get(step).cloned().unwrap_or_default()
        }
    }

    /// Repeats the effects of a step; false if it has to run.
    pub fn repeat(
        &self,
        step: usize,
        at: &PlacedSegment,
        on: (&Device, &Counters),
        grads: Option<&mut Grads>,
    ) -> bool {
        let StepSummary::Repeats(known) = self.at(step) else { return false };
        let (device, counters) = on;
        device.repeat(&known.summary, at.layer);
        counters.add_work(known.work);
        if let Some(grads) = grads {
            grads.set_states(at.weights(), &known.grads);
        }
        true
    }

    /// True if a step that runs now is to be cached.
    pub fn is_new(&self, step: usize) -> bool {
        matches!(self.at(step), StepSummary::Nothing)
    }

    /// Runs a step and caches its effects; `states` are those of the gradients.
    pub fn run(
        &self,
        step: usize,
        at: &PlacedSegment,
        on: (&Device, &Counters),
        work: impl FnOnce() -> Vec<Option<GradState>>,
    ) {
        let (device, counters) = on;
        self.inside.set(true);
        let before = counters.work();
        let mut grads = Vec::new();
        let summary = device.summarise(at.layer, || grads = work());
        let after = counters.work();
        self.inside.set(false);
        let mut list = self.list.borrow_mut();
        if list.len() <= step {
            list.resize(step + 1, StepSummary::Nothing);
        }
        let work = [0, 1, 2].map(|index| after[index] - before[index]);
        list[step] = summary.map_or(StepSummary::Runs, |summary| {
            StepSummary::Repeats(Rc::new(Repeats { summary, work, grads }))
        });
    }
}
