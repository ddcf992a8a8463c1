//! Answers judged by a scripted server, and by a local model.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use fathom_app::judged::{Judge, Request, Verdicts, judged};
use fathom_app::{Machine, Silent};
use fathom_serve::bench::Target;
use fathom_train::recipe::MachineKind;
use serde_json::{Value, json};

/// A server of chat completions that answers by a function of the prompt.
fn server(answer: impl Fn(&str) -> String + Send + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            loop {
                let (mut length, mut line) = (0, String::new());
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) && line != "\r\n" {
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                if length == 0 {
                    break;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let asked: Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(asked["temperature"], 0);
                let text = answer(asked["messages"][0]["content"].as_str().unwrap());
                let found =
                    json!({"choices": [{"message": {"role": "assistant", "content": text}}]}).to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    found.len()
                );
                stream.write_all((head + &found).as_bytes()).unwrap();
            }
        }
    });
    Target::at(&address.to_string())
}

/// The answers A and B in a prompt.
fn shown(prompt: &str) -> [&str; 2] {
    let (a, b) = prompt.split_once("Answer A:\n").unwrap().1.split_once("\n\nAnswer B:\n").unwrap();
    [a, b.split_once("\n\nReasons").unwrap().0]
}

fn rows(path: &Path, output: impl Fn(usize) -> String) -> PathBuf {
    let row =
        |i: usize| json!({"instruction": format!("Question {i}?"), "output": output(i)}).to_string() + "\n";
    fs::write(path, (0..20).map(row).collect::<String>()).unwrap();
    path.to_path_buf()
}

fn request(folder: &Path, judge: Judge) -> Request {
    Request {
        // Fifteen of twenty answers of the model hold a fact; all are longer than those of the file.
        model: rows(&folder.join("own.jsonl"), |i| {
            format!("{} {}", if i % 4 > 0 { "fact" } else { "guess" }, "word ".repeat(i + 2))
        }),
        adapter: None,
        judge,
        against: Some(rows(&folder.join("other.jsonl"), |i| {
            if i % 4 == 0 { "a fact".into() } else { "a guess".into() }
        })),
        instructions: None,
        tokens: None,
        answer_tokens: 16,
        judge_tokens: 16,
        out: Some(folder.join("judged.json")),
    }
}

fn ran(request: &Request) -> Result<Verdicts, String> {
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    judged(request, &machine, &Silent).map_err(|error| error.to_string())
}

#[test]
fn a_judge_of_facts_gives_the_rate_of_facts_in_both_orders() {
    let folder = tempfile::tempdir().unwrap();
    let judge = server(
        |prompt| if shown(prompt)[0].contains("fact") { "Sure. [[A]]".into() } else { "[[B]]".into() },
    );
    let request = request(folder.path(), Judge::Remote(judge, Some("scripted".into())));
    let found = ran(&request).unwrap();
    let rates = found.rates.unwrap();
    assert_eq!(
        (rates.items, rates.wins.value, rates.agreement, found.unread, found.asked),
        (20, 0.75, 1.0, 0, 40)
    );
    let [low, high] = rates.wins.interval;
    assert!((0.5..0.75).contains(&low) && (0.75..=1.0).contains(&high), "{:?}", rates.wins);
    assert!(rates.length_controlled.is_some());
    let json: Value = serde_json::from_slice(&fs::read(folder.path().join("judged.json")).unwrap()).unwrap();
    assert_eq!((&json["win_rate"], &json["judge"]), (&json!(0.75), &json!("scripted")));
    let log = fs::read_to_string(folder.path().join("judged.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 20);
    assert!(log.contains("Sure. [[A]]"));
}

#[test]
fn a_judge_that_prefers_a_place_gives_one_half_and_agrees_never() {
    let folder = tempfile::tempdir().unwrap();
    let judge =
        server(|prompt| if prompt.contains("Question 3?") { "no idea".into() } else { "[[A]]".into() });
    let found = ran(&request(folder.path(), Judge::Remote(judge, None))).unwrap();
    let rates = found.rates.unwrap();
    assert_eq!((rates.items, rates.wins.value, rates.agreement, found.unread), (19, 0.5, 0.0, 2));
}

#[test]
fn ratings_are_their_mean_and_unreadable_ones_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let judge = server(|prompt| match (prompt.contains("fact"), prompt.contains("Question 4?")) {
        (_, true) => "ten".into(),
        (true, _) => "Good. [[9]]".into(),
        _ => "[[2]]".into(),
    });
    let request = Request { against: None, ..request(folder.path(), Judge::Remote(judge, None)) };
    let found = ran(&request).unwrap();
    let rating = found.rating.unwrap();
    assert!((rating.value - (15.0 * 9.0 + 4.0 * 2.0) / 19.0).abs() < 1e-12);
    assert_eq!((found.unread, found.asked), (1, 20));
}

#[test]
fn a_local_judge_without_verdicts_and_broken_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_harness/models");
    let own = request(folder.path(), Judge::Local(models.join("llama")));
    assert!(ran(&own).unwrap_err().contains("no verdict that can be read in 40 texts"));
    let written = Request { model: models.join("llama"), ..own.clone() };
    assert!(ran(&written).unwrap_err().contains("no verdict"));
    let other = Request { model: rows(&folder.path().join("x.jsonl"), |_| String::new()), ..own.clone() };
    fs::write(folder.path().join("x.jsonl"), "{\"instruction\": \"Other?\", \"output\": \"x\"}\n").unwrap();
    assert!(ran(&other).unwrap_err().contains("has no answer to `Question 0?`"));
    fs::write(folder.path().join("y.jsonl"), "{\"prompt\": \"Other?\"}\n").unwrap();
    let broken = Request { against: Some(folder.path().join("y.jsonl")), ..own };
    assert!(ran(&broken).unwrap_err().contains("row 1 has no `instruction`"));
}
