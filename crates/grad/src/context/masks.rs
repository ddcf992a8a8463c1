//! Masks between the rows of ranks: for each way of exchanging keys, which rows of this rank attend to which rows of
//! others.

use std::borrow::Cow;

use fathom_tensor::mesh::Group;
use fathom_tensor::{Category, DType, Device, Extent, Mask, PackedMask, Slice, Tensor};

use super::circle::{Circle, GatheredKeys, Ring, Step};
use super::layout::SMALLEST;
use super::part::StreamPart;
use super::{ContextLayout, area};

/// Inputs for constructing masks.
pub(super) struct Maker<'a> {
    pub device: &'a Device,
    pub layout: &'a ContextLayout,
    pub windows: &'a [Option<usize>],
    /// Maximum number of documents.
    pub docs: usize,
    /// Positions of the whole stream.
    pub positions: &'a [i32],
}

impl Maker<'_> {
    /// The mask between rows that include all keys of the queries.
    pub fn mask(&self, q: (&StreamPart, &Tensor), k: (&StreamPart, &Tensor), window: Option<usize>) -> Mask {
        self.mask_of(self.docs, q, k, window)
    }

    /// [`Maker::mask`], charged at `cap` slices.
    fn mask_of(
        &self,
        cap: usize,
        q: (&StreamPart, &Tensor),
        k: (&StreamPart, &Tensor),
        window: Option<usize>,
    ) -> Mask {
        let docs = self.layout.docs();
        let slices = q.0.slices(k.0, docs, window);
        let pairs = area::between(docs, q.0, k.0, window);
        // A plan reads no data.
        let packed = if self.device.machine.has_data() {
            PackedMask::of(&slices, &self.rows(q.0), &self.rows(k.0))
        } else {
            None
        };
        Mask { packed, ..mask(self.device, &slices, cap, [q.1, k.1], pairs) }
    }

    /// [`Maker::mask`] for some of the keys of the queries. Under a window, libraries work chunk by chunk, and on many
    /// at a time if slices are charged for them.
    fn part_mask(&self, q: (&StreamPart, &Tensor), k: (&StreamPart, &Tensor), window: Option<usize>) -> Mask {
        let chunks = window.map_or(0, |_| q.0.len().div_ceil(SMALLEST));
        Mask { partial: true, ..self.mask_of(self.docs + chunks, q, k, window) }
    }

    /// Positions of a part's rows.
    fn rows(&self, part: &StreamPart) -> Cow<'_, [i32]> {
        match part.ranges() {
            [range] => Cow::Borrowed(&self.positions[range.clone()]),
            ranges => ranges.iter().flat_map(|range| &self.positions[range.clone()]).copied().collect(),
        }
    }

    /// The same on the device.
    fn positions(&self, part: &StreamPart) -> Tensor {
        if !self.device.machine.has_data() {
            // A plan only needs their number.
            return self.device.from_i32(&self.positions[..part.len()], Category::Data);
        }
        self.device.from_i32(&self.rows(part), Category::Data)
    }

    /// Masks for the keys of one circle of `inner` ranks after the other.
    pub fn ring(&self, axis: &Group, inner: usize, own: &Tensor) -> Ring {
        let (cp, index) = (axis.size(), axis.index());
        let (circle, place, circles) = (index / inner, index % inner, cp / inner);
        let members = |circle: usize| (circle * inner..(circle + 1) * inner).collect::<Vec<usize>>();
        let parts: Vec<StreamPart> = (0..circles).map(|circle| self.layout.part(&members(circle))).collect();
        let steps = if self.layout.is_dynamic() {
            self.needed_steps(&parts, circle, own)
        } else {
            self.whole_steps(&parts, circle, (inner == 1).then_some(own))
        };
        let (across, around) =
            if inner == 1 || inner == cp { ("cp", "cp") } else { ("cp.inner", "cp.outer") };
        let same: Vec<usize> = (0..circles).map(|circle| circle * inner + place).collect();
        Ring {
            inner: Circle::new(axis.some(across, &members(circle)), self.layout, &members(circle)),
            outer: axis.some(around, &same),
            steps,
        }
    }

    /// Steps with all keys of one circle after the other.
    fn whole_steps(&self, parts: &[StreamPart], circle: usize, own: Option<&Tensor>) -> Vec<Vec<Step>> {
        let tables = parts.iter().enumerate().map(|(at, part)| match own {
            Some(own) if at == circle => own.clone(),
            _ => self.positions(part),
        });
        let tables: Vec<Tensor> = tables.collect();
        let step = |step: usize, window: Option<usize>| {
            let from = (circle + parts.len() - step) % parts.len();
            let all = || std::iter::once(0..parts[from].len()).collect();
            let (q, k) = ((&parts[circle], &tables[circle]), (&parts[from], &tables[from]));
            let mask = if parts.len() == 1 { self.mask(q, k, window) } else { self.part_mask(q, k, window) };
            Step { mask, give: all(), take: all() }
        };
        let steps = |window: &Option<usize>| (0..parts.len()).map(|at| step(at, *window)).collect();
        self.windows.iter().map(steps).collect()
    }

    /// Steps with the needed keys of one rank after the other. Tables have the size for all keys.
    fn needed_steps(&self, parts: &[StreamPart], index: usize, own: &Tensor) -> Vec<Vec<Step>> {
        let (cp, docs, mine) = (parts.len(), self.layout.docs(), &parts[index]);
        let step = |step: usize, window: Option<usize>| {
            if step == 0 {
                let all = || std::iter::once(0..mine.len()).collect();
                let mask = self.part_mask((mine, own), (mine, own), window);
                return Step { mask, give: all(), take: all() };
            }
            let [ahead, behind] = [&parts[(index + step) % cp], &parts[(index + cp - step) % cp]];
            let needed = mine.needed(behind, docs, window);
            let table =
                self.device.empty(1, mine.len(), DType::I32, Category::Data).view_cols(0..needed.len());
            if self.device.machine.has_data() {
                let bytes: Vec<u8> =
                    self.rows(&needed).iter().flat_map(|position| position.to_le_bytes()).collect();
                self.device.machine.write(&table, &bytes);
            }
            let take = behind.runs(&needed).into_iter().scan(0, |end, run| {
                *end += run.len();
                Some(*end - run.len()..*end)
            });
            Step {
                mask: self.part_mask((mine, own), (&needed, &table), window),
                give: mine.runs(&ahead.needed(mine, docs, window)),
                take: take.collect(),
            }
        };
        let steps = |window: &Option<usize>| (0..cp).map(|at| step(at, *window)).collect();
        self.windows.iter().map(steps).collect()
    }

    /// Masks for the keys of all ranks.
    pub fn gathered(&self, axis: &Group, own: &Tensor) -> GatheredKeys {
        let everybody: Vec<usize> = (0..axis.size()).collect();
        let (q, k) = (self.layout.part(&[axis.index()]), self.layout.part(&everybody));
        let pos_k = self.positions(&k);
        let mask = |window: &Option<usize>| self.part_mask((&q, own), (&k, &pos_k), *window);
        GatheredKeys {
            masks: self.windows.iter().map(mask).collect(),
            circle: Circle::new(axis.clone(), self.layout, &everybody),
        }
    }
}

/// A mask of slices, charged at `cap` slices.
pub fn mask(device: &Device, slices: &[Slice], cap: usize, positions: [&Tensor; 2], pairs: u64) -> Mask {
    let table = device.empty(cap, 6, DType::I64, Category::Data);
    let row = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
    let mut bytes: Vec<u8> = slices.iter().flat_map(row).flat_map(i64::to_le_bytes).collect();
    bytes.resize(cap * 48, 0);
    device.machine.write(&table, &bytes);
    let count = device.from_i32(&[slices.len() as i32], Category::Data);
    let [pos_q, pos_k] = positions.map(Tensor::clone);
    Mask {
        table,
        slices: Extent::UpTo { cap, count },
        pos_q,
        pos_k,
        pairs,
        packed: None,
        partial: false,
        pages: None,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use fathom_cpu::Cpu;
    use fathom_tensor::Band;

    use super::*;
    use crate::context::LayoutSizes;

    /// Rows of queries, rows of keys, and which of them attend.
    type AttendedRows = Vec<(Range<usize>, Range<usize>, Band)>;

    fn listed(mask: &Mask) -> AttendedRows {
        let packed = mask.packed.as_ref().unwrap_or_else(|| panic!("nothing is known of {mask:?}"));
        packed.sequences.iter().map(|one| (one.q.clone(), one.k.clone(), one.band)).collect()
    }

    /// Four ranks of 16 tokens each: the host's bands for each step of rank 1.
    fn around(docs: &[Range<usize>]) -> Vec<AttendedRows> {
        let cut = LayoutSizes { tokens: 64, cp: 4, chunk: 64, windows: &[None], dynamic: None, pieces: None };
        let layout = ContextLayout::new(docs, &cut).unwrap();
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 20);
        let positions: Vec<i32> = docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
        let maker =
            Maker { device: &device, layout: &layout, windows: &[None], docs: 4, positions: &positions };
        let one = [layout.part(&[0, 1, 2, 3])];
        let whole = &maker.whole_steps(&one, 0, None)[0][0].mask;
        let expected: AttendedRows =
            docs.iter().map(|doc| (doc.clone(), doc.clone(), Band::Causal)).collect();
        assert!(!whole.partial && listed(whole) == expected);
        let parts: Vec<StreamPart> = (0..4).map(|rank| layout.part(&[rank])).collect();
        let steps = &maker.whole_steps(&parts, 1, None)[0];
        assert!(steps.iter().all(|step| step.mask.partial));
        steps.iter().map(|step| listed(&step.mask)).collect()
    }

    #[test]
    fn steps_of_a_ring_are_known_as_whole_blocks() {
        let before = || vec![(0..16, 0..8, Band::Full)];
        let after = || vec![(8..16, 0..16, Band::Full)];
        let whole = 0..64;
        let steps = around(std::slice::from_ref(&whole));
        assert_eq!(steps, [vec![(0..16, 0..16, Band::Causal)], before(), after(), after()]);
        // A rank's own tokens of a document attend causally, whatever other ranks have between them.
        let packed = around(&[0..20, 20..64]);
        assert!(packed[0].iter().all(|(q, k, band)| *band == Band::Causal && q == k));
        assert_eq!(packed[0].iter().map(|(rows, ..)| rows.len()).sum::<usize>(), 16);
        assert!(packed[1..].iter().flatten().all(|(_, _, band)| *band == Band::Full));
    }

    /// With windows, ranks have small chunks: each attends to itself and, through the window, to the ends of a few
    /// others.
    #[test]
    fn windows_are_known_chunk_by_chunk() {
        let (tokens, cp, windows) = (1 << 15, 4, [Some(1024), None]);
        let stream = 0..tokens;
        let cut = LayoutSizes { tokens, cp, chunk: 512, windows: &windows, dynamic: None, pieces: None };
        let layout = ContextLayout::new(std::slice::from_ref(&stream), &cut).unwrap();
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 24);
        let positions: Vec<i32> = stream.map(|at| at as i32).collect();
        let maker =
            Maker { device: &device, layout: &layout, windows: &windows, docs: 1, positions: &positions };
        let parts: Vec<StreamPart> = (0..cp).map(|rank| layout.part(&[rank])).collect();
        let steps = &maker.whole_steps(&parts, 1, None)[0];
        assert!(
            steps.iter().all(|step| step.mask.partial && step.mask.slices.cap() == 1 + (tokens / cp) / 128)
        );
        let own = listed(&steps[0].mask);
        assert!(own.len() == 16 && own.iter().all(|(q, k, band)| *band == Band::Causal && q == k));
        for step in &steps[1..] {
            let found = listed(&step.mask);
            let is_known = |band: &Band| [Band::Full, Band::Left(1)].contains(band);
            assert!(
                !found.is_empty() && found.iter().all(|(q, k, band)| q.len() <= k.len() && is_known(band))
            );
        }
    }
}
