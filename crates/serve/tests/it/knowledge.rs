//! Answers from documents.

use std::sync::Arc;

use fathom_base::Result;
use fathom_serve::{Knowledge, KnowledgeBase, Passage, ScreenVerdict, SearchRequest, ServeOptions};
use serde_json::{Value, json};

use crate::mock::{Bed, Mock};

const CHAT: &str = "/v1/chat/completions";

/// A hundred documents, found by the number in the query, with two others.
struct NumberedStore;

impl Knowledge for NumberedStore {
    fn search(&self, request: &SearchRequest) -> Result<Vec<Passage>> {
        if request.conditions.iter().any(|it| !it.contains('=')) {
            return Err(fathom_base::Error::product("no condition"));
        }
        let digits: String = request.query.chars().filter(char::is_ascii_digit).collect();
        let Ok(number) = digits.parse::<usize>() else { return Ok(Vec::new()) };
        let passage = |number: usize| Passage {
            text: format!("Item {number} has the code c{}.", number * 7919),
            place: format!("items.md:{number}"),
            facts: json!({"path": "items.md", "text": "not this"}),
            ..Passage::default()
        };
        // The right one is not always the first.
        let order = if number.is_multiple_of(2) {
            [number + 1, number, number + 2]
        } else {
            [number, number + 1, number + 2]
        };
        Ok(order.into_iter().map(passage).take(request.k).collect())
    }
}

/// Copies the source with the number of the question, and cites it; and, wrongly, sources that were not given.
fn copied(prompt: &str) -> String {
    let question = prompt.rsplit("Question: ").next().unwrap();
    let digits: String = question.chars().filter(char::is_ascii_digit).collect();
    let mut number = "";
    for line in prompt.lines() {
        number = line.strip_prefix('[').and_then(|line| line.split(']').next()).unwrap_or(number);
        if let Some(text) = line.strip_prefix(&format!("Item {digits} ")) {
            return format!("Item {digits} {text} [{number}] As was said [{number}, 9]. And more [77].");
        }
    }
    "No source has it.".into()
}

fn bed(screen: Option<fathom_serve::Screen>) -> Bed {
    let mock = Mock { answers: Some(copied), ..Mock::default() };
    let knowledge = Some(KnowledgeBase { store: Arc::new(NumberedStore), screen, passages: 3 });
    Bed::with(mock, ServeOptions { knowledge, ..ServeOptions::default() })
}

fn asking(number: usize, stream: bool) -> Value {
    let content = format!("What is the code of item {number}?");
    json!({"messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 200})
}

#[tokio::test]
async fn citations_of_a_hundred_answers_point_to_the_text_that_was_given() {
    let bed = bed(None);
    for number in 1..=100 {
        let (status, body) = bed.post(CHAT, asking(number, false)).await;
        assert_eq!(status, 200, "{body}");
        let (choice, sources) = (&body["choices"][0], body["sources"].as_array().unwrap());
        let account = &choice["citations"];
        let right = format!("Item {number} has the code c{}.", number * 7919);
        for cited in account["cited"].as_array().unwrap() {
            assert_eq!(sources[cited.as_u64().unwrap() as usize - 1]["text"], right.as_str());
        }
        assert_eq!((&account["citations"], &account["removed"]), (&json!(2), &json!(2)), "{account}");
        assert_eq!((&account["sentences"], &account["without_citation"]), (&json!(3), &json!(1)));
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(text.starts_with(&right) && !text.contains("[77]") && !text.contains(", 9]"), "{text}");
    }
}

#[tokio::test]
async fn a_stream_shows_the_same_answer_sources_and_account() {
    let bed = bed(None);
    let (_, whole) = bed.post(CHAT, asking(8, false)).await;
    let events = bed.stream(CHAT, asking(8, true)).await;
    let choices: Vec<&Value> = events.iter().filter_map(|event| event["choices"].get(0)).collect();
    let text: String = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(choices.last().unwrap()["citations"], whole["choices"][0]["citations"]);
    assert_eq!(events[0]["sources"], whole["sources"]);
    assert_eq!(events.iter().filter(|event| !event["sources"].is_null()).count(), 1);
}

#[tokio::test]
async fn passages_go_through_the_screen_and_requests_may_do_without() {
    let screen = |text: &str| match text {
        text if text.contains("Item 5 ") => ScreenVerdict::Omitted("injection".into()),
        text => ScreenVerdict::Rewritten(text.replace("code", "word")),
    };
    let bed = bed(Some(Arc::new(screen)));
    let (_, found) = bed.post("/v1/search", json!({"query": "item 5", "k": 3})).await;
    assert_eq!((found["data"].as_array().unwrap().len(), &found["omitted"]), (2, &json!(1)));
    let first = &found["data"][0];
    assert_eq!(
        (&first["number"], &first["place"], &first["path"]),
        (&json!(1), &json!("items.md:6"), &json!("items.md"))
    );
    assert!(first["text"].as_str().unwrap().contains("the word c"));
    bed.post(CHAT, asking(5, false)).await;
    assert!(!bed.mock.prompt().contains("Item 5 ") && bed.mock.prompt().contains("Item 6 has the word"));
    let mut plain = asking(5, false);
    plain["knowledge"] = false.into();
    let (_, body) = bed.post(CHAT, plain).await;
    assert!(!bed.mock.prompt().contains("Sources:") && body["sources"].is_null());
}

#[tokio::test]
async fn searches_are_refused_clearly() {
    let without = Bed::new(Mock::saying("Hi!"));
    let (status, body) = without.post("/v1/search", json!({"query": "x"})).await;
    assert!(status == 404 && body.to_string().contains("--knowledge"), "{body}");
    let bed = bed(None);
    for (wrong, named) in [
        (json!({}), "query"),
        (json!({"query": "x", "k": 100_000}), "k"),
        (json!({"query": "x", "where": [3]}), "where"),
        (json!({"query": "x", "where": ["year"]}), "condition"),
    ] {
        let (status, body) = bed.post("/v1/search", wrong).await;
        assert!(status == 400 && body["error"]["message"].as_str().unwrap().contains(named), "{body}");
    }
}

#[tokio::test]
async fn the_other_protocols_show_the_same_sources_and_account() {
    let bed = bed(None);
    let question = "What is the code of item 8?";
    let (_, chat) = bed.post(CHAT, asking(8, false)).await;
    let (said, account) = (&chat["choices"][0]["message"]["content"], &chat["choices"][0]["citations"]);
    let messages = asking(8, false);
    for (path, body) in [("/v1/responses", json!({"input": question})), ("/v1/messages", messages)] {
        let (_, whole) = bed.post(path, body.clone()).await;
        let text = whole["output"][0]["content"][0]["text"].as_str().or(whole["content"][0]["text"].as_str());
        assert_eq!((text, &whole["sources"]), (said.as_str(), &chat["sources"]), "{path}: {whole}");
        assert_eq!(&whole["citations"], account, "{path}");
        let mut body = body;
        body["stream"] = true.into();
        let events = bed.stream(path, body).await;
        let delta =
            |event: &Value| event["delta"].as_str().or(event["delta"]["text"].as_str()).map(String::from);
        let text: String = events.iter().filter_map(delta).collect();
        assert_eq!(Some(text.as_str()), said.as_str(), "{path}");
        let begins = |event: &&Value| {
            let first = event.get("response").or(event.get("message")).unwrap_or(&Value::Null);
            first["sources"] == chat["sources"]
        };
        assert!(events.iter().any(|event| begins(&event)), "{path}: {events:?}");
        let accounts = events.iter().map(|event| event.get("response").unwrap_or(event)["citations"].clone());
        assert_eq!(
            accounts.filter(|it| !it.is_null()).collect::<Vec<_>>(),
            std::slice::from_ref(account),
            "{path}"
        );
    }
}
