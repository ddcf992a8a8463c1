//! A block as data: the list of operations that its forward function names.
//!
//! A block's function runs once over a [`Ctx`] and records operations without computing. The executor then runs the
//! list, whole or by tiles of rows, replays any slice of it, and knows the last use of every value.

use std::ops::Range;
use std::rc::Rc;

use fathom_tensor::DType;
use fathom_tensor::mesh::Mesh;

use crate::op::{Desc, Op};
use crate::param_id::ParamId;
use crate::params::Params;

/// A value of a graph: a handle without storage. `[t, cols]`, one row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Val(pub(crate) u32);

impl Val {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Properties of a value that are known before anything runs.
#[derive(Clone, Debug)]
pub struct Info {
    /// The activation's name, e.g. `attn.out`; the key of its place.
    pub name: &'static str,
    /// Columns.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
    /// The node that produces it; `None` for the graph's input.
    pub producer: Option<usize>,
    /// True if gradients flow through it (statistics have none).
    pub differentiable: bool,
    /// Number of ranks that share its rows, as in [`own_rows`]: 1, or `tp` if each has some of the tokens.
    pub share: usize,
    /// True if it has one row for all tokens, see [`crate::Out::total`].
    pub total: bool,
    /// Its own number of rows, see [`crate::Out::rows`].
    pub rows: Option<usize>,
}

/// One operation with its inputs and outputs.
pub struct Node {
    /// The operation.
    pub op: Rc<dyn Op>,
    /// Values read.
    pub ins: Vec<Val>,
    /// Weights read.
    pub params: Vec<ParamId>,
    /// Values written.
    pub outs: Vec<Val>,
    /// The rows region it belongs to: nodes of one region run tile by tile.
    pub region: Option<u32>,
    /// True if its forward pass accepts packed weights.
    pub packed: bool,
}

impl Node {
    /// True if a backward pass reads its weights, for the gradients of its inputs. An embedding has none.
    pub fn rereads_weights(&self) -> bool {
        !self.ins.is_empty()
    }
}

/// The recorded operations of one segment, in program order.
pub struct Graph {
    /// All values.
    pub values: Vec<Info>,
    /// All operations.
    pub nodes: Vec<Node>,
    /// The segment's input, if it has one.
    pub input: Option<Val>,
    /// Further values that it reads.
    pub memory: Vec<Val>,
    /// The segment's output.
    pub output: Val,
}

impl Info {
    /// Number of rows of these tokens on the rank with this index among those that share them.
    pub fn rows_of(&self, tokens: &Range<usize>, index: usize) -> usize {
        self.rows.unwrap_or_else(|| own_rows(tokens, self.share, index).len())
    }
}

/// Position of a rank's rows among all of its rows, for tokens of a stream whose ranks share the rows of each tile.
/// Shares of tokens, of tiles and of the stream, differ by at most one.
pub fn own_rows(tokens: &Range<usize>, ranks: usize, index: usize) -> Range<usize> {
    // The rank has every `ranks`-th of the tokens before `end`, as if distributed round-robin. Rows that are not
    // shared are on all ranks.
    let before = |end: usize| (end + ranks - 1 - index % ranks) / ranks;
    before(tokens.start)..before(tokens.end)
}

impl Graph {
    /// Values from outside: the input and the further values read.
    pub fn given(&self) -> impl Iterator<Item = Val> + '_ {
        self.input.into_iter().chain(self.memory.iter().copied())
    }

    /// The weights that its operations name, in order.
    pub fn weights(&self) -> Vec<ParamId> {
        self.nodes.iter().flat_map(|node| node.params.iter().copied()).collect()
    }
}

/// Distribution of a segment's work over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Number of ranks that each have a part of every sub-layer's weights.
    pub ranks: usize,
    /// True if between sub-layers each of them has a share of the rows (Megatron's sequence parallel) instead of all:
    /// of each tile, or of all tokens without tiles, the part of its index.
    pub rows: bool,
    /// Number of expert parallel ranks: each has some of a layer's experts.
    pub ep: usize,
    /// Number of tensor parallel ranks of an expert: each has some of its inner columns.
    pub etp: usize,
    /// Number of ranks that share the batch's documents (context parallel) and deal heads for operations that read rows in
    /// order.
    pub cp: usize,
    /// True if these operations pass states between ranks instead.
    pub states: bool,
}

impl Spread {
    /// A single rank.
    pub const NONE: Spread = Spread { ranks: 1, rows: false, ep: 1, etp: 1, cp: 1, states: false };

    /// The distribution over the ranks of a mesh.
    pub fn of(mesh: &Mesh) -> Spread {
        let grid = mesh.grid();
        let rows = grid.sequence_parallel && grid.tp > 1;
        Spread { ranks: grid.tp, rows, ep: grid.ep, etp: grid.etp, cp: grid.cp, states: false }
    }

    /// Number of ranks over which rows between sub-layers are shared.
    pub fn share(self) -> usize {
        if self.rows { self.ranks } else { 1 }
    }
}

/// Records a block's operations. The methods for model code are in [`crate::ops`], one per operation.
pub struct Ctx<'p> {
    pub(crate) params: &'p Params,
    pub(crate) spread: Spread,
    values: Vec<Info>,
    nodes: Vec<Node>,
    region: Option<u32>,
    regions: u32,
}

impl<'p> Ctx<'p> {
    /// Runs `body` once and returns what it recorded. `input` describes the segment's input, `memory` its further
    /// inputs with their rows.
    pub fn record(
        params: &'p Params,
        spread: Spread,
        input: Option<Desc>,
        memory: &[(Desc, usize)],
        body: impl FnOnce(&mut Ctx<'p>, Val, &[Val]) -> Val,
    ) -> Graph {
        let mut cx = Ctx { params, spread, values: Vec::new(), nodes: Vec::new(), region: None, regions: 0 };
        if let Some(Desc { cols, dtype }) = input {
            let (name, share, total, rows) = ("block.in", spread.share(), false, None);
            let (producer, differentiable) = (None, true);
            cx.values.push(Info { name, cols, dtype, producer, differentiable, share, total, rows });
        }
        let remember = |(Desc { cols, dtype }, rows): &(Desc, usize)| {
            let (name, producer, rows) = ("memory", None, Some(*rows));
            let (cols, dtype, share, total) = (*cols, *dtype, 1, false);
            cx.values.push(Info { name, cols, dtype, producer, differentiable: true, share, total, rows });
            Val(cx.values.len() as u32 - 1)
        };
        let memory: Vec<Val> = memory.iter().map(remember).collect();
        let output = body(&mut cx, Val(0), &memory);
        let Ctx { values, nodes, .. } = cx;
        Graph { values, nodes, input: input.map(|_| Val(0)), memory, output }
    }

    /// A region of operations that work row by row: the executor runs it whole or by tiles of rows, and replays it by
    /// tiles. Communication inside it happens per tile.
    ///
    /// # Panics
    /// If regions are nested.
    #[track_caller]
    pub fn rows<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        assert!(self.region.is_none(), "rows regions do not nest");
        self.region = Some(self.regions);
        self.regions += 1;
        let result = body(self);
        self.region = None;
        result
    }

    /// Operations that need all rows at once. Inside a rows region, the region ends before them and a new one begins
    /// after them: values that later operations read have storage for all rows.
    pub fn whole<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let inside = self.region.take().is_some();
        let result = body(self);
        if inside {
            self.region = Some(self.regions);
            self.regions += 1;
        }
        result
    }

    /// Columns and type of a value.
    pub fn desc(&self, val: Val) -> Desc {
        let info = &self.values[val.index()];
        Desc { cols: info.cols, dtype: info.dtype }
    }

    /// Returns whether an operation so far reads this weight.
    pub fn has_read(&self, id: ParamId) -> bool {
        self.nodes.iter().any(|node| node.params.contains(&id))
    }

    /// Records one operation; its outputs are named by the operation and have the rows of its inputs.
    #[track_caller]
    pub fn apply(&mut self, op: impl Op + 'static, ins: &[Val], params: &[ParamId]) -> Vec<Val> {
        let shares: Vec<usize> = ins.iter().map(|val| self.values[val.index()].share).collect();
        let share = shares.first().copied().unwrap_or(1);
        assert!(
            shares.iter().all(|other| *other == share),
            "{}: inputs of different rows {shares:?}",
            op.name()
        );
        self.apply_to(share, op, ins, params)
    }

    /// [`Ctx::apply`] for an operation that scatters or gathers rows: its outputs have tokens / `share` rows.
    #[track_caller]
    pub(crate) fn apply_to(
        &mut self,
        share: usize,
        op: impl Op + 'static,
        ins: &[Val],
        params: &[ParamId],
    ) -> Vec<Val> {
        let descs: Vec<Desc> = ins.iter().map(|val| self.desc(*val)).collect();
        let own_rows = ins.first().and_then(|val| self.values[val.index()].rows);
        let weights: Vec<[usize; 2]> = params.iter().map(|id| self.params.shape(*id)).collect();
        let node = self.nodes.len();
        let outs: Vec<Val> = op
            .outputs(&descs, &weights)
            .into_iter()
            .map(|out| {
                let crate::Out { name, cols, dtype, differentiable, total, rows } = out;
                let (producer, rows) = (Some(node), rows.or(own_rows));
                assert!(
                    rows.is_none() || self.region.is_none(),
                    "{name}: rows of its own within a rows region"
                );
                self.values.push(Info { name, cols, dtype, producer, differentiable, share, total, rows });
                Val(self.values.len() as u32 - 1)
            })
            .collect();
        self.nodes.push(Node {
            op: Rc::new(op),
            ins: ins.to_vec(),
            params: params.to_vec(),
            outs: outs.clone(),
            region: self.region,
            packed: false,
        });
        outs
    }

    /// Marks the last operation's forward pass as accepting packed weights.
    pub(crate) fn takes_packed(&mut self) {
        if let Some(node) = self.nodes.last_mut() {
            node.packed = true;
        }
    }
}

impl Graph {
    /// Splits the nodes into units: a rows region, or one operation outside any.
    pub fn units(&self) -> Vec<std::ops::Range<usize>> {
        let mut units: Vec<std::ops::Range<usize>> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            match units.last_mut() {
                Some(last) if node.region.is_some() && self.nodes[last.start].region == node.region => {
                    last.end = index + 1
                }
                _ => units.push(index..index + 1),
            }
        }
        units
    }

    /// All values, in program order.
    pub fn activations(&self) -> impl Iterator<Item = (Val, &Info)> {
        self.values.iter().enumerate().map(|(at, info)| (Val(at as u32), info))
    }
}
