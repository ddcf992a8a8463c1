//! Lesson of the quickstart: by LoRA, a trained model learns to say what a function does, from signatures and doc
//! comments of the sources that it was trained on; other crates are held out.
//!
//! The lesson is a separate run below the run's folder, with the recipe `lora`. Its results are added to the log and
//! report of the main run.
//!
//! ```text
//! OUT/lesson/{learned,held_out}.jsonl       the rows
//! OUT/lesson/chat_template.jinja            how they are said
//! OUT/lesson/adapter, OUT/lesson/..         the run, with a report of its own
//! OUT/taught                                the model with the adapter merged, to be talked to
//! ```

mod pairs;

use std::path::{Path, PathBuf};

use fathom_base::clock::Deadline;
use fathom_base::metrics::{Event, MetricsWriter, events as ev, read_events};
use fathom_base::{Conversation, GenerateRequest, LanguageModel, Numbers, Tokenize, human};
use fathom_curate::{default_roots, held_out_documents, store_prefix};
use fathom_text::store::Store;
use fathom_train::Outcome;
use serde_json::json;

use crate::error::{Context, Result};
use crate::events::{Events, Silent};
use crate::export::{Conversion, export};
use crate::host::{Host, HostOptions};
use crate::job::Job;
use crate::library::{layers, load};
use crate::train::{Order, Report, train};
use crate::{adapters, report};
use pairs::{Pair, Pairs};

/// Minimum number of rows.
const LEAST: usize = 64;
/// Held-out rows whose answers are shown, and held-out rows that are measured.
const ANSWERED: usize = 4;
const MEASURED: usize = 128;
/// Maximum tokens of an answer.
const ANSWER_TOKENS: usize = 48;
/// Number of held-out documents, and tokens of each, that measure what the lesson costs on plain text.
const TEXTS: usize = 16;
const TEXT_TOKENS: usize = 512;

const TEMPLATE: &str = "{%- for message in messages %}{{ '### ' + message.role + '\\n' }}\
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + eos_token }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}\
{{- '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '### assistant\\n' }}{% endif %}";

/// Seconds for the work after the second measurement: merging and the report.
const TAIL_S: f64 = 1.0;
/// Minimum time for a lesson, in seconds and as a multiple of one measurement's time.
const LEAST_S: f64 = 3.0;
const LEAST_LOOKS: f64 = 2.0;

/// Limit on the length of a lesson.
#[derive(Clone, Debug)]
pub enum Length {
    /// Deadline for everything, including the run before, and the seconds that it was given.
    Until(Deadline, f64),
    /// Number of steps.
    Steps(u64),
}

/// Training rows, extracted from the sources that a run reads.
pub struct Rows(Pairs);

impl Rows {
    /// Extracts the documented functions below these paths; `None` if there are too few.
    pub fn below(paths: &[PathBuf]) -> Option<Rows> {
        let pairs = Pairs::below(&sources(paths));
        (pairs.learned.len() >= LEAST && !pairs.held_out.is_empty()).then_some(Rows(pairs))
    }
}

/// Returns the folders that rows are extracted from.
pub fn sources(paths: &[PathBuf]) -> Vec<PathBuf> {
    match paths {
        [only] if only.as_os_str() == "cargo:" => {
            cargo_home().map(|home| default_roots(&home)).unwrap_or_default()
        }
        paths => paths.to_vec(),
    }
}

fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
}

/// Outcome of a lesson.
pub enum LessonOutcome {
    /// The run's report, with the lesson in it.
    Reported(Box<Report>),
    /// No time was left for the lesson, or it was reported before.
    Nothing,
    /// Interrupted; the same command continues it.
    Interrupted,
}

/// Trains the lesson on the model of a finished run.
///
/// # Errors
/// Those of training; files that cannot be written.
pub fn teach(
    job: &Job,
    Rows(Pairs { learned, mut held_out }): Rows,
    length: &Length,
    order: &Order,
    events: &dyn Events,
) -> Result<LessonOutcome> {
    let (clock, folder) = (&order.clock, job.folder.join("lesson"));
    let (taught, began_s) = (job.folder.join("taught"), clock.now_s());
    if taught.join("config.json").exists() {
        return Ok(LessonOutcome::Nothing);
    }
    held_out.truncate(MEASURED);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fathom_base::files::write(&path, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))
    };
    let rows = |pairs: &[Pair]| pairs.iter().map(|pair| pair.row() + "\n").collect::<String>();
    write("learned.jsonl", rows(&learned))?;
    write("held_out.jsonl", rows(&held_out))?;
    write("chat_template.jinja", TEMPLATE.to_string())?;
    events.line(&format!(
        "lesson: {} and what their docs say, {} of other crates held out",
        human::counted(learned.len() as u64, "function"),
        held_out.len()
    ));
    let before = look(job, None, &held_out, &folder, events)?;
    let look_s = clock.now_s() - began_s;
    let Some(setting) = left(length, look_s) else {
        events.line("no time is left for the lesson; --minutes gives it some");
        return Ok(LessonOutcome::Nothing);
    };
    let lesson = lesson_job(job, &folder, &setting, events)?;
    let trained = train(&lesson, order, events)?;
    // A lesson that ended earlier has no report here; it may have been stopped before its results were reported.
    if trained.outcome == Outcome::Interrupted {
        return Ok(LessonOutcome::Interrupted);
    }
    let after = look(job, Some(&folder.join(adapters::FOLDER)), &held_out, &folder, events)?;
    merge(&folder, &taught, events)?;
    let given_s = match length {
        Length::Until(_, given_s) => *given_s,
        Length::Steps(_) => 0.0,
    };
    let page = report_of(job, &lesson, [before, after], [clock.now_s() - began_s, given_s])?;
    Ok(LessonOutcome::Reported(Box::new(page)))
}

/// Returns the setting that limits the length of the lesson's run, if there is time for one; a measurement that takes
/// `look_s` follows it.
fn left(length: &Length, look_s: f64) -> Option<String> {
    match length {
        Length::Steps(steps) => Some(format!("stage.0.steps={steps}")),
        Length::Until(deadline, _) => {
            let left_s = deadline.left_s() - look_s - TAIL_S;
            (left_s >= LEAST_S.max(LEAST_LOOKS * look_s)).then(|| format!("run.minutes={}", left_s / 60.0))
        }
    }
}

fn lesson_job(job: &Job, folder: &Path, length: &str, events: &dyn Events) -> Result<Job> {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let mut settings = vec![
        format!("model.from={}", quoted(&job.model())),
        format!("run.out={}", quoted(folder)),
        "run.name=lesson".to_string(),
        format!("run.seed={}", job.recipe().run.seed),
        format!("data.paths=[{}]", quoted(&folder.join("learned.jsonl"))),
        format!("data.held_out_paths=[{}]", quoted(&folder.join("held_out.jsonl"))),
        format!("data.chat_template={}", quoted(&folder.join("chat_template.jinja"))),
        format!("machine.threads={}", job.recipe().machine.threads),
        // A small model has small weights, and tolerates larger steps.
        "optimizer.lr=2e-3".to_string(),
        "stage.0.epochs=none".to_string(),
        "stage.0.micro_batches=1".to_string(),
        "schedule.warmup_steps=4".to_string(),
        "eval.tokens=2k".to_string(),
        format!("stage.0.seq_tokens={}", job.trained.max_positions.min(2048)),
    ];
    settings.push(length.to_string());
    Job::new(load(layers("lora", &settings))?, events)
}

/// Measurements of the model.
struct LessonFigures {
    bits_per_byte: f64,
    /// Prompts with the model's answers.
    answers: Vec<(String, String)>,
}

/// Measures the model, with an adapter if one is given.
fn look(
    job: &Job,
    adapter: Option<&Path>,
    held_out: &[Pair],
    folder: &Path,
    events: &dyn Events,
) -> Result<LessonFigures> {
    let options = HostOptions {
        adapter: adapter.map(Path::to_path_buf),
        sequences: ANSWERED,
        context_tokens: Some(1024),
        chunk_tokens: 512,
        template: Some(folder.join("chat_template.jinja")),
        ..HostOptions::new(job.model(), &job.machine)
    };
    let host = Host::open_writer(options, &Silent)?;
    events.doing("asking it about functions of other crates");
    let (service, mut answers) = (host.service(), Vec::new());
    let question = |pair: &Pair| Conversation {
        messages: vec![json!({"role": "user", "content": pair.question()})],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let asked: Vec<Conversation> = held_out.iter().take(ANSWERED).map(question).collect();
    let request = |talk: &Conversation| GenerateRequest::greedy(talk.clone(), ANSWER_TOKENS);
    let said = host.generate_all(asked.iter().map(request).collect())?;
    for (talk, answer) in asked.iter().zip(said.into_iter().flatten()) {
        answers.push((service.render(talk)?, answer.text));
    }
    let store = Store::open(store_prefix(&job.data()))?;
    let (mut nats, mut bytes) = (0.0, 0);
    for doc in
        held_out_documents(&store, fathom_train::held_out(job.recipe(), &[&store])?)?.into_iter().take(TEXTS)
    {
        let mut ids = store.doc(doc)?;
        ids.truncate(TEXT_TOKENS);
        if ids.len() > 1 {
            let rows = host.look(std::slice::from_ref(&ids), Numbers::Logprobs)?.concat();
            nats -= rows.iter().step_by(2).map(|logprob| f64::from(*logprob)).sum::<f64>();
            bytes += service.decode(&ids[1..])?.len();
        }
    }
    Ok(LessonFigures { bits_per_byte: nats / std::f64::consts::LN_2 / bytes.max(1) as f64, answers })
}

/// Exports the model with the adapter merged.
fn merge(lesson: &Path, to: &Path, events: &dyn Events) -> Result<()> {
    let conversion = Conversion {
        from: lesson.to_path_buf(),
        to: to.to_path_buf(),
        gguf: None,
        precision: None,
        quantised: None,
        max_shard_bytes: u64::MAX,
        adapter: false,
        with: Vec::new(),
    };
    export(&conversion, events).map(drop)
}

/// Adds the lesson's results to the run's log and report.
fn report_of(
    job: &Job,
    lesson: &Job,
    seen: [LessonFigures; 2],
    [took_s, given_s]: [f64; 2],
) -> Result<Report> {
    let known = read_events(job.log())?;
    let mut done = known.iter().rev().find_map(|event| match Event::from_value(event) {
        Some(Event::Done(done)) => Some(done),
        _ => None,
    });
    let first = done.as_ref().map_or(0, |done| done.step);
    let mut steps = first;
    let mut metrics = MetricsWriter::open(job.log())?;
    let mut moments = ["before_lesson", "after_lesson"].into_iter().zip(&seen);
    for event in read_events(lesson.log())? {
        match Event::from_value(&event) {
            Some(event @ Event::Lesson(_)) => metrics.write(&event)?,
            Some(Event::EvalAnswers(answers)) => {
                let Some((when, seen)) = moments.next() else { continue };
                let (step, text_bits_per_byte) = (first + answers.step, seen.bits_per_byte);
                let when = when.to_string();
                metrics.write(&Event::EvalAnswers(ev::EvalAnswers {
                    when,
                    step,
                    text_bits_per_byte,
                    text_context_tokens: TEXT_TOKENS as u64,
                    ..answers
                }))?;
            }
            Some(Event::Done(own)) => steps += own.step,
            _ => {}
        }
    }
    for (seen, step) in seen.into_iter().zip([first, steps]) {
        for (prompt, text) in seen.answers {
            metrics.write(&Event::Sample(ev::Sample { step, prompt, text }))?;
        }
    }
    if let Some(done) = &mut done {
        done.time_s += took_s;
        done.given_s = given_s;
        metrics.write(&Event::Done(done.clone()))?;
    }
    metrics.sync()?;
    let page = job.page();
    let log = report::write(&job.folder, &page)?;
    let seconds = log.done.as_ref().map_or(0.0, |done| done.time_s);
    Ok(Report { log, page, seconds })
}
