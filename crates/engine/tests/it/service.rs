//! A model on a thread of its own, used from other threads.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use fathom_base::{
    Administer, Continuation, Describe, Evaluate, Event, Generate, GenerateRequest, LanguageModel, ModelCard,
    Numbers, Prompt, PromptPart, Sampling, SpecialTokens, Stop, Tokenize,
};
use fathom_engine::{Capacity, Facts, Handle, Structures, TextReading, service};
use fathom_tensor::DType;
use fathom_text::Tokenizer;

use crate::adapters::golden;
use crate::batch::Bed;

/// Starts a small model for `sequences` concurrent sequences of up to 300 tokens each; ends when its handle is dropped.
fn start(sequences: usize, queue: usize) -> (Handle, thread::JoinHandle<()>) {
    let (send, receive) = channel();
    let thread = thread::spawn(move || {
        let bed = Bed::new("../golden_adapters/llama", DType::F32);
        let engine = bed.engine(64);
        let capacity: Capacity = engine.capacity(sequences, 300);
        let card = ModelCard {
            name: "small".into(),
            vocabulary: 256,
            generates: true,
            embedding: 32,
            ..ModelCard::default()
        };
        let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
        let bounds = engine.bounds(capacity.clone());
        let (handle, commands) = service(Facts {
            card,
            tokenizer: Arc::new(tokenizer),
            bounds,
            render: None,
            adapters: Some(Box::new(|folder| Ok(folder.to_path_buf()))),
            queue,
            structures: Structures::default(),
            reading: TextReading::default(),
        });
        send.send(handle).unwrap();
        commands.serve(&engine, capacity, None).unwrap();
    });
    (receive.recv().unwrap(), thread)
}

/// Submits a request; returns its ticket and events.
fn ask(handle: &Handle, request: GenerateRequest) -> (fathom_base::Ticket, Receiver<Event>) {
    let (send, receive) = channel();
    let ticket = handle.submit(request, Box::new(move |event| _ = send.send(event))).unwrap();
    (ticket, receive)
}

/// The ids of a request's first answer, and why it ended.
fn answer(events: &Receiver<Event>) -> (Vec<u32>, Option<Stop>) {
    let (mut ids, mut why) = (Vec::new(), None);
    for event in events {
        match event {
            Event::Piece { ids: more, .. } => ids.extend(more),
            Event::Ended { stop, .. } => why = Some(stop),
            Event::Failed(error) => panic!("{error}"),
            Event::Started { .. } | Event::Done(_) => {}
        }
    }
    (ids, why)
}

fn greedy(first: u32, max_tokens: usize) -> GenerateRequest {
    let sampling = Sampling { max_tokens, ignore_eos: true, ..Sampling::default() };
    GenerateRequest::new((first..first + 20).collect::<Vec<u32>>(), sampling)
}

#[test]
fn many_threads_ask_one_model() {
    let (handle, thread) = start(4, 64);
    let alone: Vec<Vec<u32>> = (0..8).map(|first| answer(&ask(&handle, greedy(first, 24)).1).0).collect();
    let handle = Arc::new(handle);
    let seen = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for first in 0..8 {
            let (handle, seen) = (handle.clone(), &seen);
            scope.spawn(move || {
                let (_ticket, events) = ask(&handle, greedy(first, 24));
                let (ids, why) = answer(&events);
                assert_eq!(why, Some(Stop::Length));
                seen.lock().unwrap().push((first, ids));
            });
        }
    });
    for (first, ids) in seen.into_inner().unwrap() {
        assert_eq!(ids, alone[first as usize]);
    }
    // The last step's load is published shortly after its events.
    while handle.load().pages_used > 0 {
        thread::yield_now();
    }
    drop(handle);
    thread.join().unwrap();
}

/// Log-probabilities of a text need no token after it, so a text may fill the whole context.
#[test]
fn a_prompt_that_nothing_follows_may_take_all_room() {
    let (handle, thread) = start(2, 10_000);
    let ask_logprobs = |tokens: u32, max_tokens| {
        let sampling = Sampling { max_tokens, ..Sampling::default() };
        let prompt: Vec<u32> = (0..tokens).map(|id| id % 90).collect();
        GenerateRequest { prompt_logprobs: Some(0), answers: 2, ..GenerateRequest::new(prompt, sampling) }
    };
    let read = |tokens, max_tokens| {
        let (_ticket, events) = ask(&handle, ask_logprobs(tokens, max_tokens));
        let (mut of_prompt, mut written, mut ends, mut usage) = (Vec::new(), 0, Vec::new(), 0);
        for event in events {
            match event {
                Event::Started { logprobs, .. } => of_prompt = logprobs,
                Event::Piece { ids, .. } => written += ids.len(),
                Event::Ended { stop, .. } => ends.push(stop),
                Event::Done(took) => usage = took.answer_tokens,
                Event::Failed(error) => panic!("{error}"),
            }
        }
        (of_prompt, written, ends, usage)
    };
    // The longest prompt that fits without a token after it.
    let full = (300..5000)
        .find(|tokens| handle.submit(ask_logprobs(*tokens, 1), Box::new(|_| ())).is_err())
        .unwrap();
    let (of_prompt, written, ends, usage) = read(full, 0);
    assert_eq!((of_prompt.len(), written, ends, usage), (full as usize, 0, vec![Stop::Length; 2], 0));
    assert_eq!(read(200, 0).0[..], read(200, 1).0[..]);
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn events_come_in_order_and_dropping_the_ticket_ends_them() {
    let (handle, thread) = start(1, 64);
    let (ticket, events) = ask(&handle, greedy(1, 3));
    let all: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
    let kinds: Vec<&str> = all.iter().map(|event| event.split([' ', '(', '{']).next().unwrap()).collect();
    assert_eq!(kinds, ["Started", "Piece", "Piece", "Piece", "Ended", "Done"]);
    drop(ticket);
    // One runs, one waits; both are cancelled and the third is answered.
    let (first, first_events) = ask(&handle, greedy(1, 250));
    let (second, second_events) = ask(&handle, greedy(2, 250));
    assert!(matches!(first_events.recv().unwrap(), Event::Started { .. }));
    drop((first, second));
    let (_ticket, events) = ask(&handle, greedy(3, 5));
    assert_eq!(answer(&events).0.len(), 5);
    assert!(first_events.iter().filter(|event| matches!(event, Event::Done(_))).count() == 0);
    assert_eq!(second_events.iter().count(), 0);
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn a_full_queue_and_a_late_request_are_refused() {
    let (handle, thread) = start(1, 2);
    let (_one, _events) = ask(&handle, greedy(1, 200));
    let (_two, second) = ask(&handle, GenerateRequest { deadline_s: Some(0.0), ..greedy(2, 200) });
    let error = handle.submit(greedy(3, 10), Box::new(|_| ())).unwrap_err();
    assert!(matches!(error, fathom_base::Error::Busy { .. }), "{error}");
    let (ids, why) = answer(&second);
    assert_eq!((ids.len(), why), (0, Some(Stop::Deadline)));
    for bad in [greedy(1, 100_000), GenerateRequest::greedy(Vec::new(), 1)] {
        assert!(handle.submit(bad, Box::new(|_| ())).is_err());
    }
    drop((_one, handle));
    thread.join().unwrap();
}

#[test]
fn adapters_are_loaded_and_unloaded_during_requests() {
    let (handle, thread) = start(2, 64);
    let folder = |case: &str| golden(case).join("after");
    let with =
        |name: &str, max_tokens| GenerateRequest { adapter: Some(name.into()), ..greedy(1, max_tokens) };
    let refused = |request| handle.submit(request, Box::new(|_| ())).unwrap_err().to_string();
    assert!(refused(with("a", 5)).contains("no adapter called `a`"));
    handle.load_adapter("a", &folder("dora")).unwrap();
    let print = |name: &str| handle.card().adapters.get(name).cloned();
    let of_a = print("a").unwrap();
    handle.load_adapter("c", &folder("ia3")).unwrap();
    assert!(print("c").unwrap() != of_a && handle.card().adapters.len() == 2);
    handle.unload_adapter("c").unwrap();
    handle.load_adapter("c", &folder("dora")).unwrap();
    assert_eq!(print("c").unwrap(), of_a);
    handle.unload_adapter("c").unwrap();
    for (name, case, part) in
        [("a", "ia3", "`a` already"), ("small", "ia3", "`small` already"), ("b", "pissa", "base")]
    {
        let error = handle.load_adapter(name, &folder(case)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let alone = answer(&ask(&handle, with("a", 200)).1).0;
    assert_ne!(alone, answer(&ask(&handle, greedy(1, 200)).1).0);
    // Its name is removed at once, and unloading ends with its last request.
    let (_ticket, events) = ask(&handle, with("a", 200));
    assert!(matches!(events.recv().unwrap(), Event::Started { .. }));
    handle.unload_adapter("a").unwrap();
    let left: Vec<Event> = events.try_iter().collect();
    assert!(matches!(left.last(), Some(Event::Done(_))), "{:?}", left.last());
    let ids: Vec<u32> = left
        .into_iter()
        .flat_map(|event| if let Event::Piece { ids, .. } = event { ids } else { Vec::new() })
        .collect();
    assert_eq!(ids, alone);
    assert!(handle.card().adapters.is_empty() && refused(with("a", 5)).contains("`a`"));
    assert!(handle.unload_adapter("a").unwrap_err().to_string().contains("no adapter called `a`"));
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn vectors_and_tokens() {
    let (handle, thread) = start(1, 2);
    let (send, receive) = channel();
    let texts: Vec<fathom_base::TextIds> =
        [vec![1, 2], vec![3], (1..90).collect()].into_iter().map(Into::into).collect();
    let sink = Box::new(move |vectors| send.send(vectors).unwrap());
    let _ticket = handle.numbers(texts.clone(), Numbers::Vector, sink).unwrap();
    // Others send requests at the same time, and one of them leaves.
    let alone: Vec<_> = texts
        .iter()
        .map(|text| {
            let (send, receive) = channel();
            let sink = Box::new(move |vectors| _ = send.send(vectors));
            (handle.numbers(vec![text.clone()], Numbers::Vector, sink).unwrap(), receive)
        })
        .collect();
    drop(handle.numbers([&texts[..]; 50].concat(), Numbers::Vector, Box::new(|_| ())).unwrap());
    let vectors = receive.recv().unwrap().unwrap();
    assert_eq!(vectors.len(), 3);
    for (vector, (_ticket, alone)) in vectors.iter().zip(&alone) {
        assert_eq!(&alone.recv().unwrap().unwrap()[0], vector);
    }
    assert_eq!(handle.read(&("a b a b".into(), None), Numbers::Vector, Some(2)).unwrap().ids.len(), 2);
    let numbers = |ids: Vec<u32>, asked| handle.numbers(vec![ids.into()], asked, Box::new(|_| ()));
    assert!(numbers(vec![1], Numbers::Classes).err().unwrap().to_string().contains("no head"));
    assert!(numbers(vec![1 << 20], Numbers::Vector).err().unwrap().to_string().contains("vocabulary"));
    assert!(numbers(vec![], Numbers::Vector).is_err());
    assert!(
        handle.render(&fathom_base::Conversation::default()).unwrap_err().to_string().contains("template")
    );
    let ids = handle.encode("a b", SpecialTokens::Text).unwrap();
    assert_eq!(handle.decode(&ids).unwrap(), "a b");
    let bytes: Vec<u8> = ids.iter().flat_map(|id| handle.token_bytes(*id)).collect();
    assert_eq!(bytes, b"a b");
    drop(handle);
    thread.join().unwrap();
}

/// An answer reports which of its request's tokens ended it; the model's own end tokens are not named.
#[test]
fn an_answer_names_the_token_that_ended_it() {
    let (handle, thread) = start(1, 64);
    let (ids, _) = answer(&ask(&handle, greedy(1, 24)).1);
    let last = ids.iter().position(|id| *id == ids[9]).unwrap();
    let mut named = greedy(1, 24);
    named.sampling.stop_ids = vec![ids[9]];
    assert_eq!(answer(&ask(&handle, named).1), (ids[..last].to_vec(), Some(Stop::StopToken(ids[9]))));
    drop(handle);
    thread.join().unwrap();
}

/// The most likely tokens, the logits and the log-probabilities of a text agree with each other.
#[test]
fn a_text_is_looked_at_from_all_sides() {
    let (handle, thread) = start(2, 64);
    let texts: Vec<Vec<u32>> =
        [3, 40, 9].map(|tokens| (0..tokens).map(|id| (id * 7 + tokens) % 90).collect()).into();
    let look = |at| handle.look(&texts, at).unwrap();
    let logits = look(Numbers::Logits { last: usize::MAX });
    let vocab = logits[0].len() / 3;
    let tops = look(Numbers::Top { k: 1, temperature: 1.0 });
    for ((text, row), (logits, top)) in texts.iter().zip(look(Numbers::Logprobs)).zip(logits.iter().zip(tops))
    {
        assert_eq!(row.len(), 2 * (text.len() - 1));
        for (at, token) in row.chunks(2).enumerate() {
            let (logits, next) = (&logits[at * vocab..][..vocab], text[at + 1] as usize);
            let mass = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
            assert!((f64::from(logits[next]) - mass - f64::from(token[0])).abs() < 1e-4);
            assert_eq!(token[1] > 0.0, top[2 * (at + 1)] as usize == next);
        }
    }
    let last = look(Numbers::Logits { last: 1 });
    assert!(last.iter().zip(&logits).all(|(last, all)| all.ends_with(last)));
    let hidden = look(Numbers::Hidden);
    assert!(hidden.iter().zip(&texts).all(|(row, text)| row.len() == 32 * text.len()));
    let split = |text: &Vec<u32>| Continuation { context: text[..2].into(), continuation: text[2..].into() };
    let likely = handle.log_likelihoods(&texts.iter().map(split).collect::<Vec<_>>()).unwrap();
    let row = look(Numbers::Logprobs).remove(1);
    let own: f64 = row.chunks(2).skip(1).map(|token| f64::from(token[0])).sum();
    assert_eq!((likely[1].logprobs.len(), likely[1].sum()), (38, own));
    let error = handle.look(&texts, Numbers::Scores).unwrap_err().to_string();
    assert!(error.contains("has no head that classifies"), "{error}");
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn whole_answers_are_collected_and_a_caller_may_stop_waiting() {
    let (handle, thread) = start(2, 64);
    let answers = handle.generate_all(vec![greedy(1, 5), greedy(2, 7)]).unwrap();
    assert_eq!(answers.iter().map(|all| all[0].ids.len()).collect::<Vec<_>>(), [5, 7]);
    assert_eq!(answers[0][0].ids, answer(&ask(&handle, greedy(1, 5)).1).0);
    assert!(handle.generate_while(vec![greedy(1, 200)], &|| false).unwrap().is_none());
    let parts = Prompt::Parts(vec![
        PromptPart::Text("a b".into()),
        PromptPart::Ids(vec![5]),
        PromptPart::Text("b".into()),
    ]);
    let text = |text| handle.encode(text, SpecialTokens::Text).unwrap();
    assert_eq!(handle.ids(&parts).unwrap(), [text("a b"), vec![5], text("b")].concat());
    let error =
        handle.ids(&Prompt::Conversation(fathom_base::Conversation::default())).unwrap_err().to_string();
    assert!(error.contains("has no chat template"), "{error}");
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn the_end_of_a_prompt_is_reported_after_a_cached_beginning() {
    let (handle, thread) = start(2, 8);
    let prompt: Vec<u32> = (0..200).map(|at| (at * 7 + 3) % 90).collect();
    let reported = |from: usize| {
        let request =
            GenerateRequest { prompt_logprobs: Some(0), ..GenerateRequest::greedy(prompt.clone(), 1) };
        let (send, receive) = channel();
        let sink = Box::new(move |event| _ = send.send(event));
        let _ticket = handle.submit_from((request, from), sink, &|| true).unwrap();
        let (mut found, mut cached) = (Vec::new(), 0);
        for event in &receive {
            match event {
                Event::Started { logprobs, cached_tokens, .. } => (found, cached) = (logprobs, cached_tokens),
                Event::Done(_) => break,
                _ => {}
            }
        }
        (found, cached)
    };
    let (whole, cached) = reported(0);
    assert_eq!((whole.len(), cached, whole[0].logprob), (200, 0, None));
    for from in [1, 130, 190, 199] {
        let (end, cached) = reported(from);
        assert_eq!(end, whole[from..], "from {from}");
        assert_eq!(cached, if from == 1 { 0 } else { from - 1 }, "from {from}");
    }
    drop(handle);
    thread.join().unwrap();
}
