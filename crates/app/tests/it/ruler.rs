//! RULER's tasks before and after an extension, in its report.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fathom_app::tasks::{Request, tasks};
use fathom_app::train::Order;
use fathom_app::{Event, Events, Job, Machine, Silent, library, train};
use fathom_base::metrics::events::EvalRuler;
use fathom_base::tokens;
use fathom_report::RunLog;
use fathom_train::Outcome;
use fathom_train::recipe::MachineKind;

use crate::TextSink;

/// Asks the run to stop after its first step.
struct Stopper(Arc<AtomicBool>, TextSink);

impl Events for Stopper {
    fn on(&self, event: Event) {
        if matches!(event, Event::Step { .. }) {
            self.0.store(true, Ordering::Relaxed);
        }
        self.1.on(event);
    }
}

/// A model of 256 tokens whose tokenizer has the words of RULER's noise.
fn base(folder: &Path) {
    let text = folder.join("text");
    fs::create_dir(&text).unwrap();
    let noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";
    let one =
        |n: usize| format!("{noise}VAR ABCDE = {n} The special magic number for key-{n} is: {}.\n", n * 7);
    for file in 0..20 {
        let lines: String = (0..40).map(|n| one(10_000 + 97 * n + file)).collect();
        fs::write(text.join(format!("{file:02}.txt")), lines).unwrap();
    }
    let settings = ["eval.enabled=false", "model.vocab=512", "stage.0.steps=1", "stage.1.steps=1"];
    train(&crate::small(folder, &settings), &Order::default(), &Silent).unwrap();
}

fn extension(folder: &Path, settings: &[&str]) -> Job {
    let own = [
        format!("model.from={}", folder.join("run").display()),
        format!("data.paths=[{:?}]", folder.join("text").display().to_string()),
        format!("run.out={}", folder.join("extended").display()),
    ];
    let keys = [
        "machine.kind=cpu",
        "machine.threads=1",
        "data.held_out_share=0.2",
        "data.document_bytes=8192",
        "data.curate=none",
        "stage.0.seq_tokens=1536",
        "stage.0.steps=2",
        "stage.0.min_doc_tokens=0",
        "eval.needle_trials=0",
        "eval.ruler_rows=1",
    ];
    let all: Vec<String> =
        own.into_iter().chain(keys.iter().chain(settings).map(ToString::to_string)).collect();
    Job::new(library::load(library::layers("extend", &all)).unwrap(), &Silent).unwrap()
}

#[test]
fn an_extension_asks_rulers_rows_before_its_first_step_and_after_its_last_and_reports_both() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let job = extension(folder.path(), &["eval.ruler=[1536]"]);
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = Stopper(stop.clone(), TextSink::default());
    let stopped = train(&job, &Order { stop, ..Order::default() }, &stopper).unwrap();
    assert_eq!((stopped.outcome, stopper.1.count("measured: before_extension")), (Outcome::Interrupted, 1));

    // A resumed run measures what is left.
    let heard = TextSink::default();
    let trained = train(&job, &Order::default(), &heard).unwrap();
    assert_eq!(trained.outcome, Outcome::Finished, "{}", heard.all());
    assert_eq!([heard.count("measured: before"), heard.count("measured: after")], [0, 1], "{}", heard.all());
    let log = RunLog::read(&job.folder).unwrap();
    let whens: Vec<&str> = log.rulers.iter().map(|eval| eval.when.as_str()).collect();
    assert_eq!(whens, ["before_extension", "after_extension"]);
    let lengths = |eval: &EvalRuler| {
        eval.lengths.iter().map(|length| (length.tokens, length.tasks.len())).collect::<Vec<_>>()
    };
    for eval in &log.rulers {
        assert_eq!((lengths(eval), eval.rows, eval.all_tasks), (vec![(1536, 6)], 1, false));
    }
    let page = fs::read_to_string(trained.report.unwrap().page).unwrap();
    let short = log.positions[0].trained_tokens.min(1536);
    let loss = format!("loss within {}, nats per token", tokens::format(short));
    for text in ["<h3>RULER</h3>", "effective length", "mean at 1536, %", &loss, "vt at 1536"] {
        assert!(page.contains(text), "{text}");
    }

    // The same rows as those of `fathom eval --tasks`.
    let request = Request {
        model: job.folder.clone(),
        tasks: vec!["ruler_offline_1536".into()],
        lengths: vec![1536],
        limit: Some(1.0),
        ..Request::default()
    };
    let machine = Machine::of_kind(MachineKind::Cpu, 1, &Silent);
    let asked = tasks(&request, &machine, &Silent).unwrap();
    let scores = &asked.json["ruler"]["lengths"][0]["tasks"];
    for (task, score) in &log.rulers[1].lengths[0].tasks {
        assert_eq!(scores[task].as_f64(), Some(*score), "{task}");
    }
}

/// A length that cannot be asked ends the run before its first step.
#[test]
fn rulers_lengths_that_cannot_be_asked_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let refused = |settings: &[&str]| {
        let heard = TextSink::default();
        let error =
            train(&extension(folder.path(), settings), &Order::default(), &heard).err().unwrap().to_string();
        assert_eq!(heard.count("step: "), 0);
        error
    };
    let cases: [(&[&str], &str); 4] = [
        (&["eval.ruler=[600]"], "the length is 600; ask for a longer one"),
        (&["eval.ruler=[1536]", "eval.ruler_data=/nowhere"], "PaulGrahamEssays.json"),
        (&["eval.ruler=[1024,2048]"], "asks at 2048 tokens, and the longest stage has 1536"),
        (&["eval.ruler=[1536]", "eval.enabled=false"], "nothing is evaluated"),
    ];
    for (settings, message) in cases {
        let error = refused(settings);
        assert!(error.contains(message), "{error}");
    }
    let error = refused(&["eval.ruler=[1536]", "run.minutes=1", "stage.0.steps=none"]);
    assert!(error.contains("whatever time is left"), "{error}");
}
