//! `fathom data check`: the trained tokens of each row.

use std::path::Path;

use anyhow::{Result, bail};
use fathom_app::Job;
use fathom_app::data::{DataSummary, Row, Shows, check};
use fathom_app::library::{layers, load};
use fathom_base::human;

use crate::args::{DataAction, DataCheck};
use crate::exit::ExitCode;
use crate::listen::Plain;
use crate::{console, live};

/// Recipe whose keys apply to a file of rows.
const RECIPE: &str = "sft";
/// Most untrainable rows that are named.
const NAMED: usize = 10;

/// Runs the verb.
pub fn run(action: &DataAction) -> Result<ExitCode> {
    let DataAction::Check(args) = action;
    let job = job(args)?;
    let mut row = |row: Row<'_>| {
        if args.json {
            outln!(
                "{}",
                serde_json::json!({"ids": row.ids(), "supervised": row.supervised(), "text": row.text()})
            );
        } else if row.index < args.rows {
            outln!("{}\n", live::painted(&row.lesson(), &format!("row {}", row.index)));
        }
        true
    };
    let checked = check(&job, &mut row)?;
    if !args.json {
        summary(&checked);
    }
    for refused in checked.refused.iter().take(NAMED) {
        console::line(&format!("error: {refused}"));
    }
    if checked.refused.len() > NAMED {
        console::line(&format!("and {} more", human::counted((checked.refused.len() - NAMED) as u64, "row")));
    }
    let most = job.recipe().data.max_rows_dropped;
    Ok(if checked.refused.len() as u64 > most { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn job(args: &DataCheck) -> Result<Job> {
    let is_file = Path::new(&args.subject).is_file() && !args.subject.ends_with(".toml");
    let mut from = layers(if is_file { RECIPE } else { &args.subject }, &args.settings);
    if is_file {
        let quoted = serde_json::to_string(&[&args.subject])?;
        from = from.flag(&args.subject, "data.paths", &quoted);
    }
    if let Some(model) = &args.model {
        from = from.flag("--model", "model.from", &model.display().to_string());
    }
    let loaded = load(from)?;
    if loaded.value.model.from.is_none() {
        bail!("which model's tokenizer? give --model DIR (a Hugging Face folder, or a run)");
    }
    Ok(Job::new(loaded, &Plain::default())?)
}

fn summary(checked: &DataSummary) {
    let DataSummary { rows, tokens, supervised, cut, longest, refused, short, fill, shows } = checked;
    let share = human::percent(*supervised as f64 / (*tokens).max(1) as f64);
    let (rows, tokens) = (human::counted(*rows as u64, "row"), human::counted(*tokens, "token"));
    outln!("{rows}, {tokens}, {} of them learned ({share})", human::grouped(*supervised));
    let named: Vec<String> = longest
        .iter()
        .map(|(row, tokens)| format!("{} (row {row})", human::grouped(*tokens as u64)))
        .collect();
    outln!("longest rows, in tokens: {}", named.join(", "));
    if cut.1 > 0 {
        outln!("cut off: {} of {}", human::counted(cut.0, "token"), human::counted(cut.1 as u64, "row"));
    }
    short.iter().for_each(|line| outln!("{line}"));
    if let Some((sample, fill)) = fill {
        outln!(
            "packed by best fit into samples of {} tokens: {} filled",
            human::grouped(*sample as u64),
            human::percent(*fill)
        );
    }
    if let Some(shows) = shows {
        outln!(
            "the model's words in a conversation: {}",
            match shows {
                Shows::Marks => "by the chat template's own generation marks".to_string(),
                Shows::Known(name) =>
                    format!("by Fathom's marks in the chat template, which is known as `{name}`"),
                Shows::Difference =>
                    "by what an answer adds to the text before it (the chat template has no marks)"
                        .to_string(),
            }
        );
    }
    if !refused.is_empty() {
        outln!("not taught: {}", human::counted(refused.len() as u64, "row"));
    }
}
