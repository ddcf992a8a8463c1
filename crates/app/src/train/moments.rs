//! Moments at which a run measures, and whether the run is long enough for its figures.

use fathom_base::human;
use fathom_train::claim::extends;
use fathom_train::recipe::{InitName, Recipe};

/// Returns how many stages are done when a model is measured before its extension: none for a loaded model, all but the
/// last for a new one. A run of one stage on a new model extends nothing.
pub fn before(recipe: &Recipe) -> Option<usize> {
    let from = recipe.model.from.as_ref().map(|_| 0);
    from.or(recipe.stage.len().checked_sub(1).filter(|stages| *stages > 0))
}

/// Returns the initialization of a new model; `None` for a loaded one.
pub fn first_weights(recipe: &Recipe) -> Option<InitName> {
    recipe.model.from.is_none().then_some(recipe.model.init)
}

/// Minimum tokens of a quickstart model that learns to look something up; fewer have never sufficed. The quickstart's
/// ten minutes process eight million (docs/log/2026-11.md).
const LEAST_TOKENS: u64 = 4_000_000;
/// Nor have fewer minutes, on two cores with AVX-512.
const LEAST_MINUTES: f64 = 7.0;

/// Tokens that a run must have trained on before its figures can miss their bars; 0 where they are not measured or the model knew its
/// trade before.
pub fn least_tokens(recipe: &Recipe) -> u64 {
    if recipe.model.from.is_some() || !recipe.eval.enabled { 0 } else { LEAST_TOKENS }
}

/// Why a run will be too short for some of the figures that runs are judged by; `None` where it may be long enough.
pub fn short(recipe: &Recipe) -> Option<String> {
    if least_tokens(recipe) == 0 {
        return None;
    }
    let tokens = recipe.stage.iter().try_fold(0u64, |tokens, stage| {
        let step = stage.seq_tokens * stage.samples_per_micro_batch.max(1) * stage.micro_batches.max(1);
        Some(tokens.saturating_add(stage.steps?.saturating_mul(step as u64)))
    });
    let extent = match (tokens, recipe.run.minutes) {
        (Some(tokens), _) if tokens < LEAST_TOKENS => format!("{} tokens", human::grouped(tokens)),
        (None, Some(minutes)) if minutes < LEAST_MINUTES => human::seconds(minutes * 60.0),
        _ => return None,
    };
    Some(format!(
        "{extent} of training are too few to learn to find a needle or to use a long context, as a rule; the report says which \
         figures had too few tokens"
    ))
}

/// Returns the names of the first and the last measurement; those of an extension if a stage extends an existing model.
pub fn names(recipe: &Recipe) -> [&'static str; 2] {
    match before(recipe) {
        Some(_) if recipe.stage.iter().any(extends) => ["before_extension", "after_extension"],
        _ => ["before_training", "after_training"],
    }
}

#[cfg(test)]
mod tests {
    use fathom_train::recipe::Stage;

    use super::*;

    #[test]
    fn only_an_extension_is_called_one() {
        let mut recipe = Recipe { stage: vec![Stage::default()], ..Recipe::default() };
        recipe.model.from = Some("m".into());
        assert_eq!(names(&recipe), ["before_training", "after_training"]);
        recipe.stage[0].rope_theta = Some(1e6);
        assert_eq!(names(&recipe), ["before_extension", "after_extension"]);
    }

    #[test]
    fn short_runs_are_reported_beforehand() {
        let run = |steps: Option<u64>, minutes: Option<f64>| {
            let mut recipe = Recipe { stage: vec![Stage { steps, ..Stage::default() }], ..Recipe::default() };
            recipe.run.minutes = minutes;
            recipe
        };
        let said = |recipe: &Recipe| short(recipe).unwrap_or_default();
        let tokens = format!("{} tokens of training", human::grouped(819_200));
        assert!(said(&run(Some(100), None)).starts_with(&tokens), "{}", said(&run(Some(100), None)));
        assert!(said(&run(None, Some(3.0))).contains("needle"));
        assert_eq!([said(&run(Some(1000), None)), said(&run(None, Some(10.0)))], ["", ""]);
        let mut from = run(Some(100), None);
        from.model.from = Some("m".into());
        assert_eq!(said(&from), "");
    }
}
