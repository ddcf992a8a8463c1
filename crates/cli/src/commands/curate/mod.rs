//! `fathom curate`: runs a curation, shows its progress, and queries its tables.

mod cluster;
mod quality;
mod stages;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use fathom_app::curate::{Curation, CurationOutcome, Order, rank};
use fathom_app::library::CURATE;
use fathom_app::{Event, Events};
use fathom_base::human;
use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{Progress, Rank, Recipe, Stats, refuse_secrets, save_page};
use fathom_curate::tables::{TableOptions, Tables, json_line, text_table};
use serde_json::json;

use crate::args::{Curate, CurateVerb};
use crate::exit::{ExitCode, RESUME};
use crate::listen::Plain;
use crate::{console, signals};

/// Runs the verb.
pub fn run(args: &Curate) -> Result<ExitCode> {
    match &args.verb {
        Some(CurateVerb::Sql { query, out, json }) => sql(query, out, *json).map(|()| ExitCode::SUCCESS),
        Some(CurateVerb::Stages { name, json }) => {
            stages::run(name.as_deref(), *json).map(|()| ExitCode::SUCCESS)
        }
        Some(CurateVerb::Report { out }) => report(out).map(|()| ExitCode::SUCCESS),
        Some(CurateVerb::TrainQuality(args)) => quality::run(args).map(|()| ExitCode::SUCCESS),
        Some(CurateVerb::Scheduler(args)) => cluster::scheduler(args).map(|()| ExitCode::SUCCESS),
        Some(CurateVerb::Executor(args)) => cluster::executor(args).map(|()| ExitCode::SUCCESS),
        None => curate(args),
    }
}

fn curate(args: &Curate) -> Result<ExitCode> {
    let recipe = args.recipe.as_deref().unwrap_or_default();
    let mut layers = Layers::with_library(CURATE).recipe(recipe).sets(&args.settings);
    if let Some(out) = &args.out {
        layers = layers.flag("--out", "out", &out.display().to_string());
    }
    let loaded = Loaded::<Recipe>::load(layers)?;
    let rank = rank(args.rank, args.world_size)?;
    let curation = Curation::new(&loaded)?;
    let stop = Arc::new(AtomicBool::new(false));
    let order = Order {
        rank,
        engine: cluster::engine(args)?,
        wait_s: args.wait,
        stop: stop.clone(),
        functions: None,
    };
    signals::ask_once(&stop)?;
    let lines = Arc::new(Lines::new(args.json));
    let listener: Arc<dyn Events> = lines.clone();
    match curation.run(&order, &listener)? {
        CurationOutcome::Done(stats) => {
            lines.done(&stats, curation.out());
            Ok(ExitCode::SUCCESS)
        }
        CurationOutcome::Interrupted(said) => {
            console::note(&said);
            Ok(ExitCode::from(RESUME))
        }
        CurationOutcome::Waiting { stage, missing } => {
            lines.waiting(stage.as_deref(), &missing, rank);
            // With its own work done, this process has nothing to repeat.
            Ok(if stage.is_some() { ExitCode::from(RESUME) } else { ExitCode::SUCCESS })
        }
    }
}

/// Prints a resolved recipe.
pub fn show(name: &str, settings: &[String]) -> Result<()> {
    let loaded = Loaded::<Recipe>::load(Layers::with_library(CURATE).recipe(name).sets(settings))?;
    refuse_secrets(&loaded)?;
    out!("{}", loaded.text());
    Ok(())
}

/// JSON schema of a curation's keys, for editors.
pub fn schema() -> Result<serde_json::Value> {
    Ok(fathom_app::editors::json_schema::<Recipe>("Fathom curation"))
}

fn read_stats(out: &Path) -> Result<Stats> {
    let path = out.join("stats.json");
    let text = std::fs::read(&path)
        .with_context(|| format!("cannot read {}: has the curation in this folder ended?", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a curation's account", path.display()))
}

fn report(out: &Path) -> Result<()> {
    outln!("{}", save_page(out, &read_stats(out)?)?.display());
    Ok(())
}

fn sql(query: &str, out: &Path, json: bool) -> Result<()> {
    let stats = read_stats(out)?;
    let mut tables = Tables::new(&TableOptions { memory_bytes: 2 << 30, spill: out.join("spill") })?;
    let mut names = Vec::new();
    for table in stats.tables {
        // A moved folder keeps its tables.
        let folder = table.folder.file_name().map_or(table.folder.clone(), |name| out.join(name));
        tables.register(&table.name, &folder)?;
        names.push(table.name);
    }
    for (name, folder) in document_lists(out) {
        tables.register(&name, &folder)?;
        names.push(name);
    }
    let asked = if json {
        tables.stream(query, &mut |names, row| {
            out!("{}", json_line(names, row));
            Ok(())
        })
    } else {
        tables.query(query).map(|answer| out!("{}", text_table(&answer)))
    };
    asked.with_context(|| format!("{} has the tables {}", out.display(), names.join(", ")))
}

/// `tokenize`'s lists of documents, as tables named after their stages.
fn document_lists(out: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut lists: Vec<(String, PathBuf)> = entries
        .filter(|folder| folder.join("documents.parquet").is_file())
        .filter_map(|folder| {
            let name = folder.file_name()?.to_str()?.split_once('-')?.1.to_owned();
            Some((name, folder))
        })
        .collect();
    lists.sort();
    lists
}

/// Progress lines of a curation.
struct Lines {
    json: bool,
    started: Instant,
    last: Mutex<(Instant, Option<Progress>)>,
    plain: Plain,
}

impl Events for Lines {
    fn on(&self, event: Event) {
        match event {
            Event::Curating(progress) => self.progress(&progress),
            Event::Line(text) => console::note(&format!("          {text}")),
            event => self.plain.on(event),
        }
    }
}

impl Lines {
    fn new(json: bool) -> Lines {
        let now = Instant::now();
        Lines { json, started: now, last: Mutex::new((now, None)), plain: Plain::default() }
    }

    /// Prints a line every two seconds, and one at the end of each segment.
    fn progress(&self, progress: &Progress) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = progress.parts_done == progress.parts;
        let same = last.1.as_ref().is_some_and(|before| before == progress);
        if same || (!ended && last.0.elapsed().as_secs_f64() < 2.0) {
            return;
        }
        *last = (Instant::now(), Some(progress.clone()));
        let Progress { segment, parts_done, parts, documents, text_bytes } = progress;
        if self.json {
            let line = json!({"event": "progress", "segment": segment, "parts_done": parts_done, "parts": parts,
                "documents": documents, "text_bytes": text_bytes, "seconds": self.started.elapsed().as_secs_f64()});
            outln!("{line}");
            return;
        }
        let time = human::duration(self.started.elapsed());
        let (count, size) = (human::count(*documents), human::bytes(*text_bytes));
        console::note(&format!(
            "{time:>8}  {segment}: {parts_done} of {parts} parts, {count} {}, {size}",
            if *documents == 1 { "document" } else { "documents" }
        ));
    }

    fn waiting(&self, stage: Option<&str>, missing: &[String], rank: Rank) {
        if self.json {
            outln!("{}", json!({"event": "waiting", "stage": stage, "missing": missing, "rank": rank.rank}));
            return;
        }
        let shown: Vec<&str> = missing.iter().take(4).map(String::as_str).collect();
        let more = missing.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let what = match stage {
            Some(stage) => format!("`{stage}` needs what other ranks have not finished"),
            None => "this rank is done; other ranks are not".to_owned(),
        };
        console::note(&format!(
            "rank {} of {}: {what}: {}{more}",
            rank.rank,
            rank.world_size,
            shown.join(", ")
        ));
    }

    fn done(&self, stats: &Stats, out: &Path) {
        if stats.stages.last().is_some_and(|stage| stage.tally.documents_out == 0) {
            console::warn("no document is left; the table of stages says which one dropped them");
        }
        if self.json {
            outln!("{}", json!({"event": "done", "stats": stats}));
            return;
        }
        outln!("{:<18} {:>11} {:>11} {:>11} {:>11}  dropped", "stage", "in", "out", "text", "per thread");
        for stage in &stats.stages {
            let tally = &stage.tally;
            let rate = stage.bytes_per_s().map_or(String::new(), |rate| format!("{:.1} MB/s", rate / 1e6));
            let mut dropped: Vec<_> = tally.dropped.iter().collect();
            dropped.sort_by_key(|(_, d)| std::cmp::Reverse(d.documents));
            let shown: Vec<String> = dropped
                .iter()
                .take(3)
                .map(|(reason, d)| format!("{} {reason}", human::count(d.documents)))
                .collect();
            let more = if dropped.len() > 3 { ", ..." } else { "" };
            outln!(
                "{:<18} {:>11} {:>11} {:>11} {rate:>11}  {}{more}",
                stage.name,
                human::count(tally.documents_in),
                human::count(tally.documents_out),
                human::bytes(tally.bytes_out),
                shown.join(", "),
            );
        }
        closing!("{} in {}", out.display(), human::seconds(self.started.elapsed().as_secs_f64()));
    }
}
