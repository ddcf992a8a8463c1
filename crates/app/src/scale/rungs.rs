//! Rungs of a ladder: which size is trained on how many tokens, so that all rungs fill the time.

use fathom_base::human;
use fathom_base::recipe::Loaded;
use fathom_train::recipe::Recipe;
use serde::{Deserialize, Serialize};

use super::ladder::Size;
use crate::error::{Result, refuse};

/// Part of the budget that the rungs are meant to fill.
const FILLED: f64 = 0.93;
/// Seconds to open a run, export its model and write its report.
const FIXED_S: f64 = 1.5;
/// Time of scoring a token, relative to training on it.
const SCORING: f64 = 0.5;

/// A run of the ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// Its name, and that of its folder.
    pub name: String,
    /// Index of its size.
    pub size: usize,
    /// Index of its compute budget; none for the held-out rung.
    pub budget: Option<usize>,
    /// Steps.
    pub steps: u64,
    /// Training tokens.
    pub tokens: u64,
    /// FLOPs of all its steps.
    pub flops: f64,
    /// Expected seconds.
    pub seconds: f64,
}

/// Sizes and rungs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    /// Sizes, ascending; the last is the held-out rung's.
    pub sizes: Vec<Size>,
    /// Rungs in the order in which they are trained; the held-out one is the last.
    pub rungs: Vec<Rung>,
    /// Seconds spent on the text and on measuring speeds.
    pub prepared_s: f64,
    /// Whether the seconds of a step are measured; else they are planned.
    pub measured: bool,
}

impl Ladder {
    /// Size of a rung.
    pub fn size(&self, rung: &Rung) -> &Size {
        &self.sizes[rung.size]
    }
}

/// Shares the budget out, of which `spent_s` seconds are over.
///
/// # Errors
/// A budget in which a rung would have too few steps, or with `scale.flops` one that they would overrun.
pub(super) fn share_out(
    sizes: &[Size],
    loaded: &Loaded<Recipe>,
    budget_s: f64,
    spent_s: f64,
) -> Result<Ladder> {
    let recipe = &loaded.value;
    let table = &recipe.scale;
    // Compute of each rung relative to the smallest budget.
    let mut shape: Vec<(usize, Option<usize>, f64)> = Vec::new();
    for budget in 0..table.budgets {
        let compute = table.growth.powi(budget as i32);
        shape.extend((0..sizes.len() - 1).map(|size| (size, Some(budget), compute)));
    }
    shape.push((sizes.len() - 1, None, table.growth.powi(table.budgets as i32)));
    let overhead =
        |size: &Size| FIXED_S + recipe.eval.tokens as f64 * SCORING * size.step_s / size.step_tokens as f64;
    let fixed_s: f64 = shape.iter().map(|(size, ..)| overhead(&sizes[*size])).sum();
    let per_flop_s: f64 =
        shape.iter().map(|(at, _, compute)| compute * sizes[*at].step_s / sizes[*at].step_flops).sum();
    // The compute at which the shortest rung has the fewest steps allowed.
    let least = table.least_steps as f64;
    let needed_flops =
        shape.iter().map(|(at, _, compute)| least * sizes[*at].step_flops / compute).fold(0.0, f64::max);
    let seconds_of = |flops: f64| (spent_s + fixed_s + flops * per_flop_s) / FILLED;
    let left_s = budget_s * FILLED - spent_s - fixed_s;
    let flops = match table.flops {
        Some(flops) if seconds_of(flops) > budget_s => refuse!(
            "the ladder would take about {} and the budget is {}: give --budget as much, or lower scale.flops",
            human::seconds(seconds_of(flops)),
            human::seconds(budget_s)
        ),
        Some(flops) => flops,
        None => left_s / per_flop_s,
    };
    if flops < needed_flops * 0.999 {
        let shortest = shape.iter().min_by(|a, b| {
            let steps = |of: &(usize, Option<usize>, f64)| of.2 / sizes[of.0].step_flops;
            steps(a).total_cmp(&steps(b))
        });
        let width = shortest.map_or(0, |(at, ..)| sizes[*at].hidden);
        let has = (flops * shortest.map_or(0.0, |(at, _, compute)| compute / sizes[*at].step_flops)).max(0.0);
        refuse!(
            "in {} the rung of width {width} would have {} steps of the {} that scale.least_steps asks for: give --budget about {}, or \
             fewer sizes (scale.widths) or budgets (scale.budgets)",
            human::seconds(budget_s),
            has as u64,
            table.least_steps,
            human::seconds(seconds_of(needed_flops))
        );
    }
    let rung = |(at, budget, compute): &(usize, Option<usize>, f64)| {
        let size = &sizes[*at];
        let steps = (flops * compute / size.step_flops).round().max(1.0) as u64;
        let name = match budget {
            Some(budget) => format!("w{}-c{}", size.hidden, budget + 1),
            None => format!("w{}-held-out", size.hidden),
        };
        Rung {
            name,
            size: *at,
            budget: *budget,
            steps,
            tokens: steps * size.step_tokens,
            flops: steps as f64 * size.step_flops,
            seconds: steps as f64 * size.step_s + overhead(size),
        }
    };
    let rungs = shape.iter().map(rung).collect();
    Ok(Ladder { sizes: sizes.to_vec(), rungs, prepared_s: spent_s, measured: false })
}

#[cfg(test)]
mod tests {
    use fathom_base::recipe::Layers;

    use super::*;
    use crate::library::{LIBRARY, resolve};

    fn loaded(settings: &[&str]) -> Loaded<Recipe> {
        let base = ["scale.widths=64,128,192", "scale.budgets=2", "scale.growth=2", "eval.tokens=0"];
        let all: Vec<&str> = base.iter().chain(settings).copied().collect();
        resolve(Layers::with_library(LIBRARY).recipe("quickstart").sets(&all)).unwrap()
    }

    fn sizes() -> Vec<Size> {
        let of = |hidden: usize| Size {
            hidden,
            layers: 1,
            heads: 1,
            kv_heads: 1,
            ffn: 16,
            params: (hidden * hidden) as u64,
            block_params: 0,
            step_tokens: 1000,
            step_flops: (hidden * hidden) as f64 * 6e3,
            peak_bytes: 0,
            step_s: (hidden * hidden) as f64 * 1e-6,
            lr: 1e-3,
        };
        [64, 128, 192].map(of).to_vec()
    }

    #[test]
    fn rungs_of_a_budget_cost_the_same_and_all_fill_the_time() {
        let ladder = share_out(&sizes(), &loaded(&[]), 600.0, 10.0).unwrap();
        let names: Vec<&str> = ladder.rungs.iter().map(|rung| rung.name.as_str()).collect();
        assert_eq!(names, ["w64-c1", "w128-c1", "w64-c2", "w128-c2", "w192-held-out"]);
        let flops: Vec<f64> = ladder.rungs.iter().map(|rung| rung.flops).collect();
        for (at, ratio) in [(1, 1.0), (2, 2.0), (3, 2.0), (4, 4.0)] {
            assert!((flops[at] / flops[0] / ratio - 1.0).abs() < 0.01, "{flops:?}");
        }
        let seconds: f64 = ladder.rungs.iter().map(|rung| rung.seconds).sum();
        assert!((seconds + 10.0 - 600.0 * FILLED).abs() < 1.0, "{seconds}");
    }

    #[test]
    fn a_budget_that_cannot_hold_the_ladder_is_refused_with_one_that_can() {
        let said = share_out(&sizes(), &loaded(&[]), 12.0, 0.0).unwrap_err().to_string();
        assert!(said.contains("width 128 would have") && said.contains("--budget about"), "{said}");
        let said = share_out(&sizes(), &loaded(&["scale.flops=1e12"]), 60.0, 0.0).unwrap_err().to_string();
        assert!(said.contains("scale.flops"), "{said}");
    }
}
