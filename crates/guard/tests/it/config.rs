//! Configurations that are wrong are refused, with file, line and the nearest name.

use std::path::Path;
use std::sync::Arc;

use fathom_guard::needs::Languages;
use fathom_guard::{Config, Context, Direction, Engine, Metrics, Needs, Subject};

use crate::support::needs;

fn refused(text: &str, needs: &Needs) -> String {
    match Config::parse(text, Path::new("bank/guard.toml"), needs) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_line_and_the_nearest_name() {
    let regex = "[[rail]]\nuse = \"regex\"\non = [\"output\"]\npatterns = [\"a\"]\n";
    let cases = [
        ("[[rail]]\nuse = \"regexp\"\non = [\"input\"]\n".to_string(), "guard.toml:2:", "`regex`"),
        ("[[rail]]\nuse = \"regex\"\non = [\"input\"]\npattern = [\"a\"]\n".into(), "guard.toml:4:", "`patterns`"),
        ("[[rail]]\nuse = \"regex\"\non = [\"inputs\"]\npatterns = [\"a\"]\n".into(), "guard.toml:3:", "input"),
        ("[guard]\nwindows = 3\n".into(), "guard.toml:2:", "`window`"),
        ("[gaurd]\n".into(), "guard.toml:1:", "`guard`"),
        ("[[rail]]\nuse = \"regex\"\non = [\"input\"]\npatterns = [\"(\"]\n".into(), "guard.toml:4:", "`(`"),
        ("[[rail]]\nuse = \"regex\"\non = [\"input\"]\npatterns = [\"a*\"]\n".into(), "guard.toml:4:", "empty text"),
        ("[[rail]]\nuse = \"regex\"\non = [\"input\"]\npatterns = [\"(?:a{1000}){1000}\"]\n".into(), "guard.toml:4:", "too large"),
        ("[[rail]]\nuse = \"regex\"\non = [\"output\"]\naction = \"mask\"\npatterns = [\"a+\"]\n".into(), "guard.toml:4:", "hold = \"all\""),
        ("[[rail]]\nuse = \"regex\"\non = []\npatterns = [\"a\"]\n".into(), "guard.toml:3:", "at least one"),
        ("[[rail]]\nuse = \"regex\"\non = [\"tool_call\"]\naction = \"mask\"\npatterns = [\"a\"]\n".into(), "guard.toml:3:", "never rewritten"),
        ("[[rail]]\nuse = \"tools\"\non = [\"input\"]\n".into(), "guard.toml:3:", "does not judge input"),
        ("[[rail]]\nuse = \"length\"\non = [\"input\"]\naction = \"mask\"\n".into(), "guard.toml:4:", "cannot mask"),
        ("[[rail]]\nuse = \"length\"\non = [\"input\"]\nmax_chars = \"many\"\n".into(), "guard.toml:4:", "invalid type"),
        ("[[rail]]\nuse = \"language\"\non = [\"input\"]\nallowed_languages = [\"en\"]\nblocked_languages = [\"de\"]\n".into(), "guard.toml:5:", "contradicts"),
        ("[[rail]]\nuse = \"language\"\non = [\"input\"]\n".into(), "guard.toml:1:", "does not identify languages"),
        ("[[rail]]\nuse = \"encodings\"\non = [\"input\"]\nthen = \"regex\"\n".into(), "guard.toml:4:", "needs `patterns`"),
        ("[[rail]]\nuse = \"hallucination\"\non = [\"output\"]\n".into(), "guard.toml:1:", "rail hallucination: missing field `model`"),
        ("[[rail]]\nuse = \"personal_data\"\non = [\"input\"]\nkinds = [\"emial\"]\n".into(), "guard.toml:4:", "`email`"),
        ("[tools.pay]\nallow = true\ndeny_when = \"arg.amount > 1\"\n".into(), "tools.pay", "`args`"),
        ("[tools.pay]\nallow = true\nmax_spend = 3.0\n".into(), "tools.pay", "belong together"),
        ("[[rail]]\nuse = \"regex\"\non = \"inputs\"\npatterns = \"a\"\n".into(), "guard.toml:3:", "input"),
        ("[[rail]]\nuse = \"regex\"\non = 3\npatterns = \"a\"\n".into(), "guard.toml:3:", "a text or a list"),
        (format!("{regex}{regex}"), "guard.toml:5:", "two rails"),
        (format!("[guard]\nstream_first = true\n{}action = \"mask\"\n", regex), "guard.toml:2:", "stream_first"),
        (format!("{regex}hold = \"all\"\nwindow = 3\n"), "guard.toml:6:", "no effect"),
        ("[guard]\n".into(), "guard.toml:1:", "no rails"),
        ("[[rail]\n".into(), "guard.toml:1:", ""),
    ];
    for (text, place, hint) in cases {
        let message = refused(&text, &needs());
        assert!(message.contains(place) && message.contains(hint), "{text}\n{message}");
    }
    let message = refused(
        "[[rail]]\nuse = \"personal_data\"\non = [\"input\"]\nkinds = [\"email\"]\n",
        &Needs::default(),
    );
    assert!(message.contains("personal_data") && message.contains("guard.toml:4:"), "{message}");
}

struct English;

impl Languages for English {
    fn identify(&self, _: &str) -> Option<(String, f64)> {
        Some(("en".into(), 1.0))
    }
}

#[test]
fn an_unknown_language_is_refused_with_the_code_that_is_meant() {
    let needs = Needs { languages: Some(Arc::new(English)), ..needs() };
    let rail = |line: &str| format!("[[rail]]\nuse = \"language\"\non = [\"input\"]\n{line}\n");
    for (line, hint) in [
        (
            "allowed_languages = [\"german\"]",
            "`allowed_languages`: `german` is no code of a known language; did you mean `de`?",
        ),
        ("blocked_languages = [\"de-DE\"]", "`blocked_languages`: `de-DE`"),
        ("allowed_languages = [\"English\"]", "did you mean `en`?"),
        ("allowed_languages = [\"en\", \"germn\"]", "`german`"),
        ("refusal_messages = { xx = \"No.\" }", "`refusal_messages`: `xx`"),
    ] {
        let message = refused(&rail(line), &needs);
        assert!(message.contains("guard.toml:4:") && message.contains(hint), "{message}");
    }
    let config =
        Config::parse(&rail("allowed_languages = [\"EN\"]"), Path::new("guard.toml"), &needs).unwrap();
    let engine = Engine::new(Arc::new(config), needs.clock.clone(), Arc::new(Metrics::default()));
    let subject = Subject::new(Direction::Input, Arc::new(Context::default()));
    assert!(engine.judge("Hello", &subject).blocked.is_none());
}

/// A rail's table with its lists; each key is written as a list of one and as a text.
#[test]
fn one_text_stands_for_a_list_of_one() {
    let rails: [(&str, &[(&str, &str)]); 6] = [
        ("regex", &[("patterns", "a"), ("words", "b"), ("tools", "pay")]),
        ("personal_data", &[("kinds", "email"), ("phone_countries", "DE")]),
        ("secrets", &[("except", "vault")]),
        ("injection", &[("families", "sqli")]),
        ("hidden_text", &[("kinds", "tag")]),
        ("encodings", &[("then", "personal_data"), ("patterns", "a"), ("kinds", "email")]),
    ];
    let tools = "[tools.pay]\nallow = true\n";
    for (kind, lists) in rails {
        let written = |open: &str, close: &str| {
            let on = if lists.iter().any(|(key, _)| *key == "tools") { "tool_call" } else { "input" };
            let lists: Vec<(&str, &str)> = [("on", on)].into_iter().chain(lists.iter().copied()).collect();
            let line = |(key, value): &(&str, &str)| format!("{key} = {open}\"{value}\"{close}\n");
            format!("{tools}[[rail]]\nuse = \"{kind}\"\n{}", lists.iter().map(line).collect::<String>())
        };
        let load = |text: String| {
            let needs = crate::support::needs();
            Config::parse(&text, Path::new("guard.toml"), &needs)
                .map(|config| config.rails[0].setting.on.clone())
                .map_err(|error| error.to_string())
        };
        let list = load(written("[", "]"));
        assert_eq!(load(written("", "")), list, "{kind}");
        assert!(list.is_ok(), "{kind}: {list:?}");
    }
}

#[test]
fn what_weakens_the_guard_is_allowed_by_name_with_a_warning() {
    let text = "[guard]\nstream_first = true\n[[rail]]\nuse = \"regex\"\non = [\"output\"]\npatterns = [\"a\"]\non_failure = \"allow\"\n";
    let config = Config::parse(text, Path::new("guard.toml"), &needs()).unwrap();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}
