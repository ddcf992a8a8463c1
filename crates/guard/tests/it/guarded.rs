//! A service within rails: no prompt, answer, stream, count of answers, reasoning, tool or number gets around them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fathom_base::{
    Conversation, Evaluate, Event, Generate, GenerateRequest, Numbers, Prompt, PromptPart, Sampling, Service,
    Stop, Structure, relay,
};
use fathom_guard::{
    Action, Config, Cost, Direction, Failure, Guard, GuardedService, Horizon, Journal, JournalParts,
    Manifest, Opinion, Rail, RailInput, Reason, Session, Until,
};
use serde_json::json;

use crate::service::{Speaker, talk};
use crate::support::{config, needs};

const BLOCKING: &str = "[[rail]]\nuse = \"regex\"\non = [\"output\"]\nwords = [\"forbidden\"]\n";
const MASKING: &str = "[[rail]]\nuse = \"personal_data\"\non = [\"input\", \"output\"]\nkinds = [\"email\"]\naction = \"mask\"\n";

fn guarded(rails: &str, speaker: Speaker) -> GuardedService {
    let guard = Guard::new(config(rails), &needs()).unwrap();
    GuardedService::new(Arc::new(speaker), Arc::new(guard))
}

fn request(prompt: impl Into<Prompt>) -> GenerateRequest {
    GenerateRequest::new(prompt, Sampling::default())
}

/// The texts and ends of a request's answers.
fn answers(service: &dyn Service, request: GenerateRequest) -> Vec<(String, Stop)> {
    let all = service.generate_while(vec![request], &|| true).unwrap().unwrap();
    all.into_iter().flatten().map(|it| (it.text, it.stop)).collect()
}

fn is_refused(stop: &Stop) -> bool {
    matches!(stop, Stop::Refused { .. })
}

#[test]
fn a_blocking_rail_stops_every_way_of_generating() {
    let bad = "This is forbidden, of course.";
    let schema = Some(Structure::JsonObject);
    type Change<'a> = (&'a str, &'a dyn Fn(&mut GenerateRequest));
    let make: [Change<'_>; 8] = [
        ("text", &|_| ()),
        ("ids", &|it| it.prompt = Prompt::Ids(vec![72, 105])),
        ("parts", &|it| {
            it.prompt = Prompt::Parts(vec![PromptPart::Text("Hi".into()), PromptPart::Ids(vec![33])])
        }),
        ("conversation", &|it| it.prompt = talk(&[("user", "Hi")])),
        ("answers", &|it| it.answers = 3),
        ("logprobs", &|it| (it.logprobs, it.prompt_logprobs) = (Some(1), Some(0))),
        ("adapter", &|it| it.adapter = Some("a".into())),
        ("structure", &|it| it.structure = schema.clone()),
    ];
    for (name, change) in make {
        for text in
            [bad, "<think>It is forbidden.</think>Yes", "<tool_call>{\"name\": \"forbidden\"}</tool_call>"]
        {
            let service = guarded(BLOCKING, Speaker::of(&[text]));
            let mut request = request("Hi");
            change(&mut request);
            for (text, stop) in answers(&service, request) {
                assert!(is_refused(&stop) && !text.contains("forb"), "{name}: {text} {stop:?}");
            }
        }
    }
}

#[test]
fn of_several_answers_only_the_bad_one_is_refused() {
    let service = guarded(BLOCKING, Speaker::of(&["Good one.", "A forbidden one.", "Fine."]));
    let found = answers(&service, GenerateRequest { answers: 3, ..request("Hi") });
    assert_eq!(found.iter().map(|(_, stop)| is_refused(stop)).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!((found[0].0.as_str(), found[2].0.as_str()), ("Good one.", "Fine."));
}

#[test]
fn a_refused_prompt_generates_nothing() {
    let rails = "[[rail]]\nuse = \"injection\"\non = [\"input\", \"tool_result\"]\n";
    let speaker = Speaker::of(&["never"]);
    let prompts = speaker.prompts.clone();
    let service = guarded(rails, speaker);
    let bad = "x'; DROP TABLE users; --";
    let tool = json!({"role": "tool", "tool_call_id": "1", "content": bad});
    let history =
        vec![json!({"role": "user", "content": "Hi"}), tool, json!({"role": "user", "content": "And?"})];
    let hidden = json!({"role": "user", "content": [{"type": "text", "text": "x'; DROP"}, {"type": "text", "text": " TABLE users; --"}]});
    let of = |messages| Prompt::Conversation(Conversation { messages, ..Conversation::default() });
    let named = json!({"role": "user", "name": bad, "content": "Hi"});
    for prompt in [
        bad.into(),
        talk(&[("user", bad)]),
        talk(&[("system", bad), ("user", "Hi")]),
        talk(&[("user", bad), ("assistant", "Oh."), ("user", "Hi")]),
        of(history),
        of(vec![hidden]),
        of(vec![named]),
    ] {
        let found = answers(&service, request(prompt));
        assert!(found[0].0.is_empty() && is_refused(&found[0].1), "{found:?}");
    }
    assert!(prompts.lock().unwrap().is_empty());
}

#[test]
fn a_rewritten_prompt_is_what_the_model_gets() {
    for prompt in [
        "Write to jane@x.org now".into(),
        talk(&[("user", "Write to jane@x.org now")]),
        Prompt::Ids("Write to jane@x.org now".chars().map(u32::from).collect()),
        Prompt::Parts(vec![
            PromptPart::Text("Write to ja".into()),
            PromptPart::Ids("ne@x.org now".chars().map(u32::from).collect()),
        ]),
    ] {
        let speaker = Speaker::of(&["Done, bob@y.org answers."]);
        let prompts = speaker.prompts.clone();
        let service = guarded(MASKING, speaker);
        let found = answers(&service, request(prompt));
        assert_eq!(found[0].0, "Done, <EMAIL_ADDRESS> answers.");
        let given = prompts.lock().unwrap()[0].clone();
        assert!(given.contains("<EMAIL_ADDRESS>") && !given.contains("x.org"), "{given}");
    }
}

#[test]
fn ids_and_logprobs_are_withheld_while_a_rail_rewrites_and_kept_otherwise() {
    for (rails, kept) in [(MASKING, false), (BLOCKING, true)] {
        let service = guarded(rails, Speaker::of(&["Nothing special in this answer."]));
        let (sink, events) = relay(8);
        let _ticket = service.submit(GenerateRequest { logprobs: Some(0), ..request("Hi") }, sink).unwrap();
        let (mut text, mut ids, mut logprobs) = (String::new(), Vec::new(), 0);
        for event in events {
            if let Event::Piece { text: more, ids: new, logprobs: listed, .. } = event {
                text.push_str(&more);
                ids.extend(new);
                logprobs += listed.len();
            }
        }
        assert_eq!(text, "Nothing special in this answer.");
        let expected = if kept { text.chars().count() } else { 0 };
        assert_eq!((ids.len(), logprobs), (expected, expected));
    }
}

#[test]
fn reasoning_is_judged_or_dropped() {
    let text = "<think>The forbidden plan.</think>Hello";
    let found = answers(&guarded(BLOCKING, Speaker::of(&[text])), request("Hi"));
    assert!(is_refused(&found[0].1));
    let dropped = format!("[guard]\nreasoning = \"drop\"\n{BLOCKING}");
    let found = answers(&guarded(&dropped, Speaker::of(&[text])), request("Hi"));
    assert_eq!(found, [("Hello".to_string(), Stop::EndOfText)]);
    // The prompt may have opened the thoughts.
    let found = answers(&guarded(&dropped, Speaker::of(&["The plan.</think>Hello"])), request("Hi <think>"));
    assert_eq!(found[0].0, "Hello");
}

#[test]
fn a_call_of_a_tool_is_held_until_it_is_allowed() {
    let rails = "[tools.transfer]\nallow = true\ndeny_when = \"args.amount > 1000 && args.currency != 'EUR'\"\nmax_calls = 1\n";
    let tool = json!({"type": "function", "function": {"name": "transfer", "parameters": {
        "type": "object", "required": ["amount", "currency"], "properties": {"amount": {"type": "number"}, "currency": {"type": "string"}}}}});
    let other = json!({"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}});
    let ask = |text: &str| {
        let messages = vec![json!({"role": "user", "content": "Pay"})];
        let tools = vec![tool.clone(), other.clone()];
        let talk = Conversation { messages, tools, ..Conversation::default() };
        answers(&guarded(rails, Speaker::of(&[text])), request(talk)).remove(0)
    };
    let call = |arguments: &str| {
        format!("<tool_call>{{\"name\": \"transfer\", \"arguments\": {arguments}}}</tool_call>")
    };
    let good = call("{\"amount\": 5000, \"currency\": \"EUR\"}");
    assert_eq!(ask(&good), (good.clone(), Stop::EndOfText));
    for bad in [
        call("{\"amount\": 5000, \"currency\": \"USD\"}"),
        call("{\"amount\": \"much\", \"currency\": \"EUR\"}"),
        call("{\"amount\": 5}"),
        call("{\"amount\": 5000, \"currency\": "),
        format!("{good}{good}"),
        "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>".into(),
        "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>".into(),
        "[TOOL_CALLS][{\"name\": \"other\", \"arguments\": {}}]".into(),
        "{\"name\": \"other\", \"parameters\": {}}".into(),
    ] {
        let (text, stop) = ask(&bad);
        assert!(
            is_refused(&stop) && !text.contains("5000, \"currency\": \"USD") && !text.contains("other"),
            "{bad}: {text} {stop:?}"
        );
    }
}

#[test]
fn numbers_are_of_judged_texts_and_reveal_no_tokens() {
    let rails = format!(
        "[[rail]]\nname = \"in\"\nuse = \"regex\"\non = [\"input\"]\nwords = [\"secret\"]\n{BLOCKING}"
    );
    let service = guarded(&rails, Speaker::of(&["x"]));
    let ids = |text: &str| vec![text.chars().map(u32::from).collect::<Vec<u32>>().into()];
    assert!(service.look_while(ids("fine"), Numbers::Vector, &|| true).is_ok());
    assert!(service.look_while(ids("a secret"), Numbers::Vector, &|| true).is_err());
    assert!(service.read(&("a secret".into(), None), Numbers::Vector, None).is_err());
    let top = Numbers::Top { k: 1, temperature: 1.0 };
    assert!(service.look_while(ids("fine"), top, &|| true).is_err());
}

#[test]
fn a_block_cancels_the_generation_and_a_dropped_ticket_too() {
    let text = format!("forbidden {}", "x ".repeat(5000));
    let speaker = Speaker { slow_ms: 1, ..Speaker::of(&[&text]) };
    let cancelled = speaker.cancelled.clone();
    let service = guarded(BLOCKING, speaker);
    assert!(is_refused(&answers(&service, request("Hi"))[0].1));
    let waited = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        cancelled.load(Ordering::Relaxed)
    });
    assert!(waited);
}

static SLOW: Manifest = Manifest {
    name: "slow",
    summary: "a judge of a test",
    directions: &[Direction::Input],
    actions: &[Action::Block],
    cost: Cost::Model,
};

/// A judge that takes some milliseconds and condemns `bad`.
struct SlowJudge(u64);

impl Rail for SlowJudge {
    fn judge(&self, judged: &RailInput<'_>, _: &Until) -> Result<Opinion, Failure> {
        std::thread::sleep(std::time::Duration::from_millis(self.0));
        let is_bad = judged.text.contains("bad");
        Ok(if is_bad { Opinion::whole(judged, Reason::Unsafe, "S1") } else { Opinion::clean() })
    }

    fn horizon(&self) -> Horizon {
        Horizon::Bytes(0)
    }
}

/// A model whose prompts are judged for some milliseconds while it answers.
fn judged_meanwhile(speaker: Speaker, judge_ms: u64) -> GuardedService {
    let text =
        "[guard]\nspeculative = true\n[[rail]]\nuse = \"regex\"\non = [\"input\"]\npatterns = [\"x\"]\n";
    let mut config: Config = config(text);
    let judge = fathom_guard::ConfiguredRail {
        manifest: &SLOW,
        rail: Arc::new(SlowJudge(judge_ms)),
        setting: fathom_guard::Setting { name: "slow".into(), ..config.rails[0].setting.clone() },
    };
    config.rails.push(judge);
    GuardedService::new(Arc::new(speaker), Arc::new(Guard::new(config, &needs()).unwrap()))
}

#[test]
fn an_answer_that_starts_early_is_held_until_the_prompt_is_allowed() {
    let judged = |prompt: &str| {
        let speaker = Speaker::of(&["A long answer, at once."]);
        let prompts = speaker.prompts.clone();
        let service = judged_meanwhile(speaker, 60);
        let (sink, events) = relay(8);
        let _ticket = service.submit(request(prompt), sink).unwrap();
        // Generation has started, whatever the judge will say.
        let has_started = prompts.lock().unwrap().len() == 1;
        let mut output = fathom_base::RequestOutput::of(1);
        events.for_each(|event| output.push(event));
        (has_started, output.generations().unwrap().remove(0))
    };
    let (has_started, good) = judged("Hi");
    assert!(has_started && good.text == "A long answer, at once." && good.stop == Stop::EndOfText);
    let (has_started, bad) = judged("A bad one");
    assert!(has_started && bad.text.is_empty() && bad.ids.is_empty() && is_refused(&bad.stop), "{bad:?}");
}

/// G13: a judge of 200 ms costs nothing next to a first token after 150 ms or 230 ms but the longer of both.
#[test]
fn a_first_token_waits_for_the_slower_of_judge_and_model_and_no_longer() {
    for token_ms in [150, 230] {
        let run = || {
            let service = judged_meanwhile(Speaker { slow_ms: token_ms, ..Speaker::of(&["A"]) }, 200);
            let began = std::time::Instant::now();
            assert_eq!(answers(&service, request("Hi"))[0].0, "A");
            began.elapsed().as_secs_f64() * 1e3 - token_ms.max(200) as f64
        };
        // The least of some runs: other processes may take the cores.
        let over_ms = (0..4).map(|_| run()).fold(f64::MAX, f64::min);
        assert!(over_ms <= 5.0, "{over_ms} ms over the longer of 200 ms and {token_ms} ms");
    }
}

/// A client that leaves out earlier messages has no new budget in a thread that it names.
#[test]
fn budgets_of_a_thread_hold_for_clients_that_drop_messages() {
    let call = "<tool_call>{\"name\": \"pay\", \"arguments\": {\"amount\": 40}}</tool_call>";
    let tool = json!({"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}});
    let talk = Conversation {
        messages: vec![json!({"role": "user", "content": "Pay."})],
        tools: vec![tool],
        ..Conversation::default()
    };
    for rule in ["max_calls = 2", "spend = \"amount\"\nmax_spend = 100"] {
        let guard = Guard::new(config(&format!("[tools.pay]\nallow = true\n{rule}\n")), &needs()).unwrap();
        let service = GuardedService::new(Arc::new(Speaker::of(&[call])), Arc::new(guard));
        let ask = |thread: Option<&str>| {
            let session = Session { thread: thread.map(str::to_string), ..Session::default() };
            is_refused(&answers(&service.of(session), request(talk.clone()))[0].1)
        };
        assert_eq!([0; 3].map(|_| ask(Some("a thread of a client"))), [false, false, true], "{rule}");
        assert_eq!([0; 3].map(|_| ask(Some("another of its threads"))), [false, false, true], "{rule}");
        assert_eq!([0; 4].map(|_| ask(None)), [false; 4], "{rule}");
    }
}

/// The rails' account of a request: runs of each rail with decisions, and calls of models, without text.
#[test]
fn a_journal_has_the_rails_that_ran() {
    let rails = format!(
        "{MASKING}[[rail]]\nname = \"last\"\nuse = \"regex\"\non = [\"output\"]\nwords = [\"forbidden\"]\n"
    );
    let service = guarded(&rails, Speaker::of(&["Ask bob@y.org, it is forbidden."]));
    let journal = Arc::new(Journal::default());
    let service = service.of(Session { journal: Some(journal.clone()), ..Session::default() });
    assert!(is_refused(&answers(&service, request("I am jane@x.org"))[0].1));
    let log = journal.json(JournalParts { activated_rails: true, llm_calls: true });
    let rails = log["activated_rails"].as_array().unwrap();
    let found: Vec<_> =
        rails.iter().map(|it| (it["name"].as_str().unwrap(), it["type"].as_str().unwrap())).collect();
    assert_eq!(found, [("personal_data", "input"), ("personal_data", "output"), ("last", "output")], "{log}");
    assert_eq!((&rails[0]["decisions"], &rails[0]["stop"]), (&json!(["rewrite"]), &json!(false)));
    assert_eq!((&rails[2]["decisions"], &rails[2]["stop"]), (&json!(["block"]), &json!(true)));
    assert_eq!(log["stats"]["llm_calls_duration"].to_string(), "0.0");
    assert!(log["llm_calls"] == json!([]) && log["stats"]["llm_calls_count"] == 0, "{log}");
    assert!(!log.to_string().contains("y.org"));
}
