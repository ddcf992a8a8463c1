//! `fathom guard check`: a text or a conversation, judged.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use fathom_app::Machine;
use fathom_app::guardrails::{Guardrails, needs};
use serde_json::{Value, json};

use crate::args::GuardCheck;
use crate::exit::ExitCode;
use crate::listen::Plain;

/// Runs the verb; ends with 1 if the text is blocked.
pub fn run(args: &GuardCheck) -> Result<ExitCode> {
    let text = read(&args.file)?;
    let machine = Machine::of_kind(args.machine.kind(), 0, &Plain::default());
    let rails = Guardrails::load(&args.config, &needs(&machine))?;
    let conversation = serde_json::from_str(&text).ok().filter(|it: &Value| it["messages"].is_array());
    let message = || json!({"messages": [{"role": args.role.name(), "content": text}]});
    let answer = rails.judge(&conversation.unwrap_or_else(message))?;
    if args.json {
        outln!("{answer}");
    } else {
        print(&answer);
    }
    Ok(if answer["status"] == "blocked" { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("standard input is not text")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(text)
}

/// Prints the status, the verdicts of rails that found something, and a rewritten text.
fn print(answer: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let by = answer["rail"].as_str().map(|rail| format!(" by {rail}")).unwrap_or_default();
    outln!("{}{by}", text(&answer["status"]));
    for verdict in answer["verdicts"].as_array().into_iter().flatten() {
        let spans = verdict["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
        if verdict["decision"] == "allow" && spans.is_empty() {
            continue;
        }
        let place = |span: &Value| format!("{} at {}-{}", text(&span[2]), span[0], span[1]);
        let places: Vec<String> = spans.iter().map(place).collect();
        outln!(
            "  {} ({}): {}, {}{}{}",
            text(&verdict["rail"]),
            text(&verdict["direction"]),
            text(&verdict["decision"]),
            text(&verdict["reason"]),
            if places.is_empty() { "" } else { ": " },
            places.join(", ")
        );
    }
    if answer["status"] == "modified" {
        outln!("{}", text(&answer["content"]));
    }
}
