//! Generation by a model whose layers remember more than keys and values.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fathom_base::{Beams, EarlyStopping, Event, Flow, GenerateRequest, Prompt};
use fathom_cpu::Cpu;
use fathom_engine::{Capacity, Engine, Limits, Scheduler};
use fathom_model::{
    Caps, DeltaNames, Family, GatedDelta, Init, LayerSpec, LlamaSizes, Model, ModelView, PackedTokens,
    PartKind, QkNorm, Spec, StateSizes, initialise,
};
use fathom_tensor::{DType, Device, Machine, Meta};
use fathom_text::Tokenizer;

use crate::batch::{AnswerBits, Bed, WAYS, requests, steady, together};
use crate::recurrent;

fn bed(device: Device) -> Bed {
    bed_of(device, &recurrent::spec(64, 4))
}

pub fn bed_of(device: Device, spec: &Spec) -> Bed {
    let (model, mut params) = Model::declare(&device, spec, DType::F32);
    initialise(&device, &model, &mut params, Init { deviation: 0.1, seed: 3 });
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    Bed { device, model, params, tokenizer }
}

/// Mamba-2 in the first layer, attention in the second.
fn hybrid() -> Spec {
    let sizes = StateSizes { heads: 8, head_dim: 16, state: 16, groups: 2 };
    Spec::llama(LlamaSizes::TINY).into_granite_hybrid(sizes, |layer| layer == 1, (1.0, false))
}

/// Qwen3.5 in small: gated DeltaNet in the first layer, attention with gates in the second.
fn gated_delta() -> Spec {
    let names = DeltaNames::Apart;
    let mixer =
        GatedDelta { names, key_heads: 2, value_heads: 4, key: 16, value: 8, width: 4, beta: 1.0, eps: 1e-6 };
    let mut spec = Spec::llama(LlamaSizes::TINY);
    spec.layers[0] = LayerSpec::new([PartKind::Own(Arc::new(mixer)), PartKind::Mlp]);
    Spec { family: Family::named("qwen3_5_text"), attention_gate: true, qk_norm: QkNorm::PerHead, ..spec }
}

pub fn cpu() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), 1 << 28)
}

#[test]
fn states_make_answers_independent_of_others_and_of_chunks() {
    for (what, spec) in all() {
        steady(&bed_of(cpu(), &spec), what, &WAYS);
    }
}

/// Text that is generated token by token is the likeliest by one pass over all of it.
#[test]
fn states_go_on_where_a_pass_over_the_whole_text_ends() {
    goes_on(&bed(cpu()));
    goes_on(&bed_of(cpu(), &hybrid()));
    goes_on(&bed_of(cpu(), &gated_delta()));
}

fn goes_on(bed: &Bed) {
    let prompt: Vec<u32> = (0..90u32).map(|at| at * 7919 % 131).collect();
    let answer = bed.engine(32).greedy(std::slice::from_ref(&prompt), 20).unwrap().swap_remove(0);
    assert_eq!(answer.len(), 20);
    let all: Vec<i32> = prompt.iter().chain(&answer).map(|id| *id as i32).collect();
    let positions: Vec<i32> = (0..all.len() as i32).collect();
    let docs = std::iter::once(0..all.len()).collect::<Vec<_>>();
    let packed = PackedTokens { ids: &all, positions: &positions, docs: &docs };
    let Bed { device, model, params, .. } = bed;
    let batch = model.batch(device, packed, Caps { docs: 1, seq_tokens: all.len() });
    let counters = fathom_grad::Counters::default();
    let scope = fathom_grad::Scope { device, params, batch: (&batch).into(), counters: &counters };
    let hidden = model.forward(&mut fathom_grad::Eval::new(scope.clone(), None, None));
    let logits = device.to_f32(&model.head(0.0).logits(&scope, &hidden));
    for (at, id) in answer.iter().enumerate() {
        let row = &logits[(prompt.len() + at - 1) * 131..][..131];
        let best = row.iter().copied().fold(f32::MIN, f32::max);
        assert!(best - row[*id as usize] < 1e-4, "token {at}: {id}");
    }
}

/// A machine without data has the same peak, with states of all sequences from the beginning.
#[test]
fn states_are_planned_to_the_byte() {
    // Two states in each of three layers, of 32, 16 and 16 columns.
    planned(&recurrent::spec(64, 4), 2 * (32 + 16 + 16));
    // The last three rows of the convolution's columns, and of each value head its keys by its values.
    planned(&gated_delta(), 3 * (2 * 2 * 16 + 4 * 8) + 4 * 16 * 8);
}

fn planned(spec: &Spec, numbers: u64) {
    let peak = |device: Device| {
        let bed = bed_of(device, spec);
        let engine = bed.engine(64);
        let capacity = |sequences| Capacity { sequences, ..engine.capacity(2, 128) };
        let live = |sequences| {
            let _scheduler = Scheduler::new(&engine, capacity(sequences));
            bed.device.pool.usage().live
        };
        assert_eq!(engine.state_bytes(5), 5 * 4 * numbers);
        let limits = Limits { draft_tokens: 3, ..Limits::default() };
        let view = ModelView { device: &bed.device, model: &bed.model, params: &bed.params };
        // Guesses need the states from before them.
        assert_eq!(Engine::new(view, &bed.tokenizer, limits).state_bytes(5), 2 * 5 * 4 * numbers);
        let (more, bytes) = (live(8192) - live(4096), engine.state_bytes(4096));
        assert_eq!(more, bytes);
        let mut scheduler = Scheduler::new(&engine, capacity(5));
        for seed in 0..2 {
            let prompt = Prompt::Ids((0..100).map(|at| at * 31 % 130 + seed).collect());
            let request = GenerateRequest { prompt, ..GenerateRequest::greedy(vec![0], 4) };
            scheduler.submit(request, Box::new(|_| fathom_base::Flow::Continue)).unwrap();
        }
        // The prompts' first chunk: no token is sampled, which would need data.
        scheduler.step();
        bed.device.pool.usage().peak_reserved
    };
    let profile = Machine::profile(&Cpu::new(1, None)).clone();
    assert_eq!(peak(Device::new(Arc::new(Meta::new(profile)), 1 << 28)), peak(cpu()));
}

/// Answers to requests that follow one another, each with the number of tokens of its prompt that were cached.
fn turns(bed: &Bed, chunk_tokens: usize, prompts: &[Vec<u32>]) -> Vec<(Vec<u32>, usize)> {
    let engine = bed.engine(chunk_tokens);
    let mut scheduler = Scheduler::new(&engine, engine.capacity(2, 1024));
    let turn = |prompt: &Vec<u32>| {
        let seen = Rc::new(RefCell::new((Vec::new(), 0)));
        let into = seen.clone();
        let listener = move |event: Event| {
            match event {
                Event::Started { cached_tokens, .. } => into.borrow_mut().1 = cached_tokens,
                Event::Piece { ids, .. } => into.borrow_mut().0.extend(ids),
                _ => {}
            }
            Flow::Continue
        };
        scheduler.submit(GenerateRequest::greedy(prompt.clone(), 12), Box::new(listener)).unwrap();
        while scheduler.step() {}
        seen.take()
    };
    prompts.iter().map(turn).collect()
}

/// A conversation goes on from the states after the last whole page of the prompt before, with the same tokens.
#[test]
fn a_conversation_goes_on_from_a_checkpoint() {
    for spec in [recurrent::spec(64, 4), recurrent::without_attention(64, 4), hybrid(), gated_delta()] {
        let bed = bed_of(cpu(), &spec);
        let first: Vec<u32> = (0..300u32).map(|at| at * 7919 % 131).collect();
        let answer = turns(&bed, 64, std::slice::from_ref(&first)).swap_remove(0).0;
        let second = [&first[..], &answer, &[5; 40]].concat();
        // The same beginning, and then another text.
        let other = [&first[..200], &[9; 40]].concat();
        for chunk in [64, 512] {
            let prompts = [first.clone(), second.clone(), second.clone(), other.clone()];
            let found = turns(&bed, chunk, &prompts);
            assert_eq!(found.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [0, 256, 256, 0]);
            for (prompt, (ids, _)) in prompts.iter().zip(&found) {
                assert_eq!(*ids, turns(&bed, chunk, std::slice::from_ref(prompt))[0].0);
            }
        }
    }
}

/// Hybrids and models without attention; layers of all kinds that remember more than keys and values.
pub fn all() -> [(&'static str, Spec); 4] {
    [
        ("recurrence", recurrent::spec(64, 4)),
        ("recurrence alone", recurrent::without_attention(64, 4)),
        ("mamba-2 and attention", hybrid()),
        ("gated deltanet and attention", gated_delta()),
    ]
}

fn engine(bed: &Bed, chunk_tokens: usize, draft_tokens: usize) -> Engine<'_> {
    let limits = Limits { context_tokens: 4096, chunk_tokens, draft_tokens, ..Limits::default() };
    let view = ModelView { device: &bed.device, model: &bed.model, params: &bed.params };
    Engine::new(view, &bed.tokenizer, limits)
}

/// Answers that repeat themselves, and several to one prompt, sampled.
fn repeating(bed: &Bed) -> Vec<GenerateRequest> {
    let mut requests = requests(bed);
    requests[1].answers = 3;
    for (period, request) in (5..).zip(&mut requests[2..5]) {
        request.prompt = Prompt::Ids((0..200).map(|at| at % period).collect());
        request.sampling.temperature = 0.0;
        request.sampling.max_tokens = 60;
    }
    requests
}

/// Wrong guesses are taken back, and several answers to a prompt share it: each answer has the bits that it has alone, without
/// guesses and without cached prefixes.
#[test]
fn guesses_and_several_answers_change_no_bit_of_models_with_states() {
    let (mut right, mut wrong) = (0, 0);
    for (what, spec) in all() {
        let bed = bed_of(cpu(), &spec);
        let requests = repeating(&bed);
        let plain = engine(&bed, 512, 0);
        let one = |request: &GenerateRequest| {
            together(&plain, plain.capacity(3, 600), std::slice::from_ref(request), 0).swap_remove(0)
        };
        let alone: Vec<AnswerBits> = requests.iter().map(one).collect();
        assert_eq!(alone[1].len(), 3);
        for (chunk_tokens, sequences, apart) in WAYS.into_iter().take(2) {
            let guessing = engine(&bed, chunk_tokens, 6);
            let what = format!("{what}, chunks of {chunk_tokens}");
            assert_eq!(together(&guessing, guessing.capacity(8, 600), &requests, apart), alone, "{what}");
            let few = Capacity { sequences, ..guessing.capacity(2, 600) };
            assert_eq!(together(&guessing, few, &requests, apart), alone, "{what}, few pages");
        }
        let guessing = engine(&bed, 512, 6);
        let mut scheduler = Scheduler::new(&guessing, guessing.capacity(3, 600));
        for request in &requests {
            scheduler.submit(request.clone(), Box::new(|_| Flow::Continue)).unwrap();
        }
        while scheduler.step() {}
        let load = scheduler.load();
        right += load.accepted_tokens;
        wrong += load.drafted_tokens - load.accepted_tokens;
    }
    assert!(right > 20 && wrong > 20, "{right} right guesses, {wrong} wrong ones");
}

/// A prompt's first answer costs its tokens, and the second none of them.
#[test]
fn several_answers_read_a_prompt_with_states_once() {
    let bed = bed_of(cpu(), &hybrid());
    let (engine, prompt) =
        (engine(&bed, 512, 0), (0..300u32).map(|at| at * 7919 % 131).collect::<Vec<u32>>());
    let steps = |answers: usize| {
        let mut scheduler = Scheduler::new(&engine, engine.capacity(4, 600));
        let mut request = GenerateRequest { answers, ..GenerateRequest::greedy(prompt.clone(), 8) };
        request.sampling.ignore_eos = true;
        scheduler.submit(request, Box::new(|_| Flow::Continue)).unwrap();
        (0..).take_while(|_| scheduler.step()).count()
    };
    assert_eq!(steps(1), steps(4));
}

/// A draft model guesses for a hybrid; a hybrid guesses for none, as its own guesses cannot be taken back.
#[test]
fn a_draft_model_without_states_guesses_for_one_with_them() {
    let bed = bed_of(cpu(), &hybrid());
    let small = bed_of(cpu(), &Spec::llama(LlamaSizes::TINY));
    let requests = repeating(&bed);
    let plain = engine(&bed, 512, 0);
    let want = together(&plain, plain.capacity(8, 600), &requests, 0);
    let draft = engine(&small, 512, 4);
    let guessing = engine(&bed, 512, 4).drafting(&draft).unwrap();
    assert_eq!(together(&guessing, guessing.capacity(8, 600), &requests, 1), want);
    let refused = engine(&small, 512, 4).drafting(&plain).err().unwrap().to_string();
    assert!(refused.contains("layers of the draft model remember more than keys and values"), "{refused}");
}

/// Beams that go on from one take over its states.
#[test]
fn beams_share_states() {
    for (what, spec) in all() {
        let bed = bed_of(cpu(), &spec);
        let mut request = requests(&bed).swap_remove(4);
        request.beams = Some(Beams { width: 3, length_penalty: 1.0, early_stopping: EarlyStopping::Never });
        request.sampling.temperature = 1.0;
        let requests = [request];
        let engine = engine(&bed, 512, 0);
        let want = together(&engine, engine.capacity(3, 600), &requests, 0);
        // Pages for one of them: others are preempted, and read again.
        let few = Capacity { sequences: 3, ..engine.capacity(1, 600) };
        assert_eq!(together(&engine, few, &requests, 0), want, "{what}");
    }
}
