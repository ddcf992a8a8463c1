//! Answers of encoder-decoders and their likelihoods compared with Transformers'.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_base::{
    Continuation, Event, Flow, GenerateRequest, LanguageModel, Numbers, RequestOutput, Sampling,
};
use fathom_cpu::Cpu;
use fathom_engine::{Capacity, Engine, Limits, Scheduler};
use fathom_model::{Model, ModelView, SafeTensors, Source, load, load_peft, open_any, open_peft, read_f32};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

const CASES: [&str; 6] = ["t5_v10", "t5_v11", "flan", "umt5", "t5_few_buckets", "t5_odd_heads"];

fn ids(value: &serde_json::Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Greedy, of this many tokens: the golden answers were written without the end of texts, id 1.
fn sampling(max_tokens: usize) -> Sampling {
    Sampling { max_tokens, ignore_eos: true, logit_bias: [(1, -100.0)].into(), ..Sampling::default() }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_t5").join(name)
}

fn golden(name: &str) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder(name).join("golden.json")).unwrap()).unwrap()
}

/// An engine over a golden folder, its sources and their answers.
struct Bed<'a> {
    engine: Engine<'a>,
    device: &'a Device,
    sources: Vec<Vec<u32>>,
    greedy: Vec<Vec<u32>>,
}

fn with(name: &str, chunk_tokens: usize, check: impl FnOnce(&Bed<'_>)) {
    let golden = golden(name);
    let list = |key: &str, of: &str| -> Vec<Vec<u32>> {
        golden[key].as_array().unwrap().iter().map(|it| ids(&it[of])).collect()
    };
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let opened = open_any(&folder(name)).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 512, chunk_tokens, ..Limits::default() };
    let engine =
        Engine::new(ModelView { device: &device, model: &model, params: &params }, &tokenizer, limits);
    check(&Bed {
        engine,
        device: &device,
        sources: list("pairs", "source"),
        greedy: list("greedy", "tokens"),
    });
}

#[test]
fn greedy_answers_are_those_of_transformers() {
    for name in CASES {
        for chunk_tokens in [1024, 1] {
            with(name, chunk_tokens, |Bed { engine, sources, greedy: wanted, .. }| {
                let tokens = wanted[0].len();
                let answers = |sources: &[Vec<u32>]| -> Vec<Vec<u32>> {
                    let ask = |ids: &Vec<u32>| GenerateRequest::new(ids.clone(), sampling(tokens));
                    let all = engine.generate_all(sources.iter().map(ask).collect()).unwrap();
                    all.into_iter().map(|mut answers| answers.remove(0).ids).collect()
                };
                assert_eq!(&answers(sources), wanted, "{name}");
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
    with("t5_v11", 4, |Bed { engine, sources, greedy: wanted, .. }| {
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

/// Several adapters over one base answer as in PEFT, whatever runs with them; and so does a model with its adapter.
#[test]
fn answers_of_adapters_are_those_of_peft() {
    let peft = |case: &str| -> (PathBuf, Vec<Vec<u32>>, Vec<Vec<u32>>) {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_adapters/encoders").join(case);
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let list = |key: &str| expected[key].as_array().unwrap().clone();
        let sources = list("docs").iter().map(|doc| ids(&doc[0])).collect();
        (folder.join("before"), sources, list("greedy").iter().map(ids).collect())
    };
    with("t5_v11", 1024, |Bed { engine, device, sources, greedy }| {
        let served = ["t5_dora", "t5_ia3"].map(|case| (case, peft(case)));
        let mut asked: Vec<(GenerateRequest, Vec<u32>)> = Vec::new();
        for (case, (folder, sources, greedy)) in &served {
            engine.load_adapter(case, folder).unwrap();
            for (source, wanted) in sources.iter().zip(greedy) {
                let request = GenerateRequest::new(source.clone(), sampling(wanted.len()));
                asked.push((GenerateRequest { adapter: Some(case.to_string()), ..request }, wanted.clone()));
            }
        }
        for (source, wanted) in sources.iter().zip(greedy) {
            asked.push((GenerateRequest::new(source.clone(), sampling(wanted.len())), wanted.clone()));
        }
        let answers =
            engine.generate_all(asked.iter().map(|(request, _)| request.clone()).collect()).unwrap();
        for ((request, wanted), answer) in asked.iter().zip(answers) {
            assert_eq!(&answer[0].ids, wanted, "{:?}", request.adapter);
        }
        // Terms of the head come with the base's own weight, which others share.
        let refused = engine.load_adapter("lora", &peft("t5_lora").0).unwrap_err().to_string();
        assert!(refused.contains("lm_head"), "{refused}");
        let (adapter, sources, greedy) = peft("t5_lora");
        let opened = open_any(&folder("t5_v11")).unwrap();
        let (spec, tensors) = open_peft(&adapter, opened.spec).unwrap();
        let (model, mut params) = Model::declare(device, &spec, DType::F32);
        load_peft(device, &model, &mut params, (&opened.source, &tensors)).unwrap();
        let own = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
        let limits = Limits { context_tokens: 512, ..Limits::default() };
        let engine = Engine::new(ModelView { device, model: &model, params: &params }, &own, limits);
        for (source, wanted) in sources.iter().zip(&greedy) {
            let request = GenerateRequest::new(source.clone(), sampling(wanted.len()));
            assert_eq!(&engine.generate_all(vec![request]).unwrap()[0][0].ids, wanted);
        }
    });
}

/// Natural log-probabilities of ids in rows of logits.
fn logprobs(rows: &[f32], vocab: usize, ids: &[u32]) -> Vec<f64> {
    let one = |(row, id): (&[f32], &u32)| {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        f64::from(row[*id as usize]) - sum.ln()
    };
    rows.chunks_exact(vocab).zip(ids).map(one).collect()
}

#[test]
fn likelihoods_and_logits_of_answers_are_those_of_transformers() {
    for name in CASES {
        let golden = golden(name);
        let pairs = golden["pairs"].as_array().unwrap();
        let tensors = SafeTensors::open_file(&folder(name).join("golden.safetensors")).unwrap();
        let shape = tensors.shape("logits").unwrap().to_vec();
        let (logits, vocab) = (read_f32(&tensors, "logits", 0..shape[0]).unwrap(), shape[1]);
        with(name, 64, |Bed { engine, sources, .. }| {
            // An answer is the text that a decoder reads, without the token that begins it.
            let answers: Vec<Vec<u32>> = pairs.iter().map(|it| ids(&it["decoder"])[1..].to_vec()).collect();
            let asked: Vec<Continuation> = sources
                .iter()
                .zip(&answers)
                .map(|(context, answer)| Continuation {
                    context: context.clone(),
                    continuation: answer.clone(),
                })
                .collect();
            let found = engine.log_likelihoods(&asked).unwrap();
            let mut start = 0;
            for ((asked, found), answer) in asked.iter().zip(&found).zip(&answers) {
                let rows = &logits[start * vocab..(start + answer.len() + 1) * vocab];
                start += answer.len() + 1;
                let wanted = logprobs(rows, vocab, answer);
                assert_eq!(found.logprobs.len(), wanted.len());
                for (found, wanted) in found.logprobs.iter().zip(&wanted) {
                    assert!((found - wanted).abs() < 1e-4, "{name}: {found} instead of {wanted}");
                }
                let best =
                    |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
                let hits: Vec<bool> =
                    rows.chunks_exact(vocab).zip(answer).map(|(row, id)| best(row) == *id).collect();
                assert_eq!(found.hits, hits);
                let alone = engine.log_likelihoods(std::slice::from_ref(asked)).unwrap().remove(0);
                assert!((alone.sum() - found.sum()).abs() < 1e-4, "{name}");
            }
        });
    }
}

/// Sources that do not fit into memory together wait for each other, and one whose answers gave way is read again.
#[test]
fn sources_take_no_more_memory_than_pages() {
    with("t5_v11", 64, |Bed { engine, device, sources, greedy: wanted }| {
        let tokens = wanted[0].len();
        // The pages hold the longest source, and one answer or two.
        let capacity = Capacity { sequences: 4, ..engine.capacity(1, 160) };
        let outputs: Vec<_> = (0..9).map(|_| RefCell::new(RequestOutput::of(3))).collect();
        let mut scheduler = Scheduler::new(engine, capacity);
        let before = device.pool.usage().live;
        for (at, output) in outputs.iter().enumerate() {
            let request = GenerateRequest::new(sources[at % 3].clone(), sampling(tokens));
            let source = &sources[at % 3];
            let listener = move |event: Event| {
                if let Event::Started { prompt, .. } = &event {
                    assert_eq!(prompt, source);
                }
                output.borrow_mut().push(event);
                Flow::Continue
            };
            scheduler.submit(GenerateRequest { answers: 3, ..request }, Box::new(listener)).unwrap();
        }
        let most_read: u64 = 2 * 2 * 4 * 32 * 160;
        while scheduler.step() {
            assert!(
                device.pool.usage().live - before <= most_read + (32 << 10),
                "{}",
                device.pool.usage().live - before
            );
        }
        assert!(scheduler.load().prompt_tokens > 9 * 5);
        assert_eq!(device.pool.usage().live, before);
        drop(scheduler);
        for (at, output) in outputs.into_iter().enumerate() {
            for answer in output.into_inner().generations().unwrap() {
                assert_eq!(answer.ids, wanted[at % 3]);
            }
        }
    });
}

/// Requests that an encoder-decoder cannot answer.
#[test]
fn what_a_source_has_not_is_refused_by_name() {
    with("t5_v10", 64, |Bed { engine, sources, .. }| {
        let refused = |error: String, named: &str| assert!(error.contains(named), "{error}");
        let one = &sources[1..2];
        refused(engine.look(one, Numbers::Vector).unwrap_err().to_string(), "gives no vectors");
        for at in [Numbers::Logits { last: 1 }, Numbers::Logprobs, Numbers::Hidden] {
            refused(engine.look(one, at).unwrap_err().to_string(), "this text has no answer");
        }
        let prompt = GenerateRequest {
            prompt_logprobs: Some(0),
            ..GenerateRequest::new(sources[1].clone(), sampling(4))
        };
        refused(engine.generate_all(vec![prompt]).unwrap_err().to_string(), "prompt_logprobs");
        // Each stream has the whole context.
        let long = |tokens: usize, new| GenerateRequest::new(vec![5; tokens], sampling(new));
        assert_eq!(engine.generate_all(vec![long(512, 511)]).unwrap()[0][0].ids.len(), 511);
        refused(engine.generate_all(vec![long(513, 1)]).unwrap_err().to_string(), "513");
        refused(engine.generate_all(vec![long(5, 512)]).unwrap_err().to_string(), "512");
    });
}
