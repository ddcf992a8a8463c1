//! Hostile texts through every rail of text, and hostile files through every importer: each is judged or refused, and
//! nothing panics.

use std::path::Path;
use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_guard::evaluation::{read_interactions, read_probes};
use fathom_guard::import::{Program, from_nemo};
use fathom_guard::needs::Languages;
use fathom_guard::{
    AnswerStart, AnswerStream, Config, Context, Decision, Direction, Engine, Guard, Guards, Metrics, Needs,
    Reason, Session, Subject, ToolUse, checks,
};
use serde_json::{Value, json};

use crate::support::{Random, needs};

struct FirstLetter;

impl Languages for FirstLetter {
    fn identify(&self, text: &str) -> Option<(String, f64)> {
        text.chars().next().map(|c| (if c.is_ascii() { "en" } else { "xx" }.to_string(), 0.9))
    }
}

fn all_needs() -> Needs {
    Needs { languages: Some(Arc::new(FirstLetter)), ..needs() }
}

/// Every rail of text, in all of its directions; the first ones rewrite.
const ALL: &str = r#"
[[rail]]
use = "hidden_text"
on = ["input", "output", "retrieval", "tool_result"]
action = "omit"

[[rail]]
use = "secrets"
on = ["input", "output", "retrieval", "tool_result"]
action = "mask"

[[rail]]
use = "personal_data"
on = ["input", "output", "retrieval", "tool_result"]
kinds = ["email", "card"]

[[rail]]
use = "regex"
on = ["input", "output", "retrieval", "tool_result"]
action = "mask"
patterns = ['(?i)\bpass(?:word)?\b', '(?:x{1,20}y?){1,20}z', '[α-ω]{3,9}']
words = ["((((", "top secret"]

[[rail]]
use = "injection"
on = ["input", "output", "retrieval", "tool_call", "tool_result"]
action = "flag"

[[rail]]
use = "encodings"
on = ["input", "output", "retrieval", "tool_call", "tool_result"]
action = "flag"

[[rail]]
use = "language"
on = ["input", "output"]
action = "flag"

[[rail]]
use = "length"
on = ["input", "retrieval", "tool_result"]
action = "flag"
max_chars = 500
min_entropy = 3.5
max_repetition = 0.4
max_run = 0.1

[[rail]]
use = "rate"
on = ["input"]
action = "flag"
max_requests = 1000000
per_s = 60

[tools.pay]
allow = true
deny_when = "args.amount > 10 && args.to.matches('^x+$') || size(args.note) > 20"
max_calls = 1000
"#;

/// Parts of texts that detectors, decoders, parsers and tokenizers stumble over.
const PARTS: [&str; 56] = [
    "",
    " ",
    "\n",
    "\r",
    "\t",
    "\0",
    "\u{1b}",
    "\u{feff}",
    "\u{200d}",
    "\u{200b}",
    "\u{202e}",
    "\u{e0041}",
    "\u{1f3f4}",
    "\u{fffd}",
    "\u{10ffff}",
    "e\u{301}\u{301}",
    "👩\u{200d}👩",
    "क्ष",
    "🇩🇪",
    "İ",
    "ß",
    "ﬀ",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "-----END",
    "api_key = \"",
    "sk-",
    "ghp_",
    "eyJ",
    "@",
    "a@b",
    "@@.",
    "+49 (0)",
    "4111 1111",
    "1111",
    "%",
    "%4",
    "%41%42",
    "\\u",
    "\\ud800",
    "&#x",
    "&#999999999;",
    "aGVsbG8gd29ybGQh",
    "3C7363726970743E",
    "{{",
    "}}",
    "{%",
    "<script",
    "'; DROP TABLE",
    "--",
    "[",
    "{",
    ": ",
    "- ",
    "? ",
    "&a *a",
];

/// A text for a seed: parts in a random order, some of them many times.
fn text(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..random.below(14) + 1 {
        let part = PARTS[random.below(PARTS.len())];
        let times = [1, 1, 1, 2, 7, 60][random.below(6)];
        (0..times).for_each(|_| text.push_str(part));
        match random.below(6) {
            0 => text.push(char::from_u32(random.below(0x11_0000) as u32).unwrap_or('x')),
            1 => text.push_str("password is x"),
            _ => {}
        }
    }
    text
}

fn engine() -> Arc<Engine> {
    let config = Config::parse(ALL, Path::new("guard.toml"), &all_needs()).unwrap();
    Arc::new(Engine::new(Arc::new(config), Clock::start(), Arc::new(Metrics::default())))
}

/// Judges a text in all directions. A rail fails only by saying that it cannot read the text.
fn judge(engine: &Engine, text: &str) -> String {
    let mut answer = String::new();
    for direction in Direction::ALL {
        let mut subject = Subject::new(direction, Arc::new(Context::default()));
        let arguments = serde_json::from_str(text).unwrap_or_else(|_| json!({"amount": text, "note": text}));
        let tool = ToolUse { name: "pay".into(), arguments, schema: None, declared: true };
        subject.tool =
            matches!(direction, Direction::ToolCall | Direction::ToolResult).then(|| Arc::new(tool));
        let outcome = engine.judge(text, &subject);
        for verdict in outcome.verdicts.iter().filter(|it| it.failed) {
            assert!(verdict.reason == Reason::Unreadable, "{verdict:?} of {text:?}");
        }
        if direction == Direction::Output {
            assert_eq!(outcome.blocked, None, "{text:?}");
            answer = outcome.text;
        }
    }
    answer
}

/// Each text in every direction and as a stream; ten thousand of them with `FATHOM_TEST_STREAMS`, which takes 15 s.
#[test]
fn hostile_texts_are_judged_in_every_direction_and_as_streams() {
    let engine = engine();
    let mut random = Random::new(11);
    let texts = if std::env::var_os("FATHOM_TEST_STREAMS").is_some() { 10_000 } else { 600 };
    for _ in 0..texts {
        let text = text(&mut random);
        let whole = judge(&engine, &text);
        let subject = Subject::new(Direction::Output, Arc::new(Context::default()));
        let mut stream = AnswerStream::new(engine.clone(), subject, &AnswerStart::default());
        let (mut out, mut at) = (String::new(), 0);
        while at < text.len() {
            let end = text.ceil_char_boundary((at + 1 + random.below(200)).min(text.len()));
            out += &stream
                .push(&text[at..end], random.below(64))
                .unwrap_or_else(|it| panic!("{it:?} of {text:?}"));
            at = end;
        }
        out += &stream.finish().unwrap_or_else(|it| panic!("{it:?} of {text:?}\nwhole {whole:?}"));
        assert_eq!(out, whole, "of {text:?}");
    }
}

#[test]
fn ten_megabytes_are_judged_or_blocked() {
    let limited = "[[rail]]\nuse = \"length\"\non = [\"input\"]\nmax_chars = 100000\n";
    let config = Arc::new(Config::parse(limited, Path::new("guard.toml"), &all_needs()).unwrap());
    let engine = Engine::new(config, Clock::start(), Arc::new(Metrics::default()));
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    let long = "password 4111 1111 a@b ".repeat((10 << 20) / 23);
    let blocked = engine.judge(&long, &subject);
    assert_eq!(blocked.block().map(|it| it.reason), Some(Reason::TooLong));
    // Without a limit each rail reads all of it, in linear time.
    let all = crate::support::engine(
        "[guard]\ntext_timeout_ms = 600000\n[[rail]]\nuse = \"personal_data\"\non = [\"input\"]\nkinds = [\"email\"]\naction = \"flag\"\n\
         [[rail]]\nuse = \"regex\"\non = [\"input\"]\naction = \"flag\"\npatterns = ['(?:a+)+b', '(?:4|1| ){1,40}x']\nwords = [\"zebra\"]\n",
    );
    let outcome = all.judge(&long, &subject);
    assert!(outcome.blocked.is_none() && outcome.verdicts.iter().all(|it| !it.failed));
    assert_eq!(outcome.verdicts[0].decision, Decision::Flag);
}

#[test]
fn patterns_that_are_many_or_nested_are_linear_or_refused() {
    let parse = |patterns: &[String]| {
        let list = toml::Value::from(patterns.to_vec());
        let text =
            format!("[[rail]]\nuse = \"regex\"\non = [\"output\"]\naction = \"mask\"\npatterns = {list}\n");
        Config::parse(&text, Path::new("guard.toml"), &needs())
    };
    let many: Vec<String> = (0..10_000).map(|at| format!("k{at}[a-f]")).collect();
    assert!(parse(&many).is_ok());
    for nested in ["(?:a{1,900}){1,900}", "(?:(?:[a-z]{1,99}x?){1,99}y?){1,99}", "\\pL{5000}", "(", "a**", ""]
    {
        assert!(parse(&[nested.to_string()]).is_err(), "{nested}");
    }
    // A backtracking engine would need years.
    let engine = crate::support::engine(
        "[[rail]]\nuse = \"regex\"\non = [\"input\"]\npatterns = ['^(?:a+)+$', '(?:a|aa)+b', '(?:.*.*.*=.*)']\n",
    );
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    let outcome = engine.judge(&("a".repeat(50_000) + "c"), &subject);
    assert!(outcome.verdicts.iter().all(|it| !it.failed) && outcome.blocked.is_none());
}

/// A value of JSON for a seed, nested at most this deep.
fn value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 5 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(random.below(1 << 30) as f64 - 5e8),
        3 => json!(["user", "assistant", "tool", "context", "text", "pay"][random.below(6)]),
        4 => json!(text(random)),
        5 => (0..random.below(4)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            const KEYS: [&str; 12] = [
                "role",
                "content",
                "tool_calls",
                "function",
                "name",
                "arguments",
                "type",
                "text",
                "guardrails",
                "rail_types",
                "options",
                "thread_id",
            ];
            let entries =
                (0..random.below(5)).map(|_| (KEYS[random.below(12)].to_string(), value(random, depth - 1)));
            Value::Object(entries.collect())
        }
    }
}

#[test]
fn hostile_requests_are_judged_or_refused() {
    let guards = Guards::of(Arc::new(
        Guard::new(Config::parse(ALL, Path::new("guard.toml"), &all_needs()).unwrap(), &all_needs()).unwrap(),
    ));
    let mut random = Random::new(12);
    let mut judged = 0;
    for at in 0..1500 {
        let body = if at % 3 == 0 {
            value(&mut random, 4)
        } else {
            let role = ["user", "assistant", "tool", "context"][random.below(4)];
            let mut message = json!({"role": role, "content": value(&mut random, 2)});
            if role == "assistant" {
                message["tool_calls"] = value(&mut random, 4);
            }
            json!({"messages": [{"role": "user", "content": text(&mut random)}, message], "tools": value(&mut random, 3)})
        };
        if let Ok(answer) = checks::check(&guards, &Session::default(), &body) {
            judged += 1;
            assert!(["passed", "modified", "blocked"].iter().any(|it| answer["status"] == *it), "{answer}");
        }
    }
    assert!(judged > 50, "{judged}");
}

#[test]
fn hostile_files_are_read_or_refused_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(13);
    const LINES: [&str; 16] = [
        "define flow x",
        "  user express y",
        "define user y",
        "  \"a\"",
        "  when user z",
        "  else",
        "    if $a.b[",
        "  execute f(a=",
        "rails:",
        "  input:",
        "    flows:",
        "      - regex check input",
        "  - &a [*a",
        "prompts: {",
        "  content: |",
        "\t",
    ];
    for _ in 0..400 {
        let mut file = String::new();
        for _ in 0..random.below(12) + 1 {
            match random.below(3) {
                0 => file.push_str(&text(&mut random)),
                _ => file.push_str(LINES[random.below(LINES.len())]),
            }
            file.push('\n');
        }
        Program::read(&file);
        _ = read_interactions(&file);
        _ = read_probes(&file);
        _ = Config::parse(&file, Path::new("guard.toml"), &needs());
        std::fs::write(folder.path().join("config.yml"), &file).unwrap();
        _ = from_nemo(folder.path());
    }
    for deep in [
        "[".repeat(100_000),
        format!("a: {}{}", "[".repeat(5000), "]".repeat(5000)),
        "? ".repeat(10_000),
        "- ".repeat(10_000),
        (0..2000).map(|at| format!("{}a:\n", " ".repeat(at))).collect(),
    ] {
        std::fs::write(folder.path().join("config.yml"), &deep).unwrap();
        assert!(from_nemo(folder.path()).is_err());
        Program::read(&deep);
    }
    let deep = format!("[tools.a]\nallow = true\ndeny_when = \"{}true\"\n", "!(".repeat(5000));
    assert!(Config::parse(&deep, Path::new("guard.toml"), &needs()).is_err());
}
