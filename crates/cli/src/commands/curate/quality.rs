//! `fathom curate train-quality`: a model of good text for the stage `quality`.

use anyhow::{Result, bail};
use fathom_app::output;
use fathom_base::human;
use fathom_curate::{QualityExamples, QualityTraining, ReadOptions, train_quality};
use serde_json::json;

use crate::args::TrainQuality;
use crate::console;

/// Runs the verb.
pub fn run(args: &TrainQuality) -> Result<()> {
    if !(args.learning_rate > 0.0 && args.learning_rate.is_finite()) {
        bail!("--learning-rate {}: give a number above 0", args.learning_rate);
    }
    output::regular(&args.out)?;
    let examples = QualityExamples {
        good: args.good.clone(),
        other: args.other.clone(),
        label: args.label.clone(),
        other_label: args.other_label.clone(),
        most: args.most,
        read: ReadOptions { field: args.field.clone(), ..ReadOptions::default() },
    };
    let options = QualityTraining {
        dim: args.dim,
        epochs: args.epochs,
        learning_rate: args.learning_rate,
        word_ngrams: args.word_ngrams,
        buckets: args.buckets,
        min_count: args.min_count,
        hold_out: args.hold_out,
        seed: args.seed,
    };
    let (report, counters) = train_quality(&examples, &options, &args.out)?;
    if args.json {
        outln!("{}", json!({"out": args.out, "report": report, "read": counters}));
        return Ok(());
    }
    if !counters.dropped.is_empty() {
        console::note(&counters.summary());
    }
    let held_out = match report.held_out {
        0 => "none were held out to measure it".to_owned(),
        n => format!(
            "{:.1} % of {} held-out ones labelled rightly",
            100.0 * report.accuracy,
            human::grouped(n)
        ),
    };
    outln!("{}: learnt {}, {held_out}", args.out.display(), human::counted(report.examples, "example"));
    Ok(())
}
