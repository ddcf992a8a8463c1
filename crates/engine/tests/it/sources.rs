//! Answers of encoder-decoders compared with Transformers' greedy continuations.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use fathom_base::{Event, Flow, GenerateRequest, RequestOutput, Sampling};
use fathom_cpu::Cpu;
use fathom_engine::{Engine, Limits, Scheduler};
use fathom_model::{Model, ModelView, load, open_any};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

const CASES: [&str; 5] = ["t5_v10", "t5_v11", "flan", "umt5", "t5_few_buckets"];

fn ids(value: &serde_json::Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Greedy, of this many tokens: the golden answers were written without the end of texts, id 1.
fn sampling(max_tokens: usize) -> Sampling {
    Sampling { max_tokens, ignore_eos: true, logit_bias: [(1, -100.0)].into(), ..Sampling::default() }
}

/// Runs `check` with an engine over a golden folder, its sources and their answers.
fn with(name: &str, chunk_tokens: usize, check: impl FnOnce(&Engine<'_>, &[Vec<u32>], &[Vec<u32>])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_t5").join(name);
    let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let list = |key: &str, of: &str| -> Vec<Vec<u32>> {
        golden[key].as_array().unwrap().iter().map(|it| ids(&it[of])).collect()
    };
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let opened = open_any(&folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 512, chunk_tokens, ..Limits::default() };
    let view = ModelView { device: &device, model: &model, params: &params };
    check(&Engine::new(view, &tokenizer, limits), &list("pairs", "source"), &list("greedy", "tokens"));
}

#[test]
fn greedy_answers_are_those_of_transformers() {
    for name in CASES {
        for chunk_tokens in [1024, 1] {
            with(name, chunk_tokens, |engine, sources, wanted| {
                let tokens = wanted[0].len();
                let answers = |sources: &[Vec<u32>]| -> Vec<Vec<u32>> {
                    let ask = |ids: &Vec<u32>| GenerateRequest::new(ids.clone(), sampling(tokens));
                    let all = engine.generate_all(sources.iter().map(ask).collect()).unwrap();
                    all.into_iter().map(|mut answers| answers.remove(0).ids).collect()
                };
                assert_eq!(answers(sources), wanted, "{name}");
                for (source, wanted) in sources.iter().zip(wanted) {
                    assert_eq!(&answers(std::slice::from_ref(source))[0], wanted, "{name}");
                }
            });
        }
    }
}

/// Requests that arrive while others are answered, several answers to one, and the same text again.
#[test]
fn answers_do_not_depend_on_others() {
    with("t5_v11", 4, |engine, sources, wanted| {
        let sampling = sampling(wanted[0].len());
        let asked =
            [0, 1, 0, 2, 2].map(|at| (at, GenerateRequest::new(sources[at].clone(), sampling.clone())));
        let outputs: Vec<_> = asked.iter().map(|_| RefCell::new(RequestOutput::of(2))).collect();
        let mut scheduler = Scheduler::new(engine, engine.capacity(4, 256));
        for ((_, request), output) in asked.iter().zip(&outputs) {
            let listener = |event: Event| {
                output.borrow_mut().push(event);
                Flow::Continue
            };
            scheduler.submit(GenerateRequest { answers: 2, ..request.clone() }, Box::new(listener)).unwrap();
            scheduler.step();
            scheduler.step();
        }
        while scheduler.step() {}
        drop(scheduler);
        for ((at, _), output) in asked.iter().zip(outputs) {
            for answer in output.into_inner().generations().unwrap() {
                assert_eq!(answer.ids, wanted[*at]);
            }
        }
    });
}
