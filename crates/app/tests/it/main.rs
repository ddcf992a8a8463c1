//! Jobs used through the public interface, as by a program: values, events and errors, without a terminal.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod behind;
mod encoders;
mod foreign;
mod guardrails;
mod host;
mod job;
mod judged;
mod layers;
mod panics;
mod policy;
mod policy_mesh;
mod policy_methods;
mod policy_values;
mod quantised;
mod responses;
mod reward_adapters;
mod ruler;
mod scale;
mod scores;
mod serve_adapters;
mod serve_memory;
mod serve_mesh;
mod serve_sources;
mod several;
mod several_asked;
mod stages;
mod tasks;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use fathom_app::{Event, Events, Job, library};

/// Records events as text.
#[derive(Default)]
struct TextSink(Mutex<Vec<String>>);

impl TextSink {
    /// Counts the events that begin with a text.
    fn count(&self, beginning: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|text| text.starts_with(beginning)).count()
    }

    fn all(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Events for TextSink {
    fn on(&self, event: Event) {
        let text = match event {
            Event::Note(text) => format!("note: {text}"),
            Event::Line(text) => format!("line: {text}"),
            Event::Warning(text) => format!("warning: {text}"),
            Event::Doing(text) => format!("doing: {text}"),
            Event::Progress { text, .. } => format!("progress: {text}"),
            Event::Stage { stage, settings } => {
                format!("stage: {} {}", stage.name, settings.plan.usage.peak_live)
            }
            Event::Step { step, of_stage, .. } => format!("step: {of_stage} {}", step.loss),
            Event::Measured { when, .. } => format!("measured: {when}"),
            Event::Trained => "trained".into(),
            _ => "other".into(),
        };
        self.0.lock().unwrap().push(text);
    }
}

/// Makes a job with small stages in a folder, on generated text.
fn small(folder: &Path, settings: &[&str]) -> Job {
    let text = text_below(folder);
    let keys = [
        "machine.kind=cpu",
        "machine.threads=1",
        "model.hidden=64",
        "model.layers=2",
        "model.heads=2",
        "model.kv_heads=1",
        "model.head_dim=32",
        "model.ffn=128",
        "model.vocab=384",
        "data.held_out_share=0.2",
        "data.document_bytes=4096",
        "data.curate=none",
        "stage.0.steps=3",
        "stage.0.samples_per_micro_batch=2",
        "stage.0.seq_tokens=64",
        "stage.1.steps=2",
        "stage.1.seq_tokens=128",
        "stage.2.steps=1",
        "stage.2.seq_tokens=256",
        "stage.2.tile_rows=128",
        "stage.2.min_doc_tokens=0",
        "run.minutes=none",
        "eval.needle_trials=0",
    ];
    let own = [
        format!("data.paths=[{:?}]", text.display().to_string()),
        format!("run.out={}", folder.join("run").display()),
    ];
    let keys = keys.iter().chain(settings).map(ToString::to_string);
    let settings: Vec<String> = keys.chain(own).collect();
    let loaded = library::load(library::layers("quickstart", &settings)).unwrap();
    Job::new(loaded, &TextSink::default()).unwrap()
}

/// The folder `text` with forty documents of generated sentences, written unless it is there.
fn text_below(folder: &Path) -> PathBuf {
    let folder = folder.join("text");
    if folder.exists() {
        return folder;
    }
    std::fs::create_dir(&folder).unwrap();
    let words = ["river", "stone", "carries", "the", "old", "light", "under", "every", "bridge", "slowly"];
    let mut state = 7u32;
    for file in 0..40 {
        let mut text = String::new();
        for _ in 0..300 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let end = if state >> 29 == 0 { ".\n" } else { " " };
            let _ = write!(text, "{}{end}", words[(state >> 16) as usize % words.len()]);
        }
        std::fs::write(folder.join(format!("{file:02}.txt")), text).unwrap();
    }
    folder
}
