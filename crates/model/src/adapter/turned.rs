//! Tensors whose layout in an adapter's file differs from the model's: terms of stacked experts, one matrix each in
//! files, and terms of a lower rank than others of the same weight, padded with zeros in the model.

use std::collections::BTreeMap;

use super::declare::parts;
use super::experts::STACKED;
use super::names::BEFORE;
use crate::spec::{Adapter, Size, Spec};
use crate::weight::{Projection, Term};

/// Layout of a model's tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Terms of stacked experts, `width` columns of A or of the result.
    Stacked {
        experts: usize,
        rank: usize,
        width: usize,
        /// Whether the model has [experts x width, rank] rather than [experts x rank, width].
        of_b: bool,
        /// Whether the file has [width, rank x experts] rather than [experts x rank, width].
        columns: bool,
    },
    /// The first rows and columns of a model's matrix of `wide` columns are the file's [rows, cols].
    Within { rows: usize, cols: usize, wide: usize },
}

impl Turn {
    /// Index in the file of an element of the model's tensor; `None` for padding.
    pub fn place(self, at: usize) -> Option<usize> {
        match self {
            Turn::Stacked { experts, rank, width, of_b, columns } => {
                let (expert, within) = (at / (rank * width), at % (rank * width));
                let (w, r) =
                    if of_b { (within / rank, within % rank) } else { (within % width, within / width) };
                Some(if columns {
                    (w * rank + r) * experts + expert
                } else {
                    (expert * rank + r) * width + w
                })
            }
            Turn::Within { rows, cols, wide } => {
                let (row, col) = (at / wide, at % wide);
                (row < rows && col < cols).then_some(row * cols + col)
            }
        }
    }

    /// The shape in the file.
    pub fn shape(self) -> [usize; 2] {
        match self {
            Turn::Stacked { experts, rank, width, columns: true, .. } => [width, rank * experts],
            Turn::Stacked { experts, rank, width, .. } => [experts * rank, width],
            Turn::Within { rows, cols, .. } => [rows, cols],
        }
    }
}

/// Name and layout of a tensor in a file.
pub(super) type RearrangedTensors = BTreeMap<String, (String, Turn)>;

impl Spec {
    /// Adapter tensors with another layout in files, by the model's name.
    pub(super) fn turned(&self) -> RearrangedTensors {
        let Some(adapter) = self.adapter.as_deref() else { return RearrangedTensors::new() };
        let mut all = self.filled_up(adapter);
        let Some(m) = &self.moe else { return all };
        for name in self.stacked(adapter) {
            let Some((at, which)) = STACKED
                .iter()
                .enumerate()
                .find_map(|(which, end)| name.strip_suffix(end).map(|at| (at.to_string(), which)))
            else {
                continue;
            };
            let Size { rank, .. } = adapter.modules[&name];
            let both = STACKED.iter().all(|end| adapter.modules.contains_key(&format!("{at}{end}")));
            // PEFT wraps one parameter after the other, so the first is the inner one.
            let inside = if both && which == 0 { ".base_layer" } else { "" };
            let [inner, out] = if which == 0 {
                [m.width(self.hidden), m.wide(self.mlp.gated)]
            } else {
                [m.ffn, m.width(self.hidden)]
            };
            for (term, width, of_b) in [(Term::LoraA, inner, false), (Term::LoraB, out, true)] {
                // If swapped, the file's A applies to the output.
                let file = if of_b == adapter.swapped { Term::LoraA } else { Term::LoraB };
                let columns = file == Term::LoraB;
                let turn = Turn::Stacked { experts: m.experts, rank, width, of_b, columns };
                let stored = format!("{BEFORE}{at}mlp.experts{inside}{}", file.end());
                all.insert(format!("{name}{}", term.end()), (stored, turn));
            }
        }
        all
    }

    /// Terms of projections fused with others of a higher rank.
    fn filled_up(&self, adapter: &Adapter) -> RearrangedTensors {
        let mut all = RearrangedTensors::new();
        self.walk_projections(&mut |layer, p: &Projection<'_>, _| {
            let at = self.prefix(layer, p.module);
            let size = |name: &str| adapter.modules.get(&format!("{at}{name}")).copied();
            let parts = parts(p);
            let wide = parts.iter().filter_map(|part| size(&part.name)).map(|size| size.rank).max();
            for part in &parts {
                let (Some(Size { rank, .. }), Some(wide)) = (size(&part.name), wide) else { continue };
                if rank < wide && adapter.method.is_low_rank() {
                    let name = format!("{at}{}", part.name);
                    let [a, b] = [Term::LoraA, Term::LoraB].map(|term| format!("{name}{}", term.end()));
                    let of_a = Turn::Within { rows: rank, cols: p.inner, wide: p.inner };
                    let of_b = Turn::Within { rows: part.rows.len(), cols: rank, wide };
                    for (name, turn) in [(a, of_a), (b, of_b)] {
                        all.insert(name.clone(), (self.in_adapter(&name), turn));
                    }
                }
            }
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PEFT's definition: `weight_A.reshape(experts, rank, in)`, `weight_B.reshape(out, rank, experts)`.
    #[test]
    fn elements_are_where_peft_has_them() {
        let (experts, rank, width) = (3, 2, 5);
        for of_b in [false, true] {
            for columns in [false, true] {
                let turn = Turn::Stacked { experts, rank, width, of_b, columns };
                let mut seen = vec![false; experts * rank * width];
                for (expert, r, w) in
                    (0..experts).flat_map(|e| (0..rank).flat_map(move |r| (0..width).map(move |w| (e, r, w))))
                {
                    let own =
                        if of_b { (expert * width + w) * rank + r } else { (expert * rank + r) * width + w };
                    let file = if columns {
                        (w * rank + r) * experts + expert
                    } else {
                        (expert * rank + r) * width + w
                    };
                    assert_eq!(turn.place(own), Some(file));
                    seen[file] = true;
                }
                assert!(seen.iter().all(|seen| *seen));
            }
        }
        let within = Turn::Within { rows: 2, cols: 3, wide: 5 };
        let places: Vec<Option<usize>> = (0..15).map(|at| within.place(at)).collect();
        assert_eq!(places[..5], [Some(0), Some(1), Some(2), None, None]);
        assert_eq!(places[5..10], [Some(3), Some(4), Some(5), None, None]);
        assert!(places[10..].iter().all(Option::is_none));
    }
}
