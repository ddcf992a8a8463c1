//! The bits of an answer do not depend on concurrent requests, chunks, pages, prefixes or preemption; and no page is
//! lost.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use fathom_base::{Event, Flow, GenerateRequest, Sampling, Stop};
use fathom_cpu::Cpu;
use fathom_engine::{Capacity, Engine, Limits, Scheduler};
use fathom_grad::Params;
use fathom_model::{Adapter, AdapterMethod, Model, ModelView, PromptEncoder, load, load_adapted, open};
use fathom_tensor::{DType, Device, PageFormat};
use fathom_text::Tokenizer;

/// A small model with its machine.
pub struct Bed {
    pub device: Device,
    pub model: Model,
    pub params: Params,
    pub tokenizer: Tokenizer,
}

impl Bed {
    pub fn new(case: &str, dtype: DType) -> Bed {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
        let opened = open(&folder).unwrap();
        let (model, mut params) = Model::declare(&device, &opened.spec, dtype);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
        Bed { device, model, params, tokenizer }
    }

    /// A model with five virtual tokens before every sequence.
    fn led(case: &str, method: AdapterMethod) -> Bed {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let (bed, opened) = (Bed::new(case, DType::F32), open(&folder).unwrap());
        let spec = opened.spec.with_adapter(Adapter::leading(method)).unwrap();
        let (model, mut params) = Model::declare(&bed.device, &spec, DType::F32);
        load_adapted(&bed.device, &model, &mut params, &opened.source, 3).unwrap();
        Bed { model, params, ..bed }
    }

    pub fn engine(&self, chunk_tokens: usize) -> Engine<'_> {
        let limits = Limits { context_tokens: 4096, chunk_tokens, ..Limits::default() };
        Engine::new(
            ModelView { device: &self.device, model: &self.model, params: &self.params },
            &self.tokenizer,
            limits,
        )
    }
}

/// Ids and the bits of their log-probabilities, by answer.
pub type AnswerBits = Vec<(Vec<u32>, Vec<u32>)>;

pub fn listen<'h>(
    heard: &'h RefCell<AnswerBits>,
    ends: &'h RefCell<Vec<Stop>>,
) -> Box<dyn FnMut(Event) -> Flow + 'h> {
    Box::new(|event| {
        match event {
            Event::Piece { answer, ids, logprobs, .. } => {
                let mut heard = heard.borrow_mut();
                let most = heard.len().max(answer + 1);
                heard.resize(most, Default::default());
                heard[answer].0.extend(ids);
                heard[answer].1.extend(logprobs.iter().map(|token| token.logprob.unwrap().to_bits()));
            }
            Event::Ended { stop, .. } => ends.borrow_mut().push(stop),
            Event::Failed(error) => panic!("{error}"),
            Event::Started { .. } | Event::Done(_) => {}
        }
        Flow::Continue
    })
}

/// The answers of all requests in one scheduler; each joins `apart` steps after the previous one.
pub fn together(
    engine: &Engine<'_>,
    capacity: Capacity,
    requests: &[GenerateRequest],
    apart: usize,
) -> Vec<AnswerBits> {
    let heard: Vec<RefCell<AnswerBits>> = requests.iter().map(|_| RefCell::default()).collect();
    let ends = RefCell::default();
    let mut scheduler = Scheduler::new(engine, capacity);
    for (request, heard) in requests.iter().zip(&heard) {
        scheduler.submit(request.clone(), listen(heard, &ends)).unwrap();
        (0..apart).for_each(|_| _ = scheduler.step());
    }
    while scheduler.step() {}
    let load = scheduler.load();
    assert_eq!((load.running, load.waiting, load.pages_used), (0, 0, 0), "{load:?}");
    assert_eq!(load.draft_pages_used, 0, "{load:?}");
    drop(scheduler);
    heard.into_iter().map(RefCell::into_inner).collect()
}

pub fn requests(bed: &Bed) -> Vec<GenerateRequest> {
    let vocab = bed.model.spec.vocab as u32;
    let word = |at: u32| (at * 7919 + 13) % vocab;
    let shared: Vec<u32> = (0..200).map(word).collect();
    let prompt = |index: u32| {
        let own = (0..30 + 40 * index).map(move |at| word(at * 31 + index));
        // Every other prompt has a common prefix with the first, some ending within a page.
        let common = if index.is_multiple_of(2) { 60 * index as usize % 201 } else { 0 };
        shared[..common].iter().copied().chain(own).collect::<Vec<u32>>()
    };
    let request = |index: u32| {
        let temperature = if index.is_multiple_of(3) { 0.0 } else { 0.9 };
        let sampling =
            Sampling { temperature, seed: u64::from(index), max_tokens: 20, ..Sampling::default() };
        GenerateRequest { logprobs: Some(0), ..GenerateRequest::new(prompt(index), sampling) }
    };
    (0..6).chain([2, 4]).map(request).collect()
}

/// Tokens per chunk, concurrent sequences, and steps between requests.
pub const WAYS: [(usize, usize, usize); 3] = [(4096, 8, 0), (37, 3, 1), (1, 8, 30)];

/// Checks that answers have the bits that they have alone, in each of these ways.
pub fn steady(bed: &Bed, what: &str, ways: &[(usize, usize, usize)]) {
    let requests = requests(bed);
    let engine = bed.engine(4096);
    let alone: Vec<AnswerBits> = requests
        .iter()
        .map(|request| {
            together(&engine, engine.capacity(1, 600), std::slice::from_ref(request), 0).swap_remove(0)
        })
        .collect();
    for (chunk_tokens, sequences, apart) in ways.iter().copied() {
        let engine = bed.engine(chunk_tokens);
        let what = format!("{what}, chunks of {chunk_tokens}, {sequences} sequences");
        assert_eq!(together(&engine, engine.capacity(8, 600), &requests, apart), alone, "{what}");
        // Pages for two of the longest sequences: some are preempted.
        let capacity = Capacity { sequences, ..engine.capacity(2, 600) };
        assert_eq!(together(&engine, capacity, &requests, apart), alone, "{what}, few pages");
    }
}

#[test]
fn virtual_tokens_stand_before_every_sequence() {
    let plain = Bed::new("llama2", DType::F32);
    let prompt: Vec<u32> = (0..9).map(|at| (at * 7 + 3) % plain.model.spec.vocab as u32).collect();
    let losses = |bed: &Bed| bed.engine(64).losses_of(std::slice::from_ref(&prompt)).unwrap().concat();
    for method in [
        AdapterMethod::Prompt { tokens: 5, encoder: None },
        AdapterMethod::Prompt { tokens: 5, encoder: Some(PromptEncoder { hidden: 12, lstm: false }) },
        AdapterMethod::Prompt { tokens: 5, encoder: Some(PromptEncoder { hidden: 12, lstm: true }) },
        AdapterMethod::Prefix { tokens: 5, encoder: None },
        AdapterMethod::Prefix { tokens: 5, encoder: Some(12) },
    ] {
        let bed = Bed::led("llama2", method);
        assert!(losses(&bed).len() == 8 && losses(&bed) != losses(&plain), "{method:?}");
        // Page by page gives the same as all at once.
        let answer = bed.engine(4).greedy(std::slice::from_ref(&prompt), 6).unwrap().swap_remove(0);
        let best = bed
            .engine(64)
            .best_of(&[[prompt.clone(), answer.clone()].concat()], 1, 1.0)
            .unwrap()
            .swap_remove(0);
        let best: Vec<u32> = best.chunks_exact(2).skip(prompt.len()).map(|pair| pair[0] as u32).collect();
        assert_eq!(best, answer, "{method:?}");
        let mut request = GenerateRequest::greedy(prompt.clone(), 1);
        request.prompt_logprobs = Some(0);
        let (engine, found) = (bed.engine(4), RefCell::new(Vec::new()));
        let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 32));
        let hear = |event| {
            if let Event::Started { prompt: ids, logprobs, .. } = event {
                assert_eq!(ids, prompt);
                found.borrow_mut().extend(logprobs.iter().filter_map(|token| token.logprob));
            }
            Flow::Continue
        };
        scheduler.submit(request, Box::new(hear)).unwrap();
        while scheduler.step() {}
        let found = found.borrow();
        assert_eq!(found.len(), 8);
        let apart = found.iter().zip(losses(&bed)).map(|(a, b)| (a + b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-4, "{method:?}: {apart}");
        steady(&bed, &format!("{method:?}"), &WAYS[1..2]);
    }
}

#[test]
fn neighbours_chunks_prefixes_and_preemption_change_no_bit() {
    for (case, dtype) in [
        ("llama2", DType::F32),
        ("llama2", DType::Bf16),
        ("gemma3", DType::F32),
        ("mistral", DType::F32),
        ("mixtral", DType::F32),
        ("deepseek_v3", DType::F32),
        ("gpt_oss", DType::F32),
        ("phi3", DType::F32),
    ] {
        // Token by token is slow, and adds nothing for the other models.
        let ways = &WAYS[..if case == "llama2" { 3 } else { 2 }];
        steady(&Bed::new(case, dtype), &format!("{case} {dtype:?}"), ways);
    }
}

/// Guesses are verified by the sequence's own sampler, so they only change the number of steps.
#[test]
fn guesses_change_no_token_and_no_bit() {
    for case in ["llama2", "gemma3", "phi3"] {
        let bed = Bed::new(case, DType::F32);
        let line: Vec<u32> = (0..24).map(|at| at * 5 % 90).collect();
        for temperature in [0.0, 0.02, 1.0] {
            let sampling =
                Sampling { temperature, seed: 3, max_tokens: 100, ignore_eos: true, ..Sampling::default() };
            // A repetitive prompt yields guesses, whether right or wrong.
            let request =
                GenerateRequest { logprobs: Some(0), ..GenerateRequest::new(line.repeat(3), sampling) };
            let requests = vec![request; 2];
            let plain = bed.engine(64);
            let want = together(&plain, plain.capacity(2, 300), &requests, 2);
            let limits =
                Limits { context_tokens: 4096, chunk_tokens: 64, draft_tokens: 8, ..Limits::default() };
            let engine = Engine::new(
                ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
                &bed.tokenizer,
                limits,
            );
            assert_eq!(
                together(&engine, engine.capacity(2, 300), &requests, 2),
                want,
                "{case} {temperature}"
            );
            let (heard, ends) = (RefCell::default(), RefCell::default());
            let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 300));
            scheduler.submit(requests[0].clone(), listen(&heard, &ends)).unwrap();
            let steps = (0..).take_while(|_| scheduler.step()).count() as u64;
            let load = scheduler.load();
            assert!(load.drafted_tokens > 0 || temperature == 1.0, "{case}: {load:?}");
            assert_eq!(steps, 2 + 99 - load.accepted_tokens, "{case}: {load:?}");
        }
    }
}

/// Quantized keys and values change an answer's bits only with their format, and its losses within the format's
/// accuracy.
#[test]
fn pages_in_few_bits_are_near_and_as_steady() {
    for case in ["llama2", "gemma3", "gpt_oss"] {
        for dtype in [DType::F32, DType::Bf16] {
            let bed = Bed::new(case, dtype);
            let losses = |kv: PageFormat, chunk_tokens: usize| {
                let limits = Limits { context_tokens: 4096, chunk_tokens, draft_tokens: 0, kv };
                let engine = Engine::new(
                    ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
                    &bed.tokenizer,
                    limits,
                );
                let requests: Vec<GenerateRequest> = requests(&bed)
                    .into_iter()
                    .map(|request| GenerateRequest { prompt_logprobs: Some(0), ..request })
                    .collect();
                let sums = RefCell::new(Vec::new());
                let mut scheduler = Scheduler::new(&engine, engine.capacity(8, 600));
                for request in &requests {
                    let hear = |event| {
                        if let Event::Started { logprobs, .. } = event {
                            sums.borrow_mut().extend(logprobs.iter().filter_map(|token| token.logprob));
                        }
                        Flow::Continue
                    };
                    scheduler.submit(request.clone(), Box::new(hear)).unwrap();
                    while scheduler.step() {}
                }
                drop(scheduler);
                sums.into_inner()
            };
            let plain = losses(PageFormat::Plain, 4096);
            for (kv, most) in [(PageFormat::Int8, 0.05), (PageFormat::Fp8, 0.15), (PageFormat::Int4, 0.5)] {
                let got = losses(kv, 4096);
                let apart = got.iter().zip(&plain).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
                let apart = (apart / plain.len() as f64).sqrt();
                assert!(apart > 0.0 && apart < most, "{case} {dtype:?} {kv:?}: {apart}");
                assert_eq!(losses(kv, 37), got, "{case} {dtype:?} {kv:?} in chunks");
            }
        }
    }
}

#[test]
fn answers_to_one_prompt_share_it() {
    for case in ["llama2", "gemma3"] {
        let bed = Bed::new(case, DType::F32);
        let engine = bed.engine(64);
        let sampling = Sampling { temperature: 1.0, seed: 5, max_tokens: 12, ..Sampling::default() };
        let ids: Vec<u32> = (0..150).map(|at| at * 5 % 90).collect();
        let request =
            GenerateRequest { answers: 4, logprobs: Some(0), ..GenerateRequest::new(ids, sampling) };
        let four = together(&engine, engine.capacity(8, 300), std::slice::from_ref(&request), 0);
        assert_eq!(four[0].len(), 4);
        assert!(four[0].windows(2).all(|pair| pair[0] != pair[1]), "seeds of their own");
        for sequences in [1, 2] {
            let capacity = Capacity { sequences, ..engine.capacity(2, 300) };
            assert_eq!(
                together(&engine, capacity, std::slice::from_ref(&request), 0),
                four,
                "{sequences} at once"
            );
        }
        let first = GenerateRequest { answers: 1, ..request };
        assert_eq!(together(&engine, engine.capacity(1, 300), &[first], 0)[0][0], four[0][0]);
    }
}

/// The engine's log-probabilities of a prompt's tokens are those of scoring, bit for bit.
#[test]
fn log_probabilities_are_those_of_scoring() {
    for case in ["llama2", "gemma2", "mixtral"] {
        let bed = Bed::new(case, DType::F32);
        let ids: Vec<u32> = (0..150).map(|at| at * 5 % 90).collect();
        let want = bed.engine(64).losses_of(std::slice::from_ref(&ids)).unwrap().concat();
        for chunk_tokens in [1000, 40] {
            let engine = bed.engine(chunk_tokens);
            let got = RefCell::new(Vec::new());
            let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 300));
            let request =
                GenerateRequest { prompt_logprobs: Some(3), ..GenerateRequest::greedy(ids.clone(), 1) };
            let listener = |event| {
                if let Event::Started { logprobs, .. } = event {
                    *got.borrow_mut() = logprobs;
                }
                Flow::Continue
            };
            scheduler.submit(request, Box::new(listener)).unwrap();
            while scheduler.step() {}
            drop(scheduler);
            let got = got.into_inner();
            assert_eq!((got.len(), got[0].logprob), (150, None));
            for (token, loss) in got[1..].iter().zip(&want) {
                assert_eq!(-token.logprob.unwrap(), *loss, "{case}");
                let rank = token.top.iter().position(|(id, _)| *id == token.id);
                assert_eq!(rank.unwrap_or(3).min(3), (token.rank.unwrap() as usize).min(3));
            }
        }
    }
}

#[test]
fn cancelled_requests_leave_nothing() {
    let bed = Bed::new("gemma3", DType::F32);
    let engine = bed.engine(48);
    let (heard, ends) = (RefCell::default(), RefCell::default());
    let mut scheduler = Scheduler::new(&engine, Capacity { sequences: 4, ..engine.capacity(3, 600) });
    let requests = requests(&bed);
    let mut open = Vec::new();
    let mut random = 1u64;
    for round in 0..600 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let pick = (random >> 33) as usize;
        if pick.is_multiple_of(2) && open.len() < 12 {
            let request =
                GenerateRequest { answers: 1 + pick % 3, ..requests[pick % requests.len()].clone() };
            open.push(scheduler.submit(request, listen(&heard, &ends)).unwrap());
        } else if pick.is_multiple_of(5) && !open.is_empty() {
            scheduler.cancel(open.swap_remove(pick % open.len()));
        }
        if round % 3 == 0 {
            scheduler.step();
        }
    }
    open.into_iter().for_each(|request| scheduler.cancel(request));
    let load = scheduler.load();
    assert_eq!((load.running, load.waiting, load.pages_used), (0, 0, 0), "{load:?}");
    assert!(!scheduler.step());
    assert!(load.pages_cached > 0 && load.prefix_hits > 0, "{load:?}");
}

#[test]
fn what_cannot_run_is_refused_before_it_runs() {
    let bed = Bed::new("llama2", DType::F32);
    let engine = bed.engine(64);
    let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 128));
    let mut refuse = |request: GenerateRequest| {
        let error = scheduler.submit(request, Box::new(|_| Flow::Continue)).unwrap_err();
        error.to_string()
    };
    let greedy = || GenerateRequest::greedy(vec![1; 100], 20);
    assert!(refuse(GenerateRequest::greedy(vec![1; 100], 100)).contains("need more pages"));
    assert!(refuse(GenerateRequest { answers: 0, ..greedy() }).contains("answers"));
    assert!(refuse(GenerateRequest { adapter: Some("x".into()), ..greedy() }).contains("`x`"));
    assert!(refuse(GenerateRequest::greedy(vec![1 << 30], 1)).contains("vocabulary"));
    assert!(refuse(GenerateRequest::greedy(Vec::new(), 1)).contains("empty"));
    let sampling = Sampling { typical_p: 0.0, ..Sampling::default() };
    assert!(refuse(GenerateRequest { sampling, ..greedy() }).contains("typical_p"));
}
