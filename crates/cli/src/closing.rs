//! Final output of a run: its figures, and suggested next commands.

use std::path::Path;

use fathom_app::opening::{TEMPERATURE, is_worth_a_try};
use fathom_app::train::Report;
use fathom_app::{Job, card, models};
use fathom_base::human;
use fathom_model::{Spec, in_python};
use fathom_report::RunLog;
use fathom_train::recipe::{MethodName, QuantizationName};

use crate::commands::print_verdicts;
use crate::{console, program};

/// A suggestion: its purpose, and a shell command or a line of Python. Tests run each of them.
struct Hint {
    what: &'static str,
    line: String,
}

fn hint(what: &'static str, line: String) -> Hint {
    Hint { what, line }
}

/// Prints the figures and, unless `--quiet`, the suggestions.
pub fn print(job: &Job, report: &Report) {
    print_verdicts(&report.log);
    if console::is_quiet() {
        return;
    }
    outln!("\nfinished in {}. What next:", human::seconds(report.seconds));
    outln!("  {:19} {}", "read the report", report.page.display());
    for Hint { what, line } in hints(job, &report.log) {
        outln!("  {what:19} {line}");
    }
}

fn hints(job: &Job, log: &RunLog) -> Vec<Hint> {
    let me = word(program::path());
    let out = word(&job.folder);
    let mut hints = Vec::new();
    let taught = job.folder.join("taught");
    if taught.exists() {
        hints.push(hint("ask what it learned", format!("{me} chat {}", word(&taught))));
        hints.push(hint("the same in a page", format!("{me} serve {}", word(&taught))));
    }
    let scores = job.recipe().objective.scores() > 0;
    // An adapter's base is in another folder.
    let base = job.trained.adapter.as_ref().and(job.start().ok().flatten());
    let model = base.as_ref().map_or(out.clone(), |base| format!("{} --adapter {out}", word(base)));
    if job.trained.retrieval.is_some() {
        hints.push(hint("look at its logits", format!("{me} inspect logits {out} --ids 1,2,3")));
        return hints;
    }
    // Only training uses a value head.
    let mut trained = job.trained.clone();
    trained.scores = if job.recipe().rl.has_values() { 0 } else { trained.scores };
    let class = if base.is_some() { card::class(&trained) } else { card::class_of(&job.model()) };
    let labels = matches!(job.recipe().objective.method, MethodName::Classify | MethodName::Rerank);
    // An encoder, and a head of labels, are asked as a whole.
    let merges = base.is_some() && (labels || trained.encoder.is_some()) && class != "AutoModelForMaskedLM";
    let asks = if labels {
        hint("serve the labels", format!("{me} serve {out}"))
    } else if scores {
        hint("ask for rewards", format!("{me} score {model} PAIRS.jsonl --out scored.jsonl"))
    } else if class == "AutoModelForMaskedLM" {
        hint("look at its logits", format!("{me} inspect logits {model} --ids 1,2,3"))
    } else if base.is_none() && !["AutoModelForCausalLM", "AutoModelForSeq2SeqLM"].contains(&class) {
        hint("serve the encoder", format!("{me} serve {out}"))
    } else if models::converses(base.as_ref().unwrap_or(&job.model())) {
        hint("talk to the model", format!("{me} chat {model} --temperature {TEMPERATURE}"))
    } else {
        let prompt = quoted(&prompt(log));
        hint("talk to the model", format!("{me} generate {model} {prompt} --temperature {TEMPERATURE}"))
    };
    hints.extend((!merges).then_some(asks));
    if base.is_some() {
        hints.push(hint("merge it", format!("{me} export {out} {}", word(&job.folder.join("model")))));
    }
    hints.push(hint(
        "load it in Python",
        match &base {
            Some(base) => python_with_adapter(job, &trained, base),
            None => python(job, if scores { "AutoModelForSequenceClassification" } else { class }),
        },
    ));
    if job.recipe().run.name.starts_with("quickstart") {
        hints.push(hint("train longer", format!("{me} quickstart --minutes 60 --out out/longer")));
    }
    hints.push(hint("plan something big", format!("{me} plan llama3-8b-1m")));
    hints
}

/// A path as a text of Python.
fn python_text(path: &Path) -> String {
    serde_json::json!(path.display().to_string()).to_string()
}

/// A line of Python that loads the run's model.
fn python(job: &Job, class: &str) -> String {
    let folder = python_text(&job.model());
    format!("from transformers import {class}; model = {class}.from_pretrained({folder})")
}

/// A line of Python that loads the run's adapter with its base, quantized as in training.
fn python_with_adapter(job: &Job, trained: &Spec, base: &Path) -> String {
    let bits = match job.recipe().model.quantization {
        QuantizationName::None => "",
        QuantizationName::Nf4 => "load_in_4bit=True, bnb_4bit_quant_type=\"nf4\"",
        QuantizationName::Int8 => "load_in_8bit=True",
    };
    let [mut imports, mut more] = [String::new(), String::new()];
    if !bits.is_empty() {
        imports = "from transformers import BitsAndBytesConfig; ".into();
        more = format!("quantization_config=BitsAndBytesConfig({bits})");
    }
    let [own, model] = in_python(trained, &python_text(base), &python_text(&job.adapter()), &more);
    format!("{own}; {imports}model = {model}")
}

/// The last sample prompt with a readable answer; otherwise the start of the first lesson, the last sample prompt, or
/// a common opening.
fn prompt(log: &RunLog) -> String {
    // Marked turns of a lesson are not a text to be continued.
    let plain = || log.samples.iter().rev().filter(|sample| !sample.prompt.starts_with("###"));
    let lesson = || {
        let context = log.lesson.iter().flat_map(|lesson| &lesson.pieces).find(|piece| !piece.learned);
        context?.text.lines().find(|line| !line.trim().is_empty())
    };
    let tried = plain().find(|sample| is_worth_a_try(sample)).map(|sample| sample.prompt.as_str());
    let any = tried.or_else(lesson).or_else(|| Some(plain().next()?.prompt.as_str()));
    any.unwrap_or("Once upon a time").to_string()
}

/// A path quoted for a shell.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(is_plain) { text } else { quoted(&text) }
}

/// A text quoted for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use fathom_base::metrics::events::Sample;

    use super::*;

    #[test]
    fn the_suggested_prompt_was_tried() {
        let sample = |prompt: &str, text: &str| Sample { step: 1, prompt: prompt.into(), text: text.into() };
        let text = " carries stone to the sea, and sand, and what falls in.";
        let suggested = |samples: Vec<Sample>| prompt(&RunLog { samples, ..RunLog::default() });
        assert_eq!(suggested(vec![sample("it's the old river", text)]), "it's the old river");
        assert_eq!(
            suggested(vec![sample("the old river", "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii")]),
            "the old river"
        );
        assert_eq!(suggested(vec![sample("### user", text)]), "Once upon a time");
    }

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(word(Path::new("out/quick-start_1")), "out/quick-start_1");
        assert_eq!(word(Path::new("my out/it's")), "'my out/it'\\''s'");
    }
}
