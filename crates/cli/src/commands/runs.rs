//! `fathom runs`: the runs of a folder, listed, compared and tagged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fathom_base::human;
use fathom_report::runs::{Run, State, find, glance, name_below, tags, write_tags};
use serde_json::{Map, Value, json};

use super::diff;
use crate::args::{self, RunOrder};

/// A run with its name below the folder.
struct NamedRun {
    name: String,
    run: Run,
}

/// Runs the verb.
pub fn run(args: &args::Runs) -> Result<()> {
    let folder = &args.folder;
    if !folder.is_dir() {
        bail!("{}: no folder; name the one that holds the folders of runs", folder.display());
    }
    if let Some(pair) = &args.diff {
        let [left, right] = [&pair[0], &pair[1]].map(|name| one(folder, name));
        return diff::run(&left?, &right?, args.json);
    }
    for (words, adds) in [(&args.tag, true), (&args.untag, false)] {
        words.iter().try_for_each(|word| tag(folder, word, adds))?;
    }
    let glanced =
        |path: PathBuf| Some(NamedRun { name: name_below(folder, &path), run: glance(&path).ok()? });
    let mut runs: Vec<NamedRun> = find(folder).into_iter().filter_map(glanced).collect();
    runs.retain(|named| args.only.iter().all(|tag| named.run.tags.contains(tag)));
    sort(&mut runs, args.sort);
    if args.json {
        runs.iter().for_each(|named| outln!("{}", row(named)));
    } else {
        table(&runs);
    }
    Ok(())
}

/// Finds the run of a name: its path below the folder, the last part of it, or any path.
fn one(folder: &Path, name: &str) -> Result<PathBuf> {
    let below = folder.join(name);
    if below.join("metrics.jsonl").is_file() {
        return Ok(below);
    }
    let found: Vec<PathBuf> = find(folder)
        .into_iter()
        .filter(|run| name_below(folder, run).ends_with(&format!("/{name}")))
        .collect();
    match &found[..] {
        [run] => Ok(run.clone()),
        [] if Path::new(name).join("metrics.jsonl").is_file() => Ok(PathBuf::from(name)),
        [] => bail!("{name}: no run of {}; `fathom runs {}` lists them", folder.display(), folder.display()),
        several => {
            let names: Vec<String> = several.iter().map(|run| name_below(folder, run)).collect();
            bail!("{name}: there are several: {}", names.join(", "))
        }
    }
}

/// Adds or removes the tag of `RUN=TAG`.
fn tag(folder: &Path, word: &str, adds: bool) -> Result<()> {
    let (name, tag) = word.rsplit_once('=').with_context(|| format!("{word}: write RUN=TAG"))?;
    if tag.is_empty() || tag.chars().any(char::is_control) {
        bail!("{word}: a tag is a word");
    }
    let run = one(folder, name)?;
    let mut all: BTreeSet<String> = tags(&run);
    let changed = if adds { all.insert(tag.to_string()) } else { all.remove(tag) };
    if changed {
        write_tags(&run, &all)?;
    }
    Ok(())
}

fn sort(runs: &mut [NamedRun], order: RunOrder) {
    let loss = |named: &NamedRun| {
        let held_out = named.run.facts.figures.get("held-out loss").copied();
        held_out.or_else(|| named.run.facts.last.as_ref()?.loss).unwrap_or(f64::INFINITY)
    };
    match order {
        RunOrder::Name => {}
        RunOrder::Start => runs.sort_by_key(|named| std::cmp::Reverse(named.run.facts.start_unix_s)),
        RunOrder::Loss => runs.sort_by(|a, b| loss(a).total_cmp(&loss(b))),
    }
}

fn state(run: &Run) -> &'static str {
    match run.state() {
        State::Running => "running",
        State::Finished => "finished",
        State::Stopped => "stopped",
    }
}

fn row(named: &NamedRun) -> Value {
    let NamedRun { name, run } = named;
    let (facts, last) = (&run.facts, run.facts.last.clone().unwrap_or_default());
    let recipe: Map<String, Value> =
        facts.recipe.iter().map(|row| (row.path.clone(), json!(row.value))).collect();
    json!({
        "run": name,
        "path": run.folder.display().to_string(),
        "name": facts.name,
        "state": state(run),
        "tags": run.tags,
        "start_unix_s": facts.start_unix_s,
        "command": facts.command,
        "version": facts.version,
        "family": facts.family,
        "params": facts.params,
        "text_tokens": facts.text_tokens,
        "step": last.step,
        "planned_steps": facts.planned_steps,
        "tokens": last.tokens_total,
        "time_s": last.time_s,
        "loss": last.loss,
        "tokens_per_s": last.tokens_per_s,
        "planned_peak_bytes": facts.planned_peak_bytes,
        "peak_bytes": facts.peak_bytes,
        "figures": facts.figures,
        "recipe": recipe,
    })
}

fn table(runs: &[NamedRun]) {
    let width = runs.iter().map(|named| named.name.chars().count()).max().unwrap_or(3).max(3);
    outln!(
        "  {:<width$}  state       params     steps    tokens     loss  held out  bits/byte      time  tags",
        "run"
    );
    for named in runs {
        let (facts, last) = (&named.run.facts, named.run.facts.last.clone().unwrap_or_default());
        let figure = |name: &str| facts.figures.get(name).map_or("-".into(), |x| format!("{x:.4}"));
        let line = format!(
            "  {:<width$}  {:<8} {:>9} {:>9} {:>9} {:>8} {:>9} {:>10} {:>9}  {}",
            named.name,
            state(&named.run),
            human::count(facts.params),
            last.step,
            human::count(last.tokens_total),
            last.loss.map_or("-".into(), |loss| format!("{loss:.4}")),
            figure("held-out loss"),
            figure("bits per byte"),
            human::seconds(last.time_s.unwrap_or(f64::NAN)),
            named.run.tags.iter().cloned().collect::<Vec<_>>().join(" ")
        );
        outln!("{}", line.trim_end());
    }
}
