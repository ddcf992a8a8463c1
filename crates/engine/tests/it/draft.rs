//! A draft model changes no answer: neither a token nor a bit, greedy or sampled, with any concurrent requests.

use std::cell::RefCell;

use fathom_base::{Flow, GenerateRequest, Sampling, Structure};
use fathom_engine::{Capacity, Engine, Limits, Scheduler, StoreLocation};
use fathom_model::ModelView;
use fathom_tensor::DType;
use fathom_text::Tokenizer;

use crate::adapters::golden;
use crate::batch::{AnswerBits, Bed, WAYS, listen, requests, together};

fn limits(chunk_tokens: usize) -> Limits {
    Limits { context_tokens: 4096, chunk_tokens, draft_tokens: 6, ..Limits::default() }
}

fn engine(bed: &Bed, chunk_tokens: usize) -> Engine<'_> {
    Engine::new(
        ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
        &bed.tokenizer,
        limits(chunk_tokens),
    )
}

/// Prompts without repetitions, so that nothing is looked up.
fn prompt(bed: &Bed, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * at * 31 + at * 7 + 3) % bed.model.spec.vocab as u32).collect()
}

/// Answers one request; returns the answer, the number of steps, and the load.
fn steps(engine: &Engine<'_>, request: &GenerateRequest) -> (AnswerBits, u64, fathom_base::Load) {
    let (heard, ends) = (RefCell::default(), RefCell::default());
    let mut scheduler = Scheduler::new(engine, engine.capacity(4, 400));
    scheduler.submit(request.clone(), listen(&heard, &ends)).unwrap();
    let steps = (0..).take_while(|_| scheduler.step()).count() as u64;
    let load = scheduler.load();
    assert_eq!((load.pages_used, load.draft_pages_used), (0, 0), "{load:?}");
    drop(scheduler);
    (heard.into_inner(), steps, load)
}

#[test]
fn answers_have_the_bits_that_they_have_without() {
    // A draft that is nearly right, and some that are not; windows in the model, in the draft, in both.
    for (case, other) in [("llama2", "llama2"), ("gemma3", "mistral"), ("llama2", "gemma3")] {
        let (bed, small) = (Bed::new(case, DType::F32), Bed::new(other, DType::Bf16));
        let mut requests = requests(&bed);
        requests[1].answers = 3;
        let plain = bed.engine(4096);
        let alone: Vec<AnswerBits> = requests
            .iter()
            .map(|request| {
                together(&plain, plain.capacity(3, 600), std::slice::from_ref(request), 0).swap_remove(0)
            })
            .collect();
        for (chunk_tokens, sequences, apart) in WAYS.into_iter().take(2) {
            let draft = engine(&small, chunk_tokens);
            let engine = engine(&bed, chunk_tokens).drafting(&draft).unwrap();
            let what = format!("{case} by {other}, chunks of {chunk_tokens}");
            assert_eq!(together(&engine, engine.capacity(8, 600), &requests, apart), alone, "{what}");
            let few = Capacity { sequences, ..engine.capacity(2, 600) };
            assert_eq!(together(&engine, few, &requests, apart), alone, "{what}, few pages");
        }
    }
}

#[test]
fn guesses_that_are_right_save_steps() {
    let (bed, small) = (Bed::new("llama2", DType::F32), Bed::new("llama2", DType::Bf16));
    let draft = engine(&small, 64);
    let engine = engine(&bed, 64).drafting(&draft).unwrap();
    for temperature in [0.0, 0.7] {
        let sampling =
            Sampling { temperature, seed: 3, max_tokens: 60, ignore_eos: true, ..Sampling::default() };
        let request =
            GenerateRequest { logprobs: Some(0), ..GenerateRequest::new(prompt(&bed, 100), sampling) };
        let plain = bed.engine(64);
        let want = steps(&plain, &request).0;
        let (heard, steps, load) = steps(&engine, &request);
        assert!(heard == want, "{temperature}");
        // Two steps read the prompt.
        assert_eq!(steps, 2 + 59 - load.accepted_tokens, "{load:?}");
        assert!(load.accepted_tokens > 10 && load.drafts > 3, "{load:?}");
        assert_eq!(load.accepted_at.iter().sum::<u64>(), load.accepted_tokens, "{load:?}");
        assert!(load.accepted_at.is_sorted_by(|a, b| a >= b) && load.drafted_tokens >= load.accepted_tokens);
    }
}

/// The second token's distribution, summed over the first, compared with samples generated with guesses, some of them
/// wrong (Pearson).
#[test]
fn tokens_that_were_guessed_are_distributed_as_the_model_says() {
    const DRAWN: usize = 3000;
    let (bed, small) = (Bed::new("llama2", DType::F32), Bed::new("mistral", DType::F32));
    let (prompt, vocab) = (prompt(&bed, 12), bed.model.spec.vocab);
    let plain = bed.engine(512);
    // The log-probabilities of the next token after the prompt and each first token.
    let documents: Vec<Vec<u32>> =
        (0..vocab as u32).map(|first| [&prompt[..], &[first, 0]].concat()).collect();
    let mut expected = vec![0.0; vocab];
    for (first, best) in plain.best_of(&documents, vocab, 1.0).unwrap().iter().enumerate() {
        let place = |at: usize| &best[at * 2 * vocab..(at + 1) * 2 * vocab];
        let of = |place: &[f32], id: usize| {
            let pair = place.chunks_exact(2).find(|pair| pair[0] as usize == id).unwrap();
            f64::from(pair[1]).exp()
        };
        let share = of(place(prompt.len()), first);
        for (id, expected) in expected.iter_mut().enumerate() {
            *expected += DRAWN as f64 * share * of(place(prompt.len() + 1), id);
        }
    }
    let draft = engine(&small, 512);
    let engine = engine(&bed, 512).drafting(&draft).unwrap();
    let heard: Vec<RefCell<AnswerBits>> = (0..DRAWN).map(|_| RefCell::default()).collect();
    let ends = RefCell::default();
    let mut scheduler = Scheduler::new(&engine, engine.capacity(16, 20));
    for (seed, heard) in heard.iter().enumerate() {
        let sampling = Sampling { temperature: 1.0, seed: seed as u64, max_tokens: 3, ..Sampling::default() };
        scheduler.submit(GenerateRequest::new(prompt.clone(), sampling), listen(heard, &ends)).unwrap();
    }
    while scheduler.step() {}
    let load = scheduler.load();
    assert!(load.drafted_tokens > 100 && load.accepted_tokens > 3, "{load:?}");
    assert!(load.accepted_tokens < load.drafted_tokens, "{load:?}");
    drop(scheduler);
    let mut counts = vec![0.0; vocab];
    heard.iter().for_each(|heard| counts[heard.borrow()[0].0[1] as usize] += 1.0);
    let (mut chi, mut bins, mut rest) = (0f64, 0f64, (0f64, 0f64));
    for (count, expected) in counts.iter().zip(&expected) {
        if *expected < 5.0 {
            rest = (rest.0 + count, rest.1 + expected);
            continue;
        }
        (chi, bins) = (chi + (count - expected) * (count - expected) / expected, bins + 1.0);
    }
    chi += f64::powi(rest.0 - rest.1, 2) / rest.1.max(1.0);
    // The mean of chi-square is its degrees of freedom, its variance twice that: four deviations.
    assert!(bins > 20.0 && chi < bins + 4.0 * (2.0 * bins).sqrt(), "{chi} of {bins}");
}

#[test]
fn cancelled_requests_leave_no_pages_of_the_draft() {
    let (bed, small) = (Bed::new("gemma3", DType::F32), Bed::new("gemma3", DType::Bf16));
    let draft = engine(&small, 48);
    let engine = engine(&bed, 48).drafting(&draft).unwrap();
    let (heard, ends) = (RefCell::default(), RefCell::default());
    let mut scheduler = Scheduler::new(&engine, Capacity { sequences: 4, ..engine.capacity(3, 600) });
    let (requests, mut open, mut most) = (requests(&bed), Vec::new(), 0);
    let mut random = 7u64;
    for round in 0..400 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let pick = (random >> 33) as usize;
        if pick.is_multiple_of(2) && open.len() < 8 {
            let request =
                GenerateRequest { answers: 1 + pick % 3, ..requests[pick % requests.len()].clone() };
            open.push(scheduler.submit(request, listen(&heard, &ends)).unwrap());
        } else if pick.is_multiple_of(5) && !open.is_empty() {
            scheduler.cancel(open.swap_remove(pick % open.len()));
        }
        if round % 2 == 0 {
            scheduler.step();
            most = most.max(scheduler.load().draft_pages_used);
        }
    }
    open.into_iter().for_each(|request| scheduler.cancel(request));
    let load = scheduler.load();
    assert_eq!(
        (load.running, load.waiting, load.pages_used, load.draft_pages_used),
        (0, 0, 0, 0),
        "{load:?}"
    );
    assert!(most > 0 && load.drafts > 0);
}

/// A draft model has no adapters: its guesses from the base are verified by the adapter.
#[test]
fn adapters_answer_as_they_do_without() {
    let (bed, small) =
        (Bed::new("../golden_adapters/llama", DType::F32), Bed::new("../golden_adapters/llama", DType::Bf16));
    let requests: Vec<GenerateRequest> = (0..4)
        .map(|index| GenerateRequest {
            adapter: (index % 2 == 1).then(|| "lora".into()),
            ..GenerateRequest::greedy(prompt(&bed, 30 + index), 20)
        })
        .collect();
    let lora = golden("lora_attention").join("after");
    let plain = bed.engine(64);
    plain.load_adapter("lora", &lora).unwrap();
    let want = together(&plain, plain.capacity(4, 100), &requests, 2);
    let draft = engine(&small, 64);
    let engine = engine(&bed, 64).drafting(&draft).unwrap();
    engine.load_adapter("lora", &lora).unwrap();
    assert_eq!(together(&engine, engine.capacity(4, 100), &requests, 2), want);
}

#[test]
fn beginnings_from_disk_and_structures_go_with_a_draft() {
    let (bed, small) = (Bed::new("llama2", DType::F32), Bed::new("llama2", DType::Bf16));
    let folder = tempfile::tempdir().unwrap();
    let at = StoreLocation { folder: folder.path().into(), model: "m".into(), most_bytes: 1 << 30 };
    let draft = engine(&small, 200);
    let engine = engine(&bed, 200).drafting(&draft).unwrap();
    let ask = |engine: &Engine<'_>, at: Option<&StoreLocation>, request: &GenerateRequest| {
        let (heard, ends) = (RefCell::<AnswerBits>::default(), RefCell::default());
        let mut scheduler = Scheduler::new(engine, engine.capacity(1, 800));
        if let Some(at) = at {
            scheduler = scheduler.keeping(at).unwrap();
        }
        scheduler.submit(request.clone(), listen(&heard, &ends)).unwrap();
        while scheduler.step() {}
        let load = scheduler.load();
        assert_eq!(load.draft_pages_used, 0);
        drop(scheduler);
        (heard.into_inner(), load)
    };
    let request = GenerateRequest { logprobs: Some(0), ..GenerateRequest::greedy(prompt(&bed, 600), 40) };
    let plain = bed.engine(200);
    let want = ask(&plain, None, &request).0;
    assert!(ask(&engine, Some(&at), &request).0 == want);
    let (heard, load) = ask(&engine, Some(&at), &request);
    assert!(heard == want && load.restored_tokens == 512 && load.accepted_tokens > 0, "{load:?}");
    let structure = Some(Structure::Regex("(a|b| ){12,16}".into()));
    let request = GenerateRequest { structure, ..GenerateRequest::greedy(prompt(&bed, 20), 20) };
    let (heard, load) = ask(&engine, None, &request);
    assert_eq!(heard, ask(&plain, None, &request).0);
    assert!(load.accepted_tokens > 0, "{load:?}");
}

#[test]
fn another_vocabulary_is_refused_by_name() {
    let (bed, mut small) = (Bed::new("llama2", DType::F32), Bed::new("llama2", DType::F32));
    small.tokenizer = Tokenizer::train_bpe(std::iter::once("ab ab ab".to_string()), 260, &[]).unwrap();
    let draft = engine(&small, 64);
    let error = engine(&bed, 64).drafting(&draft).err().unwrap().to_string();
    assert!(error.contains("another vocabulary") && error.contains("--draft"), "{error}");
    // Tokens that the draft model does not have are not guessed.
    let listener = Box::new(|_| Flow::Continue);
    let (bed, small) = (Bed::new("llama2", DType::F32), Bed::new("llama2", DType::F32));
    let draft = engine(&small, 64);
    let engine = engine(&bed, 64).drafting(&draft).unwrap();
    let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 64));
    scheduler.submit(GenerateRequest::greedy(prompt(&bed, 20), 1), listener).unwrap();
    while scheduler.step() {}
    assert_eq!(scheduler.load().drafts, 0, "there is nothing to guess behind the last token");
}
