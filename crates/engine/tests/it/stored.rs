//! Prefixes stored on disk: an answer that continues from them has the same bits, and no damaged page is used.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fathom_base::{GenerateRequest, Load, Prompt, Sampling, Stop};
use fathom_engine::{Beginnings, Engine, KeptModel, Limits, Scheduler, StoreLocation};
use fathom_model::ModelView;
use fathom_tensor::{DType, PageFormat};

use crate::batch::{AnswerBits, Bed, listen};
use crate::mixers;

const PROMPT: usize = 600;
const MARK: &str = ".fathom-prefixes";

fn stored(folder: &Path) -> StoreLocation {
    StoreLocation { folder: folder.to_path_buf(), model: "m".into(), most_bytes: 1 << 30 }
}

/// A model, and a store in a folder that is removed with the test.
fn on_disk() -> (tempfile::TempDir, Bed, StoreLocation) {
    let folder = tempfile::tempdir().unwrap();
    let at = stored(folder.path());
    (folder, Bed::new("llama2", DType::F32), at)
}

fn request(bed: &Bed, last: u32) -> GenerateRequest {
    let vocab = bed.model.spec.vocab as u32;
    let mut ids: Vec<u32> = (0..PROMPT as u32).map(|at| (at * 7919 + 13) % vocab).collect();
    ids.push(last);
    let sampling =
        Sampling { temperature: 0.9, seed: 7, max_tokens: 150, ignore_eos: true, ..Sampling::default() };
    GenerateRequest { logprobs: Some(0), ..GenerateRequest::new(ids, sampling) }
}

/// Answers one request, in a process of its own as far as the store can tell.
fn ask(
    bed: &Bed,
    kv: PageFormat,
    at: Option<&StoreLocation>,
    request: &GenerateRequest,
) -> (AnswerBits, Load) {
    let limits = Limits { context_tokens: 4096, chunk_tokens: 200, draft_tokens: 0, kv };
    let engine = Engine::new(
        ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
        &bed.tokenizer,
        limits,
    );
    let (heard, ends) = (RefCell::default(), RefCell::default());
    let mut scheduler = Scheduler::new(&engine, engine.capacity(1, PROMPT + 200));
    if let Some(at) = at {
        scheduler = scheduler.keeping(at).unwrap();
    }
    scheduler.submit(request.clone(), listen(&heard, &ends)).unwrap();
    while scheduler.step() {}
    let load = scheduler.load();
    drop(scheduler);
    (heard.into_inner(), load)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path)
            } else if !path.ends_with(MARK) {
                all.push(path)
            }
        }
    }
    all.sort();
    all
}

#[test]
fn a_conversation_goes_on_from_disk_with_the_same_bits() {
    // Unlimited attention, and windows of 64 tokens in addition.
    for (case, kv) in
        [("llama2", PageFormat::Plain), ("llama2", PageFormat::Int8), ("gemma3", PageFormat::Plain)]
    {
        let folder = tempfile::tempdir().unwrap();
        let (bed, at) = (Bed::new(case, DType::F32), stored(folder.path()));
        let first = request(&bed, 1);
        let plain = ask(&bed, kv, None, &first).0;
        let (kept, load) = ask(&bed, kv, Some(&at), &first);
        assert_eq!((kept == plain, load.restored_tokens), (true, 0), "{case}");
        // 750 tokens are five whole pages; the sixth is partial.
        assert_eq!(files(folder.path()).len(), 5, "{case}");
        assert!(
            files(folder.path())
                .iter()
                .all(|file| fs::metadata(file).unwrap().permissions().mode() & 0o777 == 0o600)
        );
        // The next turn of the conversation, in another process: the earlier turn is found.
        let mut turn = first.clone();
        let fathom_base::Prompt::Ids(ids) = &mut turn.prompt else { panic!() };
        ids.extend(&plain[0].0);
        ids.extend([3, 4, 5]);
        turn.sampling.max_tokens = 20;
        let (again, load) = ask(&bed, kv, Some(&at), &turn);
        assert_eq!(load.restored_tokens, 640, "{case}: {load:?}");
        assert_eq!(load.prefix_hits, 640, "{case}: {load:?}");
        assert!(again == ask(&bed, kv, None, &turn).0, "{case}");
        // A prompt that diverges earlier uses the pages that it shares.
        let other = request(&bed, 2);
        let (answer, load) = ask(&bed, kv, Some(&at), &other);
        assert_eq!(load.restored_tokens, 512, "{case}: {load:?}");
        assert!(answer == ask(&bed, kv, None, &other).0, "{case}");
    }
}

/// A store with the prefix of a request that was answered: the request and its answers.
fn asked_before() -> (tempfile::TempDir, Bed, StoreLocation, GenerateRequest, AnswerBits) {
    let (folder, bed, at) = on_disk();
    let first = request(&bed, 1);
    let plain = ask(&bed, PageFormat::Plain, Some(&at), &first).0;
    (folder, bed, at, first, plain)
}

/// Submits two requests, and steps until one of them has ended.
fn until_one_ends<'h>(
    scheduler: &mut Scheduler<'h>,
    requests: [&GenerateRequest; 2],
    heard: &'h [RefCell<AnswerBits>; 2],
    ends: &'h RefCell<Vec<Stop>>,
) {
    for (request, heard) in requests.into_iter().zip(heard) {
        scheduler.submit(request.clone(), listen(heard, ends)).unwrap();
    }
    while ends.borrow().is_empty() {
        assert!(scheduler.step());
    }
}

/// A disk that does not answer for a while: another request is answered meanwhile.
#[test]
fn what_is_read_from_disk_holds_up_no_other_request() {
    let (_folder, bed, at, first, plain) = asked_before();
    let heard: [RefCell<AnswerBits>; 2] = Default::default();
    let ends = RefCell::default();
    let engine = bed.engine(200);
    let mut scheduler = Scheduler::new(&engine, engine.capacity(2, PROMPT + 200)).keeping(&at).unwrap();
    let held = scheduler.hold_reads(1);
    let other = GenerateRequest { scope: "other".into(), ..request(&bed, 2) };
    until_one_ends(&mut scheduler, [&first, &other], &heard, &ends);
    assert!(heard[0].borrow().is_empty() && !heard[1].borrow().is_empty());
    // A request cancelled while waiting holds nothing.
    let given_up = GenerateRequest { scope: "other".into(), ..first.clone() };
    let id = scheduler.submit(given_up, Box::new(|_| fathom_base::Flow::Continue)).unwrap();
    scheduler.cancel(id);
    drop(held);
    while scheduler.step() {}
    let load = scheduler.load();
    assert_eq!(
        (load.restored_tokens, load.running, load.waiting, load.pages_used),
        (512, 0, 0, 0),
        "{load:?}"
    );
    drop(scheduler);
    assert!(heard[0].borrow()[..] == plain[..]);
}

/// A disk that never answers, behind the first of four pages: the rest is computed.
#[test]
fn what_a_disk_does_not_give_in_time_is_computed() {
    let (_folder, bed, at, first, plain) = asked_before();
    let (heard, ends): (RefCell<AnswerBits>, _) = Default::default();
    let engine = bed.engine(200);
    let scheduler = Scheduler::new(&engine, engine.capacity(1, PROMPT + 200)).keeping(&at).unwrap();
    let mut scheduler = scheduler.with_patience(Duration::from_millis(50));
    let held = scheduler.hold_reads(1);
    scheduler.submit(first, listen(&heard, &ends)).unwrap();
    while scheduler.step() {}
    let load = scheduler.load();
    assert_eq!((load.restored_tokens, load.running, load.waiting), (128, 0, 0), "{load:?}");
    // The thread that waits for the disk ends with it.
    drop((scheduler, held));
    assert!(heard.borrow()[..] == plain[..]);
}

/// Running sequences get the pages that a sequence waiting for the disk holds.
#[test]
fn what_is_read_from_disk_gives_way_to_what_runs() {
    let (_folder, bed, at, first, plain) = asked_before();
    let heard: [RefCell<AnswerBits>; 2] = Default::default();
    let ends = RefCell::default();
    let engine = bed.engine(200);
    // Pages for one of them, and a little more.
    let capacity = fathom_engine::Capacity { sequences: 2, ..engine.capacity(1, PROMPT + 200) };
    let mut scheduler = Scheduler::new(&engine, capacity).keeping(&at).unwrap();
    let held = scheduler.hold_reads(3);
    let other = GenerateRequest { scope: "other".into(), ..request(&bed, 2) };
    until_one_ends(&mut scheduler, [&first, &other], &heard, &ends);
    // The thread waiting for the page finds that it is no longer needed.
    drop(held);
    while scheduler.step() {}
    assert_eq!(scheduler.load().pages_used, 0);
    drop(scheduler);
    assert!(heard[0].borrow()[..] == plain[..]);
    assert!(heard[1].borrow()[..] == ask(&bed, PageFormat::Plain, None, &other).0[..]);
}

/// A sequence longer than the pages in memory has pages on disk, alongside a short one; it can continue from stored
/// prefixes too. A part of a layer is read ahead, the rest on demand. Without pages on disk it is refused.
#[test]
fn a_sequence_longer_than_memory_has_the_same_bits() {
    for (case, kv, most) in [
        ("llama2", PageFormat::Plain, 5),
        ("llama2", PageFormat::Int8, 5),
        ("llama2", PageFormat::Plain, 0),
        ("llama2", PageFormat::Fp8, 0),
        ("gemma2", PageFormat::Plain, 5),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (bed, at) = (Bed::new(case, DType::F32), stored(folder.path()));
        let long = request(&bed, 1);
        let short = |seed: u32| GenerateRequest {
            logprobs: Some(0),
            ..GenerateRequest::greedy((0..150).map(|at| (at * 31 + seed) % 90).collect::<Vec<u32>>(), 40)
        };
        // A short sequence shares the long one's prefix.
        let Prompt::Ids(ids) = &long.prompt else { panic!("{case}: ids") };
        let alike = GenerateRequest { prompt: Prompt::Ids(ids[..200].to_vec()), ..short(0) };
        let plain = |request: &GenerateRequest| ask(&bed, kv, None, request).0;
        // Another long one follows, and gets its pages afterwards.
        let behind =
            GenerateRequest { prompt: Prompt::Ids(ids.iter().rev().copied().collect()), ..long.clone() };
        let all = [&long, &short(1), &short(2), &alike, &behind];
        let expected = all.map(plain);
        let limits = Limits { context_tokens: 4096, chunk_tokens: 200, draft_tokens: 3, kv };
        let engine = Engine::new(
            ModelView { device: &bed.device, model: &bed.model, params: &bed.params },
            &bed.tokenizer,
            limits,
        );
        let windows = bed.model.spec.windows();
        let few = |(pages, window): (usize, &Option<usize>)| if window.is_none() { most } else { 2 * pages };
        let whole = engine.capacity(1, PROMPT + 200).pages;
        let pages = whole.into_iter().zip(&windows).map(few).collect();
        let capacity = fathom_engine::Capacity { sequences: 3, pages, on_disk: 0 };
        let capacity = [capacity.clone(), fathom_engine::Capacity { on_disk: 12 - most, ..capacity }];
        let mut refusing = Scheduler::new(&engine, capacity[0].clone()).keeping(&at).unwrap();
        let error = refusing.submit(long.clone(), Box::new(|_| fathom_base::Flow::Continue)).unwrap_err();
        assert!(error.to_string().contains("serve.page_file_bytes"), "{error}");
        drop(refusing);
        for restored in [0, 512] {
            let heard: [RefCell<AnswerBits>; 5] = Default::default();
            let ends = RefCell::default();
            let mut scheduler = Scheduler::new(&engine, capacity[1].clone()).keeping(&at).unwrap();
            for (request, heard) in all.into_iter().zip(&heard) {
                scheduler.submit(request.clone(), listen(heard, &ends)).unwrap();
            }
            while scheduler.step() {}
            let load = scheduler.load();
            assert_eq!((load.running, load.waiting, load.pages_used), (0, 0, 0), "{case}: {load:?}");
            assert!(load.restored_tokens >= restored, "{case}: {load:?}");
            drop(scheduler);
            for (index, (heard, expected)) in heard.iter().zip(&expected).enumerate() {
                assert!(heard.borrow()[..] == expected[..], "{case} {kv:?}, request {index}, {restored}");
            }
        }
        // The file has no name.
        let hidden = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(hidden, 2, "{case}: a model and the mark");
    }
}

#[test]
fn what_is_not_whole_of_another_scope_or_erased_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (bed, at) = (Bed::new("llama2", DType::F32), stored(folder.path()));
    let first = request(&bed, 1);
    let plain = ask(&bed, PageFormat::Plain, None, &first).0;
    let restored = |request: &GenerateRequest, at: &StoreLocation| {
        let (heard, load) = ask(&bed, PageFormat::Plain, Some(at), request);
        assert!(heard == plain);
        load.restored_tokens
    };
    assert_eq!([restored(&first, &at), restored(&first, &at)], [0, 512]);
    // Another scope, and another model.
    let salted = GenerateRequest { scope: "other".into(), ..first.clone() };
    assert_eq!([restored(&salted, &at), restored(&salted, &at)], [0, 512]);
    let other = StoreLocation { model: "n".into(), ..at.clone() };
    assert_eq!(restored(&first, &other), 0);
    // A page that is truncated, one that is too long, one with a flipped bit, one replaced by a link or a pipe, and an
    // unfinished one.
    let all: Vec<PathBuf> = files(&folder.path().join("m"));
    let scope = all[0].parent().unwrap().to_path_buf();
    let mut own: Vec<PathBuf> = all.iter().filter(|file| file.starts_with(&scope)).cloned().collect();
    own.sort();
    let bytes = fs::read(&own[2]).unwrap();
    let hurt: [&dyn Fn(); 5] = [
        &|| fs::write(&own[2], &bytes[..bytes.len() - 1]).unwrap(),
        &|| fs::write(&own[2], [&bytes[..], &[0; 1 << 16]].concat()).unwrap(),
        &|| {
            let mut turned = bytes.clone();
            turned[3000] ^= 1;
            fs::write(&own[2], turned).unwrap();
        },
        &|| {
            fs::rename(&own[2], folder.path().join("aside")).unwrap();
            std::os::unix::fs::symlink(folder.path().join("aside"), &own[2]).unwrap();
        },
        // Nothing is ever written to the pipe, so opening it would block forever.
        &|| {
            fs::remove_file(&own[2]).unwrap();
            assert!(Command::new("mkfifo").arg(&own[2]).status().unwrap().success());
        },
    ];
    let whose = |request: &GenerateRequest| restored(request, &at);
    let asks = if whose(&first) == 512 && own.len() == 5 { [&first, &salted] } else { panic!("{own:?}") };
    for hurt in hurt {
        hurt();
        // One of the two scopes has the damaged page.
        let mut both = asks.map(whose);
        both.sort_unstable();
        assert_eq!(both, [256, 512]);
        // Damaged pages were computed and stored again.
        assert_eq!(asks.map(whose), [512, 512]);
    }
    let unfinished = scope.join(format!("00000009-{}.part", "a".repeat(32)));
    fs::write(&unfinished, b"FTHM").unwrap();
    assert_eq!(whose(&first), 512);
    assert!(!unfinished.exists());
    // Everything is erased.
    let engine = bed.engine(200);
    let mut scheduler = Scheduler::new(&engine, engine.capacity(1, 900)).keeping(&at).unwrap();
    let before = scheduler.load().stored_bytes;
    let erased = scheduler.erase(None);
    assert!(erased > 0 && erased < before, "{erased} of {before}: the other model's stay");
    assert_eq!(files(&folder.path().join("n")).len(), 5);
    assert!(!folder.path().join("m").exists());
    drop(scheduler);
    assert_eq!(whose(&first), 0);
}

#[test]
fn a_full_store_gives_up_what_was_used_least_recently() {
    let folder = tempfile::tempdir().unwrap();
    let bed = Bed::new("llama2", DType::F32);
    let salted = |salt: u32| GenerateRequest { scope: salt.to_string(), ..request(&bed, 1) };
    let wide = stored(folder.path());
    ask(&bed, PageFormat::Plain, Some(&wide), &salted(0));
    let page = fs::metadata(&files(folder.path())[0]).unwrap().len();
    // Room for two and a half conversations.
    let at = StoreLocation { most_bytes: page * 12 + 100, ..wide };
    for salt in 1..4 {
        let (_, load) = ask(&bed, PageFormat::Plain, Some(&at), &salted(salt));
        assert!(load.stored_bytes <= at.most_bytes);
    }
    assert_eq!(files(folder.path()).len(), 12);
    let restored = |salt| ask(&bed, PageFormat::Plain, Some(&at), &salted(salt)).1.restored_tokens;
    // Only the beginning of the third to last one remains.
    assert_eq!([restored(3), restored(2), restored(1)], [512, 512, 256]);
    // A conversation that does not fit keeps its beginning.
    let small = StoreLocation { most_bytes: page * 3, ..at };
    ask(&bed, PageFormat::Plain, Some(&small), &salted(9));
    assert_eq!(files(folder.path()).len(), 3);
    assert_eq!(ask(&bed, PageFormat::Plain, Some(&small), &salted(9)).1.restored_tokens, 384);
}

fn text_of(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(folder).into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

#[test]
fn a_folder_that_is_no_store_is_neither_opened_nor_erased() {
    let hash = "0123456789abcdef0123456789abcdef";
    for path in [
        "notes.txt",
        "photos/2026/summer/a.jpg",
        "photos/2026/a.jpg.part",
        "empty/.keep",
        &format!("m/0123456789abcdef/00000001-{hash}"),
        &format!("m/0123456789abcdef/00000001-{hash}.part"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "mine, and no page").unwrap();
        let at = StoreLocation { most_bytes: 0, ..stored(folder.path()) };
        let error = Beginnings::open(&at).err().unwrap().to_string();
        assert!(error.contains("has no .fathom-prefixes") && error.contains("--prefix-store"), "{error}");
        assert!(StoreLocation::kept(folder.path()).is_err(), "{path}");
        let kept = KeptModel { model: path.split('/').next().unwrap().into(), scopes: 1, pages: 1, bytes: 1 };
        assert!(StoreLocation::erase(folder.path(), &kept).is_err(), "{path}");
        assert_eq!(text_of(folder.path()), [(file, b"mine, and no page".to_vec())]);
    }
}

#[test]
fn in_a_store_only_its_own_pages_are_counted_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (bed, at) = (Bed::new("llama2", DType::F32), stored(folder.path()));
    ask(&bed, PageFormat::Plain, Some(&at), &request(&bed, 1));
    let pages = files(folder.path());
    let scope = pages[0].parent().unwrap();
    let hash = "0123456789abcdef0123456789abcdef";
    let foreign = [
        folder.path().join("photos/2026/a.jpg.part"),
        folder.path().join("m/letters/a.txt"),
        scope.join("a.part"),
        scope.join(format!("00000001-{hash}")),
        scope.join(format!("00000001-{hash}.part")),
    ];
    for file in &foreign {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "mine").unwrap();
    }
    // The remains of a page from a killed server are removed.
    let cut = scope.join(format!("00000002-{hash}.part"));
    fs::write(&cut, "FTHMPG01ke").unwrap();
    drop(Beginnings::open(&at).unwrap());
    assert!(!cut.exists());
    let kept = StoreLocation::kept(folder.path()).unwrap();
    assert_eq!((kept.len(), kept[0].pages), (1, 5));
    // No room: all pages are removed when it is opened.
    drop(Beginnings::open(&StoreLocation { most_bytes: 0, ..at.clone() }).unwrap());
    let mut left = foreign.to_vec();
    left.sort();
    assert_eq!(files(folder.path()), left);
    ask(&bed, PageFormat::Plain, Some(&at), &request(&bed, 1));
    let kept = StoreLocation::kept(folder.path()).unwrap();
    StoreLocation::erase(folder.path(), &kept[0]).unwrap();
    assert_eq!(files(folder.path()), left);
}

#[test]
fn a_store_of_a_version_without_the_mark_is_read_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    let (bed, at) = (Bed::new("llama2", DType::F32), stored(folder.path()));
    let first = request(&bed, 1);
    ask(&bed, PageFormat::Plain, Some(&at), &first);
    let mark = folder.path().join(MARK);
    fs::remove_file(&mark).unwrap();
    assert_eq!(StoreLocation::kept(folder.path()).unwrap()[0].pages, 5);
    let (_, load) = ask(&bed, PageFormat::Plain, Some(&at), &first);
    assert_eq!((load.restored_tokens, mark.is_file()), (512, true));
    fs::remove_file(&mark).unwrap();
    let kept = StoreLocation::kept(folder.path()).unwrap();
    StoreLocation::erase(folder.path(), &kept[0]).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// States after pages are stored with them: the next turn of a conversation goes on from there in another process.
#[test]
fn a_conversation_with_a_hybrid_goes_on_from_disk_with_the_same_bits() {
    for (what, spec) in mixers::all() {
        let folder = tempfile::tempdir().unwrap();
        let (bed, at) = (mixers::bed_of(mixers::cpu(), &spec), stored(folder.path()));
        let first = request(&bed, 1);
        let plain = ask(&bed, PageFormat::Plain, None, &first).0;
        let (kept, load) = ask(&bed, PageFormat::Plain, Some(&at), &first);
        assert_eq!((kept == plain, load.restored_tokens), (true, 0), "{what}");
        // Four whole pages of the prompt, and the states after the last.
        assert_eq!(files(folder.path()).len(), 5, "{what}");
        let mut turn = first.clone();
        let Prompt::Ids(ids) = &mut turn.prompt else { panic!() };
        ids.extend(&plain[0].0);
        ids.extend([3, 4, 5]);
        turn.sampling.max_tokens = 20;
        let (again, load) = ask(&bed, PageFormat::Plain, Some(&at), &turn);
        assert_eq!((load.restored_tokens, load.prefix_hits), (512, 512), "{what}: {load:?}");
        assert!(again == ask(&bed, PageFormat::Plain, None, &turn).0, "{what}");
        // Now the states after the later prompt are there too.
        let (again, load) = ask(&bed, PageFormat::Plain, Some(&at), &turn);
        assert_eq!(load.restored_tokens, 640, "{what}: {load:?}");
        assert!(again == ask(&bed, PageFormat::Plain, None, &turn).0, "{what}");
    }
}

/// States of another model under this one's name, and damaged ones: they are not used, and stored again.
#[test]
fn states_of_another_model_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (name, spec) = mixers::all().into_iter().nth(2).unwrap();
    let (bed, at) = (mixers::bed_of(mixers::cpu(), &spec), stored(folder.path()));
    let first = request(&bed, 1);
    let (plain, _) = ask(&bed, PageFormat::Plain, Some(&at), &first);
    let other = StoreLocation { model: "another".into(), ..at.clone() };
    ask(&bed, PageFormat::Plain, Some(&other), &first);
    // Pages have the same names in both models' folders.
    let states = |model: &str| {
        let own = files(&folder.path().join(model));
        let holds = |file: &&PathBuf| fs::read(file).unwrap()[12..].starts_with(model.as_bytes());
        own.iter().find(holds).unwrap().clone()
    };
    let (from, to) = (states("another"), states("m"));
    fs::copy(from, &to).unwrap();
    for (restored, again) in [(0, "another model"), (512, "its own")] {
        let (heard, load) = ask(&bed, PageFormat::Plain, Some(&at), &first);
        assert!(heard == plain, "{name}");
        assert_eq!(load.prefix_hits, restored, "{name}, {again}: {load:?}");
    }
}

/// Names of files as they were before layers with states had any.
#[test]
fn a_store_of_an_earlier_version_has_the_same_names() {
    let (folder, bed, at) = on_disk();
    ask(&bed, PageFormat::Plain, Some(&at), &request(&bed, 1));
    let first = files(folder.path()).swap_remove(0);
    let name = first.strip_prefix(folder.path()).unwrap().to_str().unwrap();
    assert_eq!(name, "m/af1349b9f5f9a1a6/00000001-9c735c8821dc8492f771af25ade80e67");
}
