//! Reports made from the synthetic log of a run of two stages with a resume.
#![allow(clippy::unwrap_used)]

mod damaged;
mod fixture;

use std::path::Path;

use fathom_base::metrics::{Event, MetricsWriter, events as ev};
use fathom_base::recipe::Row;
use fathom_report::{RunLog, diff, html, objective, verdict};

fn page_of(events: &[Event]) -> (String, RunLog) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    let page_path = folder.path().join("report.html");
    let log = RunLog::read(folder.path()).unwrap();
    html::write_page(&log, &page_path).unwrap();
    (std::fs::read_to_string(page_path).unwrap(), log)
}

/// Checks that every element is closed, in order. Void and self-closed elements need no end tag.
fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').expect("an element ends");
        let (tag, self_closed) = (&rest[..end], rest[..end].ends_with('/'));
        rest = &rest[end + 1..];
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "before {}", &rest[..rest.len().min(60)]);
        } else if !self_closed && !["!doctype", "meta", "input", "br"].contains(&name) {
            open.push(name);
        }
        // The content of a script or a style is not markup.
        if name == tag.split(' ').next().unwrap_or("") && ["script", "style"].contains(&name) {
            rest = &rest[rest.find(&format!("</{name}")).expect("it ends")..];
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn the_page_of_a_whole_run_holds_everything_and_loads_nothing() {
    let (page, _) = page_of(&fixture::run(1));
    // A copy to look at, in the folder that cargo provides for tests.
    let look = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    std::fs::write(look, &page).unwrap();
    assert_balanced(&page);
    for id in
        ["training", "context", "compression", "speed", "memory", "samples", "data", "recipe", "machine"]
    {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    for text in [
        "Training loss",
        "over tokens",
        "Loss by position in the document",
        "before extension",
        "after extension",
        "trained to 32k",
        "depth of the fact",
        "Memory over one step, long",
        "Plan and measurement agree to the byte at every point.",
        "Where activations live between forward and backward, long",
        "computed again where needed",
        "Of what is offloaded, the last 75.0 % of the tokens go and 25.0 % stay in memory. It is written as fp8",
        "The first two of 4 micro batches; the others are like the second.",
        "What the step itself holds at its peak: 195 MiB",
        "gradient of value 0",
        "3 more",
        "Length against memory",
        "Length against time",
        "linear (this stage)",
        "fits up to about, in 4.00 GiB",
        "Time of a step spent waiting for disk",
        "gzip -9",
        "Not read, or dropped",
        "over the byte budget",
        "a.jsonl: line 7, byte 91: not JSON: &lt;end&gt;",
        "recipe quickstart, line 4",
        "--minutes",
        "prefers-color-scheme:dark",
        "2026-11-21 08:00 UTC",
        "resumed after step 240",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // Samples are text, never markup.
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script>alert"));
    for loading in ["http://", "https://", " src=", "url(", "@import", "<link", "fetch("] {
        assert!(!page.contains(loading), "the page must load nothing: {loading}");
    }
    assert!(page.len() < 1_500_000, "{} bytes", page.len());
}

#[test]
fn rulers_figures_stand_side_by_side_with_the_price_that_the_short_context_pays() {
    let (page, _) = page_of(&fixture::run(1));
    let row = |cells: [&str; 3]| {
        let [name, before, after] = cells;
        let row =
            format!("<tr><td>{name}</td><td class=\"num\">{before}</td><td class=\"num\">{after}</td></tr>");
        assert!(page.contains(&row), "{row}");
    };
    row(["effective length", "2k", "32k"]);
    row(["mean at 2k, %", "93.0", "91.5"]);
    row(["mean at 32k, %", "4.0", "86.5"]);
    row(["vt at 2k", "89.0", "87.5"]);
    assert!(page.contains("loss within 2k, nats per token") && page.contains("not RULER's own"));
}

#[test]
fn a_page_can_be_made_at_any_moment() {
    let events = fixture::run(1);
    let (empty, _) = page_of(&[]);
    assert!(empty.contains("holds no event yet"));
    for count in [1, 2, 3, 4, 5, 6, 7, 20, events.len() - 2] {
        assert_balanced(&page_of(&events[..count]).0);
    }
    // Every event alone, then empty and broken ones.
    for event in &events {
        assert_balanced(&page_of(std::slice::from_ref(event)).0);
    }
    let nan =
        Event::Step(ev::Step { step: 1, loss: f64::NAN, tokens_per_s: f64::NAN, ..ev::Step::default() });
    let (page, _) = page_of(&[nan.clone(), nan]);
    assert_balanced(&page);
    for event in [
        Event::MemoryTimeline(ev::MemoryTimeline::default()),
        Event::Needle(ev::Needle::default()),
        Event::EvalPosition(ev::EvalPosition::default()),
        Event::EvalBits(ev::EvalBits::default()),
        Event::EvalContext(ev::EvalContext::default()),
        Event::EvalRuler(ev::EvalRuler::default()),
        Event::Data(ev::Data::default()),
        Event::Plan(ev::Plan::default()),
        Event::PlanTimeline(ev::MemoryTimeline::default()),
        Event::Placement(ev::Placement::default()),
        Event::Lengths(ev::Lengths::default()),
        Event::Lengths(ev::Lengths { lines: vec![ev::LengthLine::default()], ..Default::default() }),
        Event::Run(ev::Run::default()),
    ] {
        assert_balanced(&page_of(&[event]).0);
    }
}

#[test]
fn a_long_run_stays_a_small_page() {
    let step = |i: u64| Event::Step(fixture::step(i, 0, 1));
    let events: Vec<Event> = (1..=60_000).map(step).collect();
    let (page, _) = page_of(&events);
    assert!(page.len() < 600_000, "{} bytes", page.len());
}

#[test]
fn verdicts_compare_with_their_bars() {
    let (_, log) = page_of(&fixture::run(1));
    let verdicts = objective::verdicts(&log);
    let find = |name: &str| verdicts.iter().find(|v| v.name == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(find("held-out bits per byte").passes, Some(true));
    assert_eq!(find("needle found").passes, Some(true));
    assert!(
        find("needle found").note.starts_with("at 32k tokens, the longest tested"),
        "{}",
        find("needle found")
    );
    assert_eq!(find("worth of context").value, "+0.050 ± 0.010");
    assert_eq!(find("worth of context").passes, Some(true));
    let bits = find("held-out bits per byte");
    assert!(bits.note.ends_with("in windows of 2k tokens"), "{bits}");
    assert_eq!(find("memory").note, "pool peak, planned to the byte");
    assert_eq!((find("time").value.as_str(), find("time").passes), ("9 m 24 s", Some(true)));
    assert!(find("time").note.starts_with("of 10 m"), "{}", find("time"));
}

/// A figure of the log with some events added.
fn figure(more: Vec<Event>, name: &str) -> verdict::Verdict {
    let events = [fixture::run(1), more].concat();
    let log = RunLog::from_events(&values(&events));
    objective::verdicts(&log).into_iter().find(|verdict| verdict.name == name).unwrap()
}

#[test]
fn a_difference_within_two_standard_errors_has_no_mark() {
    for (gain, expected) in
        [(0.05, Some(true)), (0.021, Some(true)), (0.019, None), (-0.019, None), (-0.021, Some(false))]
    {
        let found = figure(vec![fixture::context("after_extension", gain)], "worth of context");
        assert_eq!(found.passes, expected, "{found}");
        assert_eq!(found.note.contains("chance"), expected.is_none(), "{found}");
    }
}

#[test]
fn the_needle_says_what_it_owes_to_the_first_weights() {
    let grid = |when: &str, accuracy: [f64; 3]| {
        Event::Needle(ev::Needle {
            when: when.into(),
            task: "passkey".into(),
            lengths_tokens: vec![1024, 2048, 16_384],
            depths: vec![0.0, 1.0],
            accuracy: vec![accuracy.to_vec(); 2],
            trials: 1,
            ..ev::Needle::default()
        })
    };
    let more = vec![grid("after_extension", [1.0, 0.9, 0.5]), grid("first_weights", [0.6, 0.4, 0.25])];
    let found = figure(more, "needle found");
    assert_eq!((found.value.as_str(), found.passes), ("50\u{a0}%", Some(false)));
    for words in [
        "at 16k tokens, the longest tested",
        "95\u{a0}% up to 2k",
        "built-in copying circuit, which found 25\u{a0}% at 16k before step 0",
        "of its tokens are look-up drills",
    ] {
        assert!(found.note.contains(words), "{words}: {}", found.note);
    }
}

#[test]
fn a_late_run_says_so() {
    let done = |time_s| vec![Event::Done(ev::RunEnd { time_s, given_s: 600.0, ..ev::RunEnd::default() })];
    assert_eq!(figure(done(605.0), "time").passes, Some(true));
    assert_eq!(figure(done(660.0), "time").passes, Some(false));
}

#[test]
fn a_plan_has_a_page_of_its_own() {
    let is_planned = |event: &Event| {
        !matches!(
            event,
            Event::Data(_) | Event::Step(_) | Event::MemoryTimeline(_) | Event::Done(_) | Event::Sample(_)
        )
    };
    let mut events: Vec<Event> = fixture::run(1).into_iter().filter(is_planned).collect();
    events.push(fixture::placement("long", 80));
    let (page, log) = page_of(&events);
    let look = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan.html");
    std::fs::write(look, &page).unwrap();
    assert!(log.is_plan());
    assert_balanced(&page);
    for text in [
        "Fathom · plan",
        "planned, not run",
        "planned for h200",
        "Planned memory over one step, long",
        "no step was run",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("<section id=\"training\">"));
}

#[test]
fn a_plan_that_drifted_is_reported() {
    let mut events = fixture::run(1);
    events.push(fixture::planned(true, 1 << 20));
    let (page, _) = page_of(&events);
    assert!(page.contains("Measured peak 285 MiB, planned 286 MiB."));
}

#[test]
fn a_repeated_step_or_evaluation_counts_once() {
    let mut events = fixture::run(1);
    let steps = RunLog::from_events(&values(&events)).steps.len();
    // A log that was not cut at the resume contains some steps twice.
    let again: Vec<Event> = (241..=260).map(|i| Event::Step(fixture::step(i, 0, 1))).collect();
    let at = events.iter().position(|e| matches!(e, Event::Step(s) if s.step == 260)).unwrap() + 1;
    events.splice(at..at, again);
    events.push(Event::EvalBits(ev::EvalBits {
        name: "held-out".into(),
        bits_per_byte: 9.0,
        ..Default::default()
    }));
    let log = RunLog::from_events(&values(&events));
    assert_eq!(log.steps.len(), steps);
    assert!(log.steps.windows(2).all(|pair| pair[0].step < pair[1].step));
    assert_eq!(log.bits.iter().find(|bits| bits.name == "held-out").unwrap().bits_per_byte, 9.0);
}

#[test]
fn two_runs_are_compared_to_the_bit() {
    let log = |seed: u64| RunLog::from_events(&values(&fixture::run(seed)));
    let same = diff::compare(&log(1), &log(1));
    assert_eq!((same.recipe.len(), same.parting.clone()), (0, None));
    assert!(same.to_string().contains("loss: the same bits in all 420 common steps\n"), "{same}");
    let mut other = log(1);
    other.steps[99].loss_bits ^= 1;
    other.run.as_mut().unwrap().recipe[1].value = "0.002".into();
    let differ = diff::compare(&log(1), &other);
    assert_eq!(differ.parting.as_ref().unwrap().step, 100);
    assert_eq!(differ.recipe.len(), 1);
    let text = differ.to_string();
    assert!(text.contains("train.lr: 0.001 (recipe quickstart, line 4) -> 0.002"), "{text}");
    assert!(text.contains("bits first differ at step 100"), "{text}");
    let none = diff::compare(&log(1), &RunLog::default());
    let end = "loss: no step in common\ncheckpoints: none of a step in common\n";
    assert!(none.to_string().ends_with(end), "{none}");
}

#[test]
fn ranks_and_their_failures_are_reported() {
    let mut events = fixture::run(1);
    let axis = |path: &str| Row { path: path.into(), value: "2".into(), source: "command line".into() };
    let Event::Run(run) = &mut events[0] else { panic!("a log begins with its run") };
    run.recipe.extend(["mesh.pp", "mesh.tp", "mesh.virtual_stages"].map(axis));
    let why = "rank 1 <died>".to_string();
    events.push(Event::Recovery(ev::Recovery { step: 300, seconds: 1.5, lost: vec![1], why }));
    let scores = [vec![0.5, 1.0], vec![1.0, 0.5], vec![1.0, 0.75]];
    let [busy_s, relative, individual] = scores;
    events.push(Event::Ranks(ev::Ranks { step: 416, busy_s, relative, individual }));
    let (page, _) = page_of(&events);
    assert_balanced(&page);
    for text in [
        "<section id=\"ranks\">",
        "How fast each rank is, after step 416",
        "<td>rank 1</td><td class=\"num\">1.0 s</td><td class=\"num\">0.50</td><td class=\"num\">0.75</td>",
        "went back to step 300 within 1.5 s: rank 1 &lt;died&gt;",
        ">recovered<",
        "<span>4 ranks</span>",
        "pool peak of the first rank",
        "Of the first rank, which",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

fn values(events: &[Event]) -> Vec<serde_json::Value> {
    events.iter().map(|event| serde_json::to_value(event).unwrap()).collect()
}

/// A figure for which a run has too few tokens is not judged, however long the run was meant to be.
#[test]
fn a_run_is_judged_by_the_tokens_that_it_trained_on() {
    let needle = |share: f64| {
        let grid = ev::Needle {
            lengths_tokens: vec![1024],
            depths: vec![0.5],
            accuracy: vec![vec![share]],
            trials: 5,
            trained_tokens: 2048,
            ..ev::Needle::default()
        };
        Event::Needle(grid)
    };
    let stages = [(0, 2048), (1, 4096)].map(|(index, seq_len_tokens)| {
        Event::Stage(ev::Stage { index, seq_len_tokens, ..ev::Stage::default() })
    });
    // 360 steps of 16,384 tokens.
    for (least_tokens, share, expected) in [
        (0, 0.2, Some(false)),
        (5_898_240, 0.2, Some(false)),
        (5_898_241, 0.2, None),
        (5_898_241, 0.9, Some(true)),
    ] {
        let run = Event::Run(ev::Run { least_tokens, ..ev::Run::default() });
        let events: Vec<Event> = [run]
            .into_iter()
            .chain(stages.clone())
            .chain([Event::Step(fixture::step(360, 0, 1))])
            .chain([needle(share), fixture::context("after_extension", -1.0)])
            .collect();
        let (page, log) = page_of(&events);
        let verdicts = objective::verdicts(&log);
        let of = |name: &str| verdicts.iter().find(|verdict| verdict.name == name).unwrap();
        let is_few = least_tokens > 5_898_240;
        let (found, context) = (of("needle found"), of("worth of context"));
        assert_eq!(found.passes, expected, "{least_tokens}");
        assert_eq!(context.passes, (!is_few).then_some(false), "{least_tokens}");
        assert_eq!(context.note.starts_with("not enough tokens; nats"), is_few, "{}", context.note);
        assert_eq!(found.note.starts_with("not enough tokens; "), expected.is_none(), "{}", found.note);
        assert_eq!(page.contains("as a rule 5\u{202f}898\u{202f}241 are needed"), is_few);
        assert_eq!(page.contains("✗"), expected == Some(false));
    }
}

/// Runs of lessons are judged by their answers, not by their loss on text.
#[test]
fn a_run_of_lessons_begins_with_its_held_out_answers() {
    let answers = |when: &str, loss: f64, token_accuracy: f64| {
        Event::EvalAnswers(ev::EvalAnswers { when: when.into(), loss, token_accuracy, ..Default::default() })
    };
    let bits = ev::EvalBits { bits_per_byte: 5.0, gzip_bits_per_byte: 3.0, bytes: 9, ..Default::default() };
    let (page, log) = page_of(&[
        Event::Lesson(ev::Lesson::default()),
        answers("before_training", 4.0, 0.25),
        Event::Step(fixture::step(1, 0, 1)),
        Event::EvalBits(bits),
        answers("after_training", 2.0, 0.75),
    ]);
    assert_balanced(&page);
    let first = page.split_once("<section id=").unwrap().1;
    assert!(
        first.starts_with("\"lessons\"><h2>Lessons</h2>\n<div class=\"row\"><figure"),
        "{}",
        &first[..99]
    );
    for text in ["Loss of held-out answers", "before training", "Accuracy of held-out answers"] {
        assert!(first.split_once("</section>").unwrap().0.contains(text), "{text}");
    }
    assert!(!page.contains("gzip"));
    assert!(objective::verdicts(&log).iter().all(|figure| figure.passes != Some(false)));
}
