//! Tasks in the format of lm-evaluation-harness, run over a model in a folder.

mod page;
mod programs;

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fathom_base::{Conversation, Describe, Tokenize};
use fathom_eval::lengths::Scores;
use fathom_eval::tasks::{
    Cache, Index, Languages, NO_ROLLING, Options, OutputType, Results, Sets, Subject, TaskConfig,
    answer_tokens, digest, prepare, room, run,
};
use fathom_model::{RopeScaling, Spec};
use fathom_tensor::DType;
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use serde_json::{Map, Value, json};

use crate::error::{Context, Error, Result, refuse};
use crate::events::Events;
use crate::host::fingerprint::fingerprint;
use crate::host::{Host, HostOptions};
use crate::machine::Machine;

pub use page::compared;

/// Resamples of the bootstrap, as in the harness.
pub const RESAMPLES: usize = 100_000;
/// Limit on the context, without `tokens`; a model's own may be a million.
const LONGEST: usize = 32 << 10;
/// Answers that are generated at once.
const SEQUENCES: usize = 16;

/// Options of a run over tasks.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Adapter over it: its folder, or that of its run.
    pub adapter: Option<PathBuf>,
    /// Names of tasks, groups and tags, patterns, or files.
    pub tasks: Vec<String>,
    /// Folder of task files.
    pub tasks_dir: Option<PathBuf>,
    /// Folder of sets.
    pub data_dir: Option<PathBuf>,
    /// Runs generated programs of tasks, in a jail.
    pub run_programs: bool,
    /// Lengths of RULER's tasks; empty for 4096.
    pub lengths: Vec<usize>,
    /// Type of the weights; `None` keeps the stored one.
    pub dtype: Option<DType>,
    /// Items per task, at most; below 1 a share of them.
    pub limit: Option<f64>,
    /// Number of examples, for tasks whose file does not say 0.
    pub num_fewshot: Option<usize>,
    /// Resamples of the bootstrap; 0 for no standard errors.
    pub resamples: usize,
    /// Context in tokens; `None` for the model's own, up to 32768.
    pub tokens: Option<usize>,
    /// Puts contexts through the model's chat template.
    pub chat_template: bool,
    /// Makes each example a turn of the conversation.
    pub multiturn: bool,
    /// Text before the descriptions of tasks.
    pub system: Option<String>,
    /// File of the results. Answers are kept next to it while it is made, and a run that was killed goes on.
    pub out: Option<PathBuf>,
    /// Writes each item with its answers next to the results: `OUT_samples_TASK.jsonl`.
    pub log_samples: bool,
}

/// Result of a run over tasks.
#[derive(Debug)]
pub struct Ran {
    /// The figures.
    pub results: Results,
    /// Content of the file of the results.
    pub json: Map<String, Value>,
    /// Number of answers that an earlier run had got.
    pub kept: usize,
}

/// Runs tasks over a model.
///
/// # Errors
/// A task or a set that cannot be used, before the model is opened; no model there; rows that cannot be used.
pub fn tasks(request: &Request, machine: &Machine, events: &dyn Events) -> Result<Ran> {
    let (started, wall) = (Instant::now(), SystemTime::now());
    let mut index = Index::open(request.tasks_dir.as_deref())?;
    if !request.lengths.is_empty() {
        index.draw(&request.lengths);
    }
    if let Some(folder) = &request.data_dir {
        index.add_languages(folder)?;
    }
    let nodes = index.find(&request.tasks)?;
    let mut options = Options {
        limit: request.limit,
        num_fewshot: request.num_fewshot,
        resamples: request.resamples,
        multiturn: request.multiturn,
        system: request.system.clone(),
        ..Options::default()
    };
    let passed = |all: &[String]| programs::passed(all).map_err(fathom_eval::Error::Impossible);
    if request.run_programs {
        programs::check()?;
        options.run_programs = Some(&passed);
    }
    let folder = crate::models::model_folder(&request.model)?;
    let spec = fathom_model::open_writer_config(&folder)?.0;
    let tokenizer = crate::models::tokenizer(&folder)?;
    let template_tokens = if request.chat_template { template_tokens(&folder, &tokenizer)? } else { 0 };
    let sets = Sets { folder: request.data_dir.as_deref(), tokenizer: Some(&tokenizer), template_tokens };
    let prepared = prepare(&nodes, &sets, &options)?;
    let whole = |(config, _): &&(TaskConfig, _)| spec.source > 0 && config.output == OutputType::Rolling;
    if let Some((config, _)) = prepared.iter().find(whole) {
        refuse!("task {}: {NO_ROLLING}", config.name);
    }
    let own = if spec.source > 0 { source_tokens(&folder) } else { spec.max_positions };
    let max_length = context(request, own, prepared.iter().map(|(config, _)| config))?;
    // Answers of an encoder-decoder have a stream of their own, and may be longer than a source.
    let answers = prepared.iter().filter(|(config, _)| config.output == OutputType::GenerateUntil);
    let longest = answers.filter_map(|(config, _)| config.keys["generation_kwargs"].as_object());
    let longest = longest.map(answer_tokens).max().unwrap_or(0);
    let streams = if spec.source > 0 { longest } else { 0 };
    let host = Host::open_writer(
        HostOptions {
            adapter: request.adapter.clone(),
            dtype: request.dtype,
            sequences: SEQUENCES,
            context_tokens: Some(streams.max(max_length) + usize::from(reaches(&spec))),
            ..HostOptions::new(&request.model, machine)
        },
        events,
    )?;
    let doing = |task: &str| events.doing(&format!("task {task}"));
    options.doing = Some(&doing);
    let render = |messages: &[Value], prompt: bool| rendered(&host, messages, prompt);
    if request.chat_template {
        options.chat = Some(&render);
    }
    let cache = cache(request, &host, max_length)?;
    let kept = cache.found;
    let source = spec.source > 0;
    let mut subject = Subject { source, cache, ..Subject::new(&host, &tokenizer, max_length) };
    let results = run(&nodes, &prepared, &mut subject, &options)?;
    warn_parts(&results, max_length, request.limit, events);
    let mut json = results.json();
    describe(&mut json, request, &host, &results, max_length);
    if let Some(scores) = Scores::of(&results) {
        let mut scores = scores.json();
        scores["tokenizer"] = tokenizer.hash()?.into();
        scores["template_tokens"] = template_tokens.into();
        json.insert("ruler".into(), scores);
    }
    if let Some(languages) = Languages::of(&results) {
        json.insert("languages".into(), languages.json());
    }
    json.insert("date".into(), json!(wall.duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64())));
    json.insert("total_evaluation_time_seconds".into(), started.elapsed().as_secs_f64().to_string().into());
    if let Some(out) = &request.out {
        write(out, &json, &results, request.log_samples)?;
    }
    Ok(Ran { results, json, kept })
}

/// Warns of requests that were cut and of items that were left out.
fn warn_parts(results: &Results, max_length: usize, limit: Option<f64>, events: &dyn Events) {
    for task in results.tasks.iter().filter(|task| task.cut > 0) {
        events.warn(&format!(
            "task {}: {} of {} requests were longer than the context of {max_length} tokens and were cut from the left",
            task.config.name, task.cut, task.requests
        ));
    }
    if let Some(limit) = limit {
        events.warn(&format!(
            "--limit {limit}: the figures are of a part of the items, and only for trying things out"
        ));
    }
}

/// Tokens that the chat template puts around a prompt.
fn template_tokens(folder: &Path, tokenizer: &Tokenizer) -> Result<usize> {
    let Some(template) = Template::from_dir(folder, tokenizer)? else { return Ok(0) };
    let message = json!({"role": "user", "content": ""});
    let around = template.render_with(&[&message], &[], true, &Map::new());
    Ok(tokenizer.encode_special(&around.map_err(Error::Refused)?.text)?.len())
}

/// Tokens of an encoder-decoder's streams by the harness's rule: `n_positions` of its configuration, which T5's own code
/// does not read, or else the limit of its tokenizer, or 2048.
fn source_tokens(folder: &Path) -> usize {
    let key = |file: &str, key: &str| -> Option<usize> {
        let map: Map<String, Value> = serde_json::from_slice(&std::fs::read(folder.join(file)).ok()?).ok()?;
        // Tokenizers without a limit have 1e30.
        map.get(key)?.as_u64().and_then(|tokens| usize::try_from(tokens).ok())
    };
    let tokenizer = || key("tokenizer_config.json", "model_max_length");
    key("config.json", "n_positions").or_else(tokenizer).unwrap_or(2048)
}

/// Tokens of the context: those asked for, or the model's own, and at least those of sets that are made for a length.
fn context<'t>(
    request: &Request,
    own: usize,
    configs: impl Iterator<Item = &'t TaskConfig>,
) -> Result<usize> {
    let needed = configs.filter_map(|config| room(config).map(|room| (room, config.name.clone())));
    let (longest, name) = needed.max().unwrap_or_default();
    if longest > own + 1 {
        refuse!(
            "{name} needs {} tokens, beyond the model's context of {own}; name shorter --lengths",
            longest - 1
        );
    }
    match request.tokens {
        Some(tokens) if tokens + 1 < longest => {
            refuse!("{name} needs {} tokens and does not fit --tokens {tokens}; leave it out", longest - 1)
        }
        tokens => Ok(tokens.unwrap_or(own.min(LONGEST)).max(longest)),
    }
}

/// True if a sequence may be one token longer than the context without any change to the others: the last one is a
/// label alone.
fn reaches(spec: &Spec) -> bool {
    let is_plain = |scaling: &RopeScaling| {
        !matches!(scaling, RopeScaling::Dynamic { .. } | RopeScaling::Longrope { .. })
    };
    spec.learned_positions.is_none() && spec.ropes.iter().all(|rope| is_plain(&rope.scaling))
}

fn rendered(host: &Host, messages: &[Value], prompt: bool) -> fathom_eval::Result<String> {
    let conversation = Conversation {
        messages: messages.to_vec(),
        add_generation_prompt: prompt,
        continue_final_message: !prompt,
        ..Conversation::default()
    };
    Ok(host.service().render(&conversation)?)
}

/// The file of answers of a run that writes results.
fn cache(request: &Request, host: &Host, max_length: usize) -> Result<Cache> {
    let Some(out) = &request.out else { return Ok(Cache::default()) };
    let facts = host.facts();
    let held = [format!("{:?} {max_length}", request.dtype)];
    let mut model = fingerprint(&facts.folder, &facts.tokenizer, &held)?;
    if let Some(adapter) = &request.adapter {
        model += &fingerprint(adapter, &facts.tokenizer, &[])?;
    }
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    Ok(Cache::open(&next_to(out, "_answers.jsonl"), &model)?)
}

/// The path of a file next to the results.
fn next_to(out: &Path, ending: &str) -> PathBuf {
    let stem = out.file_stem().map_or_else(|| "results".into(), |stem| stem.to_string_lossy().into_owned());
    out.with_file_name(stem + ending)
}

/// Adds what the harness notes of the model, and what it does not note.
fn describe(
    json: &mut Map<String, Value>,
    request: &Request,
    host: &Host,
    results: &Results,
    max_length: usize,
) {
    let facts = host.facts();
    let model = request.model.display().to_string();
    let dtype = request.dtype.map(|dtype| format!("{dtype:?}").to_lowercase());
    let config = json!({
        "model": "fathom", "model_args": {"pretrained": model, "dtype": dtype}, "batch_size": null, "batch_sizes": [],
        "device": null, "use_cache": null, "limit": request.limit, "bootstrap_iters": request.resamples,
        "gen_kwargs": null, "random_seed": 0, "numpy_seed": 1234, "torch_seed": 1234, "fewshot_seed": 1234,
    });
    let token = |id: Option<u32>| {
        let text = id.map_or_else(|| "None".into(), |id| facts.tokenizer.decode(&[id]));
        json!([text, id.map_or_else(|| "None".into(), |id| id.to_string())])
    };
    let template = if request.chat_template { host.service().card().chat_template } else { None };
    let counts = |of: fn(&fathom_eval::tasks::TaskResult) -> usize| -> Map<String, Value> {
        results.tasks.iter().map(|task| (task.config.name.clone(), of(task).into())).collect()
    };
    let rest = json!({
        "config": config,
        "tokenizer_eos_token": token(facts.tokenizer.eos()),
        "tokenizer_bos_token": token(facts.tokenizer.own_bos()),
        "eot_token_id": facts.tokenizer.eos(),
        "max_length": max_length,
        "task_hashes": results.hashes(),
        "model_source": "fathom",
        "model_name": model,
        "model_name_sanitized": model.replace('/', "__"),
        "system_instruction": request.system,
        "system_instruction_sha": request.system.as_deref().map(digest),
        "fewshot_as_multiturn": request.multiturn,
        "chat_template_sha": template.as_deref().map(digest),
        "chat_template": template,
        "fathom": {
            "version": env!("CARGO_PKG_VERSION"),
            "limited": request.limit.is_some(),
            "requests": counts(|task| task.requests),
            "cut_from_the_left": counts(|task| task.cut),
        },
    });
    json.extend(rest.as_object().cloned().unwrap_or_default());
}

fn write(out: &Path, json: &Map<String, Value>, results: &Results, log_samples: bool) -> Result<()> {
    if out.is_dir() {
        refuse!("--out {}: is a folder; name a file", out.display());
    }
    let text = serde_json::to_string_pretty(json)? + "\n";
    fathom_base::files::write(out, text.as_bytes())?;
    for task in results.tasks.iter().filter(|_| log_samples) {
        let name = task.config.name.replace(['/', ':'], "_");
        let lines: String = task.samples.iter().map(|sample| format!("{sample}\n")).collect();
        let path = next_to(out, &format!("_samples_{name}.jsonl"));
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
