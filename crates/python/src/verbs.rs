//! Verbs without a handle: each runs on a thread of its own, and returns JSON.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_app::evaluate::Request as Evaluation;
use fathom_app::export::{Conversion, Format, GgufName, Target};
use fathom_app::prune::{Request as Pruning, Sizes, run as run_prune};
use fathom_app::quantize::{Experts, Request as Quantization, run as run_quantize};
use fathom_app::score::{Request as Scoring, score as run_score};
use fathom_app::tasks::{Request as TaskRun, tasks as run_tasks};
use fathom_app::{Error, Machine, Result, evaluate as run_evaluate, export as run_export, report as reports};
use fathom_train::recipe::{MachineKind, Precision, QuantizationName};
use pyo3::prelude::*;
use serde_json::json;

use crate::edge::{detached, interruptible, mark_forked};
use crate::events::{Channel, EventSender};

/// Largest file of a folder that is written.
const SHARD_BYTES: u64 = 5 << 30;

/// Marks this process as forked.
#[pyfunction]
pub fn forked() {
    mark_forked();
}

/// A choice by its name.
fn choice<T: std::str::FromStr<Err = E>, E: ToString>(what: &str, name: &str) -> Result<T> {
    name.parse().map_err(|error: E| Error::Refused(format!("{what}: {}", error.to_string())))
}

/// The machine of a verb.
fn machine(device: &str, threads: usize, events: &EventSender, stop: &Arc<AtomicBool>) -> Result<Machine> {
    Ok(Machine::of_kind(choice::<MachineKind, _>("device", device)?, threads, events).stopped_by(stop))
}

/// Options of [`evaluate`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct EvaluateOptions {
    adapter: Option<PathBuf>,
    data: Vec<PathBuf>,
    tokens: Option<usize>,
    seconds: Option<f64>,
    needle_trials: usize,
    device: String,
    threads: usize,
}

/// Measures a model.
#[pyfunction]
pub fn evaluate(
    py: Python<'_>,
    model: PathBuf,
    options: EvaluateOptions,
    channel: &Channel,
) -> PyResult<String> {
    let EvaluateOptions { adapter, data, tokens, seconds, needle_trials, device, threads } = options;
    let events = channel.0.clone();
    interruptible(py, "evaluate", move |stop| {
        let machine = machine(&device, threads, &events, stop)?;
        let request = Evaluation { model, adapter, data, tokens, seconds, needle_trials };
        let found = run_evaluate(&request, &machine, &events)?;
        Ok(json!({
            "figures": found.figures, "context_tokens": found.context_tokens, "trained_tokens": found.trained_tokens,
        })
        .to_string())
    })
}

/// Options of [`evaluate_tasks`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TaskOptions {
    adapter: Option<PathBuf>,
    tasks: Vec<String>,
    tasks_dir: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    lengths: Vec<usize>,
    precision: Option<String>,
    limit: Option<f64>,
    num_fewshot: Option<usize>,
    bootstrap_iters: usize,
    tokens: Option<usize>,
    apply_chat_template: bool,
    out: Option<PathBuf>,
    device: String,
    threads: usize,
}

/// Runs tasks over a model; returns the harness's object and its table.
#[pyfunction]
pub fn evaluate_tasks(
    py: Python<'_>,
    model: PathBuf,
    options: TaskOptions,
    channel: &Channel,
) -> PyResult<String> {
    let events = channel.0.clone();
    interruptible(py, "evaluate", move |stop| {
        let machine = machine(&options.device, options.threads, &events, stop)?;
        let precision = options.precision.as_deref().map(|name| choice::<Precision, _>("precision", name));
        let request = TaskRun {
            model,
            adapter: options.adapter,
            tasks: options.tasks,
            tasks_dir: options.tasks_dir,
            data_dir: options.data_dir,
            lengths: options.lengths,
            dtype: precision.transpose()?.map(Precision::dtype),
            limit: options.limit,
            num_fewshot: options.num_fewshot,
            resamples: options.bootstrap_iters,
            tokens: options.tokens,
            chat_template: options.apply_chat_template,
            out: options.out,
            ..TaskRun::default()
        };
        let ran = run_tasks(&request, &machine, &events)?;
        Ok(json!({"found": ran.json, "table": ran.results.table()}).to_string())
    })
}

/// Options of [`export`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ExportOptions {
    format: String,
    precision: Option<String>,
    gguf_type: String,
    quantization: String,
    adapter: bool,
    adapters: Vec<(PathBuf, f32)>,
}

/// Writes a model as a Hugging Face folder or a GGUF file.
#[pyfunction]
pub fn export(
    py: Python<'_>,
    from: PathBuf,
    to: PathBuf,
    options: ExportOptions,
    channel: &Channel,
) -> PyResult<String> {
    let events = channel.0.clone();
    interruptible(py, "export", move |_| {
        let is_gguf = choice::<Format, _>("format", &options.format)? == Format::Gguf;
        let gguf = choice::<GgufName, _>("gguf_type", &options.gguf_type)?;
        let quantization = choice::<QuantizationName, _>("quantization", &options.quantization)?;
        let precision = options.precision.as_deref().map(|name| choice::<Precision, _>("precision", name));
        let what = Conversion {
            from,
            to: to.clone(),
            gguf: is_gguf.then(|| gguf.kind()),
            precision: precision.transpose()?,
            quantised: Conversion::quantised(quantization, true),
            max_shard_bytes: SHARD_BYTES,
            adapter: options.adapter,
            with: options.adapters,
        };
        let done = run_export(&what, &events)?;
        Ok(json!({"path": to, "family": done.family, "weights": done.weights}).to_string())
    })
}

/// Options of [`quantize`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct QuantizeOptions {
    format: String,
    data: Option<PathBuf>,
    samples: usize,
    sample_tokens: usize,
    device: String,
}

/// Writes a model in few bits.
#[pyfunction]
pub fn quantize(
    py: Python<'_>,
    model: PathBuf,
    to: PathBuf,
    options: QuantizeOptions,
    channel: &Channel,
) -> PyResult<String> {
    let QuantizeOptions { format, data, samples, sample_tokens, device } = options;
    let events = channel.0.clone();
    interruptible(py, "quantize", move |stop| {
        let target = choice::<Target, _>("format", &format)?;
        if !target.is_coded() {
            let done = run_export(&target.conversion(model, to.clone()), &events)?;
            return Ok(json!({"path": to, "family": done.family, "weights": done.weights, "format": format})
                .to_string());
        }
        let request = Quantization { model, to: to.clone(), format: target, data, samples, sample_tokens };
        let done = run_quantize(&request, &machine(&device, 0, &events, stop)?, &events)?;
        let experts = done.experts.map(|experts| match experts {
            Experts::Whole => json!({"rounded": 0}),
            Experts::Rounded { projections, unjudged } => {
                json!({"rounded": projections, "unjudged": unjudged})
            }
        });
        Ok(json!({
            "path": to, "family": done.family, "weights": done.weights, "format": format, "group": done.group,
            "losses": done.losses, "experts": experts,
        })
        .to_string())
    })
}

/// Options of [`prune`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct PruneOptions {
    data: PathBuf,
    sizes: [Option<usize>; 4],
    samples: usize,
    sample_tokens: usize,
    precision: String,
    device: String,
}

/// Makes a smaller model of a larger one. `sizes` are layers, hidden, ffn and heads to keep.
#[pyfunction]
pub fn prune(
    py: Python<'_>,
    model: PathBuf,
    to: PathBuf,
    options: PruneOptions,
    channel: &Channel,
) -> PyResult<String> {
    let PruneOptions { data, sizes, samples, sample_tokens, precision, device } = options;
    let events = channel.0.clone();
    interruptible(py, "prune", move |stop| {
        let [layers, hidden, ffn, heads] = sizes;
        let request = Pruning {
            model,
            to: to.clone(),
            data,
            sizes: Sizes { layers, hidden, ffn, heads },
            samples,
            sample_tokens,
            precision: choice::<Precision, _>("precision", &precision)?,
        };
        let done = run_prune(&request, &machine(&device, 0, &events, stop)?, &events)?;
        let kept = &done.kept;
        Ok(json!({
            "path": to, "weights": done.weights, "losses": done.losses, "tokens": done.tokens,
            "kept": {"layers": kept.layers, "hidden": kept.hidden, "heads": kept.heads, "ffn": kept.ffn},
        })
        .to_string())
    })
}

/// Options of [`score`], as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ScoreOptions {
    adapter: Option<PathBuf>,
    precision: String,
    best: Option<(usize, f64)>,
    labels: Vec<String>,
    device: String,
}

/// Scores rows of a file into another; returns their number.
#[pyfunction]
pub fn score(
    py: Python<'_>,
    model: PathBuf,
    data: PathBuf,
    out: PathBuf,
    options: ScoreOptions,
    channel: &Channel,
) -> PyResult<usize> {
    let ScoreOptions { adapter, precision, best, labels, device } = options;
    let events = channel.0.clone();
    interruptible(py, "score", move |stop| {
        let precision = choice::<Precision, _>("precision", &precision)?;
        let request = Scoring { model, adapter, data, out, precision, best, labels, responses: None };
        run_score(&request, &machine(&device, 0, &events, stop)?, &events)
    })
}

/// Writes the report of a run, also while it goes on.
#[pyfunction]
pub fn report(py: Python<'_>, run: PathBuf, page: PathBuf) -> PyResult<()> {
    detached(py, || reports::report(&run, &page).map(drop))
}
