//! Context parallelism: a packed stream whose tokens are distributed over ranks.
//!
//! A [`ContextLayout`] distributes the tokens. A rank's batch has its own tokens in stream order, and a [`Context`]:
//! the masks between its rows and those of others, and the way in which keys and values are exchanged ([`CpComm`]).
//! Only attention uses it. The memory of a context depends on the tokens, the cap of documents, the number of ranks and
//! of windows, never on the documents. Transfers do depend on them if documents stay on few ranks ([`LayoutSizes::dynamic`]):
//! keys that no other rank attends to are not sent.

mod area;
mod circle;
mod dynamic;
mod layout;
mod masks;
mod part;
mod pieces;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Device, DocumentRuns, Mask, Tensor};

pub use area::LayoutSizes;
pub use area::causal_pairs;
pub(crate) use circle::{Circle, GatheredKeys, Ring, Run, Step};
pub use layout::ContextLayout;
use masks::Maker;
pub use masks::mask;
pub use pieces::PIECES;
pub(crate) use pieces::{Pieces, Seams, Way};

/// Exchange of keys and values between the ranks of the context-parallel axis (Megatron's `cp_comm_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpComm {
    /// From rank to rank, each transfer overlapped with attention over the previous block.
    P2p,
    /// All keys to all ranks, before attention.
    AllGather,
    /// Every rank gets all tokens of some heads, and returns their results (Ulysses). If there are more ranks than key
    /// heads, these are replicated.
    A2a,
    /// [`CpComm::A2a`] among `inner` adjacent ranks, [`CpComm::P2p`] among such groups.
    A2aP2p {
        /// Number of ranks in a group; it divides the ranks.
        inner: usize,
    },
}

impl CpComm {
    /// Number of ranks between which heads are scattered, among `cp` ranks. `None` if keys are gathered instead.
    fn inner(self, cp: usize) -> Option<usize> {
        match self {
            CpComm::P2p => Some(1),
            CpComm::A2a => Some(cp),
            CpComm::A2aP2p { inner } => Some(inner),
            CpComm::AllGather => None,
        }
    }

    /// Checks that `cp` ranks with these heads each can use it.
    ///
    /// # Errors
    /// The number that does not divide, and ones that would.
    pub fn check(self, cp: usize, heads: usize, kv_heads: usize) -> Result<(), String> {
        let Some(inner) = self.inner(cp) else { return Ok(()) };
        if inner == 0 || !cp.is_multiple_of(inner) {
            return Err(format!("{self}: groups of {inner} ranks do not divide cp={cp}"));
        }
        if dealable(heads, kv_heads, inner) {
            return Ok(());
        }
        let sizes: Vec<String> = (1..=heads.min(cp))
            .filter(|inner| cp.is_multiple_of(*inner) && dealable(heads, kv_heads, *inner))
            .map(|inner| inner.to_string())
            .collect();
        Err(format!(
            "{self}: {heads} query heads and {kv_heads} key heads cannot be dealt to {inner} ranks; of cp={cp} these can \
             be inner groups of a2a+p2p: {}",
            sizes.join(", ")
        ))
    }
}

impl fmt::Display for CpComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpComm::P2p => f.write_str("p2p"),
            CpComm::AllGather => f.write_str("all_gather"),
            CpComm::A2a => f.write_str("a2a"),
            CpComm::A2aP2p { inner } => write!(f, "a2a+p2p ({inner})"),
        }
    }
}

/// Returns whether each of `ranks` ranks can have equally many heads, and the key heads or groups that they read.
pub fn dealable(heads: usize, kv_heads: usize, ranks: usize) -> bool {
    heads.is_multiple_of(ranks) && (kv_heads.is_multiple_of(ranks) || ranks.is_multiple_of(kv_heads))
}

/// Inputs for a rank's batch of a shared stream.
#[derive(Clone, Copy, Debug)]
pub struct SharedStream<'a> {
    /// Distribution of the tokens.
    pub layout: &'a ContextLayout,
    /// One for all layers, or one per layer.
    pub comm: &'a [CpComm],
    /// Operations that read rows in order pass states from piece to piece, and read at most so many rows before a row;
    /// otherwise they exchange tokens for heads.
    pub states: Option<usize>,
}

impl SharedStream<'_> {
    /// The documents of the rows that operations read in order, charged at `docs`: of the stream, or of this rank's
    /// pieces.
    pub fn documents(&self, device: &Device, docs: usize) -> DocumentRuns {
        match self.states.filter(|_| self.layout.cp() > 1) {
            Some(_) => pieces::own_runs(device, self.layout, device.mesh.index(Axis::Cp), docs),
            None => DocumentRuns::new(device, self.layout.document_runs(), docs),
        }
    }

    /// This rank's part of one value per token of the stream: ids, positions, labels.
    ///
    /// # Panics
    /// If the layout is not for the mesh, or the number of values differs from that of tokens.
    #[track_caller]
    pub fn own<'a, T: Copy>(&self, device: &Device, values: &'a [T]) -> Cow<'a, [T]> {
        let cp = device.mesh.size(Axis::Cp);
        assert_eq!(self.layout.cp(), cp, "context: the layout is for as many ranks as {:?}", device.mesh);
        match cp {
            1 => Cow::Borrowed(values),
            // A plan only needs their number.
            _ if !device.machine.has_data() => Cow::Borrowed(&values[..self.layout.rank_tokens()]),
            _ => Cow::Owned(self.layout.take(device.mesh.index(Axis::Cp), values)),
        }
    }
}

/// Attention across ranks: masks and exchanges.
pub struct Context {
    comm: Vec<CpComm>,
    /// Rings by size of the inner circles.
    rings: Vec<(usize, Ring)>,
    gathered: Option<GatheredKeys>,
    /// All ranks, for operations that read rows in order.
    whole: Circle,
    /// Exchanges of those operations, if they pass states.
    pieces: Option<Pieces>,
    cp: usize,
    /// By window: pairs of this rank's queries with keys on any rank.
    pairs: Vec<u64>,
}

/// The exchange of one layer.
#[derive(Clone, Copy)]
pub(crate) enum Route<'a> {
    Ring(&'a Ring),
    Gathered(&'a GatheredKeys),
}

impl Context {
    /// The masks of this rank of the device's mesh for each window: those between its own rows, and the context of a
    /// stream that several ranks share. `positions` are those of the whole stream, `own` this rank's on the device;
    /// masks are charged at `docs` slices.
    ///
    /// # Panics
    /// If the layout is not for the mesh, there are more documents than the cap, no `comm`, or groups that do not
    /// divide the ranks; or if documents stay on few ranks and keys are not sent from rank to rank.
    #[track_caller]
    pub fn new(
        device: &Device,
        sharing: &SharedStream<'_>,
        windows: &[Option<usize>],
        docs: usize,
        positions: &[i32],
        own: &Tensor,
    ) -> (Vec<Mask>, Option<Context>) {
        let SharedStream { layout, comm, states } = *sharing;
        let axis = device.mesh.group(&[Axis::Cp]);
        let (cp, index) = (axis.size(), axis.index());
        assert!(
            layout.cp() == cp && layout.tokens() == positions.len() && layout.docs().len() <= docs,
            "context: {} tokens for {} ranks, {} positions, {} documents of at most {docs} on {:?}",
            layout.tokens(),
            layout.cp(),
            positions.len(),
            layout.docs().len(),
            device.mesh
        );
        assert!(!comm.is_empty(), "context: no way for keys to travel");
        let fits = !layout.is_dynamic() || cp == 1 || comm.iter().all(|comm| *comm == CpComm::P2p);
        assert!(fits, "context: documents stay on few ranks where keys go by p2p, not {comm:?}");
        let maker = Maker { device, layout, windows, docs, positions };
        let mine = layout.part(&[index]);
        let own_mask = |window: &Option<usize>| maker.mask((&mine, own), (&mine, own), *window);
        if cp == 1 {
            return (windows.iter().map(own_mask).collect(), None);
        }
        let mut rings: Vec<(usize, Ring)> = Vec::new();
        for inner in comm.iter().filter_map(|comm| comm.inner(cp)) {
            assert!(inner > 0 && cp.is_multiple_of(inner), "context: groups of {inner} of {cp} ranks");
            if rings.iter().all(|(size, _)| *size != inner) {
                rings.push((inner, maker.ring(&axis, inner, own)));
            }
        }
        let gathered = comm.contains(&CpComm::AllGather).then(|| maker.gathered(&axis, own));
        let alone = rings.iter().find(|(size, _)| *size == 1);
        let masks = match alone {
            Some((_, ring)) => ring.steps.iter().map(|steps| steps[0].mask.clone()).collect(),
            None => windows.iter().map(own_mask).collect(),
        };
        let pairs = windows.iter().map(|window| layout.area(index, *window)).collect();
        let whole = Circle::new(axis.clone(), layout, &(0..cp).collect::<Vec<_>>());
        let pieces = states.map(|reach| Pieces::new(device, axis.clone(), layout, reach, docs));
        (masks, Some(Context { comm: comm.to_vec(), rings, gathered, whole, pieces, cp, pairs }))
    }

    /// Number of ranks among which operations that read rows in order deal heads: those that share the stream, or one.
    pub(crate) fn dealt(&self) -> usize {
        if self.pieces.is_some() { 1 } else { self.cp }
    }

    /// The pieces between which these operations pass states.
    pub(crate) fn pieces(&self) -> Option<&Pieces> {
        self.pieces.as_ref()
    }

    /// All ranks.
    pub(crate) fn whole(&self) -> &Circle {
        &self.whole
    }

    /// True if all layers exchange keys alike.
    pub(crate) fn is_same_everywhere(&self) -> bool {
        self.comm.len() == 1
    }

    /// Everything on which the work on a machine without data depends, as numbers.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let ranges = |list: &[Range<usize>]| list.iter().map(|range| range.len() as u64).collect::<Vec<_>>();
        let step = |step: &Step| {
            let mut sizes = vec![step.mask.pairs, step.mask.table.rows() as u64, step.give.len() as u64];
            sizes.extend([ranges(&step.give), ranges(&step.take)].concat());
            sizes
        };
        let circle = |circle: &Circle| {
            let runs = |runs: &Vec<Run>| runs.iter().map(|run| run.own.len() as u64).collect::<Vec<_>>();
            let mut sizes = vec![circle.tokens as u64, circle.group.size() as u64];
            sizes.extend(circle.runs.iter().flat_map(runs));
            sizes
        };
        let mut sizes = vec![self.cp as u64, self.comm.len() as u64];
        for (inner, ring) in &self.rings {
            sizes.push(*inner as u64);
            sizes.extend(circle(&ring.inner));
            sizes.extend(ring.steps.iter().flatten().flat_map(step));
        }
        if let Some(gathered) = &self.gathered {
            sizes.extend(circle(&gathered.circle));
            sizes.extend(gathered.masks.iter().map(|mask| mask.pairs));
        }
        sizes.extend(circle(&self.whole));
        sizes.extend(self.pieces.iter().flat_map(Pieces::sizes));
        sizes.extend(&self.pairs);
        sizes
    }

    /// The exchange of keys in a layer.
    pub fn comm(&self, layer: i32) -> CpComm {
        match self.comm.as_slice() {
            [one] => *one,
            many => many[layer.max(0) as usize],
        }
    }

    pub(crate) fn route(&self, layer: i32) -> Route<'_> {
        let ring = self.comm(layer).inner(self.cp);
        let ring = self.rings.iter().find(|(size, _)| Some(*size) == ring).map(|(_, ring)| Route::Ring(ring));
        match (ring, &self.gathered) {
            (Some(ring), _) => ring,
            (None, Some(gathered)) => Route::Gathered(gathered),
            (None, None) => panic!("context: no masks for layer {layer}"),
        }
    }

    /// Pairs of this rank's queries with keys on any rank.
    pub(crate) fn pairs(&self, mask: usize) -> u64 {
        self.pairs[mask]
    }
}
