//! What a finished run prints: its figures, and what to do next.

use fathom_app::train::Report;
use fathom_app::{Job, models};
use fathom_base::human;
use fathom_report::RunLog;

use crate::commands::print_verdicts;

/// Words of a prompt.
const WORDS: usize = 4;
/// Its most characters.
const MOST: usize = 60;

/// Prints the figures and what next.
pub fn print(job: &Job, report: &Report) {
    print_verdicts(&report.log);
    outln!("\nfinished in {}. What next:", human::seconds(report.seconds));
    let me = std::env::current_exe().map_or("fathom".to_string(), |path| path.display().to_string());
    let out = job.folder.display();
    outln!("  read the report     {}", report.page.display());
    let taught = job.folder.join("taught");
    if taught.exists() {
        outln!("  ask what it learned {me} chat {0}    or, in a browser, {me} serve {0}", taught.display());
    }
    let scores = job.recipe().objective.scores() > 0;
    // An adapter is of a model that lies elsewhere.
    let base = job.trained.adapter.as_ref().and(job.start().ok().flatten());
    let model = base.as_ref().map_or(out.to_string(), |base| format!("{} --adapter {out}", base.display()));
    if scores {
        outln!("  ask for rewards     {me} score {model} PAIRS.jsonl --out scored.jsonl");
    } else if models::converses(base.as_ref().unwrap_or(&job.model())) {
        outln!("  talk to the model   {me} chat {model} --temperature 0.7");
    } else {
        outln!("  talk to the model   {me} generate {model}{} --temperature 0.7", prompt(&report.log));
    }
    match base {
        Some(base) => {
            outln!("  merge it            {me} export {out} {out}/model");
            outln!(
                "  load it in Python   PeftModel.from_pretrained({:?}, \"{out}/adapter\")",
                base.display()
            );
        }
        None if scores => {
            outln!(
                "  load it in Python   AutoModelForSequenceClassification.from_pretrained(\"{out}/model\")"
            );
        }
        None => outln!("  load it in Python   AutoModelForCausalLM.from_pretrained(\"{out}/model\")"),
    }
    if job.recipe().run.name.starts_with("quickstart") {
        outln!("  train longer        {me} quickstart --minutes 60 --out out/longer");
    }
    outln!("  plan something big  {me} plan llama3-8b-1m");
}

/// A prompt as an argument, with a space before it: words of the run's own held-out text. Without any the verb asks for one.
fn prompt(log: &RunLog) -> String {
    // Turns of a lesson are marked, and no text of the run's own.
    let plain = log.samples.iter().rev().filter(|sample| !sample.prompt.starts_with("###"));
    let lines = plain.flat_map(|sample| sample.prompt.lines());
    opening(lines).map_or(String::new(), |words| format!(" {}", quoted(&words)))
}

/// The first words of the first line that has enough of them.
fn opening<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let words = |line: &str| {
        // A line may begin with a piece of a character, which no one can type.
        let line = line.replace('\u{fffd}', "");
        let words: Vec<&str> = line.split_whitespace().take(WORDS).collect();
        (words.len() >= 2).then(|| words.join(" "))
    };
    lines.filter_map(words).find(|text| text.chars().count() <= MOST && text.chars().any(char::is_alphabetic))
}

/// A text as a shell takes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_words_of_the_text() {
        for (text, expected) in [
            ("the old river carries stone", Some("'the old river carries'")),
            ("}\n--- ---\nit's the\told light", Some("'it'\\''s the old light'")),
            ("\u{fffd}\u{fffd}une pierre", Some("'une pierre'")),
            ("word\n", None),
            (&format!("{} b", "a".repeat(80)), None),
        ] {
            assert_eq!(opening(text.lines()).map(|words| quoted(&words)).as_deref(), expected, "{text}");
        }
    }
}
