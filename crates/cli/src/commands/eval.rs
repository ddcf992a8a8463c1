//! `fathom eval`: bits per byte, loss by position and needle retrieval of a model in a folder; accuracy of a reward
//! model.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use fathom_app::evaluate::{EvaluationResult, Request};
use fathom_app::figures::Figures;
use fathom_app::reward_bench::{self, SubsetAccuracy};
use fathom_app::{Machine, encoder_eval, evaluate};
use fathom_base::human;
use fathom_base::metrics::Event;
use fathom_eval::Moment;

use crate::args::Eval;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &Eval) -> Result<()> {
    if let Some(folder) = &args.retrieval {
        return super::retrieval::eval(args, folder);
    }
    if !args.tasks.compare.is_empty() {
        return super::tasks::compare(args);
    }
    let Some(model) = &args.model else {
        bail!("name a model: the folder of a run, or a Hugging Face folder")
    };
    if let Some(judge) = &args.judged.judge {
        return super::judged::eval(args, model, judge);
    }
    if !args.tasks.tasks.is_empty() {
        return super::tasks::eval(args, model);
    }
    let listener = Plain::default();
    if args.sts.is_some() || args.labels.is_some() {
        return of_encoder(args, model, &listener);
    }
    if let Some(file) = &args.reward_bench {
        let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
        let (model, adapter) = (model.clone(), args.adapter.clone());
        let request = reward_bench::Request { model, adapter, data: file.clone() };
        let found = reward_bench::reward_bench(&request, &machine, &listener)?;
        print_accuracy(&found, args.json);
        return Ok(());
    }
    let request = Request {
        model: model.clone(),
        adapter: args.adapter.clone(),
        data: args.data.clone(),
        tokens: args.tokens,
        seconds: args.seconds,
        needle_trials: args.needle_trials,
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let EvaluationResult { figures, context_tokens, trained_tokens } =
        evaluate(&request, &machine, &listener)?;
    if args.json {
        print_json(&figures, trained_tokens)
    } else {
        print(&figures, context_tokens);
        Ok(())
    }
}

/// Figures of an encoder.
fn of_encoder(args: &Eval, model: &Path, listener: &Plain) -> Result<()> {
    let machine = Machine::of_kind(args.machine.kind(), 0, listener);
    if let Some(file) = &args.sts {
        let found = encoder_eval::similarity(model, file, &machine, listener)?;
        let (spearman, pearson, pairs) = (found.spearman, found.pearson, found.pairs);
        if args.json {
            outln!("{}", serde_json::json!({"spearman": spearman, "pearson": pearson, "pairs": pairs}));
        } else {
            let pairs = human::counted(pairs as u64, "pair");
            outln!("{spearman:.4} Spearman, {pearson:.4} Pearson, {pairs}");
        }
    }
    if let Some(file) = &args.labels {
        let found = encoder_eval::labels(model, file, &machine, listener)?;
        let (f1, accuracy, texts) = (found.macro_f1, found.accuracy, found.texts);
        if args.json {
            outln!("{}", serde_json::json!({"macro_f1": f1, "accuracy": accuracy, "texts": texts}));
        } else {
            let texts = human::counted(texts as u64, "text");
            outln!("{f1:.4} macro F1, {:.1} % right, {texts}", 100.0 * accuracy);
        }
    }
    Ok(())
}

/// Accuracy by subset, then over all rows.
fn print_accuracy(found: &BTreeMap<String, SubsetAccuracy>, json: bool) {
    let add = |all: SubsetAccuracy, of: &SubsetAccuracy| SubsetAccuracy {
        rows: all.rows + of.rows,
        right: all.right + of.right,
    };
    let all = found.values().fold(SubsetAccuracy::default(), add);
    let named = found.iter().map(|(subset, of)| (subset.as_str(), of)).chain([("all", &all)]);
    // Without subsets, all rows are in one named `all`.
    let named: Vec<(&str, &SubsetAccuracy)> =
        named.skip(usize::from(found.len() == 1 && found.contains_key("all"))).collect();
    for (subset, of) in named {
        if json {
            let accuracy = of.accuracy();
            outln!("{}", serde_json::json!({"subset": subset, "accuracy": accuracy, "rows": of.rows}));
        } else {
            outln!("{:>6.1} %  {:>6} rows  {subset}", 100.0 * of.accuracy(), human::grouped(of.rows as u64));
        }
    }
}

fn print_json(figures: &Figures, trained_tokens: usize) -> Result<()> {
    let moment = Moment { when: "eval".into(), step: 0, trained_tokens: trained_tokens as u64 };
    let events = [
        figures.bits.as_ref().map(|bits| Event::EvalBits(bits.to_event("eval", &moment))),
        figures.position.as_ref().map(|position| Event::EvalPosition(position.to_event(&moment))),
        figures.needles.as_ref().map(|needles| Event::Needle(needles.to_event(&moment))),
    ];
    for event in events.into_iter().flatten() {
        outln!("{}", serde_json::to_string(&event)?);
    }
    Ok(())
}

fn print(figures: &Figures, context: usize) {
    if let Some(bits) = &figures.bits {
        outln!("bits per byte  {:.4}   (gzip -9: {:.4})", bits.bits_per_byte, bits.gzip_bits_per_byte);
        let documents = human::counted(bits.documents as u64, "document");
        let (bytes, tokens) = (human::bytes(bits.bytes), human::counted(bits.tokens, "token"));
        outln!("  {documents}, {bytes}, {tokens}, context {context}");
    }
    if let Some(position) = &figures.position {
        let count = position.documents as u64;
        let what = if position.joined {
            format!("{} of joined documents", human::counted(count, "sequence"))
        } else {
            human::counted(count, "document")
        };
        outln!("\nloss by position ({what})");
        for bucket in &position.buckets {
            outln!("  {:>8} to {:<8} {:.4}", bucket.from, bucket.to, bucket.loss);
        }
    }
    if figures.bits.is_some() && figures.position.is_none() {
        outln!("\nloss by position: none, the text is too short; give more (--data PATH)");
    }
    let Some(needles) = &figures.needles else { return };
    outln!("\nneedle found, by length and depth");
    let depths: Vec<String> =
        needles.depths.iter().map(|depth| format!("{:>6.0} %", depth * 100.0)).collect();
    outln!("  {:>8} {}", "tokens", depths.join(" "));
    for length in &needles.lengths {
        let share = |right: &usize| format!("{:>6.0} %", 100.0 * *right as f64 / length.trials as f64);
        let row: Vec<String> = length.right.iter().map(share).collect();
        outln!(
            "  {:>8} {}   ({} each)",
            length.tokens,
            row.join(" "),
            human::counted(length.trials as u64, "trial")
        );
    }
    if !needles.untried_tokens.is_empty() {
        outln!("  no time for {:?}", needles.untried_tokens);
    }
}
