//! Construction of the objective from the recipe's table.

use std::sync::Arc;

use fathom_model::Retrieval;
use fathom_tensor::Distance;

use crate::distill::Distill;
use crate::encoder::{Contrast, LabelLoss, LabelObjective, MaskedObjective, Pooling};
use crate::hidden_loss::HiddenLoss;
use crate::objective::{Best, CrossEntropy, Dft, Objective};
use crate::preference::{Divergence, KtoObjective, PairLoss, Pairs, Responses, Reward, RewardLoss, Settings};
use crate::recipe::{
    DivergenceName, HiddenLossName, KlOverName, LossName, MaskingName, MethodName, ObjectiveTable,
    PoolingName, Recipe,
};
use crate::retrieval::Retro;

/// A key of the table and its fault.
type Wrong = (&'static str, String);

/// The objective of a run.
///
/// # Errors
/// A key of the table, and why its value is not compatible with the others.
pub(crate) fn objective(recipe: &Recipe) -> Result<Arc<dyn Objective>, Wrong> {
    let table = &recipe.objective;
    without_effect(table)?;
    if let Some(policy) = recipe.rl.policy() {
        if table.neftune_alpha > 0.0 {
            let message = "would train on other embeddings than answers are written with (rl.loss); give 0";
            return Err(("neftune_alpha", message.into()));
        }
        return Ok(Arc::new(policy));
    }
    if let Some(objective) = table.seq2seq().filter(|_| table.loss == LossName::Auto) {
        return Ok(Arc::new(objective));
    }
    Ok(match table.method {
        MethodName::CrossEntropy | MethodName::Dft if table.loss != LossName::Auto => {
            return Err(not_its_own(table));
        }
        MethodName::CrossEntropy => Arc::new(CrossEntropy),
        MethodName::Dft => Arc::new(Dft),
        MethodName::Retro if table.loss != LossName::Auto => return Err(not_its_own(table)),
        // The sizes of the paper, until those of the model are known.
        MethodName::Retro => Arc::new(Retro { sizes: Retrieval::PAPER }),
        MethodName::Distill => Arc::new(distill(recipe)?),
        MethodName::Kto => Arc::new(wanted(table)?),
        MethodName::Steerlm2 if table.loss != LossName::Auto => return Err(not_its_own(table)),
        MethodName::Steerlm2 => Arc::new(Responses { group: table.responses.max(2) }),
        MethodName::Reward => Arc::new(reward(table)?),
        MethodName::Mlm if table.loss != LossName::Auto => return Err(not_its_own(table)),
        MethodName::Mlm => Arc::new(MaskedObjective { share: table.mask_share }),
        MethodName::SpanCorruption | MethodName::Seq2seq if table.loss != LossName::Auto => {
            return Err(not_its_own(table));
        }
        MethodName::Embed if table.loss != LossName::Auto => return Err(not_its_own(table)),
        MethodName::Embed => Arc::new(contrast(table)),
        MethodName::Rerank => Arc::new(rerank(table)?),
        MethodName::Classify => Arc::new(classify(table)?),
        _ => Arc::new(Pairs(pairs(table)?)),
    })
}

/// Refuses keys of distillation in other runs.
fn without_effect(table: &ObjectiveTable) -> Result<(), Wrong> {
    let plain = ObjectiveTable::default();
    let (distills, best) = (table.method == MethodName::Distill, table.top_k > 0);
    let pairs = distills && !table.hidden_pairs.is_empty();
    let [masks, embeds, reranks, classifies] =
        [MethodName::Mlm, MethodName::Embed, MethodName::Rerank, MethodName::Classify]
            .map(|method| table.method == method);
    let spans = table.method == MethodName::SpanCorruption;
    let set = [
        ("teacher", distills, table.teacher != plain.teacher),
        ("temperature", distills, table.temperature != plain.temperature),
        ("kd_ratio", distills, table.kd_ratio != plain.kd_ratio),
        ("top_k", distills, table.top_k != plain.top_k),
        ("jsd_beta", distills && table.loss == LossName::Jsd, table.jsd_beta != plain.jsd_beta),
        ("mask_share", masks || spans, table.mask_share != plain.mask_share),
        ("masking", masks, table.masking != MaskingName::Tokens),
        ("span_tokens", spans, table.span_tokens != plain.span_tokens),
        ("pooling", embeds, table.pooling != PoolingName::Mean),
        ("contrast_temperature", embeds, table.contrast_temperature != plain.contrast_temperature),
        ("widths", embeds, !table.widths.is_empty()),
        ("query_prompt", embeds, !table.query_prompt.is_empty()),
        ("document_prompt", embeds, !table.document_prompt.is_empty()),
        ("negatives", embeds || reranks, table.negatives != 0),
        ("labels", classifies, !table.labels.is_empty()),
        ("top_k_rest", distills && best, table.top_k_rest != plain.top_k_rest),
        ("hidden_pairs", distills && !best, !table.hidden_pairs.is_empty()),
        ("hidden_loss", pairs, table.hidden_loss != plain.hidden_loss),
        ("hidden_weight", pairs, table.hidden_weight != plain.hidden_weight),
    ];
    let Some((key, ..)) = set.into_iter().find(|(_, counts, set)| *set && !counts) else { return Ok(()) };
    let needs = match key {
        "jsd_beta" => "objective.loss = \"jsd\" of objective.method = \"distill\"",
        "top_k_rest" => "objective.top_k above 0",
        "hidden_pairs" => {
            "a teacher that runs in every step (objective.method = \"distill\", objective.top_k = 0)"
        }
        "hidden_loss" | "hidden_weight" => "objective.hidden_pairs",
        "mask_share" => "objective.method = \"mlm\" or \"span_corruption\"",
        "masking" => "objective.method = \"mlm\"",
        "span_tokens" => "objective.method = \"span_corruption\"",
        "pooling" | "contrast_temperature" | "widths" | "query_prompt" | "document_prompt" => {
            "objective.method = \"embed\""
        }
        "negatives" => "objective.method = \"embed\" or \"rerank\"",
        "labels" => "objective.method = \"classify\"",
        _ => "objective.method = \"distill\"",
    };
    Err((key, format!("has no effect here: it is of {needs}; leave it out")))
}

/// Settings of distillation.
fn distill(recipe: &Recipe) -> Result<Distill, Wrong> {
    let table = &recipe.objective;
    let beta = match table.loss {
        LossName::Auto | LossName::ForwardKl => 0.0,
        LossName::BackwardKl => 1.0,
        LossName::Jsd => table.jsd_beta,
        _ => return Err(not_its_own(table)),
    };
    if table.teacher.is_none() {
        let message = "is none: give the folder of the model that the student learns from";
        return Err(("teacher", message.into()));
    }
    let best = (table.top_k > 0).then_some(Best { tokens: table.top_k, rest: table.top_k_rest });
    if best.is_none() && recipe.mesh.pp > 1 {
        let message = "runs in every step as a whole, and mesh.pp cuts models into stages: give mesh.pp=1, or have its best tokens \
                       found beforehand (objective.top_k=64)";
        return Err(("teacher", message.into()));
    }
    let pairs = HiddenLoss::parse(&table.hidden_pairs).map_err(|message| ("hidden_pairs", message))?;
    let distance = match table.hidden_loss {
        HiddenLossName::Mse => Distance::Mse,
        HiddenLossName::Cosine => Distance::Cosine,
    };
    let hidden = (!pairs.is_empty()).then_some(HiddenLoss { pairs, distance, weight: table.hidden_weight });
    Ok(Distill { beta, temperature: table.temperature, ratio: table.kd_ratio, best, hidden })
}

fn not_its_own(table: &ObjectiveTable) -> Wrong {
    ("loss", format!("\"{}\" is no loss of objective.method = \"{}\"", table.loss, table.method))
}

fn pair_loss(table: &ObjectiveTable, name: LossName) -> Result<PairLoss, Wrong> {
    use MethodName::{Cpo, Dpo, Orpo, Rpo, Simpo};
    let loss = match (table.method, name) {
        (Dpo | Cpo, LossName::Auto | LossName::Sigmoid) => PairLoss::Sigmoid,
        (Dpo | Cpo, LossName::Hinge) => PairLoss::Hinge,
        (Dpo, LossName::Ipo) => PairLoss::Ipo,
        // This one uses mean log-probabilities already.
        (Cpo, LossName::Ipo) | (Dpo, LossName::IpoSum) => PairLoss::IpoSum,
        (Dpo, LossName::SigmoidNorm) => PairLoss::SigmoidNorm,
        (Dpo, LossName::ExoPair) => PairLoss::ExoPair,
        (Dpo, LossName::NcaPair) => PairLoss::NcaPair,
        (Dpo, LossName::Robust) => PairLoss::Robust,
        (Dpo, LossName::BcoPair) => PairLoss::BcoPair,
        (Dpo, LossName::SppoHard) => PairLoss::SppoHard,
        (Dpo, LossName::Aot) => PairLoss::Aot,
        (Dpo, LossName::AotUnpaired) => PairLoss::AotUnpaired,
        (Dpo, LossName::ApoZero) => PairLoss::ApoZero,
        (Dpo, LossName::ApoDown) => PairLoss::ApoDown,
        (Dpo, LossName::Discopop) => PairLoss::Discopop,
        (Dpo, LossName::Sft) => PairLoss::Sft,
        (Simpo, LossName::Auto) => PairLoss::Simpo,
        (Orpo, LossName::Auto) => PairLoss::OddsRatio,
        (Rpo, LossName::Auto | LossName::BackwardKl) => PairLoss::BackwardKl,
        (Rpo, LossName::ForwardKl) => PairLoss::ForwardKl,
        (Rpo, LossName::Squared) => PairLoss::Squared,
        _ => {
            return Err((
                "loss",
                format!("\"{name}\" is no loss of objective.method = \"{}\"", table.method),
            ));
        }
    };
    if loss == PairLoss::ExoPair && table.label_smoothing == 0.0 {
        let message = "is 0, of which the loss exo_pair takes the logarithm; its paper has 0.001";
        return Err(("label_smoothing", message.into()));
    }
    Ok(loss)
}

fn pairs(table: &ObjectiveTable) -> Result<Settings, Wrong> {
    use MethodName::{Cpo, Dpo, Orpo, Simpo};
    let several = !table.losses.is_empty();
    if several
        && (table.method != Dpo
            || table.loss != LossName::Auto
            || table.losses.len() != table.loss_weights.len())
    {
        let message = "are several losses of objective.method=dpo in place of objective.loss, with a weight each in \
                       objective.loss_weights";
        return Err(("losses", message.into()));
    }
    let names = if several { table.losses.clone() } else { vec![table.loss] };
    let losses: Vec<PairLoss> =
        names.into_iter().map(|name| pair_loss(table, name)).collect::<Result<_, _>>()?;
    let weight = |at: usize| table.loss_weights.get(at).copied().unwrap_or(1.0);
    let mut losses: Vec<(PairLoss, f64)> =
        losses.into_iter().enumerate().map(|(at, it)| (it, weight(at))).collect();
    let divergence = match table.f_divergence {
        DivergenceName::ReverseKl => Divergence::ReverseKl,
        DivergenceName::ForwardKl => Divergence::ForwardKl,
        DivergenceName::JsDivergence => Divergence::JensenShannon,
        DivergenceName::AlphaDivergence => Divergence::Alpha,
    };
    let diverges = |loss: PairLoss| {
        use PairLoss::{Discopop, ExoPair, Hinge, Ipo, IpoSum, Robust, Sft, Sigmoid, SigmoidNorm};
        let those = [Sigmoid, SigmoidNorm, Hinge, Ipo, IpoSum, ExoPair, Robust, Discopop, Sft];
        table.method == Dpo && those.contains(&loss)
    };
    if divergence != Divergence::ReverseKl && !losses.iter().all(|(loss, _)| diverges(*loss)) {
        let message = format!("\"{}\" does not go with this loss: give reverse_kl", table.f_divergence);
        return Err(("f_divergence", message));
    }
    let imitates =
        losses.iter().filter(|(loss, _)| *loss == PairLoss::Sft).map(|(_, weight)| weight).sum::<f64>();
    let own = if matches!(table.method, Cpo | Orpo) { 1.0 } else { imitates };
    losses.retain(|(loss, _)| *loss != PairLoss::Sft);
    Ok(Settings {
        name: table.method.name(),
        losses,
        beta: table.beta,
        label_smoothing: table.label_smoothing,
        divergence,
        f_alpha: table.f_alpha,
        ld_alpha: table.ld_alpha,
        sft_weight: table.sft_weight.unwrap_or(own),
        averages: matches!(table.method, Simpo | Orpo)
            || (table.method == Cpo && table.loss == LossName::Ipo),
        gamma: table.gamma,
        alpha: table.alpha,
        discopop_tau: table.discopop_tau,
        reward_scale: table.reward_scale,
        weighting: table.use_weighting,
    })
}

fn wanted(table: &ObjectiveTable) -> Result<KtoObjective, Wrong> {
    let zero = match table.loss {
        LossName::Auto => false,
        LossName::ApoZeroUnpaired => true,
        _ => return Err(not_its_own(table)),
    };
    let (desirable, undesirable) = (table.desirable_weight, table.undesirable_weight);
    Ok(KtoObjective {
        beta: table.beta,
        desirable,
        undesirable,
        zero,
        of_step: table.kl_over == KlOverName::Step,
    })
}

/// Settings of vectors that are compared.
fn contrast(table: &ObjectiveTable) -> Contrast {
    let pooling = match table.pooling {
        PoolingName::Mean => Pooling::Mean,
        PoolingName::First => Pooling::First,
        PoolingName::Last => Pooling::Last,
    };
    let (group, widths) = (2 + table.negatives, table.widths.clone());
    Contrast { group, pooling, temperature: table.contrast_temperature, widths }
}

fn rerank(table: &ObjectiveTable) -> Result<LabelObjective, Wrong> {
    let loss = match table.loss {
        LossName::Auto | LossName::Pointwise => LabelLoss::EachOf,
        LossName::Pairs => LabelLoss::Pairs,
        LossName::Margin => LabelLoss::Margin,
        LossName::Listwise => LabelLoss::Listwise,
        _ => return Err(not_its_own(table)),
    };
    let alone = loss == LabelLoss::EachOf;
    if !alone && table.negatives == 0 {
        let message =
            format!("is 0, and objective.loss = \"{}\" compares texts of a row; give at least 1", table.loss);
        return Err(("negatives", message));
    }
    Ok(LabelObjective { name: "rerank", loss, group: if alone { 1 } else { 1 + table.negatives } })
}

fn classify(table: &ObjectiveTable) -> Result<LabelObjective, Wrong> {
    let loss = match table.loss {
        LossName::Auto => LabelLoss::OneOf,
        LossName::MultiLabel => LabelLoss::EachOf,
        LossName::Tokens => LabelLoss::Tokens,
        LossName::Regression => LabelLoss::Number,
        _ => return Err(not_its_own(table)),
    };
    if loss == LabelLoss::Number && table.attributes.is_empty() {
        return Err((
            "attributes",
            "are none: give the names of the numbers that rows have, in order".into(),
        ));
    }
    let least = if loss == LabelLoss::EachOf { 1 } else { 2 };
    if loss != LabelLoss::Number && table.labels.len() < least {
        let message = format!(
            "are {}: give the names of at least {least} labels, as rows have them",
            table.labels.len()
        );
        return Err(("labels", message));
    }
    Ok(LabelObjective { name: "classify", loss, group: 1 })
}

fn reward(table: &ObjectiveTable) -> Result<Reward, Wrong> {
    let loss = match table.loss {
        LossName::Auto | LossName::BradleyTerry => RewardLoss::BradleyTerry,
        LossName::Scaled => RewardLoss::Scaled,
        LossName::Regression => RewardLoss::Regression,
        LossName::Process => RewardLoss::Process,
        _ => return Err(not_its_own(table)),
    };
    if (loss == RewardLoss::Regression) == table.attributes.is_empty() {
        let message =
            "are the names of ratings: objective.loss=regression needs them, and no other loss has any";
        return Err(("attributes", message.into()));
    }
    Ok(Reward { loss, center: table.center_rewards })
}
