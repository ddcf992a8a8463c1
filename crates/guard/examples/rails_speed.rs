//! Speed of rails: time per byte and per token, loading of configurations.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../tests/it/support.rs"]
mod support;

use std::sync::Arc;
use std::time::Instant;

use fathom_guard::{AnswerStart, AnswerStream, Config, Context, Direction, Subject};

use support::{engine, needs, output};

/// Paragraphs of the handbook, up to a number of bytes.
fn prose(bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        for page in ["serving", "curation", "alignment", "models"] {
            let path = format!("{}/../../docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// Seconds of the fastest of several runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let once = |run: &mut dyn FnMut()| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64()
    };
    (0..15).map(|_| once(&mut run)).fold(f64::MAX, f64::min)
}

fn rail(text: &str, options: &str) -> String {
    format!("[[rail]]\nuse = \"{text}\"\non = [\"input\", \"output\"]\naction = \"flag\"\n{options}\n")
}

fn measure_rails_of_text() {
    let rails = [
        rail("regex", "patterns = ['\\b\\d{3}-\\d{2}-\\d{4}\\b', '\\bconfidential\\b']"),
        rail("personal_data", "kinds = [\"email\", \"card\"]"),
        rail("injection", ""),
        rail("secrets", ""),
        rail("hidden_text", ""),
        rail("encodings", ""),
    ];
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    for rails in
        rails.iter().map(String::as_str).chain([rails[..3].concat().as_str(), rails.concat().as_str()])
    {
        let engine = engine(rails);
        let names: Vec<String> = engine.config().rails.iter().map(|it| it.setting.name.clone()).collect();
        for bytes in [2 << 10, 64 << 10, 1 << 20] {
            let text = prose(bytes);
            let took = fastest(|| _ = engine.judge(&text, &subject));
            println!(
                "{names:?}: {bytes} bytes {:.1} us, {:.1} ns per byte",
                took * 1e6,
                took * 1e9 / bytes as f64
            );
        }
    }
}

fn measure_words() {
    let text = prose(1 << 20);
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    for count in [10, 100, 1000, 10_000] {
        let words: Vec<String> =
            (0..count).map(|n: u32| format!("\"w{}x{n}\"", n.wrapping_mul(2_654_435_761))).collect();
        let engine = engine(&rail("regex", &format!("words = [{}]", words.join(", "))));
        let took = fastest(|| _ = engine.judge(&text, &subject));
        println!("{count} words: {:.2} ns per byte", took * 1e9 / text.len() as f64);
    }
}

fn measure_streams() {
    let rails = ["personal_data", "injection", "secrets", "hidden_text"];
    let rails: String = rails
        .map(|it| {
            let options = if it == "personal_data" { "kinds = [\"email\", \"card\"]" } else { "" };
            rail(it, options).replace("\"flag\"", "\"mask\"").replace("\"input\", ", "")
        })
        .concat();
    let engine = engine(&rails);
    let text = prose(16 << 10);
    let tokens: Vec<&str> = text.split_inclusive(' ').collect();
    let mut first = None;
    let took = fastest(|| {
        let mut stream = AnswerStream::new(engine.clone(), output(), &AnswerStart::default());
        for (at, token) in tokens.iter().enumerate() {
            if !stream.push(token, 1).unwrap().is_empty() && first.is_none() {
                first = Some(at + 1);
            }
        }
        stream.finish().unwrap();
    });
    println!(
        "{} tokens: {:.2} us per token, first release after {first:?}",
        tokens.len(),
        took * 1e6 / tokens.len() as f64
    );
}

fn measure_a_thousand_configurations() {
    let rails: String = (0..20)
        .map(|at| match at % 4 {
            0 => format!("[[rail]]\nname = \"r{at}\"\nuse = \"regex\"\non = [\"input\"]\npatterns = ['\\b\\d{{3}}-{at}\\b']\n"),
            1 => format!("[[rail]]\nname = \"r{at}\"\nuse = \"injection\"\non = [\"output\"]\n"),
            2 => format!("[[rail]]\nname = \"r{at}\"\nuse = \"personal_data\"\non = [\"input\"]\nkinds = [\"email\"]\n"),
            _ => format!("[[rail]]\nname = \"r{at}\"\nuse = \"secrets\"\non = [\"output\"]\naction = \"mask\"\n"),
        })
        .collect();
    let load = || Config::parse(&rails, std::path::Path::new("guard.toml"), &needs()).unwrap();
    load();
    let began = Instant::now();
    let all: Vec<Config> = (0..1000).map(|_| load()).collect();
    println!("{} configurations of 20 rails: {:?}", all.len(), began.elapsed());
}

fn main() {
    measure_rails_of_text();
    measure_words();
    measure_streams();
    measure_a_thousand_configurations();
}
