//! Beam search compared with Transformers, with any concurrent requests; and no page is lost.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use fathom_base::{Beams, EarlyStopping, Flow, GenerateRequest, Sampling, Structure};
use fathom_engine::{Capacity, Engine, Scheduler};
use fathom_tensor::DType;
use serde_json::Value;

use crate::batch::{AnswerBits, Bed, listen, requests, together};

fn list(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn request(case: &Value) -> GenerateRequest {
    let number = |key: &str| case[key].as_u64().unwrap() as usize;
    let early_stopping = match &case["early_stopping"] {
        Value::Bool(false) => EarlyStopping::Likely,
        Value::Bool(true) => EarlyStopping::First,
        _ => EarlyStopping::Never,
    };
    let length_penalty = case["length_penalty"].as_f64().unwrap();
    let sampling = Sampling {
        temperature: 1.0,
        max_tokens: number("max_tokens"),
        min_tokens: number("min_tokens"),
        stop_ids: list(&case["ends"]),
        ..Sampling::default()
    };
    GenerateRequest {
        answers: number("answers"),
        beams: Some(Beams { width: number("beams"), length_penalty, early_stopping }),
        logprobs: Some(2),
        ..GenerateRequest::new(list(&case["prompt"]), sampling)
    }
}

#[test]
fn what_is_found_is_what_transformers_finds() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_beams/beams.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let (mut ended, mut whole) = (0, 0);
    for name in ["llama2", "gemma3"] {
        let bed = Bed::new(name, DType::F32);
        for case in golden["cases"].as_array().unwrap().iter().filter(|case| case["model"] == name) {
            let (request, engine) = (request(case), bed.engine(4));
            let found =
                together(&engine, engine.capacity(6, 64), std::slice::from_ref(&request), 0).swap_remove(0);
            let ends = &request.sampling.stop_ids;
            assert_eq!(found.len(), request.answers, "{case}");
            for ((ids, logprobs), want) in found.iter().zip(case["found"].as_array().unwrap()) {
                let mut tokens = list(&want["tokens"]);
                let ends = tokens.last().is_some_and(|id| ends.contains(id));
                tokens.truncate(tokens.len() - usize::from(ends));
                assert_eq!(*ids, tokens, "{case}");
                assert_eq!(logprobs.len(), ids.len());
                if ends {
                    ended += 1;
                    continue;
                }
                whole += 1;
                let sum: f64 = logprobs.iter().map(|bits| f64::from(f32::from_bits(*bits))).sum();
                let score = sum / (ids.len() as f64).powf(case["length_penalty"].as_f64().unwrap());
                let apart = (score - want["score"].as_f64().unwrap()).abs();
                assert!(apart < 1e-3 * score.abs().max(1.0), "{score}: {case}");
            }
        }
    }
    assert!(ended > 10 && whole > 10, "{ended} ended, {whole} did not");
}

/// A long prompt with beams that end and beams that do not.
fn searching(bed: &Bed, width: usize) -> GenerateRequest {
    let prompt: Vec<u32> = (0..150).map(|at| (at * at * 5 + at) % bed.model.spec.vocab as u32).collect();
    let sampling = Sampling { max_tokens: 20, stop_ids: vec![7, 30], ..Sampling::default() };
    GenerateRequest {
        answers: width,
        beams: Some(Beams { width, length_penalty: 0.5, early_stopping: EarlyStopping::Likely }),
        logprobs: Some(0),
        ..GenerateRequest::new(prompt, sampling)
    }
}

#[test]
fn neighbours_chunks_and_preemption_change_no_bit() {
    for case in ["llama2", "gemma3"] {
        let bed = Bed::new(case, DType::F32);
        let request = searching(&bed, 4);
        let engine = bed.engine(4096);
        let alone =
            together(&engine, engine.capacity(8, 400), std::slice::from_ref(&request), 0).swap_remove(0);
        let mut all = requests(&bed);
        all.splice(2..2, [request.clone(), searching(&bed, 3)]);
        for chunk_tokens in [4096, 37] {
            let engine = bed.engine(chunk_tokens);
            // Among other requests; then with pages for about two sequences, so that beams are preempted.
            for (capacity, apart) in [
                (engine.capacity(16, 400), 1),
                (Capacity { sequences: 5, ..engine.capacity(2, 600) }, 0),
                (Capacity { sequences: 4, ..engine.capacity(1, 600) }, 2),
            ] {
                let found = together(&engine, capacity, &all, apart);
                assert_eq!(found[2], alone, "{case}, chunks of {chunk_tokens}");
            }
        }
    }
}

#[test]
fn one_beam_is_the_greedy_answer() {
    let bed = Bed::new("llama2", DType::F32);
    let engine = bed.engine(64);
    let mut request = searching(&bed, 1);
    request.sampling.stop_ids.clear();
    let found = together(&engine, engine.capacity(2, 400), std::slice::from_ref(&request), 0).swap_remove(0);
    request.beams = None;
    let greedy = together(&engine, engine.capacity(2, 400), &[request], 0).swap_remove(0);
    assert_eq!(found[0].0, greedy[0].0);
}

#[test]
fn beams_share_their_pages_and_leave_none() {
    let bed = Bed::new("llama2", DType::F32);
    let engine = bed.engine(64);
    let (heard, ends) = (RefCell::<AnswerBits>::default(), RefCell::default());
    let mut scheduler = Scheduler::new(&engine, engine.capacity(8, 400));
    let request = searching(&bed, 8);
    let id = scheduler.submit(request.clone(), listen(&heard, &ends)).unwrap();
    (0..8).for_each(|_| _ = scheduler.step());
    // One whole page of the prompt for all, and one page per beam to write to.
    let load = scheduler.load();
    assert_eq!((load.running, load.pages_used), (8, 9), "{load:?}");
    scheduler.cancel(id);
    let load = scheduler.load();
    assert_eq!((load.running, load.waiting, load.pages_used), (0, 0, 0), "{load:?}");
    // A request whose time is up ends with its current result.
    let late = GenerateRequest { deadline_s: Some(1e-9), ..request };
    scheduler.submit(late, listen(&heard, &ends)).unwrap();
    while scheduler.step() {}
    assert!(scheduler.is_idle() && scheduler.load().pages_used == 0);
    drop(scheduler);
    assert_eq!(ends.into_inner().len(), 8);
}

#[test]
fn what_a_search_does_not_follow_is_refused() {
    let bed = Bed::new("llama2", DType::F32);
    let engine = bed.engine(64);
    let refuse = |engine: &Engine<'_>, request: GenerateRequest| {
        let mut scheduler = Scheduler::new(engine, engine.capacity(4, 400));
        scheduler.submit(request, Box::new(|_| Flow::Continue)).unwrap_err().to_string()
    };
    let beams = |width| Some(Beams { width, length_penalty: 1.0, early_stopping: EarlyStopping::Likely });
    let base = || GenerateRequest { answers: 2, beams: beams(2), ..searching(&bed, 2) };
    assert!(refuse(&engine, GenerateRequest { beams: beams(5), ..base() }).contains("from 1 to 4"));
    assert!(refuse(&engine, GenerateRequest { beams: beams(1), ..base() }).contains("2 are asked for"));
    assert!(refuse(&engine, GenerateRequest { beams: beams(0), ..base() }).contains("beam_width"));
    let sampling = Sampling { top_p: 0.5, ..base().sampling };
    assert!(refuse(&engine, GenerateRequest { sampling, ..base() }).contains("top_p"));
    let structure = Some(Structure::JsonObject);
    assert!(refuse(&engine, GenerateRequest { structure, ..base() }).contains("structure"));
}
