//! Several adapters over one base: an answer has the bits that the adapter's own model gives it alone, whatever runs
//! with it, and cached prefixes of one adapter are not used for another.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use fathom_base::{Flow, GenerateRequest, Prompt, Sampling};
use fathom_engine::{Engine, Limits, Scheduler, StoreLocation};
use fathom_model::{Model, ModelView, load_peft, open, open_peft, share_base, shared_bytes};
use fathom_tensor::{DType, PageFormat};

use crate::batch::{AnswerBits, Bed, listen, together};

const BASE: &str = "../golden_adapters/llama";
/// Low-rank terms, of attention alone and of everything; magnitudes; factors; terms of different ranks by projection,
/// with biases, of one layer. One rank exceeds the projections' smaller side.
const CASES: [&str; 8] = [
    "lora_attention",
    "lora_all_linear",
    "dora",
    "ia3",
    "lora_patterns",
    "lora_bias",
    "lora_layers",
    "lora_wide",
];

pub fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_adapters").join(case)
}

fn folder(case: &str) -> PathBuf {
    golden(case).join("after")
}

/// The model that `fathom generate --adapter` uses.
fn adapted(case: &str, dtype: DType) -> Bed {
    adapted_over("llama", case, dtype)
}

fn adapted_over(base: &str, case: &str, dtype: DType) -> Bed {
    let bed = Bed::new(&format!("../golden_adapters/{base}"), dtype);
    let base = open(&golden(base)).unwrap();
    let (spec, tensors) = open_peft(&folder(case), base.spec).unwrap();
    let (model, mut params) = Model::declare(&bed.device, &spec, dtype);
    load_peft(&bed.device, &model, &mut params, (&base.source, &tensors)).unwrap();
    Bed { model, params, ..bed }
}

/// Requests to the base and to each adapter in turn, with common prefixes.
fn requests(vocab: usize) -> Vec<GenerateRequest> {
    let word = |at: u32| (at * 7919 + 13) % vocab as u32;
    let request = |index: u32| {
        let own = (0..20 + 30 * index).map(|at| word(at * 31 + index));
        let ids: Vec<u32> = (0..150).map(word).chain(own).collect();
        let temperature = if index.is_multiple_of(2) { 0.0 } else { 0.9 };
        let sampling =
            Sampling { temperature, seed: u64::from(index), max_tokens: 20, ..Sampling::default() };
        let adapter = CASES.get(index as usize % (CASES.len() + 1)).map(|case| case.to_string());
        GenerateRequest { adapter, logprobs: Some(0), ..GenerateRequest::new(ids, sampling) }
    };
    (0..10).map(request).collect()
}

fn alone(beds: &[Bed], request: &GenerateRequest) -> AnswerBits {
    let at = CASES.iter().position(|case| request.adapter.as_deref() == Some(case));
    let engine = beds[at.unwrap_or(CASES.len())].engine(4096);
    let request = GenerateRequest { adapter: None, ..request.clone() };
    together(&engine, engine.capacity(1, 600), &[request], 0).swap_remove(0)
}

#[test]
fn answers_among_other_adapters_have_the_bits_of_the_adapters_own_models() {
    for dtype in [DType::F32, DType::Bf16] {
        let mut beds: Vec<Bed> = CASES.iter().map(|case| adapted(case, dtype)).collect();
        beds.push(Bed::new(BASE, dtype));
        let bed = &beds[CASES.len()];
        let requests = requests(bed.model.spec.vocab);
        let alone: Vec<AnswerBits> = requests.iter().map(|request| alone(&beds, request)).collect();
        // Their answers differ.
        assert!(alone[0] != alone[9] && requests[0].adapter == requests[9].adapter);
        let plain = |at: usize| GenerateRequest { adapter: None, ..requests[at].clone() };
        (0..8).for_each(|at| assert!(alone[at] != self::alone(&beds, &plain(at)), "{}", CASES[at]));
        for (chunk_tokens, sequences, apart) in [(4096, 8, 0), (37, 3, 1)] {
            let engine = bed.engine(chunk_tokens);
            CASES.iter().for_each(|case| engine.load_adapter(case, &folder(case)).unwrap());
            let few = fathom_engine::Capacity { sequences, ..engine.capacity(2, 600) };
            for capacity in [engine.capacity(8, 600), few] {
                assert_eq!(together(&engine, capacity, &requests, apart), alone, "{dtype:?} {chunk_tokens}");
            }
        }
    }
}

/// Only adapters that just change outputs of projections share the base's pass.
#[test]
fn terms_join_the_products_of_the_base() {
    for (case, terms) in [
        ("lora_attention", Some(4)),
        ("lora_all_linear", Some(8)),
        ("lora_patterns", Some(4)),
        ("lora_bias", Some(4)),
        ("lora_layers", Some(2)),
        ("lora_wide", Some(2)),
        ("dora", Some(8)),
        ("ia3", Some(4)),
    ] {
        let Bed { device, model, params, .. } = adapted(case, DType::F32);
        assert_eq!(model.terms(&device, &params).map(|terms| terms.len()), terms, "{case}");
    }
}

/// Terms of experts are not terms of the base's projections: their rows have a separate pass, alongside the base's and
/// those that share it.
#[test]
fn adapters_that_do_more_have_a_pass_of_their_own() {
    as_their_own_models("mixtral", &["experts_each", "experts_stacked"], DType::F32);
    for case in ["experts_each", "experts_stacked"] {
        let Bed { device, model, params, .. } = adapted_over("mixtral", case, DType::F32);
        assert!(model.terms(&device, &params).is_none());
    }
    // This includes biases of norms.
    as_their_own_models("gpt2", &["gpt2_lora", "gpt2_bias"], DType::F32);
    assert_eq!(shared_terms("gpt2", "gpt2_bias"), None);
}

/// Biases trained by PEFT in addition to the terms (`bias`): of adapted modules, or of all. In the fused weight of
/// queries, keys and values, only keys keep the base's.
#[test]
fn biases_of_an_adapter_are_in_place_of_the_bases() {
    for dtype in [DType::F32, DType::Bf16] {
        as_their_own_models("qwen2", &["qwen2_lora_only", "qwen2_all"], dtype);
    }
    // In each of two layers, the weight of queries, keys and values, and another.
    for case in ["qwen2_lora_only", "qwen2_all"] {
        assert_eq!(shared_terms("qwen2", case), Some(4), "{case}");
    }
}

/// Number of projections for which an adapter over a shared base has terms; `None` if it has a separate pass.
fn shared_terms(base: &str, case: &str) -> Option<usize> {
    let Bed { device, model, params, .. } = Bed::new(&format!("../golden_adapters/{base}"), DType::F32);
    let (spec, tensors) = open_peft(&folder(case), model.spec.clone()).unwrap();
    let bytes =
        shared_bytes(ModelView { device: &device, model: &model, params: &params }, (&spec, &tensors));
    let before = device.pool.usage().live;
    let (own, own_params) =
        share_base(ModelView { device: &device, model: &model, params: &params }, (&spec, &tensors)).unwrap();
    // Memory used, with each tensor in whole granules.
    let (taken, granule) = (device.pool.usage().live - before, device.machine.profile().granule);
    assert!(bytes <= taken && taken <= bytes + 60 * granule, "{case}: {taken} of {bytes}");
    own.terms(&device, &own_params).map(|terms| terms.len())
}

/// Requests to the base and to two adapters over it are answered together as by their own models.
fn as_their_own_models(base: &str, cases: &[&str; 2], dtype: DType) {
    let bed = Bed::new(&format!("../golden_adapters/{base}"), dtype);
    let beds = cases.map(|case| adapted_over(base, case, dtype));
    let engine = bed.engine(50);
    cases.iter().for_each(|case| engine.load_adapter(case, &folder(case)).unwrap());
    let request = |index: u32| GenerateRequest {
        logprobs: Some(0),
        ..GenerateRequest::greedy(
            (0..20 + 6 * index).map(|at| (at * 7 + index) % 90).collect::<Vec<u32>>(),
            12,
        )
    };
    let plain: Vec<GenerateRequest> = (0..6).map(request).collect();
    let alone: Vec<AnswerBits> = (0..6)
        .map(|at| {
            let engine = beds.get(at % 3).unwrap_or(&bed).engine(4096);
            together(&engine, engine.capacity(1, 300), &plain[at..at + 1], 0).swap_remove(0)
        })
        .collect();
    let named = |at: usize| GenerateRequest {
        adapter: cases.get(at % 3).map(|case| case.to_string()),
        ..plain[at].clone()
    };
    let requests: Vec<GenerateRequest> = (0..6).map(named).collect();
    for at in 0..2 {
        let without = together(&bed.engine(50), engine.capacity(1, 300), &plain[at..at + 1], 0);
        assert!(without[0] != alone[at], "{}, {dtype:?}", cases[at]);
    }
    assert_eq!(together(&engine, engine.capacity(6, 300), &requests, 0), alone, "{base}, {dtype:?}");
}

#[test]
fn the_weights_of_the_base_are_there_once() {
    let bed = Bed::new(BASE, DType::F32);
    let engine = bed.engine(64);
    let live = || bed.device.pool.usage().live;
    let before = live();
    for name in ["a", "b", "c"] {
        engine.load_adapter(name, &folder("lora_attention")).unwrap();
    }
    let base = open(&golden("llama")).unwrap();
    let (spec, _) = open_peft(&folder("lora_attention"), base.spec).unwrap();
    // Two tensors for each of two projections of two layers, each in whole granules.
    let granule = bed.device.machine.profile().granule;
    let most = 3 * (4 * spec.adapter_elements() + 8 * granule);
    assert!(live() - before <= most, "{} of {most}", live() - before);
    for name in ["a", "b", "c"] {
        engine.unload_adapter(name).unwrap();
    }
    assert_eq!(live(), before);
}

/// Answers a request; returns the tokens of its prompt that were cached.
fn cached(scheduler: &mut Scheduler<'_>, request: &GenerateRequest) -> u64 {
    let before = scheduler.load().prefix_hits;
    scheduler.submit(request.clone(), Box::new(|_| Flow::Continue)).unwrap();
    while scheduler.step() {}
    scheduler.load().prefix_hits - before
}

#[test]
fn beginnings_of_one_adapter_are_not_used_for_another() {
    let bed = Bed::new(BASE, DType::F32);
    let engine = bed.engine(64);
    engine.load_adapter("a", &folder("dora")).unwrap();
    engine.load_adapter("b", &folder("ia3")).unwrap();
    let mut scheduler = Scheduler::new(&engine, engine.capacity(4, 400));
    let greedy = |adapter: Option<&str>| GenerateRequest {
        adapter: adapter.map(Into::into),
        ..GenerateRequest::greedy((0..200).map(|at| at * 7 % 90).collect::<Vec<u32>>(), 5)
    };
    for adapter in [Some("a"), Some("b"), None] {
        assert_eq!(cached(&mut scheduler, &greedy(adapter)), 0, "{adapter:?}");
        assert_eq!(cached(&mut scheduler, &greedy(adapter)), 199, "{adapter:?}");
    }
    // The name is irrelevant: another adapter of that name starts without cached prefixes, and the same one under
    // another name has them.
    engine.unload_adapter("a").unwrap();
    engine.load_adapter("a", &folder("lora_layers")).unwrap();
    assert_eq!(cached(&mut scheduler, &greedy(Some("a"))), 0);
    engine.load_adapter("c", &folder("dora")).unwrap();
    assert_eq!(cached(&mut scheduler, &greedy(Some("c"))), 199);
    // Prefixes of cancelled or expired requests belong to their adapter too.
    let other = |adapter| GenerateRequest {
        prompt: Prompt::Ids((0..200).map(|at| (at * 11 + 1) % 90).collect()),
        ..greedy(adapter)
    };
    let id = scheduler.submit(other(Some("b")), Box::new(|_| Flow::Continue)).unwrap();
    (0..4).for_each(|_| _ = scheduler.step());
    scheduler.cancel(id);
    assert_eq!(cached(&mut scheduler, &other(None)), 0);
    assert!(cached(&mut scheduler, &other(Some("b"))) > 100);
}

#[test]
fn beginnings_on_disk_belong_to_an_adapters_files() {
    let kept = tempfile::tempdir().unwrap();
    let at = StoreLocation { folder: kept.path().into(), model: "m".into(), most_bytes: 1 << 30 };
    let bed = Bed::new(BASE, DType::F32);
    let limits = Limits { context_tokens: 4096, chunk_tokens: 200, draft_tokens: 0, kv: PageFormat::Plain };
    // Each runs, as far as the store can tell, in a process of its own.
    let ask = |name: &str, case: Option<&str>| {
        let engine = Engine::new(
            ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
            &bed.tokenizer,
            limits,
        );
        case.iter().for_each(|case| engine.load_adapter(name, &folder(case)).unwrap());
        let (heard, ends) = (RefCell::default(), RefCell::default());
        let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 600)).keeping(&at).unwrap();
        let ids: Vec<u32> = (0..400).map(|at| at * 7 % 90).collect();
        let adapter = case.map(|_| name.to_string());
        let request = GenerateRequest { adapter, logprobs: Some(0), ..GenerateRequest::greedy(ids, 20) };
        scheduler.submit(request, listen(&heard, &ends)).unwrap();
        while scheduler.step() {}
        let restored = scheduler.load().restored_tokens;
        drop(scheduler);
        (restored, heard.into_inner())
    };
    let (none, first) = ask("a", Some("dora"));
    assert_eq!((none, ask("a", Some("lora_all_linear")).0, ask("", None).0), (0, 0, 0));
    assert!(ask("other", Some("dora")) == (384, first));
}

#[test]
fn adapters_come_and_go_while_others_are_answered() {
    let bed = Bed::new(BASE, DType::F32);
    let engine = bed.engine(64);
    let plain = |adapter: Option<&str>, max_tokens| GenerateRequest {
        adapter: adapter.map(Into::into),
        logprobs: Some(0),
        ..GenerateRequest::greedy((5..60).collect::<Vec<u32>>(), max_tokens)
    };
    let of = |case: &str| {
        let bed = adapted(case, DType::F32);
        let engine = bed.engine(64);
        together(&engine, engine.capacity(1, 300), &[plain(None, 40)], 0).swap_remove(0)
    };
    engine.load_adapter("a", &folder("dora")).unwrap();
    let heard: [RefCell<AnswerBits>; 3] = Default::default();
    let ends = RefCell::default();
    let mut scheduler = Scheduler::new(&engine, engine.capacity(4, 300));
    scheduler.submit(plain(Some("a"), 40), listen(&heard[0], &ends)).unwrap();
    scheduler.submit(plain(None, 40), listen(&heard[1], &ends)).unwrap();
    (0..5).for_each(|_| _ = scheduler.step());
    // The name is free at once; requests that use the adapter keep it.
    engine.unload_adapter("a").unwrap();
    let error = scheduler.submit(plain(Some("a"), 40), Box::new(|_| Flow::Continue)).unwrap_err();
    assert_eq!(error.to_string(), "there is no adapter called `a`");
    engine.load_adapter("a", &folder("ia3")).unwrap();
    scheduler.submit(plain(Some("a"), 40), listen(&heard[2], &ends)).unwrap();
    while scheduler.step() {}
    drop(scheduler);
    let base = together(&engine, engine.capacity(1, 300), &[plain(None, 40)], 0).swap_remove(0);
    assert_eq!(heard.map(RefCell::into_inner), [of("dora"), base, of("ia3")]);
}

#[test]
fn adapters_that_cannot_be_are_refused() {
    let bed = Bed::new(BASE, DType::F32);
    let engine = bed.engine(64);
    let refuse = |engine: &Engine<'_>, name: &str, folder: &Path, part: &str| {
        let error = engine.load_adapter(name, folder).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refuse(&engine, "x", &folder("pissa"), "(PiSSA)");
    refuse(&engine, "x", &folder("modules_to_save"), "has weights of its base: `lm_head.weight` and 5 more");
    refuse(&engine, "x", &folder("gpt2_lora"), "not of this model");
    refuse(&engine, "x", &golden("llama"), "adapter_config.json");
    engine.load_adapter("x", &folder("dora")).unwrap();
    refuse(&engine, "x", &folder("dora"), "`x` already");
    let free = bed.device.pool.budget() - bed.device.pool.usage().live;
    refuse(&bed.engine(64).reserving(free - 100), "y", &folder("dora"), "100 B are free");
    assert!(engine.unload_adapter("y").unwrap_err().to_string().contains("no adapter called `y`"));
    // The names agree, but the shapes differ.
    let other = Bed::new("gemma", DType::F32);
    refuse(&other.engine(64), "x", &folder("dora"), "shape");
}
