//! A synthetic run: two stages, a resume, evaluations before and after extension. Numbers come from formulas and a
//! counter-based hash; shapes are those of a real quickstart.

use fathom_base::machine_facts::MachineFacts;
use fathom_base::metrics::{Event, events as ev};
use fathom_base::recipe::Row;

const SHORT_STEPS: u64 = 360;
const STEPS: u64 = 420;

/// A number from -1 to 1 that depends only on two keys (splitmix64).
fn noise(a: u64, b: u64) -> f64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Step `i` of a stage.
pub fn step(i: u64, stage: u64, seed: u64) -> ev::Step {
    let x = i as f64;
    let loss = 2.1 + 6.9 * (-x / 45.0).exp() + 0.9 * (-x / 200.0).exp() + 0.08 * noise(i, seed);
    let long = stage == 1;
    let step_s = if long { 2.1 } else { 1.2 } * (1.0 + 0.04 * noise(i, seed + 1).abs());
    let tokens = if long { 32_768 } else { 16_384 };
    let warm = (x / 20.0).min(1.0);
    let last = STEPS as f64;
    ev::Step {
        step: i,
        stage,
        tokens_total: i * 16_384 + i.saturating_sub(SHORT_STEPS) * 16_384,
        loss,
        loss_bits: (loss as f32).to_bits(),
        lr: 1e-3 * warm * (0.55 + 0.45 * (std::f64::consts::PI * x.min(last) / last).cos()),
        learning_rate: f64::NAN,
        num_tokens: 0,
        grad_norm: 0.4 + 3.0 * (-x / 30.0).exp() + 0.1 * noise(i, seed + 2).abs(),
        tokens_per_s: tokens as f64 / step_s,
        model_tflops: if long { 0.62 } else { 0.48 } * (1.0 + 0.03 * noise(i, seed + 3)),
        step_s,
        data_wait_s: 0.0004,
        stall_s: if long { 0.01 * noise(i, seed + 4).abs() } else { 0.0 },
        expert_load: 0.0,
        spill_bytes: if long { 96 << 20 } else { 0 },
        pool_peak_bytes: peak(long),
        rss_bytes: peak(long) + (21 << 20),
        time_s: if long { SHORT_STEPS as f64 * 1.22 + (i - SHORT_STEPS) as f64 * 2.12 } else { x * 1.22 },
        metrics: Default::default(),
        named: Default::default(),
    }
}

fn peak(long: bool) -> u64 {
    let (labels, lines) = timeline(long);
    (0..labels.len()).map(|i| lines.iter().map(|line| line[i]).sum()).max().unwrap()
}

const CATEGORIES: [&str; 6] = ["params", "grads", "optimizer", "data", "activations", "workspace"];

fn timeline(long: bool) -> (Vec<String>, Vec<Vec<u64>>) {
    let mib = 1u64 << 20;
    let (layers, unit) = (6u64, if long { 9 * mib } else { 5 * mib });
    let mut labels = Vec::new();
    let mut lines = vec![Vec::new(); CATEGORIES.len()];
    let mut push = |label: String, activations: u64, workspace: u64| {
        labels.push(label);
        let now = [26 * mib, 52 * mib, 104 * mib, mib, activations, workspace];
        lines.iter_mut().zip(now).for_each(|(line, bytes)| line.push(bytes));
    };
    let ops = ["norm", "qkv", "attention", "projection", "gate", "up", "down"];
    for pass in ["forward", "backward"] {
        for l in 0..layers {
            let layer = if pass == "forward" { l } else { layers - 1 - l };
            for (o, op) in ops.iter().enumerate() {
                let kept = if pass == "forward" { l + 1 } else { layers - l } * unit;
                let local = unit / 4 * (1 + o as u64 % 4);
                let recomputed = if pass == "backward" { unit } else { 0 };
                push(
                    format!("layer {layer} {op} {pass}"),
                    kept + local + recomputed,
                    (o as u64 % 3) * 6 * mib,
                );
            }
        }
        if pass == "forward" {
            push("head and loss".into(), layers * unit + 2 * unit, 30 * mib);
        }
    }
    push("adamw".into(), 0, 2 * mib);
    (labels, lines)
}

fn memory(long: bool) -> Event {
    let (labels, live_bytes) = timeline(long);
    Event::MemoryTimeline(ev::MemoryTimeline {
        step: if long { SHORT_STEPS + 2 } else { 2 },
        stage: if long { "long" } else { "short" }.into(),
        categories: CATEGORIES.map(String::from).to_vec(),
        micro_batches: 4,
        phases: phases(&labels),
        labels,
        live_bytes,
        at_peak: at_peak(),
        planned_peak_bytes: peak(long),
    })
}

fn at_peak() -> Vec<ev::LiveValue> {
    let value = |i: u64| ev::LiveValue {
        name: format!("value {i}"),
        gradient: i.is_multiple_of(2),
        category: "activations".into(),
        layers: 6 - i % 6,
        bytes: (20 - i) << 20,
    };
    (0..15).map(value).collect()
}

fn phases(labels: &[String]) -> Vec<ev::Phase> {
    let begins = |phase: (&str, &str)| {
        let from = labels.iter().position(|label| label.ends_with(phase.1)).unwrap() as u64;
        ev::Phase { name: phase.0.into(), from }
    };
    [("forward", "forward"), ("backward", "loss"), ("update", "adamw")].map(begins).to_vec()
}

/// The planned timeline: equal to that of the step, or off by a drift.
pub fn planned(long: bool, drift: u64) -> Event {
    let Event::MemoryTimeline(mut timeline) = memory(long) else { unreachable!() };
    timeline.step = if long { SHORT_STEPS } else { 0 };
    timeline.live_bytes.last_mut().unwrap().iter_mut().for_each(|bytes| *bytes += drift);
    Event::PlanTimeline(timeline)
}

/// Placements of a model of `layers` layers whose second half goes to disk.
pub fn placement(stage: &str, layers: i64) -> Event {
    let names = [
        ("block.in", 384, "keep", true),
        ("attn.norm", 384, "recompute", false),
        ("attn.qkv", 640, "recompute", false),
        ("attn.out", 384, "disk", true),
        ("attn.lse", 6, "keep", true),
        ("mlp.up", 2048, "recompute", false),
        ("mlp.act", 1024, "recompute", false),
        ("mlp.down", 384, "keep", false),
    ];
    let placed = |half: usize| {
        let one = |(name, cols, place, held): (&str, u64, &str, bool)| ev::PlacedActivation {
            name: name.into(),
            cols,
            dtype: if name.ends_with("lse") { "f32" } else { "bf16" }.into(),
            bytes: 32_768 * cols * 2,
            place: if half == 0 && place == "disk" { "keep" } else { place }.into(),
            held,
        };
        names.map(one).to_vec()
    };
    let outside = |name: &str| ev::PlacedSegment {
        layers: vec![-1],
        activations: vec![ev::PlacedActivation {
            name: name.into(),
            place: "keep".into(),
            ..placed(0)[0].clone()
        }],
    };
    let half = |half: i64| ev::PlacedSegment {
        layers: (half * layers / 2..(half + 1) * layers / 2).collect(),
        activations: placed(half as usize),
    };
    let segments = vec![outside("embed"), half(0), half(1), outside("final.norm")];
    Event::Placement(ev::Placement {
        stage: stage.into(),
        tokens: 32_768,
        offloaded_share: Some(0.75),
        codec: "fp8".into(),
        segments,
    })
}

fn lengths() -> Event {
    let line = |(name, bytes, seconds): (&str, f64, f64)| {
        let point = |power: i32| {
            let tokens = 32_768.0 * 2f64.powi(power);
            ev::LengthPoint {
                tokens: tokens as u64,
                step_tokens: tokens as u64,
                peak_bytes: (2e8 + bytes * tokens) as u64,
                disk_bytes: if name.contains("disk") { (bytes * tokens) as u64 } else { 0 },
                step_s: Some(tokens * (seconds + 1e-9 * tokens)),
            }
        };
        ev::LengthLine { name: name.into(), points: (-3..=3).map(point).collect() }
    };
    let lines = [
        ("linear (this stage)", 9e3, 6e-5),
        ("none", 6e4, 5e-5),
        ("full", 6e3, 8e-5),
        ("full, inputs on disk", 5e3, 8.1e-5),
    ];
    Event::Lengths(ev::Lengths {
        stage: "long".into(),
        tokens: 32_768,
        budget_bytes: 4 << 30,
        lines: lines.map(line).to_vec(),
    })
}

fn plan(long: bool) -> Event {
    let (labels, lines) = timeline(long);
    let sum = |i: &usize| lines.iter().map(|line| line[*i]).sum::<u64>();
    let at = (0..labels.len()).max_by_key(sum).unwrap();
    Event::Plan(ev::Plan {
        stage: if long { "long" } else { "short" }.into(),
        peak_live_bytes: peak(long),
        peak_reserved_bytes: peak(long) + (3 << 20),
        by_category: CATEGORIES.iter().zip(&lines).map(|(name, line)| (name.to_string(), line[at])).collect(),
        profile: "h200".into(),
        peak_op: labels[at].clone(),
        step_flops: if long { 1.3e12 } else { 5.8e11 },
        hardware_flops: if long { 1.6e12 } else { 5.8e11 },
        disk_peak_bytes: if long { 48 << 20 } else { 0 },
        disk_bytes: if long { 96 << 20 } else { 0 },
        step_s: long.then_some(2.05),
    })
}

fn positions(when: &str, step: u64, trained: u64, slope_beyond: f64) -> Event {
    let mut buckets = Vec::new();
    let (mut from, mut to) = (0u64, 128u64);
    while to <= 32_768 {
        let middle = ((from.max(1) as f64) * to as f64).sqrt();
        let within = 3.6 - 0.17 * middle.log2();
        let beyond = (to as f64 / trained as f64).log2().max(0.0) * slope_beyond;
        buckets.push(ev::PositionBucket { from, to, loss: within + beyond, tokens: 20 * (to - from) });
        (from, to) = (to, to * 2);
    }
    Event::EvalPosition(ev::EvalPosition { when: when.into(), step, trained_tokens: trained, buckets })
}

fn needle(when: &str, step: u64, trained: u64) -> Event {
    let lengths = vec![512, 1024, 2048, 4096, 8192, 16_384, 32_768];
    let depths = vec![0.0, 0.25, 0.5, 0.75, 1.0];
    let cell = |d: usize, length: u64| -> f64 {
        let beyond = (length as f64 / trained as f64).log2().max(0.0);
        let share = 0.97 - 0.33 * beyond - 0.05 * noise(d as u64, length).abs();
        ((share * 20.0).round() / 20.0).clamp(0.0, 1.0)
    };
    let accuracy =
        (0..depths.len()).map(|d| lengths.iter().map(|length| cell(d, *length)).collect()).collect();
    let task = "passkey".to_string();
    let (when, trials) = (when.to_string(), 20);
    Event::Needle(ev::Needle {
        when,
        step,
        task,
        lengths_tokens: lengths,
        depths,
        accuracy,
        trials,
        trained_tokens: trained,
    })
}

fn row(path: &str, value: &str, source: &str) -> Row {
    Row { path: path.into(), value: value.into(), source: source.into() }
}

fn start() -> Vec<Event> {
    let source = |name: &str, documents, bytes| ev::DataSource { name: name.into(), documents, bytes };
    let entry = |name: &str, value: &str| ev::NameValue { name: name.into(), value: value.into() };
    let machine = MachineFacts {
        cpu: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz".into(),
        cores: 2,
        instructions: ["AVX2", "FMA", "AVX-512", "AVX-512 BF16", "AMX-BF16"].map(String::from).to_vec(),
        memory_bytes: 24 << 30,
        memory_available_bytes: 20 << 30,
        kernel: "linux 6.1.0".into(),
        architecture: "x86_64".into(),
    };
    vec![
        Event::Run(ev::Run {
            name: "quickstart".into(),
            version: "0.1.0".into(),
            start_unix_s: 1_795_248_000,
            command: "fathom quickstart --minutes 10".into(),
            recipe: vec![
                row("model.family", "\"llama\"", "default"),
                row("train.lr", "0.001", "recipe quickstart, line 4"),
                row("train.minutes", "10", "--minutes"),
                row("train.clip", "1.0", "default"),
                row("stage.0.tokens", "2048", "recipe quickstart, line 9"),
                row("stage.1.tokens", "32768", "recipe quickstart, line 13"),
                row("stage.1.rope.type", "\"yarn\"", "recipe quickstart, line 14"),
            ],
            machine,
            least_tokens: 0,
        }),
        Event::Data(ev::Data {
            documents: 9_214,
            tokens: 31_457_280,
            bytes: 118_000_000,
            duplicate_documents: 412,
            synthetic_share: 0.1,
            held_out_documents: 96,
            sources: (0..15).map(|i| source(&format!("crate-{i}"), 40 + i, 900_000 * (i + 1))).collect(),
            vocabulary: 8192,
            seconds: 14.2,
            dropped: [("over the byte budget", 3, 13_000_000), ("not JSON", 12, 900)]
                .map(|(reason, documents, bytes)| ev::DroppedText { reason: reason.into(), documents, bytes })
                .to_vec(),
            supervised_tokens: 0,
            damage: vec!["a.jsonl: line 7, byte 91: not JSON: <end>".into()],
        }),
        Event::Model(ev::Model {
            family: "llama".into(),
            params: 13_600_000,
            config: [
                ("layers", "6"),
                ("hidden", "384"),
                ("heads", "6"),
                ("KV heads", "2"),
                ("vocabulary", "8192"),
            ]
            .map(|(name, value)| entry(name, value))
            .to_vec(),
            init: "induction".into(),
        }),
    ]
}

/// A gain from 32K of context, with a standard error of a hundredth.
pub fn context(when: &str, gain: f64) -> Event {
    Event::EvalContext(ev::EvalContext {
        when: when.into(),
        step: STEPS,
        full_tokens: 32_768,
        cut_tokens: 2048,
        full_loss: 2.25,
        cut_loss: 2.25 + gain,
        standard_error: 0.01,
        tokens: 32_768,
        blocks: 32,
    })
}

/// RULER's tasks at the short and the long length.
fn ruler(when: &str, trained_tokens: u64, means: [f64; 2]) -> Event {
    let length = |(tokens, mean): (u64, f64)| ev::RulerLength {
        tokens,
        mean,
        tasks: vec![("niah_single_1".into(), mean + 4.0), ("vt".into(), mean - 4.0)],
    };
    let lengths: Vec<ev::RulerLength> = [2048, 32_768].into_iter().zip(means).map(length).collect();
    let reached = lengths.iter().filter(|length| length.mean >= 85.6).map(|length| length.tokens).max();
    Event::EvalRuler(ev::EvalRuler {
        when: when.into(),
        step: STEPS,
        trained_tokens,
        threshold: 85.6,
        effective_tokens: reached.unwrap_or(0),
        all_tasks: false,
        rows: 20,
        lengths,
    })
}

/// All events of the run.
pub fn run(seed: u64) -> Vec<Event> {
    let mut events = start();
    for stage in 0..2 {
        let long = stage == 1;
        let (first, last) = if long { (SHORT_STEPS, STEPS) } else { (0, SHORT_STEPS) };
        events.push(plan(long));
        events.push(planned(long, 0));
        events.push(placement(if long { "long" } else { "short" }, 6));
        if long {
            events.push(lengths());
        }
        events.push(Event::Stage(ev::Stage {
            name: if long { "long" } else { "short" }.into(),
            index: stage,
            seq_len_tokens: if long { 32_768 } else { 2048 },
            start_step: first,
            steps: last - first,
            rope: if long { "yarn x16, base 500000" } else { "base 10000" }.into(),
            drill_share: if long { 0.0 } else { 0.3 },
        }));
        for i in first + 1..=last {
            events.push(Event::Step(step(i, stage, seed)));
            if i == first + 2 {
                events.push(memory(long));
            }
            if i % 120 == 0 {
                events.push(Event::Checkpoint(ev::Checkpoint {
                    step: i,
                    seconds: 0.41,
                    stall_s: 0.006,
                    bytes: 163 << 20,
                }));
            }
            if i == 240 {
                events.push(Event::Resume(ev::Resume { step: 240, unix_s: 1_795_248_400 }));
            }
        }
        let (when, trained) = if long { ("after_extension", 32_768) } else { ("before_extension", 2048) };
        events.push(positions(when, last, trained, 0.8));
        events.push(needle(when, last, trained));
        events.push(ruler(when, trained, if long { [91.5, 86.5] } else { [93.0, 4.0] }));
    }
    events.push(context("after_extension", 0.05));
    for (name, ours, gzip) in [("rust", 1.41, 1.98), ("markdown", 1.93, 2.61), ("held-out", 1.58, 2.17)] {
        let (name, bytes) = (name.to_string(), 2_400_000);
        events.push(Event::EvalBits(ev::EvalBits {
            name,
            step: STEPS,
            bits_per_byte: ours,
            gzip_bits_per_byte: gzip,
            bytes,
            context_tokens: 2048,
        }));
    }
    let text = " self.len() == 0\n    }\n    // <script>alert(1)</script> & more\n    pub fn iter(&self) -> Iter<'_, T> {\n";
    events.push(Event::Sample(ev::Sample {
        step: STEPS,
        prompt: "pub fn is_empty(&self) -> bool {\n       ".into(),
        text: text.into(),
    }));
    events.push(Event::Done(ev::RunEnd {
        step: STEPS,
        time_s: 564.0,
        tokens_total: STEPS * 16_384 + (STEPS - SHORT_STEPS) * 16_384,
        peak_rss_bytes: 612 << 20,
        model_path: "model".into(),
        given_s: 600.0,
    }));
    events
}
