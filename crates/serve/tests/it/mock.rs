//! A pretended model: a token is a byte, and answers follow a script.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use fathom_base::{
    Administer, Conversation, Describe, Error, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard,
    Numbers, PartialSampling, Result, Sink, SpecialTokens, Stop, TextIds, TextPair, Ticket, TokenLogprob,
    Tokenize, Usage, VectorSink,
};
use fathom_serve::{ROUTES, Router, ServeOptions, ServerState, router};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

/// Script of the pretended model.
#[derive(Default)]
pub struct Mock {
    /// Its answer to every request.
    pub answer: String,
    /// Its answer to a prompt, instead.
    pub answers: Option<fn(&str) -> String>,
    /// Texts in the answer that are special tokens.
    pub special: Vec<&'static str>,
    /// Time between two tokens.
    pub pace: Duration,
    /// True if it never answers.
    pub hangs: bool,
    /// True if it compiles structures for as long as they are wanted.
    pub compiles: bool,
    /// The error with which answers fail to start.
    pub fails: Option<fn() -> Error>,
    /// True if it stops within the answer, as if its thread had died.
    pub dies: bool,
    /// True if its tokenizer adds a token before texts to embed or score.
    pub frames: bool,
    /// Sampling settings of its files.
    pub sampling: PartialSampling,
    /// Its labels.
    pub labels: Vec<String>,
    /// Its context; 1,000 if it is 0.
    pub context_tokens: usize,
    /// Its reported tokens per second.
    pub per_s: f64,
    /// Number of open requests.
    pub open: Arc<AtomicUsize>,
    /// Received requests, most recent last.
    pub asked: Mutex<VecDeque<GenerateRequest>>,
    /// Sinks of hanging requests.
    pub held: Mutex<Vec<Sink>>,
    /// Tools of the last conversation.
    pub tools: Mutex<Vec<Value>>,
    /// Names of loaded adapters.
    pub adapters: Mutex<Vec<String>>,
}

impl Mock {
    pub fn saying(answer: &str) -> Mock {
        Mock { answer: answer.into(), ..Mock::default() }
    }

    /// The last prompt.
    pub fn prompt(&self) -> String {
        self.decode(&self.last().ids.unwrap()).unwrap()
    }

    /// The last request.
    pub fn last(&self) -> GenerateRequest {
        self.asked.lock().unwrap().back().unwrap().clone()
    }
}

fn logprob(id: u32, top: usize) -> TokenLogprob {
    let likely = (0..top as u32).map(|at| (id + at, -0.5 - at as f32));
    TokenLogprob { id, logprob: Some(-0.5), rank: Some(0), top: likely.collect(), kept: Vec::new() }
}

/// An answer as ids and texts. Special tokens have text only if the request shows them.
fn tokens(answer: &str, special: &[&str], shown: &[String]) -> Vec<(u32, String)> {
    let (mut rest, mut tokens) = (answer.as_bytes(), Vec::new());
    while let Some(byte) = rest.first() {
        let (len, text) = match special.iter().find(|text| rest.starts_with(text.as_bytes())) {
            Some(text) => {
                (text.len(), if shown.iter().any(|it| it == text) { text.to_string() } else { String::new() })
            }
            None => (1, (*byte as char).to_string()),
        };
        tokens.push((u32::from(*byte), text));
        rest = &rest[len..];
    }
    tokens
}

/// Plays an answer to a sink.
fn play(
    request: &GenerateRequest,
    (answer, special): (&str, &[&str]),
    (pace, dies): (Duration, bool),
    sink: &mut Sink,
) {
    let prompt = request.ids.as_ref().unwrap();
    let mut logprobs: Vec<TokenLogprob> = Vec::new();
    if let Some(top) = request.prompt_logprobs {
        logprobs = prompt.iter().map(|id| logprob(*id, top)).collect();
        logprobs[0].logprob = None;
    }
    sink(Event::Started { prompt: prompt.clone(), cached_tokens: 1, logprobs });
    let all = tokens(answer, special, &request.shown);
    let sent = &all[..all.len().min(request.sampling.max_tokens)];
    for (at, (id, text)) in sent.iter().enumerate() {
        if !pace.is_zero() {
            thread::sleep(pace);
        }
        if dies && at == 1 {
            return;
        }
        for index in 0..request.answers {
            let logprobs = request.logprobs.map(|top| logprob(*id, top)).into_iter().collect();
            sink(Event::Piece { answer: index, text: text.clone(), ids: vec![*id], logprobs });
        }
    }
    // The answer reports the first stop text or stop id as the reason, at the end of the script.
    let how = &request.sampling;
    let stop = match (how.stop.first(), how.stop_ids.first()) {
        _ if sent.len() < all.len() => Stop::Length,
        (Some(text), _) => Stop::StopText(text.clone()),
        (None, Some(id)) => Stop::StopToken(*id),
        (None, None) => Stop::EndOfText,
    };
    for answer in 0..request.answers {
        sink(Event::Ended { answer, stop: stop.clone() });
    }
    let tokens = sent.len() * request.answers;
    let usage =
        Usage { prompt_tokens: prompt.len(), cached_tokens: 1, answer_tokens: tokens, ..Usage::default() };
    sink(Event::Done(usage));
}

impl Describe for Mock {
    fn card(&self) -> ModelCard {
        ModelCard {
            name: "mock".into(),
            fingerprint: "fp_mock".into(),
            context_tokens: if self.context_tokens == 0 { 1000 } else { self.context_tokens },
            vocabulary: 256,
            generates: true,
            source: false,
            converses: true,
            labels: self.labels.clone(),
            embedding: 2,
            adapters: {
                let later = self.adapters.lock().unwrap().clone();
                let all = std::iter::once("tuned".to_string()).chain(later);
                all.map(|name| (name.clone(), format!("fp_mock_{name}"))).collect()
            },
            eos: vec![0],
            bos: None,
            pad_token: Some("<pad>".into()),
            sampling: self.sampling.clone(),
            chat_template: Some("{{ messages }}".into()),
        }
    }

    fn load(&self) -> Load {
        Load { prefill_tokens_per_s: self.per_s, pages: 100, page_tokens: 128, ..Load::default() }
    }
}

impl Tokenize for Mock {
    fn encode(&self, text: &str, _: SpecialTokens) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        if ids.iter().any(|id| *id > 255) {
            return Err(Error::product("token id is outside the vocabulary of 256"));
        }
        Ok(ids.iter().map(|id| *id as u8 as char).collect())
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        vec![id as u8]
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        let say = |message: &Value| {
            format!(
                "{}:{}\n",
                message["role"].as_str().unwrap(),
                message["content"].as_str().unwrap_or("none")
            )
        };
        *self.tools.lock().unwrap() = conversation.tools.clone();
        let tools = if conversation.tools.is_empty() { "" } else { "tools\n" };
        let text = tools.to_string() + &conversation.messages.iter().map(say).collect::<String>();
        let continued = text.strip_suffix('\n').filter(|_| conversation.continue_final_message);
        Ok(continued.unwrap_or(&text).to_string())
    }
}

impl Generate for Mock {
    fn submit_while(
        &self,
        mut request: GenerateRequest,
        mut sink: Sink,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Ticket> {
        if request.ids.is_none() {
            request.ids = Some(self.ids(&request.prompt)?);
        }
        while request.structure.is_some() && self.compiles && wanted() {
            thread::sleep(Duration::from_millis(1));
        }
        if request.sampling.top_p > 1.0 {
            return Err(Error::product("sampling.top_p: must be above 0 and at most 1"));
        }
        assert!(!request.ids.as_ref().unwrap().starts_with(b"panic".map(u32::from).as_slice()), "as asked");
        self.asked.lock().unwrap().push_back(request.clone());
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = self.open.clone();
        let ticket = Ticket::new(move || _ = open.fetch_sub(1, Ordering::SeqCst));
        let prompt = self.decode(request.ids.as_ref().unwrap())?;
        let answer = self.answers.map_or_else(|| self.answer.clone(), |answers| answers(&prompt));
        if let Some(error) = self.fails {
            sink(Event::Failed(error()));
        } else if self.hangs {
            self.held.lock().unwrap().push(sink);
        } else if self.pace.is_zero() {
            play(&request, (&answer, &self.special), (self.pace, self.dies), &mut sink);
        } else {
            let (special, how) = (self.special.clone(), (self.pace, self.dies));
            thread::spawn(move || play(&request, (&answer, &special), how, &mut sink));
        }
        Ok(ticket)
    }
}

impl Evaluate for Mock {
    fn read(&self, (first, second): &TextPair, _: Numbers, most: Option<usize>) -> Result<TextIds> {
        let frame = if self.frames { "^" } else { "" };
        let first = self.encode(&format!("{frame}{first}"), SpecialTokens::Text)?;
        let second = self.encode(second.as_deref().unwrap_or_default(), SpecialTokens::Text)?;
        let mut ids = [&first[..], &second].concat();
        ids.truncate(most.unwrap_or(usize::MAX));
        Ok(TextIds { first: first.len(), ids })
    }

    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket> {
        if let Some(id) = texts.iter().flat_map(|text| &text.ids).find(|id| **id > 255) {
            return Err(Error::product(format!("{id} is no id")));
        }
        let row = |text: &TextIds| match asked {
            Numbers::Classes => vec![0.25, 0.75],
            Numbers::Vector if text.ids.contains(&u32::from(b'x')) => vec![1.0, 0.0],
            Numbers::Vector => vec![0.0, 1.0],
            _ => vec![(text.ids.len() - text.first) as f32],
        };
        sink(Ok(texts.iter().map(row).collect()));
        Ok(Ticket::new(|| ()))
    }
}

impl Administer for Mock {
    fn load_adapter(&self, name: &str, _: &Path) -> Result<()> {
        if name == "wrong base" {
            return Err(Error::product("an adapter of another base"));
        }
        self.adapters.lock().unwrap().push(name.into());
        Ok(())
    }

    fn unload_adapter(&self, name: &str) -> Result<()> {
        self.adapters.lock().unwrap().retain(|other| other != name);
        Ok(())
    }

    fn erase_prefixes(&self) -> Result<u64> {
        Ok(4096)
    }
}

/// A server with one pretended model.
pub struct Bed {
    pub mock: Arc<Mock>,
    pub server: Arc<ServerState>,
    pub router: Router,
}

impl Bed {
    pub fn new(mock: Mock) -> Bed {
        Bed::with(mock, ServeOptions::default())
    }

    pub fn with(mock: Mock, opening: ServeOptions) -> Bed {
        let (mock, server) = (Arc::new(mock), Arc::new(ServerState::new(opening)));
        server.add("mock", mock.clone()).unwrap();
        let router = router(&server, ROUTES);
        Bed { mock, server, router }
    }

    /// Sends a request unchanged.
    pub async fn send(&self, request: Request<Body>) -> (u16, HeaderMap, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), head.headers, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Posts JSON.
    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, _, text) = self.send(post(path, &body.to_string())).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
    }

    /// Posts JSON and parses the stream: its data, `[DONE]` as a string.
    pub async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let (status, _, text) = self.send(post(path, &body.to_string())).await;
        assert_eq!(status, 200, "{text}");
        let data =
            text.split("\n\n").filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")));
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into())).collect()
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let request = Request::get(path).header("host", "localhost").body(Body::empty()).unwrap();
        let (status, _, text) = self.send(request).await;
        (status, text)
    }
}

/// A POST request with JSON.
pub fn post(path: &str, body: &str) -> Request<Body> {
    let request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}
