//! Models that hours of a GPU would buy: for each budget the size of lowest predicted loss, with its tokens at the planned speed.

use fathom_base::recipe::Loaded;
use fathom_train::recipe::Recipe;
use serde::Serialize;

use super::fits::Fits;
use super::ladder::{Size, planned, shape};
use super::rungs::Ladder;
use crate::error::Result;
use crate::events::Events;

/// Most widths that are planned, each about a third wider than the one before.
const WIDTHS: usize = 24;
const WIDER: f64 = 4.0 / 3.0;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OnGpu {
    /// Hours of one GPU.
    pub hours: f64,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Parameters.
    pub params: f64,
    /// Tokens that fit into the hours.
    pub tokens: f64,
    /// FLOPs.
    pub flops: f64,
    /// Predicted loss, in nats per token.
    pub loss: f64,
    /// How many times more compute than the largest rung has.
    pub beyond: f64,
    /// Peak bytes of a step.
    pub peak_bytes: u64,
}

/// Plans the table; empty without Chinchilla's law or hours.
///
/// # Errors
/// An unknown GPU.
pub(super) fn table(
    loaded: &Loaded<Recipe>,
    fits: &Fits,
    ladder: &Ladder,
    events: &dyn Events,
) -> Result<Vec<OnGpu>> {
    let table = &loaded.value.scale;
    let (Some(fitted), Some(longest_hours)) =
        (&fits.surface, table.gpu_hours.iter().copied().reduce(f64::max))
    else {
        return Ok(Vec::new());
    };
    let law = &fitted.fit.law;
    let most = ladder.rungs.iter().map(|rung| rung.flops).fold(0.0, f64::max);
    let row = |size: &Size, hours: f64| {
        let tokens = hours * 3600.0 * size.step_tokens as f64 / size.step_s;
        let (params, flops) = (size.params as f64, tokens * size.token_flops());
        OnGpu {
            hours,
            hidden: size.hidden,
            params,
            tokens,
            flops,
            loss: law.loss(params, tokens),
            beyond: flops / most,
            peak_bytes: size.peak_bytes,
        }
    };
    let mut sizes: Vec<Size> = Vec::new();
    for hidden in widths(&loaded.value) {
        let Ok(shape) = shape(&loaded.value, hidden) else { continue };
        // The first that does not fit ends the search; an unknown GPU has no first.
        match planned(loaded, shape, Some(&table.gpu), events) {
            Ok(size) => sizes.push(size),
            Err(error) if sizes.is_empty() => return Err(error),
            Err(_) => break,
        }
        // Wider ones are worse for the most hours too.
        let losses: Vec<f64> = sizes.iter().map(|size| row(size, longest_hours).loss).collect();
        if let [.., a, b, c] = losses[..]
            && a < b
            && b < c
        {
            break;
        }
    }
    let best = |hours: &f64| {
        let rows = sizes.iter().map(|size| row(size, *hours));
        rows.filter(|row| row.loss.is_finite()).min_by(|a, b| a.loss.total_cmp(&b.loss))
    };
    Ok(table.gpu_hours.iter().filter_map(best).collect())
}

/// Widths in the proportions of the recipe, from its smallest.
fn widths(recipe: &Recipe) -> Vec<usize> {
    let step = (recipe.model.hidden / recipe.model.heads.max(1)).max(1);
    let first = recipe.scale.widths.first().copied().unwrap_or(step) as f64;
    let wide = |at: usize| (first * WIDER.powi(at as i32) / step as f64).round().max(1.0) as usize * step;
    let mut widths: Vec<usize> = (0..WIDTHS).map(wide).collect();
    widths.dedup();
    widths
}
