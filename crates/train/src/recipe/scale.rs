//! The ladder of `fathom scale`: sizes and compute budgets that scaling laws are fitted over.

use fathom_base::recipe;

use super::limits::{Above0, COLUMNS, MANY, NO_END, Real, Whole};

recipe! {
    /// The ladder of `fathom scale`; other verbs ignore it.
    pub struct ScaleTable {
        /// Sizes, as ascending values of `model.hidden`. Heads, MLP columns and layers follow in the proportions of `model`. The last
        /// size is that of the held-out rung alone.
        pub widths: Vec<usize> [Whole(8, COLUMNS)],
        /// Layers follow the width; if false, all sizes have `model.layers`.
        pub depth: bool = true,
        /// Number of compute budgets. Every size but the last is trained once on each.
        pub budgets: usize [Whole(1, 64)] = 3,
        /// Ratio of each compute budget to the one before, and of the held-out rung's to the largest.
        pub growth: f64 [Real(1.01, 1000.0)] = 2.0,
        /// FLOPs of a run on the smallest compute budget; none: those for which all rungs fill the time of `--budget`.
        pub flops: Option<f64> [Above0(NO_END)],
        /// Fewest steps of a rung; a ladder with a shorter one is refused.
        pub least_steps: u64 [Whole(1, MANY)] = 32,
        /// The learning rate is `optimizer.lr` times the ratio of `model.hidden` to the width, to this power; with `model.mup_width` it is
        /// `optimizer.lr`, which muP scales itself.
        pub lr_power: f64 [Real(0.0, 2.0)] = 0.5,
        /// Resamples behind intervals.
        pub resamples: usize [Whole(0, MANY)] = 500,
        /// GPU for which the table of budgets is planned, as `machine.profile`.
        pub gpu: String = "h100".into(),
        /// Rows of that table: hours of one GPU.
        pub gpu_hours: Vec<f64> [Above0(NO_END)] = vec![1.0, 8.0, 64.0, 512.0],
    }
}
