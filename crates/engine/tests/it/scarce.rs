//! Scarce memory: every admitted request ends with the bits that it has alone, and no page is lost, whatever requests
//! share, ask for and cancel.

use std::cell::RefCell;

use fathom_base::{Beams, EarlyStopping, GenerateRequest, Load, Sampling};
use fathom_engine::{Capacity, Engine, Limits, Scheduler, StoreLocation};
use fathom_model::ModelView;
use fathom_tensor::{DType, PAGE_ROWS};

use crate::batch::{AnswerBits, Bed, listen, together};

/// Number of steps after which unfinished requests never finish.
const MOST_STEPS: usize = 20_000;

/// A linear congruential generator (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn text(bed: &Bed, seed: usize, tokens: usize) -> Vec<u32> {
    let vocab = bed.model.spec.vocab as u64;
    (0..tokens as u64).map(|at| ((at * at * 31 + at * 7919 + seed as u64 * 131) % vocab) as u32).collect()
}

/// A request that shares a prefix of any length with others, for up to `tokens` tokens of prompt and answer.
fn request(random: &mut Random, bed: &Bed, tokens: usize, sequences: usize) -> GenerateRequest {
    let max_tokens = 1 + random.below(40);
    let prompt =
        (tokens - max_tokens).min(if random.below(2) == 0 { tokens } else { 1 + random.below(tokens) });
    let shared = random.below(prompt + 1);
    let (beginning, own) = (random.below(2), 2 + random.below(50));
    let ids = [text(bed, beginning, shared), text(bed, own, prompt - shared)].concat();
    let (temperature, seed) = (random.one(&[0.0, 0.9]), random.below(9) as u64);
    let sampling = Sampling { temperature, seed, max_tokens, ignore_eos: true, ..Sampling::default() };
    let width = 1 + random.below(sequences);
    let beams = Beams { width, length_penalty: 1.0, early_stopping: EarlyStopping::Likely };
    let beams = (temperature == 0.0 && random.below(3) == 0).then_some(beams);
    GenerateRequest {
        answers: if beams.is_some() { width } else { 1 + random.below(3) },
        beams,
        logprobs: Some(0),
        prompt_logprobs: (random.below(6) == 0).then_some(0),
        priority: random.below(3) as i32,
        scope: random.one(&["", "", "other"]).into(),
        ..GenerateRequest::new(ids, sampling)
    }
}

/// Runs requests that join and leave at random with limited memory; returns the answers, empty for those that left.
fn run(
    random: &mut Random,
    (engine, capacity, store): (&Engine<'_>, Capacity, Option<&StoreLocation>),
    requests: &[GenerateRequest],
    what: &str,
) -> Vec<Option<AnswerBits>> {
    let heard: Vec<RefCell<AnswerBits>> = requests.iter().map(|_| RefCell::default()).collect();
    let ends = RefCell::default();
    let mut scheduler = Scheduler::new(engine, capacity);
    if let Some(store) = store {
        scheduler = scheduler.keeping(store).unwrap();
    }
    let mut stays = vec![true; requests.len()];
    for (index, request) in requests.iter().enumerate() {
        let id = scheduler.submit(request.clone(), listen(&heard[index], &ends)).unwrap();
        (0..random.one(&[0, 1, 3, 30])).for_each(|_| _ = scheduler.step());
        if random.below(6) == 0 {
            stays[index] = false;
            scheduler.cancel(id);
        }
    }
    let steps = (0..MOST_STEPS).take_while(|_| scheduler.step()).count();
    let load = scheduler.load();
    assert!(scheduler.is_idle(), "{what}: after {steps} steps some wait: {load:?}");
    assert_eq!((load.pages_used, load.draft_pages_used), (0, 0), "{what}: {load:?}");
    scheduler.erase(None);
    let Load { pages_used, pages_cached, .. } = scheduler.load();
    assert_eq!((pages_used, pages_cached), (0, 0), "{what}: pages are lost");
    drop(scheduler);
    heard.into_iter().zip(stays).map(|(heard, stays)| stays.then(|| heard.into_inner())).collect()
}

/// Random requests with random memory, all of which the longest may need.
fn case(beds: &[Bed], draft: &Bed, seed: u64) {
    let random = &mut Random(seed);
    let bed = &beds[random.below(beds.len())];
    let tokens = 100 + random.below(600);
    let sequences = 1 + random.below(4);
    let mut requests: Vec<GenerateRequest> =
        (0..4 + random.below(6)).map(|_| request(random, bed, tokens, sequences)).collect();
    let plain = bed.engine(4096);
    let alone = |request: &GenerateRequest| {
        let capacity = plain.capacity(request.sequences().max(1), tokens);
        together(&plain, capacity, std::slice::from_ref(request), 0).swap_remove(0)
    };

    let limits = |draft_tokens: usize, chunk_tokens: usize| Limits {
        context_tokens: 4096,
        chunk_tokens,
        draft_tokens,
        ..Limits::default()
    };
    let limits = limits(random.one(&[0, 0, 4]), random.one(&[5, 64, 128, 300, 4096]));
    let engine = || {
        Engine::new(
            ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
            &bed.tokenizer,
            limits,
        )
    };
    let small = Engine::new(
        ModelView { device: &draft.device, model: &draft.model, params: &draft.params },
        &draft.tokenizer,
        limits,
    );
    let drafts = limits.draft_tokens > 0 && random.below(2) == 0;
    let engine = if drafts { engine().drafting(&small).unwrap() } else { engine() };
    let folder = tempfile::tempdir().unwrap();
    let most_bytes = random.one(&[64 << 10, 1 << 20, 1 << 30]);
    let store = StoreLocation { folder: folder.path().into(), model: "m".into(), most_bytes };
    let kept = random.below(3) == 0;
    let mut capacity = Capacity { sequences, ..engine.capacity(1, tokens) };
    let more = random.one(&[0, 0, 1, 3]);
    capacity.pages.iter_mut().for_each(|pages| *pages += more);
    let windows = bed.model.spec.windows();
    if kept && windows.contains(&None) && random.below(2) == 0 {
        // Some are longer than memory, which beam searches must not be.
        capacity.on_disk = capacity.pages.iter().copied().max().unwrap_or(0);
        let whole = capacity.pages.iter_mut().zip(&windows).filter(|(_, window)| window.is_none());
        whole.for_each(|(pages, _)| *pages = 1 + random.below(*pages));
        requests.iter_mut().for_each(|request| request.beams = None);
    }
    let what =
        format!("seed {seed}, {tokens} tokens, {capacity:?}, {limits:?}, kept: {kept}, drafts: {drafts}");
    let heard = run(random, (&engine, capacity, kept.then_some(&store)), &requests, &what);
    for (index, (heard, request)) in heard.iter().zip(&requests).enumerate() {
        if let Some(heard) = heard {
            assert_eq!(*heard, alone(request), "{what}: request {index}, {} answers", request.answers);
        }
    }
}

#[test]
fn every_request_ends_and_no_page_is_lost() {
    // Unlimited attention, windows with that, and windows alone.
    let beds = ["llama2", "gemma3", "mistral"].map(|case| Bed::new(case, DType::F32));
    let draft = Bed::new("llama2", DType::Bf16);
    (0..400).for_each(|seed| case(&beds, &draft, seed));
}

/// The second prompt diverges from the first within a page, and needs all pages once it is read.
#[test]
fn a_beginning_that_is_kept_leaves_all_pages_to_a_request_alone() {
    for case in ["llama2", "gemma3"] {
        let bed = Bed::new(case, DType::F32);
        let (engine, plain) = (bed.engine(256), bed.engine(4096));
        for shared in [0, 1, 128, 376, 1000, 1023] {
            let prompt =
                |own: usize| [text(&bed, 0, shared), text(&bed, own, 8 * PAGE_ROWS - shared)].concat();
            let requests = [GenerateRequest::greedy(prompt(1), 8), GenerateRequest::greedy(prompt(2), 24)];
            let requests = requests.map(|it| GenerateRequest { logprobs: Some(0), ..it });
            let heard = together(&engine, engine.capacity(1, 8 * PAGE_ROWS + 32), &requests, 100);
            let alone = together(&plain, plain.capacity(1, 1200), &requests[1..], 0);
            assert_eq!(heard[1], alone[0], "{case}: {shared} tokens shared");
        }
    }
}
