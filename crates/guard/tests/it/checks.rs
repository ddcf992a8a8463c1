//! `/v1/checks`, threads and the audit log.

use std::sync::Arc;

use fathom_guard::checks::{CheckError, check};
use fathom_guard::{Config, Guard, Guards, Session, audit, report};
use serde_json::{Value, json};

use crate::support::{Random, config, needs};

const BANK: &str = r#"
[[rail]]
use = "personal_data"
on = ["input", "output"]
kinds = ["email", "card"]
action = "mask"

[[rail]]
use = "injection"
on = ["input", "tool_result", "retrieval"]

[tools.pay]
allow = true
"#;

fn bank() -> Guards {
    Guards::of(Arc::new(Guard::new(config(BANK), &needs()).unwrap()))
}

fn ask(guards: &Guards, body: Value) -> Result<Value, CheckError> {
    check(guards, &Session::default(), &body)
}

#[test]
fn a_check_answers_with_status_content_and_verdicts() {
    let guards = bank();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "Card 4111 1111 1111 1111"}],
        "guardrails": {"config_id": "test", "rail_types": ["input"]}});
    let answer = ask(&guards, body).unwrap();
    assert_eq!((&answer["status"], &answer["rail"]), (&json!("modified"), &json!("personal_data")));
    assert_eq!(answer["content"], "Card <CREDIT_CARD>");
    let verdict = &answer["verdicts"][0];
    assert_eq!((&verdict["decision"], &verdict["spans"]), (&json!("rewrite"), &json!([[5, 24, "card"]])));
    assert_eq!(answer["failed"], false);
    let blocked =
        ask(&guards, json!({"messages": [{"role": "user", "content": "'; DROP TABLE users; --"}]})).unwrap();
    assert_eq!((&blocked["status"], &blocked["rail"]), (&json!("blocked"), &json!("injection")));
    let passed = ask(&guards, json!({"messages": [{"role": "assistant", "content": "Hello"}]})).unwrap();
    assert_eq!((&passed["status"], &passed["content"]), (&json!("passed"), &json!("Hello")));
}

#[test]
fn every_message_of_a_thread_is_judged_once() {
    let guards = bank();
    let hidden = json!({"messages": [
        {"role": "user", "content": "Look it up"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "import os; os.system('rm -rf /')"},
        {"role": "assistant", "content": "Fine"}],
        "tools": [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}]});
    let answer = ask(&guards, hidden.clone()).unwrap();
    let last = answer["verdicts"].as_array().unwrap().last().unwrap();
    assert_eq!((&answer["status"], &last["message"]), (&json!("blocked"), &json!(2)), "{answer}");
    // A refused message is judged again.
    assert_eq!(ask(&guards, hidden).unwrap()["status"], "blocked");
    let talk =
        json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]});
    let first = ask(&guards, talk.clone()).unwrap();
    let second = ask(&guards, talk).unwrap();
    let count = |answer: &Value| answer["verdicts"].as_array().unwrap().len();
    assert!(count(&second) < count(&first), "{first} {second}");
}

#[test]
fn requests_that_judge_nothing_are_refused() {
    let guards = bank();
    let user = json!([{"role": "user", "content": "Hi"}]);
    for body in [
        json!({"messages": []}),
        json!({"messages": user, "guardrails": {"config_id": "tset"}}),
        json!({"messages": user, "guardrails": {"rail_types": []}}),
        json!({"messages": user, "guardrails": {"rail_types": ["speech"]}}),
        json!({"messages": user, "guardrails": {"rail_types": ["output"]}}),
        json!({"messages": user, "guardrails": {"options": {"rails": {"input": ["injektion"]}}}}),
    ] {
        assert!(matches!(ask(&guards, body.clone()), Err(CheckError::Unprocessable(_))), "{body}");
    }
    for body in [
        json!([]),
        json!({"message": user}),
        json!({"messages": user, "guardrails": {"configid": "x"}}),
        json!({"messages": [{"role": "user", "content": "Hi", "tool_calls": []}]}),
        json!({"messages": [{"role": "owner", "content": "Hi"}]}),
        json!({"messages": [{"role": "user", "content": 3}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        json!({"messages": user, "guardrails": {"thread_id": "short"}}),
    ] {
        assert!(matches!(ask(&guards, body.clone()), Err(CheckError::Malformed(_))), "{body}");
    }
    let kept = json!({"messages": [{"role": "user", "content": "a@b.org"}], "guardrails": {"options": {"rails": {"input": ["injection"]}}}});
    assert_eq!(ask(&guards, kept).unwrap()["status"], "passed");
}

fn audited(folder: &std::path::Path, text: bool) -> Guards {
    let rails = format!("[guard.audit]\ntext = {text}\n{BANK}");
    std::fs::write(folder.join("guard.toml"), rails).unwrap();
    Guards::of(Arc::new(Guard::load(folder, &needs()).unwrap()))
}

/// G15: a changed, dropped or added line is found, and no text is in the log.
#[test]
fn the_audit_log_shows_every_change_and_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let guards = audited(folder.path(), false);
    for at in 0..300 {
        let text = format!("The secret{at}zz of jane{at}@x.org ; DROP TABLE t{at}");
        ask(&guards, json!({"messages": [{"role": "user", "content": text}]})).unwrap();
    }
    drop(guards);
    let (log, secret) = (folder.path().join("audit"), folder.path().join("audit.secret"));
    let verify = || audit::verify(&log, &secret).unwrap();
    let lines = verify().unwrap();
    assert_eq!(lines, 600);
    let file = audit::files(&log).unwrap().remove(0);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("zz") && !text.contains("x.org"));
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    let mut random = Random::new(5);
    for _ in 0..60 {
        let at = random.below(all.len());
        let mut changed: Vec<String> = all.iter().map(|it| it.to_string()).collect();
        match random.below(4) {
            0 => _ = changed.remove(at),
            1 => changed.insert(at, changed[random.below(all.len())].clone()),
            2 => changed[at] = changed[at].replacen("\"took_us\":", "\"took_us\":1", 1),
            _ => changed.truncate(at),
        }
        std::fs::write(&file, changed.concat()).unwrap();
        assert!(verify().is_err(), "{at}");
    }
    // A log that is cut at a line passes neither with the old head nor with one that names its last line.
    let head = log.join("audit.head");
    let authentic = std::fs::read_to_string(&head).unwrap();
    let hash =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["hash"].as_str().unwrap().to_string();
    std::fs::write(&file, all[..200].concat()).unwrap();
    for forged in [
        format!("{:020} {}\n", 200, hash(all[199])),
        format!("{:020} {} {}\n", 200, hash(all[199]), authentic.trim().rsplit(' ').next().unwrap()),
    ] {
        std::fs::write(&head, forged).unwrap();
        assert!(verify().unwrap_err().to_string().contains("not written with this secret"));
        assert!(Guard::load(folder.path(), &needs()).is_err());
    }
    // Next to the secret, a log without its files is one that was deleted.
    std::fs::remove_file(&head).unwrap();
    assert!(verify().unwrap_err().to_string().contains("missing"));
    std::fs::remove_file(&file).unwrap();
    assert!(verify().unwrap_err().to_string().contains("missing"));
    std::fs::write(&head, authentic).unwrap();
    std::fs::write(&file, &text).unwrap();
    assert_eq!(verify(), Ok(600));
    let report = report::report(&log).unwrap();
    assert_eq!((report.total.all, report.total.rewritten, report.total.blocked), (600, 300, 300));
    assert_eq!(report.kinds["email"], 300);
    // The log is continued.
    let guards = audited(folder.path(), true);
    ask(&guards, json!({"messages": [{"role": "user", "content": "plain words"}]})).unwrap();
    drop(guards);
    assert_eq!(verify(), Ok(601));
    assert!(std::fs::read_to_string(&file).unwrap().contains("plain words"));
}

#[test]
fn nothing_passes_once_the_log_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("[guard.audit]\nfolder = \"log\"\n{BANK}");
    std::fs::write(folder.path().join("guard.toml"), text).unwrap();
    drop(Guard::load(folder.path(), &needs()).unwrap());
    assert_eq!(
        audit::verify(&folder.path().join("log"), &folder.path().join("audit.secret")).unwrap(),
        Ok(0)
    );
    // Every write to this file fails as on a full disk.
    let file = folder.path().join("log/audit-000001.jsonl");
    std::fs::remove_file(&file).unwrap();
    if std::os::unix::fs::symlink("/dev/full", file).is_err() {
        return;
    }
    let guard = Guard::load(folder.path(), &needs()).unwrap();
    let guards = Guards::of(Arc::new(guard));
    let answer = ask(&guards, json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert!(matches!(answer, Err(CheckError::Unavailable(_))), "{answer:?}");
    assert!(guards.get(None).unwrap().broken().is_some());
}

#[test]
fn a_reload_replaces_the_whole_configuration_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("guard.toml");
    let rails = |word: &str| format!("[[rail]]\nuse = \"regex\"\non = [\"input\"]\nwords = [\"{word}\"]\n");
    std::fs::write(&file, rails("old")).unwrap();
    let guards = Guards::load(folder.path(), &needs()).unwrap();
    let status = |text: &str| {
        ask(&guards, json!({"messages": [{"role": "user", "content": text}]})).unwrap()["status"].clone()
    };
    assert_eq!([status("old"), status("new")], ["blocked", "passed"]);
    std::fs::write(&file, "[[rail]]\nuse = \"rgex\"\n").unwrap();
    assert!(guards.get(None).unwrap().reload().is_err());
    assert_eq!(status("old"), "blocked");
    std::fs::write(&file, rails("new")).unwrap();
    guards.get(None).unwrap().reload().unwrap();
    assert_eq!([status("old"), status("new")], ["passed", "blocked"]);
    assert!(Config::load(&folder.path().join("missing"), &needs()).is_err());
}

/// `deny_when` over `result` finds the tool by the id of its call, and budgets hold for a thread.
#[test]
fn results_are_judged_by_the_rules_of_the_tool_that_was_called() {
    let rules = "[tools.read]\nallow = true\ndeny_when = \"result.secret == true && args.path != 'x'\"\nmax_calls = 1\n";
    let guards = Guards::of(Arc::new(Guard::new(crate::support::config(rules), &needs()).unwrap()));
    let talk = |path: &str, result: &str| {
        let arguments = json!({"path": path}).to_string();
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}});
        json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": result}],
            "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]})
    };
    let status = |body| ask(&guards, body).unwrap()["status"].as_str().unwrap().to_string();
    assert_eq!(status(talk("a", r#"{"secret": true}"#)), "blocked");
    assert_eq!(status(talk("x", r#"{"secret": true}"#)), "passed");
    assert_eq!(status(talk("a", r#"{"secret": false}"#)), "passed");
    let of_thread = |path: &str| {
        let mut body = talk(path, r#"{"secret": false}"#);
        body["guardrails"] = json!({"thread_id": "a thread of a client"});
        status(body)
    };
    // The same call judged again is the same call; another one is too many.
    assert_eq!([of_thread("a"), of_thread("a"), of_thread("b")], ["passed", "passed", "blocked"]);
}
