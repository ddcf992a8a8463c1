//! A service over ranks that have parts of a model: its answers are those of one rank, with any requests coming and
//! going.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fathom_base::{
    Administer, Beams, Describe, EarlyStopping, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard,
    Numbers, Sampling, Stop, Structure,
};
use fathom_cpu::Cpu;
use fathom_engine::{
    Beginnings, Capacity, Commands, Engine, Error, Facts, Follower, Handle, Leader, Limits, StoreLocation,
    Structures, TextReading, ranks, service,
};
use fathom_grad::Params;
use fathom_model::{Model, ModelView, load, open};
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

use crate::adapters::golden;

/// A rank's part of a small model.
struct Part {
    device: Device,
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
}

impl Part {
    fn new(case: &str, mesh: Mesh) -> Part {
        Part::of(case, Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 30, mesh))
    }

    fn of(case: &str, device: Device) -> Part {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let opened = open(&folder).unwrap();
        let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
        load(&device, &model, &mut params, &opened.source).unwrap();
        let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
        Part { device, model, params, tokenizer }
    }

    fn engine(&self) -> Engine<'_> {
        let limits = Limits { context_tokens: 1024, chunk_tokens: 37, draft_tokens: 3, ..Limits::default() };
        Engine::new(
            ModelView { device: &self.device, model: &self.model, params: &self.params },
            &self.tokenizer,
            limits,
        )
    }
}

type EndResult = Result<Load, Error>;

/// Options of a server besides the model.
#[derive(Clone, Default)]
struct With {
    /// Concurrent sequences, and tokens of each that the pages hold, instead of [`CAPACITY`].
    capacity: Option<(usize, usize)>,
    /// A draft model, which the first rank has whole.
    draft: Option<&'static str>,
    /// Store of prefixes.
    kept: Option<Beginnings>,
    /// True if sequences have most of their pages there.
    on_disk: bool,
}

impl With {
    fn capacity(&self, engine: &Engine<'_>) -> Capacity {
        let (sequences, tokens) = self.capacity.unwrap_or(CAPACITY);
        let mut all = engine.capacity(sequences, tokens);
        if self.on_disk {
            all.on_disk = all.pages.iter().copied().max().unwrap_or(0);
            let pages = all.pages.iter_mut().zip(engine.spec().windows());
            pages.filter(|(_, window)| window.is_none()).for_each(|(pages, _)| *pages = 3);
        }
        all
    }
}

/// Concurrent sequences, and tokens of each that the pages hold: fewer than are requested.
const CAPACITY: (usize, usize) = (3, 300);

fn leads(
    (case, with): (&str, &With),
    mesh: Mesh,
    leader: Option<Leader>,
    send: impl FnOnce(Handle),
) -> EndResult {
    let part = Part::new(case, mesh);
    let draft = with.draft.map(|case| Part::of(case, Device { mesh: Mesh::alone(), ..part.device.clone() }));
    let drafting = draft.as_ref().map(Part::engine);
    let mut engine = part.engine();
    if let Some(drafting) = &drafting {
        engine = engine.drafting(drafting)?;
    }
    let capacity = with.capacity(&engine);
    let (handle, commands) = service(Facts {
        card: ModelCard {
            name: "small".into(),
            vocabulary: 96,
            generates: true,
            embedding: 32,
            ..ModelCard::default()
        },
        tokenizer: Arc::new(Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap()),
        bounds: engine.bounds(capacity.clone()),
        render: None,
        adapters: Some(Box::new(|folder| Ok(folder.to_path_buf()))),
        queue: 64,
        structures: Structures::default(),
        reading: TextReading::default(),
    });
    send(handle);
    let commands: Commands = match leader {
        Some(leader) => commands.leading(leader),
        None => commands,
    };
    commands.serve(&engine, capacity, with.kept.as_ref()).map(|()| Load::default())
}

fn follows((case, with): (&str, &With), mesh: Mesh, follower: &Follower) -> EndResult {
    let part = Part::new(case, mesh);
    let engine = part.engine();
    follower.follow(&engine, with.capacity(&engine), with.kept.as_ref())
}

/// Serves a model over ranks; ends when its handle is dropped.
fn start(case: &'static str, grid: Grid, with: &With) -> (Handle, Vec<JoinHandle<EndResult>>) {
    let (send, receive) = channel();
    let own = with.clone();
    if grid.ranks() == 1 {
        let one = move || leads((case, &own), Mesh::alone(), None, |handle| send.send(handle).unwrap());
        let one = thread::spawn(one);
        return (receive.recv().unwrap(), vec![one]);
    }
    let options = ThreadsOptions { deadline: Duration::from_secs(60), ..ThreadsOptions::default() };
    let mut seats = threads(grid.ranks(), options).into_iter();
    let mesh = move |seat: Seat| Mesh::new(grid, Box::new(seat.take()));
    let (leader, followers) = ranks(grid.ranks() - 1);
    let first = seats.next().unwrap();
    let first = move || leads((case, &own), mesh(first), Some(leader), |handle| send.send(handle).unwrap());
    let mut all = vec![thread::spawn(first)];
    for (seat, follower) in seats.zip(followers) {
        let with = with.clone();
        all.push(thread::spawn(move || follows((case, &with), mesh(seat), &follower)));
    }
    (receive.recv().unwrap(), all)
}

fn ask(handle: &Handle, request: GenerateRequest) -> (fathom_base::Ticket, Receiver<Event>) {
    let (send, receive) = channel();
    let ticket = handle.submit(request, Box::new(move |event| _ = send.send(event))).unwrap();
    (ticket, receive)
}

/// The ids of each answer, and log-probabilities; those of the prompt come first.
type AnswerBits = (Vec<Vec<u32>>, Vec<f32>);

fn heard(events: &Receiver<Event>) -> (AnswerBits, Vec<Stop>) {
    let ((mut ids, mut logprobs), mut stops) = (AnswerBits::default(), Vec::new());
    let mut by_answer = std::collections::BTreeMap::<usize, Vec<f32>>::new();
    for event in events {
        match event {
            Event::Started { logprobs: of, .. } => {
                logprobs.extend(of.iter().filter_map(|token| token.logprob))
            }
            Event::Piece { answer, ids: more, logprobs: of, .. } => {
                ids.resize(ids.len().max(answer + 1), Vec::new());
                ids[answer].extend(more);
                by_answer.entry(answer).or_default().extend(of.iter().filter_map(|token| token.logprob));
            }
            Event::Ended { stop, .. } => stops.push(stop),
            Event::Failed(error) => panic!("{error}"),
            Event::Done(_) => {}
        }
    }
    logprobs.extend(by_answer.into_values().flatten());
    ((ids, logprobs), stops)
}

/// Requests: greedy, sampled, several answers, structures, beams; prompts with common prefixes, of different priority.
fn requests() -> Vec<GenerateRequest> {
    let word = |at: u32| (at * 7919 + 13) % 90;
    let prompt = |index: u32| {
        let own = (0..20 + 17 * index).map(|at| word(at * 31 + index));
        (0..40 * (index % 3)).map(word).chain(own).collect::<Vec<u32>>()
    };
    let request = |index: u32| {
        let temperature = if index.is_multiple_of(2) { 0.0 } else { 0.8 };
        let sampling = Sampling {
            temperature,
            seed: index.into(),
            max_tokens: 20,
            ignore_eos: true,
            ..Sampling::default()
        };
        let request = GenerateRequest::new(prompt(index), sampling);
        GenerateRequest {
            logprobs: Some(1),
            priority: (index % 2) as i32,
            deadline_s: Some(600.0),
            ..request
        }
    };
    let mut all: Vec<GenerateRequest> = (0..8).map(request).collect();
    all[2].prompt_logprobs = Some(0);
    all[3].answers = 2;
    all[4].structure = Some(Structure::Regex("[0-9]{12}".into()));
    let how = Beams { width: 2, length_penalty: 1.0, early_stopping: EarlyStopping::Likely };
    all[6] = GenerateRequest { beams: Some(how), ..all[6].clone() };
    all
}

/// Answers to all requests over a grid, with one that is cancelled and one whose time is up; and the number of right
/// guesses.
fn answers(case: &'static str, grid: Grid, with: &With) -> (Vec<AnswerBits>, u64) {
    let (handle, threads) = start(case, grid, with);
    let asked: Vec<_> = requests().into_iter().map(|request| ask(&handle, request)).collect();
    let long = GenerateRequest::greedy((1..80).collect::<Vec<u32>>(), 200);
    // The request is cancelled before it continues after its start, however slow this thread is.
    let ((send, gone), (go_on, held)) = (channel(), channel::<()>());
    let started = move |event: Event| {
        let holds = matches!(event, Event::Started { .. });
        _ = send.send(event);
        if holds {
            _ = held.recv();
        }
    };
    let given_up = handle.submit(GenerateRequest { priority: 5, ..long.clone() }, Box::new(started)).unwrap();
    let (_late, late) = ask(&handle, GenerateRequest { deadline_s: Some(0.0), ..long });
    assert!(matches!(gone.recv().unwrap(), Event::Started { .. }));
    drop(given_up);
    drop(go_on);
    assert!(gone.iter().all(|event| matches!(event, Event::Piece { .. })));
    assert_eq!(heard(&late), (AnswerBits::default(), vec![Stop::Deadline]));
    let all: Vec<AnswerBits> = asked.iter().map(|(_, events)| heard(events).0).collect();
    if grid.ranks() > 1 {
        let (send, vectors) = channel();
        let sink = Box::new(move |it| send.send(it).unwrap());
        let _ticket = handle.numbers(vec![vec![1].into()], Numbers::Vector, sink).unwrap();
        let error = vectors.recv().unwrap().unwrap_err().to_string();
        assert!(error.contains("one rank"), "{error}");
    }
    handle.erase_prefixes().unwrap();
    // The last step's load is published shortly after its events.
    while handle.load().pages_used > 0 || handle.load().pages_cached > 0 {
        thread::yield_now();
    }
    let Load { answer_tokens: answered, accepted_tokens, .. } = handle.load();
    drop((asked, handle));
    for (rank, thread) in threads.into_iter().enumerate() {
        let load = thread.join().unwrap().unwrap();
        if rank > 0 {
            let left = [load.running, load.waiting, load.pages_used, load.pages_cached];
            assert_eq!((left, load.answer_tokens), ([0; 4], answered), "{case} on {grid}, rank {rank}");
        }
    }
    (all, accepted_tokens)
}

#[test]
fn ranks_answer_what_one_does() {
    let one = Grid::default();
    // One model with windows, one without, one whose layers have states.
    for case in ["gemma2", "llama31", "bamba"] {
        let alone = answers(case, one, &With::default()).0;
        for grid in [Grid { pp: 2, ..one }, Grid { tp: 2, ..one }, Grid { tp: 2, pp: 2, ..one }] {
            let (found, right) = answers(case, grid, &With::default());
            // The first rank's draft model changes no bit: the model itself, if its layers have no states.
            let (draft, same) = if case == "bamba" { ("llama31", false) } else { (case, true) };
            let (drafted, more) = answers(case, grid, &With { draft: Some(draft), ..With::default() });
            assert!(
                drafted == found && (more > right || !same),
                "{case} on {grid}: {more} guesses were right, and {right}"
            );
            for (index, (own, all)) in found.iter().zip(&alone).enumerate() {
                let what = format!("{case} on {grid}, request {index}");
                assert_eq!(own.0, all.0, "{what}");
                assert_eq!(own.1.len(), all.1.len(), "{what}");
                // Sums over parts of a row are rounded differently; pipeline stages sum nothing.
                let most = if grid.tp == 1 { 0.0 } else { 2e-4 };
                let apart = own.1.iter().zip(&all.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart <= most, "{what}: {apart}");
            }
        }
    }
}

/// Experts distributed over ranks, whole or by columns: one tensor per expert, all in one with biases, and six for four
/// ranks.
#[test]
fn ranks_with_experts_answer_what_one_does() {
    let one = Grid::default();
    let tp = Grid { tp: 2, ..one };
    for (case, grids) in [
        ("mixtral", vec![Grid { ep: 2, ..tp }, Grid { etp: 2, ..tp }, Grid { pp: 2, ep: 2, ..tp }]),
        ("gpt_oss", vec![Grid { ep: 2, ..tp }, Grid { etp: 2, ..tp }]),
        ("qwen3_moe", vec![Grid { ep: 2, ..tp }]),
    ] {
        let alone = answers(case, one, &With::default()).0;
        for grid in grids {
            let (found, _) = answers(case, grid, &With::default());
            // An expert's products have the bits of one rank; terms of its columns are added in another order.
            if grid.etp == 1 && grid.pp == 1 {
                let whole = answers(case, tp, &With::default()).0;
                assert!(found == whole, "{case} on {grid}: other bits than with all experts on each rank");
            }
            for (index, (own, all)) in found.iter().zip(&alone).enumerate() {
                let what = format!("{case} on {grid}, request {index}");
                assert_eq!(own.0, all.0, "{what}");
                let apart = own.1.iter().zip(&all.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(own.1.len() == all.1.len() && apart <= 2e-4, "{what}: {apart}");
            }
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_service() {
    let grid = Grid { tp: 2, ..Grid::default() };
    let mut seats = threads(2, ThreadsOptions::default()).into_iter();
    let (leader, followers) = ranks(1);
    let (send, receive) = channel();
    let first = seats.next().unwrap();
    let first = thread::spawn(move || {
        let mesh = Mesh::new(grid, Box::new(first.take()));
        leads(("llama31", &With::default()), mesh, Some(leader), |handle| send.send(handle).unwrap())
    });
    let handle = receive.recv().unwrap();
    let second = seats.next().unwrap();
    thread::spawn(move || {
        let mesh = Mesh::new(grid, Box::new(second.take()));
        mesh.link().unwrap().abort("it has no memory left");
        drop(followers);
    });
    let (_ticket, events) = ask(&handle, GenerateRequest::greedy(vec![1, 2, 3], 5));
    // Results computed without it are not answers.
    assert_eq!(events.iter().count(), 0);
    let error = first.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("a rank failed") && error.contains("no memory left"), "{error}");
    assert!(handle.submit(GenerateRequest::greedy(vec![1], 1), Box::new(|_| ())).is_err());
}

/// Adapters that share the base's pass, of every kind, over ranks with parts of the base; they are loaded and unloaded
/// on all of them.
#[test]
fn ranks_answer_with_adapters_as_one_does() {
    let base = "../golden_adapters/llama";
    let cases = ["lora_all_linear", "dora", "ia3", "lora_bias"];
    let folder = |case: &str| golden(case).join("after");
    let with = With { capacity: Some((5, 300)), ..With::default() };
    let request = |index: usize, adapter: Option<&str>| GenerateRequest {
        adapter: adapter.map(Into::into),
        logprobs: Some(0),
        ..GenerateRequest::greedy(
            (0..20 + 13 * index as u32).map(|at| (at * 7 + 3) % 90).collect::<Vec<u32>>(),
            20,
        )
    };
    let answers = |grid: Grid| -> Vec<AnswerBits> {
        let (handle, threads) = start(base, grid, &with);
        cases.iter().for_each(|case| handle.load_adapter(case, &folder(case)).unwrap());
        // An adapter that one rank refuses is on no rank.
        assert!(handle.load_adapter("other", &folder("gpt2_lora")).is_err());
        let all = (0..10).map(|index| (index, cases.get(index % 5).copied()));
        let asked: Vec<_> = all.map(|(index, case)| ask(&handle, request(index, case))).collect();
        let mut all: Vec<AnswerBits> = asked.iter().map(|(_, events)| heard(events).0).collect();
        drop(asked);
        handle.unload_adapter("dora").unwrap();
        handle.load_adapter("dora", &folder("lora_attention")).unwrap();
        all.push(heard(&ask(&handle, request(1, Some("dora"))).1).0);
        drop(handle);
        threads.into_iter().for_each(|thread| _ = thread.join().unwrap().unwrap());
        all
    };
    let one = Grid::default();
    let alone = answers(one);
    assert!(alone[1] != alone[10] && alone[1].0 != heard_of_base(base, request(1, None)));
    for grid in [Grid { pp: 2, ..one }, Grid { tp: 2, ..one }] {
        for (index, (own, all)) in answers(grid).iter().zip(&alone).enumerate() {
            let apart = own.1.iter().zip(&all.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let most = if grid.tp == 1 { 0.0 } else { 2e-4 };
            assert_eq!(own.0, all.0, "{grid}, request {index}");
            assert!(apart <= most, "{grid}, request {index}: {apart}");
        }
    }
}

/// Adapters of experts whose columns ranks share: three experts cannot be halved.
#[test]
fn ranks_answer_with_adapters_of_experts_as_one_does() {
    let tp = Grid { tp: 2, ..Grid::default() };
    as_one_does(
        "../golden_adapters/mixtral",
        ["experts_each", "experts_stacked"],
        [tp, Grid { etp: 2, ..tp }],
    );
}

/// Biases that replace the base's: those of queries, keys and values are sharded with their columns; those of norms
/// need a separate pass.
#[test]
fn ranks_answer_with_biases_of_adapters_as_one_does() {
    let one = Grid::default();
    let grids = [Grid { tp: 2, ..one }, Grid { pp: 2, ..one }];
    as_one_does("../golden_adapters/qwen2", ["qwen2_lora_only", "qwen2_all"], grids);
    // Its queries, keys and values are one tensor in files.
    as_one_does("../golden_adapters/gpt2", ["gpt2_lora", "gpt2_bias"], grids);
    as_one_does("../golden_adapters/gpt2", ["gpt2_lora", "gpt2_ia3"], grids);
}

fn as_one_does(base: &'static str, cases: [&str; 2], grids: [Grid; 2]) {
    let with = With { capacity: Some((3, 300)), ..With::default() };
    let answers = |grid: Grid| -> Vec<AnswerBits> {
        let (handle, threads) = start(base, grid, &with);
        cases.iter().for_each(|case| handle.load_adapter(case, &golden(case).join("after")).unwrap());
        let request = |adapter: Option<&str>| GenerateRequest {
            adapter: adapter.map(Into::into),
            logprobs: Some(0),
            ..GenerateRequest::greedy((0..31).map(|at| (at * 7 + 3) % 90).collect::<Vec<u32>>(), 20)
        };
        let all = [None, Some(cases[0]), Some(cases[1])].map(request);
        let asked = all.map(|request| ask(&handle, request));
        let all = asked.iter().map(|(_, events)| heard(events).0).collect();
        drop((asked, handle));
        threads.into_iter().for_each(|thread| _ = thread.join().unwrap().unwrap());
        all
    };
    let alone = answers(Grid::default());
    assert!(alone[0] != alone[1] && alone[1] != alone[2]);
    for grid in grids {
        for (index, (own, all)) in answers(grid).iter().zip(&alone).enumerate() {
            let apart = own.1.iter().zip(&all.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert_eq!(own.0, all.0, "{base}, {grid}, request {index}");
            assert!(apart <= 2e-4, "{base}, {grid}, request {index}: {apart}");
        }
    }
}

fn heard_of_base(case: &'static str, request: GenerateRequest) -> Vec<Vec<u32>> {
    let (handle, threads) = start(case, Grid::default(), &With::default());
    let (ids, _) = heard(&ask(&handle, request).1).0;
    drop(handle);
    threads.into_iter().for_each(|thread| _ = thread.join().unwrap().unwrap());
    ids
}

/// Prefixes on disk belong to a rank: one mesh does not find those of another, and a page that one rank lost is
/// computed by all.
#[test]
fn ranks_go_on_from_disk_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    // One model with windows, one without, one whose layers have states.
    for case in ["gemma2", "llama31", "bamba"] {
        let at = StoreLocation { folder: folder.path().into(), model: case.into(), most_bytes: 1 << 30 };
        let request = |tokens: u32| GenerateRequest {
            logprobs: Some(0),
            ..GenerateRequest::greedy((0..tokens).map(|at| (at * 7919 + 13) % 90).collect::<Vec<u32>>(), 20)
        };
        // Each runs, as far as the store can tell, in a process of its own.
        let answer_from = |grid: Grid, kept: bool, on_disk: bool| -> (Vec<AnswerBits>, u64) {
            let kept = kept.then(|| Beginnings::open(&at).unwrap());
            let with = With { capacity: Some((2, 700)), kept, on_disk, ..With::default() };
            let (handle, threads) = start(case, grid, &with);
            let asked = [request(600), request(50)].map(|request| ask(&handle, request));
            let all = asked.iter().map(|(_, events)| heard(events).0).collect();
            drop((asked, handle));
            let mut restored = 0;
            for thread in threads {
                restored = thread.join().unwrap().unwrap().restored_tokens;
            }
            (all, restored)
        };
        let answer = |grid: Grid, kept: bool| answer_from(grid, kept, false);
        let one = Grid::default();
        for grid in [Grid { tp: 2, ..one }, Grid { pp: 2, ..one }] {
            let plain = answer(grid, false).0;
            let what = format!("{case} on {grid}");
            let (heard, restored) = answer(grid, true);
            assert_eq!(restored, 0, "{what}: another mesh's are not read");
            assert!(heard == plain, "{what}");
            let (heard, restored) = answer(grid, true);
            assert_eq!(restored, 512, "{what}");
            assert!(heard == plain, "{what}");
            let mut files = Vec::new();
            let mut open = vec![folder.path().join(case)];
            while let Some(folder) = open.pop() {
                for entry in std::fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() { open.push(path) } else { files.push(path) }
                }
            }
            // Removes the third page of all ranks of this mesh and of the previous ones; then of a single rank.
            let third = |path: &&std::path::PathBuf| {
                path.file_name().unwrap().to_string_lossy().starts_with("00000003")
            };
            let mut thirds: Vec<_> = files.iter().filter(third).collect();
            thirds.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
            let last = thirds.last().unwrap();
            let mut bytes = std::fs::read(last).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(last, bytes).unwrap();
            let (heard, restored) = answer(grid, true);
            assert!(heard == plain, "{what}");
            assert!(case == "gemma2" || restored == 256, "{what}: {restored}");
            assert!(answer(grid, true) == (plain.clone(), 512), "{what}: what was lost is kept again");
            let (heard, restored) = answer_from(grid, true, true);
            assert!(heard == plain && restored == 512, "{what}: {restored}, of which pages stay on disk");
        }
    }
}
