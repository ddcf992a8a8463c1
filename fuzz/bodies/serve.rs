//! The server: any body at any route, and any answer in every protocol. Whatever it is, the server answers, and never by a
//! defect of its own (500); what streams is whole events of JSON.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use fathom_base::{
    Administer, Conversation, Describe, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard, Numbers,
    Result, Sink, SpecialTokens, Stop, TextIds, TextPair, Ticket, TokenLogprob, Tokenize, Usage, VectorSink,
};
use fathom_serve::{ROUTES, ServeOptions, ServerState, router};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A model of bytes that says what it is given.
struct Says(Vec<String>);

impl Describe for Says {
    fn card(&self) -> ModelCard {
        ModelCard {
            name: "m".into(),
            context_tokens: 1 << 16,
            vocabulary: 256,
            generates: true,
            converses: true,
            embedding: 2,
            ..ModelCard::default()
        }
    }

    fn load(&self) -> Load {
        Load { pages: 1 << 12, page_tokens: 128, ..Load::default() }
    }
}

impl Tokenize for Says {
    fn encode(&self, text: &str, _: SpecialTokens) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        match ids.iter().find(|id| **id > 255) {
            Some(id) => Err(fathom_base::Error::product(format!("token id {id} is outside the vocabulary"))),
            None => Ok(ids.iter().map(|id| *id as u8 as char).collect()),
        }
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        vec![id as u8]
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        Ok(conversation.messages.iter().map(Value::to_string).collect())
    }
}

impl Generate for Says {
    fn submit_while(&self, request: GenerateRequest, mut sink: Sink, _: &dyn Fn() -> bool) -> Result<Ticket> {
        let prompt = match &request.ids {
            Some(ids) => ids.clone(),
            None => self.ids(&request.prompt)?,
        };
        let token = |id: u32| TokenLogprob {
            id,
            logprob: Some(-0.5),
            rank: Some(0),
            top: vec![(id, -0.5)],
            kept: Vec::new(),
        };
        let logprobs = request.prompt_logprobs.map(|_| prompt.iter().map(|id| token(*id)).collect());
        sink(Event::Started {
            prompt: prompt.clone(),
            cached_tokens: 0,
            logprobs: logprobs.unwrap_or_default(),
        });
        for answer in 0..request.answers {
            for text in self.0.iter().take(request.sampling.max_tokens) {
                let ids: Vec<u32> = text.bytes().take(1).map(u32::from).collect();
                let logprobs = request.logprobs.map(|_| ids.iter().map(|id| token(*id)).collect());
                sink(Event::Piece {
                    answer,
                    text: text.clone(),
                    ids,
                    logprobs: logprobs.unwrap_or_default(),
                });
            }
            sink(Event::Ended { answer, stop: Stop::EndOfText });
        }
        sink(Event::Done(Usage { prompt_tokens: prompt.len(), ..Usage::default() }));
        Ok(Ticket::new(|| ()))
    }
}

impl Evaluate for Says {
    fn read(&self, (first, second): &TextPair, _: Numbers, most: Option<usize>) -> Result<TextIds> {
        let mut ids =
            self.encode(&format!("{first}{}", second.as_deref().unwrap_or_default()), SpecialTokens::Text)?;
        ids.truncate(most.unwrap_or(usize::MAX));
        Ok(ids.into())
    }

    fn numbers(&self, texts: Vec<TextIds>, _: Numbers, sink: VectorSink) -> Result<Ticket> {
        sink(Ok(texts.iter().map(|_| vec![1.0, 0.0]).collect()));
        Ok(Ticket::new(|| ()))
    }
}

impl Administer for Says {
    fn load_adapter(&self, _: &str, _: &Path) -> Result<()> {
        Err(fathom_base::Error::product("none"))
    }

    fn unload_adapter(&self, _: &str) -> Result<()> {
        Err(fathom_base::Error::product("none"))
    }

    fn erase_prefixes(&self) -> Result<u64> {
        Ok(0)
    }
}

/// Asks a server of a model that says so; the answer, of which streams are taken apart.
fn ask(says: Vec<String>, path: &str, body: &[u8]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let Ok(runtime) = runtime else { panic!("no runtime") };
    runtime.block_on(async {
        let server = Arc::new(ServerState::new(ServeOptions::default()));
        assert!(server.add("m", Arc::new(Says(says))).is_ok());
        let request =
            Request::post(path).header("host", "localhost").header("content-type", "application/json");
        // Routes of KServe take what is behind the JSON for tensors.
        let json_bytes = body.iter().rposition(|byte| *byte == b'}').map_or(body.len(), |at| at + 1);
        let request = request.header("inference-header-content-length", json_bytes);
        let Ok(request) = request.body(Body::from(body.to_vec())) else { return };
        let Ok(response) = router(&server, ROUTES).oneshot(request).await;
        let (head, body) = response.into_parts();
        let Ok(bytes) = body.collect().await else { panic!("{path}: the answer broke off") };
        let text = String::from_utf8_lossy(&bytes.to_bytes()).into_owned();
        assert_ne!(head.status.as_u16(), 500, "{path}: {text}");
        let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/event-stream") {
            events(path, &text);
        } else if kind.starts_with("application/json") {
            assert!(serde_json::from_str::<Value>(&text).is_ok(), "{path}: {text}");
        }
    });
}

fn events(path: &str, text: &str) {
    assert!(text.ends_with("\n\n"), "{path}: {text}");
    for event in text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':')) {
        let mut lines = event.lines().peekable();
        lines.next_if(|line| line.starts_with("event: "));
        let data = lines.next().and_then(|line| line.strip_prefix("data: "));
        let whole = data.is_some_and(|data| data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok());
        assert!(whole && lines.next().is_none(), "{path}: {event}");
    }
}

/// The first byte is a route, the rest a body.
pub fn request(data: &[u8]) {
    let Some((route, body)) = data.split_first() else { return };
    let posts: Vec<&str> =
        ROUTES.iter().filter(|route| route.method == "POST").map(|route| route.path).collect();
    let path = posts[usize::from(*route) % posts.len()].replace("{name}", "m").replace("{version}", "1");
    ask(["Hello", " ", "there"].map(String::from).to_vec(), &path, body);
}

/// The first byte is a protocol and whether it streams, the second how long pieces are; the rest is the answer's text.
pub fn answer(data: &[u8]) {
    let Some(([how, long], text)) = data.split_first_chunk::<2>() else { return };
    let text: Vec<char> = String::from_utf8_lossy(text).chars().collect();
    let pieces = text.chunks(1 + usize::from(*long % 32)).map(String::from_iter).collect();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let function = json!({"name": "f", "parameters": schema});
    let messages = json!([{"role": "user", "content": "a"}]);
    let (path, mut body) = match how / 2 % 5 {
        0 => (
            "/v1/chat/completions",
            json!({"messages": messages, "tools": [{"type": "function", "function": function}]}),
        ),
        1 => ("/v1/completions", json!({"prompt": "a", "echo": true, "logprobs": 1})),
        2 => (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 4096, "tools": [{"name": "f", "input_schema": schema}]}),
        ),
        3 => (
            "/v1/responses",
            json!({"input": "a", "tools": [{"type": "function", "name": "f", "parameters": schema}]}),
        ),
        _ => (
            "/v1/chat/completions",
            json!({"messages": messages, "n": 2, "logprobs": true, "top_logprobs": 1}),
        ),
    };
    if body["max_tokens"].is_null() {
        body["max_tokens"] = 4096.into();
    }
    body["stream"] = (how % 2 == 1).into();
    ask(pieces, path, body.to_string().as_bytes());
}
