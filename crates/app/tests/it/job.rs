//! A job, from its recipe to a model that answers.

use fathom_app::evaluate::Request as Measurement;
use fathom_app::export::Conversion;
use fathom_app::generate::Request;
use fathom_app::train::Order;
use fathom_app::{Machine, Silent, evaluate, export, generate, models, plan, train};
use fathom_base::{Flow, Sampling};
use fathom_train::Outcome;
use fathom_train::recipe::MachineKind;

use crate::{TextSink, small};

/// A job that is resolved once gives the figures that the program prints.
#[test]
fn a_recipe_is_planned_trained_measured_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let job = small(folder.path(), &[]);
    assert_eq!((job.stages.len(), job.world()), (3, 1));
    assert!(job.trained.max_positions >= job.stages[0].spec.max_positions);

    let plans = plan(&job, None).unwrap();
    let planned: Vec<u64> = plans
        .stages(plan::PlanOptions::default(), &Silent)
        .map(|stage| stage.unwrap().figures.settled.plan.usage.peak_live)
        .collect();
    assert!(planned.len() == 3 && planned[0] < planned[2], "{planned:?}");

    let heard = TextSink::default();
    let trained = train(&job, &Order { command: "a test".into(), ..Order::default() }, &heard).unwrap();
    assert_eq!((trained.outcome, trained.unsaved), (Outcome::Finished, None));
    let report = trained.report.unwrap();
    assert!(report.page.is_file() && report.log.samples.len() == 1);
    assert_eq!([heard.count("stage: "), heard.count("step: "), heard.count("trained")], [3, 6, 1]);
    assert!(heard.count("progress: ") > 0 && heard.count("measured: ") == 3, "{}", heard.all());
    // Steps run with their stage's plan.
    let stages = heard.all();
    let peaks = stages.lines().filter_map(|line| line.strip_prefix("stage: ")?.rsplit(' ').next());
    assert_eq!(peaks.map(|peak| peak.parse().unwrap()).collect::<Vec<u64>>(), planned);

    let again = train(&job, &Order::default(), &heard).unwrap();
    assert!(again.report.is_none() && heard.all().contains("is finished already"), "{}", heard.all());

    let machine = Machine::of_kind(MachineKind::Cpu, 0, &Silent);
    let what = Measurement { model: job.folder.clone(), tokens: Some(64), ..Measurement::default() };
    let found = evaluate(&what, &machine, &Silent).unwrap();
    assert!(found.figures.bits.unwrap().bits_per_byte > 0.0 && found.figures.needles.is_none());

    let model = models::open(&job.folder, None, &machine, &Silent).unwrap();
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let request = Request { prompt: "the old".into(), sampling, max_tokens: Some(4), context_tokens: None };
    let mut text = String::new();
    let mut stream = |piece: &str| {
        text += piece;
        Flow::Continue
    };
    let answer = generate(&model, &request, &mut stream).unwrap();
    assert!(!answer.ids.is_empty() && answer.ids.len() <= 4, "{text}");
    assert_eq!(generate(&model, &request, &mut |_| Flow::Continue).unwrap().ids, answer.ids);

    let to = folder.path().join("exported");
    let conversion = Conversion {
        from: job.folder.clone(),
        gguf: None,
        to: to.clone(),
        precision: None,
        quantised: None,
        max_shard_bytes: u64::MAX,
        adapter: false,
        with: Vec::new(),
    };
    assert!(export(&conversion, &Silent).unwrap().weights > 0 && to.join("config.json").is_file());
}

/// Ranks as threads: only the first reports, and all take part.
#[test]
fn ranks_are_threads_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let job = small(
        folder.path(),
        &["mesh.dp=2", "stage.0.micro_batches=2", "stage.1.micro_batches=2", "stage.2.micro_batches=2"],
    );
    let job = match job.world() {
        2 => job,
        ranks => panic!("{ranks} ranks"),
    };
    let heard = TextSink::default();
    let trained = train(&job, &Order::default(), &heard).unwrap();
    assert_eq!((trained.outcome, heard.count("step: ")), (Outcome::Finished, 6), "{}", heard.all());
    assert!(job.folder.join("model/config.json").is_file());
}

/// The refusal comes before anything is planned, and not as a panic.
#[test]
fn experts_that_ranks_do_not_divide_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "model.family=mixtral",
        "model.init=normal",
        "moe.experts=3",
        "moe.top_k=1",
        "mesh.dp=2",
        "mesh.ep=2",
        "stage.0.micro_batches=2",
        "stage.1.micro_batches=2",
        "stage.2.micro_batches=2",
    ];
    let job = small(folder.path(), &more);
    let error = train(&job, &Order::default(), &Silent).err().unwrap().to_string();
    assert!(error.contains("mesh.ep") || error.contains("ep=2"), "{error}");
}
