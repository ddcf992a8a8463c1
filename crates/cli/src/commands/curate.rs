//! `fathom curate`: runs a curation, shows how far it is, and asks its tables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fathom_base::human;
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_curate::pipeline::{Outcome, Pipeline, Progress, Rank, Recipe, RunOptions, Stats, save_page};
use fathom_curate::tables::{TableEngine, TableOptions, Tables, json_lines, text_table};
use fathom_curate::{Error, RemoteOptions};
use serde_json::json;

use super::{cluster, quality, stages};
use crate::args::{Curate, CurateVerb};
use crate::curate_models::Engines;
use crate::library::CURATE;
use crate::{console, output, signals};

/// Exit code where others owe something or a signal ended the run: "try again later" (`EX_TEMPFAIL`), which job systems
/// retry.
const WAITING: u8 = 75;
/// Seconds between two looks at what others have done.
const LOOK_S: f64 = 2.0;

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
    let rank = rank(args)?;
    let pipeline = Pipeline::with_remote(&loaded, remote())?;
    let engine = cluster::engine(args)?;
    let asked_to_stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second signal ends the process as usual.
        signal_hook::flag::register_conditional_default(signal, asked_to_stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, asked_to_stop.clone()))
            .context("cannot listen to signals")?;
    }
    signals::hang_up(&asked_to_stop)?;
    let lines = Arc::new(Lines::new(args.json));
    let (flag, told) = (asked_to_stop, lines.clone());
    let options = RunOptions {
        threads: 0,
        rank,
        engine,
        on_read: None,
        stop: Some(Arc::new(move |_: &str| flag.load(Ordering::Relaxed))),
        progress: Some(Arc::new(move |progress: &Progress| told.progress(progress))),
        say: Some(Arc::new(|text: &str| console::note(&format!("          {text}")))),
        models: Some(Arc::new(Engines)),
    };
    let begun = Instant::now();
    loop {
        let ran = match pipeline.run(&options) {
            Err(stopped @ Error::Interrupted { .. }) => {
                console::note(&stopped.to_string());
                return Ok(ExitCode::from(WAITING));
            }
            ran => ran?,
        };
        match ran {
            Outcome::Done(stats) => {
                if rank.rank == 0 {
                    page(pipeline.out(), &stats)?;
                }
                lines.done(&stats, pipeline.out());
                return Ok(ExitCode::SUCCESS);
            }
            Outcome::Waiting { stage: None, missing } => {
                lines.waiting(None, &missing, rank);
                return Ok(ExitCode::SUCCESS);
            }
            Outcome::Waiting { stage, missing } => {
                if begun.elapsed().as_secs_f64() >= args.wait {
                    lines.waiting(stage.as_deref(), &missing, rank);
                    return Ok(ExitCode::from(WAITING));
                }
                std::thread::sleep(Duration::from_secs_f64(LOOK_S));
            }
        }
    }
}

/// Inputs on S3 are read with what the environment says of it, `AWS_ACCESS_KEY_ID` and the like.
pub fn remote() -> RemoteOptions {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let s3 = std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_"));
    RemoteOptions { s3: s3.collect(), ..RemoteOptions::default() }
}

/// This process among others: the flags, else a Slurm array, else a Kubernetes Indexed Job.
fn rank(args: &Curate) -> Result<Rank> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let first = number("SLURM_ARRAY_TASK_MIN").unwrap_or(0);
    // Of `--array=0-6:2` every second number is a task.
    let step = number("SLURM_ARRAY_TASK_STEP").unwrap_or(1).max(1);
    let slurm = number("SLURM_ARRAY_TASK_ID").map(|id| id.saturating_sub(first) / step);
    let rank = args.rank.or(slurm).or_else(|| number("JOB_COMPLETION_INDEX"));
    let world = args.world_size.or_else(|| number("SLURM_ARRAY_TASK_COUNT")).or_else(|| number("WORLD_SIZE"));
    match (rank, world) {
        (None, None) => Ok(Rank::default()),
        (Some(rank), Some(world_size)) if rank < world_size => Ok(Rank { rank, world_size }),
        (Some(rank), Some(world_size)) => {
            bail!(
                "rank {rank} of {world_size} processes: ranks are counted from 0, the last is {}",
                world_size.max(1) - 1
            )
        }
        (Some(rank), None) if args.rank.is_none() => {
            let (variable, count) = match slurm {
                Some(_) => ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
                None => ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
            };
            bail!(
                "{variable} says that this is process {rank} of several, and nothing says of how many: set the variable {count} \
                 (of a Kubernetes Job to its `completions`), or give --world-size; --rank 0 --world-size 1 works alone"
            )
        }
        (Some(_), None) => bail!("--rank needs --world-size, the number of processes"),
        (None, Some(_)) if args.world_size.is_none() => Ok(Rank::default()),
        (None, Some(_)) => bail!("--world-size needs --rank, the number of this process"),
    }
}

/// Writes the page of a curation.
pub fn page(out: &Path, stats: &Stats) -> Result<()> {
    output::regular(&out.join("report.html"))?;
    save_page(out, stats)?;
    Ok(())
}

fn read_stats(out: &Path) -> Result<Stats> {
    let path = out.join("stats.json");
    let text = std::fs::read(&path)
        .with_context(|| format!("cannot read {}: has the curation in this folder ended?", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a curation's account", path.display()))
}

fn report(out: &Path) -> Result<()> {
    println!("{}", save_page(out, &read_stats(out)?)?.display());
    Ok(())
}

fn sql(query: &str, out: &Path, json: bool) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let stats = read_stats(out)?;
    let options = TableOptions {
        memory_bytes: 2 << 30,
        spill: out.join("spill"),
        threads,
        engine: TableEngine::Embedded,
    };
    let tables = Tables::new(&options)?;
    let mut names = Vec::new();
    for table in stats.tables {
        // A folder that was moved keeps its tables.
        let folder = table.folder.file_name().map_or(table.folder.clone(), |name| out.join(name));
        tables.register(&table.name, &folder)?;
        names.push(table.name);
    }
    for (name, folder) in document_lists(out) {
        tables.register(&name, &folder)?;
        names.push(name);
    }
    let asked = if json {
        tables.stream(query, &mut |batch| {
            print!("{}", json_lines(&batch)?);
            Ok(())
        })
    } else {
        tables.query(query).and_then(|rows| text_table(&rows)).map(|text| print!("{text}"))
    };
    asked.with_context(|| format!("{} has the tables {}", out.display(), names.join(", ")))
}

/// What `tokenize` says of each document, as tables of its stages' names.
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

/// What the user reads while a curation runs.
struct Lines {
    json: bool,
    begun: Instant,
    last: Mutex<(Instant, Option<Progress>)>,
}

impl Lines {
    fn new(json: bool) -> Lines {
        let now = Instant::now();
        Lines { json, begun: now, last: Mutex::new((now, None)) }
    }

    /// A line every two seconds, and one when a segment ends.
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
                "documents": documents, "text_bytes": text_bytes, "seconds": self.begun.elapsed().as_secs_f64()});
            println!("{line}");
            return;
        }
        let time = human::duration(self.begun.elapsed());
        let (count, size) = (human::count(*documents), human::bytes(*text_bytes));
        console::note(&format!(
            "{time:>8}  {segment}: {parts_done} of {parts} parts, {count} documents, {size}"
        ));
    }

    fn waiting(&self, stage: Option<&str>, missing: &[String], rank: Rank) {
        if self.json {
            println!(
                "{}",
                json!({"event": "waiting", "stage": stage, "missing": missing, "rank": rank.rank})
            );
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
            println!("{}", json!({"event": "done", "stats": stats}));
            return;
        }
        println!("{:<18} {:>11} {:>11} {:>11} {:>11}  dropped", "stage", "in", "out", "text", "per thread");
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
            println!(
                "{:<18} {:>11} {:>11} {:>11} {rate:>11}  {}{more}",
                stage.name,
                human::count(tally.documents_in),
                human::count(tally.documents_out),
                human::bytes(tally.bytes_out),
                shown.join(", "),
            );
        }
        println!("{} in {}", out.display(), human::seconds(self.begun.elapsed().as_secs_f64()));
    }
}
