//! Layout of ranks: two grids of equal size over the same ranks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Tensor parallel: the columns and rows of weights.
    Tp,
    /// Context parallel: the tokens of a sequence.
    Cp,
    /// Data parallel: the micro-batches.
    Dp,
    /// Pipeline parallel: the layers.
    Pp,
    /// Tensor parallel inside an expert.
    Etp,
    /// Expert parallel: the experts.
    Ep,
    /// Data parallel for experts: the remaining ranks.
    Edp,
}

impl Axis {
    /// All axes.
    pub const ALL: [Axis; 7] = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp, Axis::Etp, Axis::Ep, Axis::Edp];

    /// Name used in recipes and reports.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tp => "tp",
            Axis::Cp => "cp",
            Axis::Dp => "dp",
            Axis::Pp => "pp",
            Axis::Etp => "etp",
            Axis::Ep => "ep",
            Axis::Edp => "edp",
        }
    }
}

/// The sizes of the dense grid `pp x dp x cp x tp` and of the expert grid `pp x edp x ep x etp`, over the same ranks.
/// The rank order is tp, cp, dp, pp, and etp, ep, edp, pp, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grid {
    /// Tensor parallel.
    pub tp: usize,
    /// Context parallel.
    pub cp: usize,
    /// Data parallel.
    pub dp: usize,
    /// Pipeline parallel.
    pub pp: usize,
    /// Tensor parallel inside an expert.
    pub etp: usize,
    /// Expert parallel.
    pub ep: usize,
    /// Tensor-parallel ranks split the rows of activations between their sub-layers (Megatron's sequence parallel).
    #[serde(default)]
    pub sequence_parallel: bool,
}

impl Default for Grid {
    fn default() -> Grid {
        Grid { tp: 1, cp: 1, dp: 1, pp: 1, etp: 1, ep: 1, sequence_parallel: false }
    }
}

impl Grid {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.tp * self.cp * self.dp * self.pp
    }

    /// Data-parallel size of experts.
    pub fn edp(&self) -> usize {
        self.tp * self.cp * self.dp / (self.etp * self.ep)
    }

    /// True if both grids cover the ranks.
    ///
    /// # Errors
    /// The size that does not divide, and which sizes would.
    pub fn check(&self) -> Result<(), String> {
        let dense = self.tp * self.cp * self.dp;
        if self.ranks() == 0 || self.etp * self.ep == 0 {
            return Err(format!("every size of a mesh is at least 1, this one is {self}"));
        }
        if !dense.is_multiple_of(self.etp * self.ep) {
            let fits = |size: &usize| dense.is_multiple_of(size * self.etp);
            let sizes: Vec<String> = (1..=dense).filter(fits).map(|size| size.to_string()).collect();
            return Err(format!(
                "ep={} times etp={} does not divide tp x cp x dp = {dense}; with etp={} ep may be {}",
                self.ep,
                self.etp,
                self.etp,
                if sizes.is_empty() { "nothing".into() } else { sizes.join(", ") }
            ));
        }
        Ok(())
    }

    /// Ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tp => self.tp,
            Axis::Cp => self.cp,
            Axis::Dp => self.dp,
            Axis::Pp => self.pp,
            Axis::Etp => self.etp,
            Axis::Ep => self.ep,
            Axis::Edp => self.edp(),
        }
    }

    /// Distance in ranks of one step along an axis.
    fn stride(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tp | Axis::Etp => 1,
            Axis::Cp => self.tp,
            Axis::Dp => self.tp * self.cp,
            Axis::Pp => self.tp * self.cp * self.dp,
            Axis::Ep => self.etp,
            Axis::Edp => self.etp * self.ep,
        }
    }

    /// A rank's index along an axis.
    pub fn index(&self, rank: usize, axis: Axis) -> usize {
        rank / self.stride(axis) % self.size(axis)
    }

    /// The ranks that differ from `rank` only along these axes, including itself, ascending. The axes are of one grid.
    pub fn members(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let mut ranks =
            vec![axes.iter().fold(rank, |at, axis| at - self.index(rank, *axis) * self.stride(*axis))];
        for axis in axes {
            let along = (0..self.size(*axis)).map(|index| index * self.stride(*axis));
            ranks = along
                .flat_map(|step| ranks.iter().map(move |rank| rank + step).collect::<Vec<_>>())
                .collect();
        }
        ranks.sort_unstable();
        ranks
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grid { tp, cp, dp, pp, etp, ep, .. } = *self;
        write!(f, "pp={pp} dp={dp} cp={cp} tp={tp}")?;
        if etp * ep > 1 { write!(f, " (experts: edp={} ep={ep} etp={etp})", self.edp()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ordered_tp_cp_dp_pp() {
        let grid = Grid { tp: 2, cp: 3, dp: 2, pp: 2, ep: 4, ..Grid::default() };
        assert_eq!((grid.ranks(), grid.edp(), grid.check()), (24, 3, Ok(())));
        assert_eq!(grid.members(0, &[Axis::Tp]), [0, 1]);
        assert_eq!(grid.members(9, &[Axis::Cp]), [7, 9, 11]);
        assert_eq!(grid.members(9, &[Axis::Cp, Axis::Dp]), [1, 3, 5, 7, 9, 11]);
        assert_eq!(grid.members(9, &[Axis::Pp]), [9, 21]);
        assert_eq!(grid.members(13, &[Axis::Ep]), [12, 13, 14, 15]);
        assert_eq!(grid.members(13, &[Axis::Edp]), [13, 17, 21]);
        for rank in 0..24 {
            let dense = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp].map(|axis| grid.index(rank, axis));
            assert_eq!(dense[0] + 2 * (dense[1] + 3 * (dense[2] + 2 * dense[3])), rank);
        }
    }

    #[test]
    fn what_does_not_divide_is_named_with_what_would() {
        let message = Grid { tp: 2, dp: 3, ep: 4, ..Grid::default() }.check().unwrap_err();
        assert!(message.contains("ep=4") && message.ends_with("ep may be 1, 2, 3, 6"), "{message}");
        assert!(Grid { tp: 0, ..Grid::default() }.check().is_err());
    }
}
