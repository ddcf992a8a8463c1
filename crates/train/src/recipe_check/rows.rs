//! Relations between rows of data and objectives.

use fathom_base::recipe::Loaded;

use crate::error::{Result, refuse};
use crate::minimised::objective;
use crate::recipe::{
    AdapterName, Data, GemmName, LossName, MethodName, ObjectiveTable, Packing, QuantizationName, Recipe,
    ReferenceName,
};

/// Refuses invalid objectives, and data that is not compatible with them.
pub(super) fn check(loaded: &Loaded<Recipe>) -> Result<()> {
    if !loaded.value.rl.is_on() {
        lessons(loaded)?;
    }
    if let Err((key, message)) = objective(&loaded.value) {
        return objective_of(loaded, key, message);
    }
    judged(loaded)?;
    referred(loaded)
}

/// The refusal of a key of the objective, attributed to the keys that select it.
fn objective_of(loaded: &Loaded<Recipe>, key: &str, message: String) -> Result<()> {
    let key = format!("objective.{key}");
    let key = key.as_str();
    let [key, by] = match key {
        "objective.method" | "objective.teacher" => [key, "objective.method"],
        "objective.losses" => loaded.earlier_first([key, "objective.loss"]),
        _ => {
            let choices = ["objective.loss", "objective.top_k", "objective.hidden_pairs", "rl.loss"];
            let others = choices.into_iter().filter(|choice| *choice != key);
            [key, others.fold("objective.method", |one, other| loaded.earlier_first([one, other])[1])]
        }
    };
    Err(loaded.refuse_with(key, by, message).into())
}

/// Refuses an invalid reference, and keys without effect on one.
fn referred(loaded: &Loaded<Recipe>) -> Result<()> {
    let recipe = &loaded.value;
    let Recipe { objective, model, machine, precision, .. } = recipe;
    let (method, kind) = (objective.method, objective.reference);
    let (plain, found) = (ObjectiveTable::default(), recipe.reference());
    let (copies, off) = (found == ReferenceName::Copy, found == ReferenceName::AdapterOff);
    let without = format!("has no effect on objective.method = \"{method}\"; leave it out");
    let why = recipe.no_adapter_off().unwrap_or_default();
    let narrow = precision.gemm != GemmName::Bf16;
    for (is, key, message) in [
        (kind != plain.reference && !method.has_reference(), "reference", without.as_str()),
        (objective.sync_ref_model && !method.has_reference(), "sync_ref_model", &without),
        (objective.use_weighting && method != MethodName::Dpo, "use_weighting", &without),
        (objective.responses != plain.responses && method != MethodName::Steerlm2, "responses", &without),
        (objective.kl_over != plain.kl_over && method != MethodName::Kto, "kl_over", &without),
        (
            objective.ref_model_mixup_alpha.is_some() && !objective.sync_ref_model,
            "ref_model_mixup_alpha",
            "is of a reference that moves; give objective.sync_ref_model=true, or leave it out",
        ),
        (
            objective.ref_model_sync_steps.is_some() && !objective.sync_ref_model,
            "ref_model_sync_steps",
            "is of a reference that moves; give objective.sync_ref_model=true, or leave it out",
        ),
        (
            objective.sync_ref_model && !copies,
            "sync_ref_model",
            "moves a copy of the weights; give objective.reference=copy, or leave it out",
        ),
        (
            objective.sync_ref_model && recipe.adapter.method != AdapterName::None,
            "sync_ref_model",
            "is of runs that train the model, whose reference has the same weights; leave out adapter.method",
        ),
        (
            objective.sync_ref_model && machine.offload_weights,
            "sync_ref_model",
            "moves weights in memory; leave out machine.offload_weights",
        ),
        (
            copies && model.from.is_none(),
            "reference",
            "is a copy of the model that the run starts from; give its folder, model.from=DIR",
        ),
        (
            copies && (model.quantization != QuantizationName::None || narrow),
            "reference",
            "is a copy of the weights as they are in files; with model.quantization or precision.gemm give column or adapter_off",
        ),
        (off && !why.is_empty(), "reference", &format!("cannot be adapter_off: {why}; give column")),
        (
            objective.use_weighting && sorts(objective),
            "use_weighting",
            "weighs a loss of each pair; aot, aot_unpaired and sft have none",
        ),
    ] {
        if is {
            let by = match key {
                "reference" if method.has_reference() => key,
                "ref_model_mixup_alpha" | "ref_model_sync_steps" => "sync_ref_model",
                "sync_ref_model" if method.has_reference() => "reference",
                _ => "method",
            };
            let [key, by] = [key, by].map(|key| format!("objective.{key}"));
            return Err(loaded.refuse_with(&key, &by, message).into());
        }
    }
    Ok(())
}

/// True if a loss is not computed per pair.
fn sorts(objective: &ObjectiveTable) -> bool {
    let those = [LossName::Aot, LossName::AotUnpaired, LossName::Sft];
    those.contains(&objective.loss) || objective.losses.iter().any(|loss| those.contains(loss))
}

/// Refuses data that an objective cannot compare.
fn judged(loaded: &Loaded<Recipe>) -> Result<()> {
    let Recipe { objective, data, stage, .. } = &loaded.value;
    // Only the run's own rows have a column with the text.
    if !objective.method.judges() && (objective.method != MethodName::Distill || objective.top_k == 0) {
        return Ok(());
    }
    let method = objective.method;
    if !data.is_lessons() {
        let message =
            format!("is of texts, and objective.method = \"{method}\" learns from rows; give lessons");
        return refuse(loaded, "data.format", message);
    }
    for (index, stage) in stage.iter().enumerate() {
        if stage.packing == Packing::Cut && method.judges() {
            let message = "cuts answers that belong together; give best_fit or single";
            let path = format!("stage.{index}.packing");
            return Err(loaded.refuse_with(&path, "objective.method", message).into());
        }
        if !stage.blend(&loaded.value).is_empty() {
            let message =
                format!("mixes sources, which objective.method = \"{method}\" has one of; leave it out");
            return refuse(loaded, &format!("stage.{index}.blend"), message);
        }
    }
    Ok(())
}

/// Refuses keys that do not apply to the kind of data.
fn lessons(loaded: &Loaded<Recipe>) -> Result<()> {
    let Recipe { data, model, stage, .. } = &loaded.value;
    let plain = Data::default();
    if !data.is_lessons() {
        let set = [
            ("columns", data.columns != plain.columns),
            ("supervise", data.supervise != plain.supervise),
            ("truncation", data.truncation != plain.truncation),
            ("max_rows_dropped", data.max_rows_dropped != plain.max_rows_dropped),
        ];
        return match set.iter().find(|(_, set)| *set) {
            Some((key, _)) => {
                let message =
                    "is of lessons, and data.paths are texts; give data.format=lessons, or leave it out";
                Err(loaded.refuse_with(&format!("data.{key}"), "data.format", message).into())
            }
            None => Ok(()),
        };
    }
    if model.from.is_none() && data.tokenizer.is_none() {
        let message =
            "is none: lessons are for a model that knows its language; give its folder, model.from=DIR";
        return refuse(loaded, "model.from", message);
    }
    for (key, set) in [
        ("curate", data.curate != plain.curate && data.curate != "none"),
        ("recall_share", data.recall_share > 0.0),
        ("max_bytes", data.max_bytes.is_some()),
    ] {
        if set {
            let message = "is of texts, and data.paths are lessons; leave it out";
            return Err(loaded.refuse_with(&format!("data.{key}"), "data.format", message).into());
        }
    }
    if let Some(index) = stage.iter().position(|stage| !stage.masked) {
        let message = "is false: a lesson would see those next to it; give true";
        return Err(loaded.refuse_with(&format!("stage.{index}.masked"), "data.format", message).into());
    }
    Ok(())
}
