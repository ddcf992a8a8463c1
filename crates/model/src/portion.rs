//! What of a model one rank holds: some layers, and a part of each weight.

use std::ops::Range;

use fathom_tensor::mesh::{Axis, Mesh};

use crate::spec::{QkNorm, Spec};

/// The layers of one rank, and its place among the tensor parallel ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Runs of layers, one for each of the rank's stages in the pipeline, ascending.
    pub chunks: Vec<Range<usize>>,
    /// The embedding comes before the first of them.
    pub first: bool,
    /// The final norm and the head come after the last of them.
    pub last: bool,
    /// Tensor parallel ranks.
    pub tp: usize,
    /// They share the rows between sub-layers.
    pub shared_rows: bool,
    /// Which of them this is.
    pub tp_index: usize,
}

impl Portion {
    /// All of it.
    pub fn whole(spec: &Spec) -> Portion {
        Portion::new(std::iter::once(0..spec.layers.len()).collect(), true, true)
    }

    /// A rank's portion with the layers dealt evenly to the pipeline's stages: `virtual_stages` on each rank, those of a rank
    /// `pp` stages apart (Megatron's interleaving). What does not divide goes to the first stages.
    pub fn of(spec: &Spec, mesh: &Mesh, virtual_stages: usize) -> Portion {
        let (pp, index) = (mesh.size(Axis::Pp), mesh.index(Axis::Pp));
        let stages = pp * virtual_stages.max(1);
        let layers = spec.layers.len();
        let start = |stage: usize| stage * (layers / stages) + stage.min(layers % stages);
        let chunks = (index..stages).step_by(pp).map(|stage| start(stage)..start(stage + 1)).collect();
        let (tp, tp_index) = (mesh.size(Axis::Tp), mesh.index(Axis::Tp));
        let shared_rows = tp > 1 && mesh.grid().sequence_parallel;
        Portion { tp, tp_index, shared_rows, ..Portion::new(chunks, index == 0, index + 1 == pp) }
    }

    fn new(chunks: Vec<Range<usize>>, first: bool, last: bool) -> Portion {
        Portion { chunks, first, last, tp: 1, tp_index: 0, shared_rows: false }
    }

    /// The layers, ascending.
    pub fn layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.iter().cloned().flatten()
    }

    /// Whether a model can be cut like this.
    ///
    /// # Errors
    /// What does not divide, and which sizes would.
    pub fn check(&self, spec: &Spec) -> Result<(), String> {
        let tp = self.tp;
        if tp > 1 && spec.qk_norm == QkNorm::Full {
            return Err(format!(
                "{} normalises q and k over all heads together, which tp={tp} would part",
                spec.family
            ));
        }
        if tp > 1 && (spec.moe.is_some() || spec.latent.is_some() || spec.sinks) {
            return Err(format!(
                "{} has experts, latents or sinks, which tensor parallel ranks cannot part: mesh.tp={tp} must be 1",
                spec.family
            ));
        }
        let sizes = [("heads", spec.heads), ("kv_heads", spec.kv_heads), ("ffn", spec.ffn)];
        let fits = |tp: usize| sizes.iter().all(|(_, size)| size.is_multiple_of(tp));
        for (name, size) in sizes {
            if !size.is_multiple_of(tp) {
                let good: Vec<String> =
                    (1..=spec.kv_heads).filter(|tp| fits(*tp)).map(|tp| tp.to_string()).collect();
                return Err(format!(
                    "mesh.tp={tp} does not divide {name}={size}; tp may be {}",
                    good.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// The specification of the part that this rank computes in its blocks: fewer heads and columns.
    pub fn local(&self, spec: &Spec) -> Spec {
        let (heads, kv_heads, ffn) = (spec.heads / self.tp, spec.kv_heads / self.tp, spec.ffn / self.tp);
        Spec { heads, kv_heads, ffn, ..spec.clone() }
    }

    /// This rank's share of something cut into as many parts as there are tensor parallel ranks; shares differ by at most
    /// one.
    pub(crate) fn share(&self, len: usize) -> Range<usize> {
        len * self.tp_index / self.tp..len * (self.tp_index + 1) / self.tp
    }
}

/// How tensor parallel ranks part a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut<'a> {
    /// Not at all.
    Whole,
    /// Each of some groups of rows is parted: `[q, k, v]`, `[gate, up]`.
    Rows(&'a [usize]),
    /// The columns of a matrix that many are summed by.
    Cols,
}

/// The part of a weight that a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rows x columns of the whole weight; a vector of n is n x 1 here.
    pub shape: [usize; 2],
    /// Its rows that are here, in the order in which they are.
    pub rows: Vec<Range<usize>>,
    /// Its columns that are here.
    pub cols: Range<usize>,
    /// In memory it is one row.
    pub vector: bool,
}

impl Shard {
    /// A rank's part of a weight, [1, n] for a vector.
    pub(crate) fn of(shape: [usize; 2], cut: Cut<'_>, portion: &Portion) -> Shard {
        let vector = shape[0] == 1;
        let shape = if vector { [shape[1], 1] } else { shape };
        let mut shard =
            Shard { shape, rows: std::iter::once(0..shape[0]).collect(), cols: 0..shape[1], vector };
        match cut {
            Cut::Whole => {}
            Cut::Cols => shard.cols = portion.share(shape[1]),
            Cut::Rows(groups) => {
                shard.rows.clear();
                let mut start = 0;
                for group in groups {
                    let share = portion.share(*group);
                    let (from, to) = (start + share.start, start + share.end);
                    match shard.rows.last_mut() {
                        Some(last) if last.end == from => last.end = to,
                        _ => shard.rows.push(from..to),
                    }
                    start += group;
                }
                assert_eq!(start, shape[0], "groups {groups:?} of a weight {shape:?}");
            }
        }
        shard
    }

    /// Rows x columns that are here, as they are in memory.
    pub fn local(&self) -> [usize; 2] {
        let rows = self.rows.iter().map(Range::len).sum();
        if self.vector { [1, rows] } else { [rows, self.cols.len()] }
    }

    /// True if something is elsewhere.
    pub fn is_parted(&self) -> bool {
        let rows: usize = self.rows.iter().map(Range::len).sum();
        rows < self.shape[0] || self.cols.len() < self.shape[1]
    }

    /// Runs of elements that lie together both here and in the whole weight: where they begin in each, and how many.
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
    /// Tensor parallel ranks have a part of it each.
    pub parted: bool,
}

/// What a rank holds of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The weight's number in the whole model, which the first values follow from.
    pub number: u32,
    /// Which part of it.
    pub shard: Shard,
    /// Every tensor parallel rank has all of the weight and a part of its gradient.
    pub partial: bool,
}

/// By [`fathom_grad::ParamId`].
pub type Holdings = Vec<Holding>;

#[cfg(test)]
mod tests {
    use super::*;

    fn portion(tp: usize, tp_index: usize) -> Portion {
        Portion { tp, tp_index, ..Portion::new(std::iter::once(0..2).collect(), true, true) }
    }

    /// All ranks' runs together are every element once, in the order of each rank's part.
    #[test]
    fn shards_are_the_whole() {
        let cases: [([usize; 2], Cut<'_>); 6] = [
            ([8, 3], Cut::Rows(&[4, 2, 2])),
            ([12, 5], Cut::Rows(&[6, 6])),
            ([7, 2], Cut::Rows(&[7])),
            ([3, 8], Cut::Cols),
            ([1, 8], Cut::Rows(&[4, 2, 2])),
            ([1, 8], Cut::Whole),
        ];
        for (shape, cut) in cases {
            for tp in [1, 2] {
                let mut seen = vec![0; shape[0] * shape[1]];
                for index in 0..tp {
                    let shard = Shard::of(shape, cut, &portion(tp, index));
                    let mut here = 0;
                    for (start, at, len) in shard.runs() {
                        assert_eq!(start, here);
                        here += len;
                        seen[at..at + len].iter_mut().for_each(|seen| *seen += 1);
                    }
                    let [rows, cols] = shard.local();
                    assert_eq!(here, rows * cols, "{shard:?}");
                }
                let copies = if matches!(cut, Cut::Whole) { tp } else { 1 };
                assert!(seen.iter().all(|seen| *seen == copies), "{shape:?} {cut:?} {seen:?}");
            }
        }
    }

    #[test]
    fn interleaved_stages_are_pp_apart() {
        let spec = Spec::llama(crate::LlamaSizes {
            hidden: 8,
            layers: 9,
            heads: 2,
            kv_heads: 2,
            head_dim: 4,
            ffn: 8,
            vocab: 8,
            rope_theta: 1e4,
            max_positions: 8,
            tied: false,
        });
        let mesh = |rank| {
            let grid = fathom_tensor::mesh::Grid { pp: 2, ..Default::default() };
            Mesh::new(grid, Box::new(fathom_tensor::mesh::Imagined::new(rank, 2)))
        };
        let chunks = |rank| Portion::of(&spec, &mesh(rank), 2).chunks;
        assert_eq!([chunks(0), chunks(1)], [vec![0..3, 5..7], vec![3..5, 7..9]]);
        let odd = Portion { tp: 3, ..Portion::whole(&spec) };
        assert_eq!(odd.check(&spec).unwrap_err(), "mesh.tp=3 does not divide heads=2; tp may be 1, 2");
    }
}
