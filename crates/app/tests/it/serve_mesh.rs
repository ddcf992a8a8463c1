//! A server whose model is split over several ranks, over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fathom_app::export::{Conversion, Target, export};
use fathom_app::generate::SplitModel;
use fathom_app::serve::{Order, ServerLinks, Sizes, serve, settings, sizes};
use fathom_app::spread::AskedMesh;
use fathom_app::{Machine, Silent, generate, quantize, train};
use fathom_base::{Flow, Sampling};
use fathom_model::GgufType;
use fathom_serve::ServerAddresses;
use fathom_tensor::ggml::Kind;
use fathom_tensor::mesh::Grid;
use fathom_tensor::{DType, PageFormat};
use fathom_train::recipe::{MachineKind, Precision};
use serde_json::{Value, json};

/// Returns a mesh whose experts are split in the way that takes the least memory.
pub fn mesh(tp: usize, pp: usize) -> AskedMesh {
    AskedMesh { tp, pp, experts: None }
}

pub fn order(model: &Path, tp: usize, pp: usize) -> Order {
    Order {
        models: vec![model.to_path_buf()],
        names: vec!["small".into()],
        adapters: Vec::new(),
        precision: Some(Precision::F32),
        kv: PageFormat::Plain,
        template: None,
        machine: MachineKind::Cpu,
        threads: 2,
        mesh: mesh(tp, pp),
        memory_bytes: Some(64 << 20),
        prefixes: None,
        guard: None,
        settings: settings(None, &["serve.sequences=3".into()]).unwrap(),
        at: ServerAddresses { host: "127.0.0.1".into(), port: 0, admin_port: None, tls: None },
        keys: None,
        version: "test".into(),
        again: false,
        compiler: None,
    }
}

/// Sends a request on its own connection, which is closed after the answer.
pub fn send(at: SocketAddr, route: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {route} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream
}

pub fn ask(at: SocketAddr, route: &str, body: &Value) -> Value {
    let mut answer = String::new();
    send(at, route, body).read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{route}: {answer}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Returns the value of the first line of `/metrics` that begins with `name`.
fn metric(at: SocketAddr, name: &str) -> f64 {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line =
        answer.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {answer}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Stops a server when dropped, also if a test fails.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a server's answers to concurrent requests, with one client that disconnects and one whose time runs out.
pub fn answers(order: &Order) -> Vec<String> {
    with_server(order, |at| {
        let long = json!({"prompt": "Long", "max_tokens": 150, "ignore_eos": true, "stream": true});
        let mut leaves = send(at, "/v1/completions", &long);
        let mut some = [0; 64];
        assert!(leaves.read(&mut some).unwrap() > 0);
        let texts = thread::scope(|inner| {
            let one = |first: usize| {
                let prompt = ["the ", "of the ", "a"][first];
                let body = json!({"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1});
                inner.spawn(move || ask(at, "/v1/completions", &body))
            };
            let asked: Vec<_> = (0..3).map(one).collect();
            drop(leaves);
            let late = json!({"prompt": "late", "max_tokens": 150, "deadline_s": 1e-6, "ignore_eos": true});
            let late = ask(at, "/v1/completions", &late);
            assert!(late["usage"]["completion_tokens"].as_u64().unwrap() < 150, "{late}");
            let text = |answer: Value| {
                answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string()
            };
            asked.into_iter().map(|one| text(one.join().unwrap())).collect()
        });
        if order.mesh.ranks() > 1 {
            let vectors = ask(at, "/v1/embeddings", &json!({"input": "a"}));
            assert!(vectors.to_string().contains("one rank"), "{vectors}");
        }
        // The disconnected client occupies nothing.
        while metric(at, "vllm:num_requests_running") > 0.0 || metric(at, "vllm:num_requests_waiting") > 0.0 {
            thread::sleep(Duration::from_millis(5));
        }
        texts
    })
}

#[test]
fn a_server_over_ranks_answers_as_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let base =
        crate::small(folder.path(), &["eval.enabled=false", "model.precision=f32", "model.kv_heads=2"]);
    train(&base, &train::Order::default(), &Silent).unwrap();
    let run: PathBuf = folder.path().join("run");
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    let request = generate::Request {
        prompt: "the ".into(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens: Some(24),
        context_tokens: None,
    };
    let mesh = AskedMesh { tp: 1, pp: 1, experts: None };
    let parts = SplitModel { model: &run, dtype: Some(DType::F32), machine: &machine, mesh, events: &Silent };
    let said = parts.generate(&request, &mut |_| Flow::Continue).unwrap().text;
    let one = answers(&order(&run, 1, 1));
    assert_eq!(one[0], said);
    for (tp, pp) in [(2, 1), (1, 2)] {
        assert_eq!(answers(&order(&run, tp, pp)), one, "tp {tp}, pp {pp}");
    }
    // Plans of the ranks: each has a part of the weights, and all have the same pages.
    let whole = sizes(&order(&run, 1, 1), &Silent).unwrap().remove(0).1;
    for (tp, pp) in [(2, 1), (1, 2), (2, 2)] {
        let ranks = sizes(&order(&run, tp, pp), &Silent).unwrap();
        assert_eq!(ranks.len(), tp * pp);
        assert_eq!(ranks[1].0, format!("small, rank 1 of {}", tp * pp));
        for (name, sizes) in &ranks {
            assert!(sizes.weights_bytes < whole.weights_bytes, "{name}");
            assert_eq!((&sizes.capacity, sizes.limits), (&ranks[0].1.capacity, ranks[0].1.limits), "{name}");
            assert!(sizes.bytes() <= sizes.budget_bytes, "{name}");
        }
    }
    let refused = |order: Order, part: &str| {
        let error = sizes(&order, &Silent).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(order(&run, 1, 3), "3 stages");
    refused(order(&run, 4, 1), "tp");
}

/// Trains a small mixture. Every token uses all experts, since differently rounded sums could make a router choose
/// others.
fn mixture(folder: &Path, ffn: usize, experts: usize) -> PathBuf {
    let mut keys: Vec<String> = [
        "model.family=mixtral",
        "model.init=normal",
        "model.hidden=128",
        "model.kv_heads=2",
        "model.precision=f32",
        "eval.enabled=false",
    ]
    .map(Into::into)
    .into();
    keys.extend([
        format!("model.ffn={ffn}"),
        format!("moe.experts={experts}"),
        format!("moe.top_k={experts}"),
    ]);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    train(&crate::small(folder, &keys), &train::Order::default(), &Silent).unwrap();
    folder.join("run")
}

/// Exports a run's model to a GGUF file of blocks.
pub fn in_blocks(run: &Path, kind: Kind) -> PathBuf {
    let what = Conversion {
        from: run.to_path_buf(),
        to: run.with_file_name("model.gguf"),
        gguf: Some(GgufType::Plain(kind)),
        precision: None,
        quantised: None,
        max_shard_bytes: 1 << 30,
        adapter: false,
        with: Vec::new(),
    };
    export(&what, &Silent).unwrap();
    what.to
}

/// Returns the options of a server with two ranks.
fn over(model: &Path, experts: Option<[usize; 2]>) -> Order {
    Order { mesh: AskedMesh { tp: 2, pp: 1, experts }, ..order(model, 2, 1) }
}

/// Returns the planned memory of the second rank.
fn planned(order: &Order) -> Sizes {
    sizes(order, &Silent).unwrap().remove(1).1
}

/// A mixture on two ranks: each has some of the experts, or some columns of each, plain and quantized; the answers
/// equal those of one rank, and the plan describes each rank's share.
#[test]
fn experts_are_spread_over_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = mixture(folder, 128, 4);
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    let gguf = in_blocks(&run, Kind::Q8_0);
    let int4 = folder.join("int4");
    let request = quantize::Request {
        model: run.clone(),
        to: int4.clone(),
        format: Target::Int4,
        data: None,
        samples: 1,
        sample_tokens: 64,
    };
    quantize::run(&request, &machine, &Silent).unwrap();
    let ids: Vec<u32> = (0..50).map(|at| at * 7 % 250).collect();
    let body = json!({"prompt": ids, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
    let said = |order: &Order| asked(order, std::slice::from_ref(&body)).0;
    for model in [&run, &gguf, &int4] {
        let (one, what) = (said(&order(model, 1, 1)), model.display());
        let (spread, whole) = (planned(&over(model, None)), planned(&over(model, Some([1, 1]))));
        assert_eq!(spread.grid, Grid { tp: 2, ep: 2, ..Grid::default() }, "{what}");
        assert_eq!(spread.experts.as_deref(), Some("2 of 4 on each rank"), "{what}");
        assert_eq!(whole.experts.as_deref(), Some("all 4 on each rank"), "{what}");
        // A layer's experts are three matrices of 128 x 128 each, half of which are on another rank.
        let (bytes, gone) = (weights_of_experts(model), whole.weights_bytes - spread.weights_bytes);
        assert!((bytes / 2).abs_diff(gone) <= bytes / 50, "{what}: {gone} of {bytes}");
        let halves = planned(&over(model, Some([1, 2])));
        assert_eq!(halves.experts.as_deref(), Some("64 of 128 columns of all 4 on each rank"), "{what}");
        for experts in [None, Some([1, 1]), Some([1, 2])] {
            assert_eq!(said(&over(model, experts)), one, "{what}, {experts:?}");
        }
    }
    let refused = |mesh: AskedMesh, part: &str| {
        let error = sizes(&Order { mesh, ..order(&run, 1, 1) }, &Silent).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(AskedMesh { tp: 2, pp: 1, experts: Some([2, 2]) }, "--ep and --etp: ep=2 times etp=2");
    refused(AskedMesh { tp: 1, pp: 1, experts: Some([2, 1]) }, "ep may be 1");
    let request = generate::Request {
        prompt: "the ".into(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens: Some(24),
        context_tokens: None,
    };
    let heard = crate::TextSink::default();
    let text = |tp: usize| {
        let mesh = AskedMesh { tp, pp: 1, experts: None };
        let parts = SplitModel { model: &run, dtype: None, machine: &machine, mesh, events: &heard };
        parts.generate(&request, &mut |_| Flow::Continue).unwrap().text
    };
    assert_eq!(text(2), text(1));
    assert_eq!(heard.count("note: experts: 2 of 4 on each rank"), 1);
}

/// Two ranks split the columns of three experts. If these columns are not whole 4-bit blocks, keeping all experts takes
/// less memory.
#[test]
fn experts_are_spread_as_they_take_the_least_memory() {
    let folder = tempfile::tempdir().unwrap();
    let run = mixture(folder.path(), 96, 3);
    let blocks = in_blocks(&run, Kind::Q4_0);
    for (model, part) in
        [(&run, "48 of 96 columns of all 3 on each rank"), (&blocks, "all 3 on each rank: packed")]
    {
        let found = planned(&over(model, None)).experts.unwrap();
        assert!(found.starts_with(part), "{found}");
    }
}

/// With memory for one page and prompts of two: pages on disk give the same answers as enough memory, on one rank and
/// on two; without them, the prompts are refused.
#[test]
fn sequences_longer_than_memory_are_served_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let keys = ["eval.enabled=false", "model.precision=f32", "model.kv_heads=2", "model.layers=8"];
    train(&crate::small(folder, &keys), &train::Order::default(), &Silent).unwrap();
    let run = folder.join("run");
    let ids: Vec<u32> = (0..200).map(|at| at * 7 % 250).collect();
    let body = |tokens: usize| json!({"prompt": ids[..tokens], "max_tokens": 40, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
    let bodies = [body(200), body(60), body(200)];
    for tp in [1, 2] {
        let with = |keys: &[&str], memory_bytes: Option<u64>, prefixes: Option<PathBuf>| {
            let keys: Vec<String> = [&["serve.sequences=3", "serve.context_tokens=256"], keys]
                .concat()
                .iter()
                .map(ToString::to_string)
                .collect();
            let order = order(&run, tp, 1);
            Order { settings: settings(None, &keys).unwrap(), memory_bytes, prefixes, ..order }
        };
        let plain = with(&[], Some(64 << 20), None);
        let each = sizes(&plain, &Silent).unwrap();
        let needed = |sizes: &Sizes| {
            let page = sizes.pages_bytes / (sizes.tokens / 128) as u64;
            sizes.bytes() - sizes.pages_bytes + page * 3 / 2
        };
        let memory = each.iter().map(|(_, sizes)| needed(sizes)).max().unwrap() * tp as u64;
        let error = sizes(&with(&[], Some(memory), None), &Silent).unwrap_err();
        let error = fathom_app::in_full(&error);
        assert!(error.contains("serve.page_file_bytes=N"), "{error}");
        let kept = folder.join(format!("kept {tp}"));
        let disk = with(&["serve.page_file_bytes=16777216"], Some(memory), Some(kept));
        for (name, sizes) in sizes(&disk, &Silent).unwrap() {
            assert_eq!((sizes.tokens, sizes.capacity.on_disk), (128, 2), "{name}");
            assert!(sizes.limits.context_tokens == 256 && sizes.bytes() <= sizes.budget_bytes, "{name}");
        }
        let expected = asked(&plain, &bodies).0;
        assert_eq!(asked(&disk, &bodies).0, expected, "tp {tp}");
        let (again, [restored, _]) = asked(&disk, &bodies);
        assert!(again == expected && restored > 0.0, "tp {tp}: {restored}");
    }
}

/// Returns the bytes of the experts of two layers, four each, as stored in a file.
fn weights_of_experts(model: &Path) -> u64 {
    let numbers = 2 * 4 * 3 * 128 * 128;
    match model.file_name().and_then(|name| name.to_str()) {
        // 34 bytes per 32 elements; half a byte, and an f32 scale per 64.
        Some("model.gguf") => numbers * 34 / 32,
        Some("int4") => numbers / 2 + numbers / 64 * 4,
        _ => numbers * 4,
    }
}

/// Calls `work` with the address of a running server.
pub fn with_server<T>(order: &Order, work: impl FnOnce(SocketAddr) -> T) -> T {
    let stop = Arc::new(AtomicBool::new(false));
    let (send_address, address) = channel();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let heard = |all: &[SocketAddr]| send_address.send(all[0]).unwrap();
            serve(order, &ServerLinks { stop: &stop, log: None, heard: &heard, events: &Silent })
        });
        let ending = StopGuard(&stop);
        let at = loop {
            match address.recv_timeout(Duration::from_millis(20)) {
                Ok(at) => break at,
                Err(_) if serving.is_finished() => panic!("{:?}", serving.join().unwrap()),
                Err(_) => {}
            }
        };
        let done = work(at);
        drop(ending);
        serving.join().unwrap().unwrap();
        done
    })
}

/// Returns a server's answers to a sequence of requests, the number of tokens restored from disk and the number of
/// drafts.
pub fn asked(order: &Order, bodies: &[Value]) -> (Vec<Value>, [f64; 2]) {
    with_server(order, |at| {
        let choice = |body: &Value| {
            let answer = ask(at, "/v1/completions", body);
            assert!(answer["choices"][0]["text"].is_string(), "{answer}");
            json!([answer["choices"][0]["text"], answer["choices"][0]["token_ids"]])
        };
        let all = bodies.iter().map(choice).collect();
        let counted = ["fathom:prefix_restored_tokens_total", "vllm:spec_decode_num_drafts_total"];
        // The metrics of the last step are updated shortly after its events.
        thread::sleep(Duration::from_millis(50));
        (all, counted.map(|name| metric(at, name)))
    })
}

#[test]
fn a_server_over_ranks_has_adapters_drafts_and_beginnings() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let base = crate::small(folder, &["eval.enabled=false", "model.precision=f32", "model.kv_heads=2"]);
    train(&base, &train::Order::default(), &Silent).unwrap();
    let row = |n: usize| format!("{{\"prompt\": \"What is {n}?\", \"completion\": \" the stone {n}\"}}\n");
    std::fs::write(folder.join("rows.jsonl"), (0..24).map(row).collect::<String>()).unwrap();
    let data = format!("data.paths=[{:?}]", folder.join("rows.jsonl").display().to_string());
    let dora =
        crate::several::job(folder, "lora", "tuned", &[&data, "adapter.method=dora", "optimizer.lr=0.3"]);
    train(&dora.unwrap(), &train::Order::default(), &Silent).unwrap();
    let run = folder.join("run");
    let ids: Vec<u32> = (0..150).map(|at| at * 7 % 250).collect();
    let body = |model: &str| json!({"model": model, "prompt": ids, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
    let bodies = [body("small"), body("tuned")];
    let one = asked(
        &Order { adapters: vec![("tuned".into(), folder.join("tuned"))], ..order(&run, 1, 1) },
        &bodies,
    );
    assert_ne!(one.0[0], one.0[1]);
    for (tp, pp) in [(2, 1), (1, 2)] {
        let draft = format!("serve.draft={}", run.display());
        let full = Order {
            adapters: vec![("tuned".into(), folder.join("tuned"))],
            prefixes: Some(folder.join("kept")),
            settings: settings(None, &["serve.sequences=3".into(), draft]).unwrap(),
            ..order(&run, tp, pp)
        };
        // Prefixes stored by another mesh are not used; those of the same mesh are, for the base and for the adapter.
        for restored in [0.0, 256.0] {
            let (all, [found, drafts]) = asked(&full, &bodies);
            assert_eq!(all, one.0, "tp {tp}, pp {pp}");
            assert!(found == restored && drafts > 0.0, "tp {tp}, pp {pp}: {found} tokens, {drafts} guesses");
        }
        // The first rank has the draft model, and each rank a part of the adapter.
        let ranks = sizes(&full, &Silent).unwrap();
        assert!(ranks[0].1.draft_bytes > 0 && ranks[1].1.draft_bytes == 0);
        assert!(ranks.iter().all(|(_, sizes)| sizes.adapters_bytes > 0));
        assert!(ranks.iter().all(|(_, sizes)| sizes.capacity == ranks[0].1.capacity));
    }
}
