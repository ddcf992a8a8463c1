//! A rank's part of a model: some layers, and a part of each weight.

use std::fmt;
use std::ops::Range;

use fathom_tensor::mesh::{Axis, Mesh};
use fathom_tensor::{Device, Tensor};

use crate::spec::{LayerSpec, Sharers, Spec, SplitDimension};
use crate::stages::StageLayers;
use crate::weight::{Cut, InputSharing, Inside, Module, WeightSpec};

/// The layers of one rank, and its place among the ranks that split weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Ranges of layers, one per pipeline stage of the rank, ascending.
    pub chunks: Vec<Range<usize>>,
    /// Whether the embedding precedes the first of them.
    pub first: bool,
    /// Whether the final norm and the head follow the last of them.
    pub last: bool,
    /// Number of pipeline-parallel ranks.
    pub pp: usize,
    /// Number of context-parallel ranks.
    pub cp: usize,
    /// Number of tensor-parallel ranks.
    pub tp: usize,
    /// Whether they split the rows between sub-layers (sequence parallelism).
    pub shared_rows: bool,
    /// Index of this rank among them.
    pub tp_index: usize,
    /// Number of expert-parallel ranks.
    pub ep: usize,
    /// Index of this rank among them.
    pub ep_index: usize,
    /// Number of tensor-parallel ranks per expert.
    pub etp: usize,
    /// Index of this rank among them.
    pub etp_index: usize,
    /// Whether ranks with the same weights each keep only a part of them outside the segments that use them (ZeRO-3).
    pub parted: bool,
    /// Distribution of the layers.
    pub layout: StageLayers,
}

/// Sums the tensor-parallel ranks' parts over a projection's columns, in place.
pub(crate) fn sum_of_parts(device: &Device, parts: &Tensor) {
    device.mesh.group(&[Axis::Tp]).all_reduce(device, parts);
}

impl Portion {
    /// Returns whether ranks split projections.
    pub(crate) fn cuts_projections(&self) -> bool {
        self.tp > 1
    }

    /// Number of ranks that share each projection.
    pub(crate) fn sharers(&self) -> usize {
        self.tp
    }

    /// The whole model.
    pub fn whole(spec: &Spec) -> Portion {
        Portion::new(std::iter::once(0..spec.layers.len()).collect(), true, true)
    }

    /// A rank's portion, with layers distributed so that the pipeline's stages take equally long.
    pub fn of(spec: &Spec, mesh: &Mesh, virtual_stages: usize) -> Portion {
        Portion::cut(spec, mesh, virtual_stages, StageLayers::default())
    }

    /// A rank's portion, with `virtual_stages` pipeline stages per rank, `pp` stages apart (Megatron's interleaving).
    pub fn cut(spec: &Spec, mesh: &Mesh, virtual_stages: usize, layout: StageLayers) -> Portion {
        let (pp, index) = (mesh.size(Axis::Pp), mesh.index(Axis::Pp));
        let stages = pp * virtual_stages.max(1);
        let chunks = layout.cut(spec, stages).into_iter().skip(index).step_by(pp).collect();
        let [(tp, tp_index), (ep, ep_index), (etp, etp_index), (cp, _)] =
            [Axis::Tp, Axis::Ep, Axis::Etp, Axis::Cp].map(|axis| (mesh.size(axis), mesh.index(axis)));
        let shared_rows = tp > 1 && mesh.grid().sequence_parallel;
        let part = Portion::new(chunks, index == 0, index + 1 == pp);
        Portion { pp, cp, tp, tp_index, shared_rows, ep, ep_index, etp, etp_index, layout, ..part }
    }

    fn new(chunks: Vec<Range<usize>>, first: bool, last: bool) -> Portion {
        let (pp, cp, tp, ep, etp, layout) = (1, 1, 1, 1, 1, StageLayers::default());
        let (tp_index, ep_index, etp_index, shared_rows, parted) = (0, 0, 0, false, false);
        Portion {
            chunks,
            first,
            last,
            pp,
            cp,
            tp,
            shared_rows,
            tp_index,
            ep,
            ep_index,
            etp,
            etp_index,
            parted,
            layout,
        }
    }

    /// Sets whether ranks with the same weights each keep only a part of them.
    pub fn with_parted(self, parted: bool) -> Portion {
        Portion { parted, ..self }
    }

    /// This rank's query heads.
    pub(crate) fn own_heads(&self, spec: &Spec) -> Range<usize> {
        let own = spec.heads / self.tp;
        self.tp_index * own..(self.tp_index + 1) * own
    }

    /// The layers, ascending.
    pub fn layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.iter().cloned().flatten()
    }

    /// Returns whether the rank has a weight of this layer, or of this module outside the layers. The last stage's
    /// copy of a tied embedding is the head.
    pub(crate) fn has(&self, layer: Option<usize>, module: Module, tied: bool) -> bool {
        match (layer, module) {
            (Some(layer), _) => self.chunks.iter().any(|chunk| chunk.contains(&layer)),
            (_, Module::Tokens) => self.first || (self.last && tied),
            (_, Module::Last | Module::Head) => self.last,
            _ => self.first,
        }
    }

    /// Returns whether the rank has a weight: one that several layers read is on each stage that has one of them.
    pub(crate) fn has_weight(&self, layer: Option<usize>, weight: &WeightSpec<'_>, tied: bool) -> bool {
        match layer {
            Some(first) if weight.readers > 1 => self.has_some(&(first..first + weight.readers)),
            layer => self.has(layer, weight.module, tied),
        }
    }

    /// Returns whether the rank has one of these layers.
    fn has_some(&self, layers: &Range<usize>) -> bool {
        self.chunks.iter().any(|chunk| chunk.start < layers.end && layers.start < chunk.end)
    }

    /// The stages that have one of these layers, ascending, as indices of the pipeline's ranks.
    pub(crate) fn stages_of(&self, spec: &Spec, layers: &Range<usize>) -> Vec<usize> {
        let stages = self.layout.cut(spec, self.pp * self.chunks.len());
        let here = |index: &usize| {
            let mut own = stages.iter().skip(*index).step_by(self.pp);
            own.any(|chunk| chunk.start < layers.end && layers.start < chunk.end)
        };
        (0..self.pp).filter(here).collect()
    }

    /// Checks that a model can be split like this.
    ///
    /// # Errors
    /// The size that does not divide, and sizes that would.
    pub fn check(&self, spec: &Spec) -> Result<(), Misfit> {
        let tp = self.tp;
        self.check_experts(spec)?;
        let mut sizes = Vec::new();
        if spec.attends() {
            sizes.extend([("heads", spec.heads), ("kv_heads", spec.kv_heads)]);
        }
        sizes.extend(spec.has_dense_ffn().then_some(("ffn", spec.ffn)));
        let shared = spec.moe.as_ref().and_then(|moe| moe.shared);
        sizes.extend(shared.map(|shared| ("ffn of shared experts", shared.ffn)));
        let fits = |tp: usize| sizes.iter().all(|(_, size)| size.is_multiple_of(tp));
        for (name, size) in &sizes {
            if !size.is_multiple_of(tp) {
                let good: Vec<String> =
                    (1..=spec.kv_heads).filter(|tp| fits(*tp)).map(|tp| tp.to_string()).collect();
                let message = format!("{tp} does not divide {name}={size}; it may be {}", good.join(", "));
                return Err(Misfit { axis: Axis::Tp, message });
            }
        }
        if spec.source > 0 && self.cp > 1 {
            let message =
                format!("{} ranks share a stream, and a source is not shared; it must be 1", self.cp);
            return Err(Misfit { axis: Axis::Cp, message });
        }
        spec.check_stages(self.pp * self.chunks.len())
            .map_err(|message| Misfit { axis: Axis::Pp, message })?;
        if let Some(name) = spec.adapted_memory().filter(|_| tp > 1) {
            let message = format!(
                "{tp} ranks would each have a part of {name}, whose adapter reads a source and is not split; it must be 1, or \
                 leave this projection out of adapter.targets"
            );
            return Err(Misfit { axis: Axis::Tp, message });
        }
        let ranks = self.sharers_of_layers();
        let mut own = spec.layers.iter().flat_map(LayerSpec::own);
        own.try_for_each(|own| own.check(&ranks)).map_err(|(shared, message)| {
            let axis = match shared {
                SplitDimension::Columns => Axis::Tp,
                SplitDimension::Tokens => Axis::Cp,
                SplitDimension::Layers => Axis::Pp,
            };
            Misfit { axis, message }
        })
    }

    /// The ranks that share the layers.
    pub fn sharers_of_layers(&self) -> Sharers {
        Sharers { columns: self.tp, tokens: self.cp, layers: self.pp }
    }

    /// Checks that experts can be distributed like this.
    fn check_experts(&self, spec: &Spec) -> Result<(), Misfit> {
        let Portion { ep, etp, .. } = *self;
        let Some(moe) = &spec.moe else {
            let Some((axis, size)) =
                [(Axis::Ep, ep), (Axis::Etp, etp)].into_iter().find(|(_, size)| *size > 1)
            else {
                return Ok(());
            };
            let message = format!("{size} ranks share experts, and {} has none; it must be 1", spec.family);
            return Err(Misfit { axis, message });
        };
        for (axis, size, name, of) in
            [(Axis::Ep, ep, "experts", moe.experts), (Axis::Etp, etp, "columns of an expert", moe.ffn)]
        {
            if !of.is_multiple_of(size) {
                let good = (1..=of.min(64)).filter(|size| of.is_multiple_of(*size));
                let good: Vec<String> = good.map(|size| size.to_string()).collect();
                let message = format!("{size} does not divide {of} {name}; it may be {}", good.join(", "));
                return Err(Misfit { axis, message });
            }
        }
        if etp > 1 && moe.expert_bias && !moe.transposed {
            let message = format!(
                "{}'s biases of experts [gate | up] cannot be cut into {etp}; it must be 1",
                spec.family
            );
            return Err(Misfit { axis: Axis::Etp, message });
        }
        Ok(())
    }

    /// The specification of this rank's part of the blocks: fewer heads and columns.
    pub fn local(&self, spec: &Spec) -> Spec {
        let (heads, kv_heads, ffn) = (spec.heads / self.tp, spec.kv_heads / self.tp, spec.ffn / self.tp);
        Spec { heads, kv_heads, ffn, ..spec.clone() }
    }

    /// This rank's share of `len`, split among tensor-parallel ranks; shares differ by at most one.
    pub(crate) fn share(&self, len: usize) -> Range<usize> {
        len * self.tp_index / self.tp..len * (self.tp_index + 1) / self.tp
    }

    /// Number of experts that the rank has, wholly or in part.
    pub(crate) fn own_experts(&self, experts: usize) -> usize {
        experts / self.ep
    }

    /// Like [`Portion::share`], among the ranks that share an expert.
    fn expert_share(&self, len: usize) -> Range<usize> {
        len * self.etp_index / self.etp..len * (self.etp_index + 1) / self.etp
    }
}

/// An axis of the mesh over which a model cannot be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The axis.
    pub axis: Axis,
    /// Its size, what that does not divide, and sizes that would.
    pub message: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.axis.name(), self.message)
    }
}

impl Cut<'_> {
    /// Number of distinct parts, and the index of a rank's.
    fn parts(self, portion: &Portion) -> (usize, usize) {
        let Portion { tp, tp_index, ep, ep_index, etp, etp_index, .. } = *portion;
        match self {
            Cut::Whole(_) => (1, 0),
            Cut::Rows(_) | Cut::Cols => (tp, tp_index),
            Cut::Experts(_, Inside::Whole) => (ep, ep_index),
            Cut::Experts(..) => (ep * etp, ep_index * etp + etp_index),
        }
    }

    /// Returns whether this is the first of the ranks with this part in its replica.
    fn leads(self, portion: &Portion) -> bool {
        match self {
            Cut::Whole(_) => portion.tp_index == 0,
            Cut::Experts(_, Inside::Whole) => portion.etp_index == 0,
            _ => true,
        }
    }
}

/// A rank's part of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rows x columns of the whole weight; a vector of n is n x 1 here.
    pub shape: [usize; 2],
    /// Rows on this rank, in memory order.
    pub rows: Vec<Range<usize>>,
    /// Columns on this rank.
    pub cols: Range<usize>,
    /// Whether it is stored as one row.
    pub vector: bool,
}

impl Shard {
    /// A rank's part of a weight; a vector is [1, n].
    pub(crate) fn of(shape: [usize; 2], cut: Cut<'_>, portion: &Portion) -> Shard {
        let vector = shape[0] == 1;
        let shape = if vector { [shape[1], 1] } else { shape };
        let mut shard =
            Shard { shape, rows: std::iter::once(0..shape[0]).collect(), cols: 0..shape[1], vector };
        match cut {
            Cut::Whole(_) => {}
            Cut::Cols => shard.cols = portion.share(shape[1]),
            Cut::Rows(groups) => {
                assert_eq!(groups.iter().sum::<usize>(), shape[0], "groups {groups:?} of a weight {shape:?}");
                shard.rows.clear();
                shard.push_groups(0, groups, &|len| portion.share(len));
            }
            Cut::Experts(experts, inside) => shard.keep_experts(experts, inside, portion),
        }
        shard
    }

    /// Keeps a share of each of some consecutive groups of rows.
    fn push_groups(&mut self, first: usize, groups: &[usize], share: &dyn Fn(usize) -> Range<usize>) {
        let mut start = first;
        for group in groups {
            let share = share(*group);
            let (from, to) = (start + share.start, start + share.end);
            match self.rows.last_mut() {
                Some(last) if last.end == from => last.end = to,
                _ => self.rows.push(from..to),
            }
            start += group;
        }
    }

    fn keep_experts(&mut self, experts: usize, inside: Inside<'_>, portion: &Portion) {
        let [rows, cols] = self.shape;
        let (each, own) = (rows / experts, experts / portion.ep);
        self.rows.clear();
        for expert in portion.ep_index * own..(portion.ep_index + 1) * own {
            match inside {
                Inside::Rows(groups) => {
                    assert_eq!(groups.iter().sum::<usize>(), each, "groups {groups:?} of an expert");
                    self.push_groups(expert * each, groups, &|len| portion.expert_share(len));
                }
                _ => self.push_groups(expert * each, &[each], &|len| 0..len),
            }
        }
        if let Inside::Cols = inside {
            self.cols = portion.expert_share(cols);
        }
    }

    /// Rows x columns on this rank, as stored.
    pub fn local(&self) -> [usize; 2] {
        let rows = self.rows.iter().map(Range::len).sum();
        if self.vector { [1, rows] } else { [rows, self.cols.len()] }
    }

    /// Returns whether other ranks have some of it.
    pub fn is_parted(&self) -> bool {
        let rows: usize = self.rows.iter().map(Range::len).sum();
        rows < self.shape[0] || self.cols.len() < self.shape[1]
    }

    /// Runs of elements contiguous both here and in the whole weight: start here, start in the whole, length.
    pub fn runs(&self) -> Vec<(usize, usize, usize)> {
        let (all, width) = (self.shape[1], self.cols.len());
        let mut runs = Vec::new();
        let mut here = 0;
        for rows in &self.rows {
            let step = if width == all { rows.len().max(1) } else { 1 };
            for row in rows.clone().step_by(step) {
                runs.push((here, row * all + self.cols.start, step * width));
                here += step * width;
            }
        }
        runs
    }
}

/// A weight of the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Rows x columns; [1, n] for a vector.
    pub shape: [usize; 2],
    /// Number of parts into which ranks split it.
    pub parts: usize,
}

/// A rank's part of one weight, with its role among ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPart {
    /// The weight's number in the whole model, which seeds its initial values.
    pub number: u32,
    /// The part.
    pub shard: Shard,
    /// Index of the part among [`Weight::parts`].
    pub part: usize,
    /// First of the ranks with this part in its replica.
    pub leads: bool,
    /// Whether those ranks each have a term of its gradient: tensor-parallel ranks, or those that share an expert.
    pub partial: bool,
    /// Whether it is an expert's: its replicas are along `edp`, not along `dp` and `cp`.
    pub expert: bool,
}

impl WeightPart {
    /// A rank's part of a weight.
    pub(crate) fn of(number: u32, shape: [usize; 2], cut: Cut<'_>, portion: &Portion) -> WeightPart {
        let (shard, expert) = (Shard::of(shape, cut, portion), matches!(cut, Cut::Experts(..)));
        let (part, leads) = (cut.parts(portion).1, cut.leads(portion));
        let partial = match cut {
            Cut::Whole(InputSharing::Rows) => portion.shared_rows,
            Cut::Whole(InputSharing::Own) => portion.tp > 1,
            Cut::Experts(_, Inside::Whole) => portion.etp > 1,
            _ => false,
        };
        WeightPart { number, shard, part, leads, partial, expert }
    }
}

impl Weight {
    /// A weight with this split.
    pub(crate) fn of(shape: [usize; 2], cut: Cut<'_>, portion: &Portion) -> Weight {
        Weight { shape, parts: cut.parts(portion).0 }
    }
}

/// Holdings by [`fathom_grad::ParamId`].
pub type Holdings = Vec<WeightPart>;

#[cfg(test)]
mod tests {
    use super::*;

    fn portion(tp: usize, tp_index: usize) -> Portion {
        Portion { tp, tp_index, ..Portion::new(std::iter::once(0..2).collect(), true, true) }
    }

    /// All ranks' runs together cover every element once, in each part's order.
    #[test]
    fn shards_are_the_whole() {
        let cases: [([usize; 2], Cut<'_>); 10] = [
            ([8, 3], Cut::Rows(&[4, 2, 2])),
            ([12, 5], Cut::Rows(&[6, 6])),
            ([7, 2], Cut::Rows(&[7])),
            ([3, 8], Cut::Cols),
            ([1, 8], Cut::Rows(&[4, 2, 2])),
            ([1, 8], Cut::Whole(InputSharing::Rows)),
            ([4 * 8, 3], Cut::Experts(4, Inside::Rows(&[4, 4]))),
            ([4 * 3, 8], Cut::Experts(4, Inside::Cols)),
            ([4 * 3, 8], Cut::Experts(4, Inside::Whole)),
            ([4, 6], Cut::Experts(4, Inside::Cols)),
        ];
        for (shape, cut) in cases {
            for (tp, etp) in [(1, 1), (2, 1), (2, 2)] {
                let mut seen = vec![0; shape[0] * shape[1]];
                let mut numbers = std::collections::BTreeSet::new();
                for index in 0..tp {
                    let one = portion(tp, index);
                    // Consecutive ranks of the experts' grid.
                    let one = match cut {
                        Cut::Experts(..) => Portion {
                            ep: tp / etp,
                            ep_index: index / etp,
                            etp,
                            etp_index: index % etp,
                            ..one
                        },
                        _ => one,
                    };
                    numbers.insert(WeightPart::of(0, shape, cut, &one).part);
                    assert!(numbers.iter().all(|part| *part < Weight::of(shape, cut, &one).parts));
                    let shard = Shard::of(shape, cut, &one);
                    let mut here = 0;
                    for (start, at, len) in shard.runs() {
                        assert_eq!(start, here);
                        here += len;
                        seen[at..at + len].iter_mut().for_each(|seen| *seen += 1);
                    }
                    let [rows, cols] = shard.local();
                    assert_eq!(here, rows * cols, "{shard:?}");
                }
                let copies = match cut {
                    Cut::Whole(_) => tp,
                    Cut::Experts(_, Inside::Whole) => etp,
                    _ => 1,
                };
                assert!(seen.iter().all(|seen| *seen == copies), "{shape:?} {cut:?} {seen:?}");
            }
        }
    }

    #[test]
    fn interleaved_stages_are_pp_apart() {
        let tiny = crate::LlamaSizes { hidden: 8, head_dim: 4, ffn: 8, vocab: 8, ..crate::LlamaSizes::TINY };
        let spec = Spec::llama(crate::LlamaSizes { layers: 9, heads: 2, tied: false, ..tiny });
        let mesh = |rank| {
            let grid = fathom_tensor::mesh::Grid { pp: 2, ..Default::default() };
            Mesh::new(grid, Box::new(fathom_tensor::mesh::CountingLink::new(rank, 2)))
        };
        let chunks = |rank| Portion::of(&spec, &mesh(rank), 2).chunks;
        assert_eq!([chunks(0), chunks(1)], [vec![0..3, 5..7], vec![3..5, 7..9]]);
        let odd = Portion { tp: 3, ..Portion::whole(&spec) };
        assert_eq!(
            odd.check(&spec).unwrap_err().to_string(),
            "tp: 3 does not divide heads=2; it may be 1, 2"
        );
    }
}
