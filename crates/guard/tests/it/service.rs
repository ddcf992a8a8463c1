//! A service whose tokens are characters and whose answers are given.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fathom_base::{
    Administer, Conversation, Describe, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard, Numbers,
    Prompt, Result, Sink, SpecialTokens, Stop, TextIds, TextPair, Ticket, TokenLogprob, Tokenize, Usage,
    VectorSink,
};

/// Says the same answers to every prompt.
pub struct Speaker {
    pub answers: Vec<String>,
    /// Prompts that it was given, as text.
    pub prompts: Arc<Mutex<Vec<String>>>,
    /// True once a request was cancelled.
    pub cancelled: Arc<AtomicBool>,
    /// Milliseconds before each token.
    pub slow_ms: u64,
}

impl Speaker {
    pub fn of(answers: &[&str]) -> Speaker {
        Speaker {
            answers: answers.iter().map(|it| it.to_string()).collect(),
            prompts: Arc::default(),
            cancelled: Arc::default(),
            slow_ms: 0,
        }
    }
}

impl Describe for Speaker {
    fn card(&self) -> ModelCard {
        ModelCard { name: "speaker".into(), generates: true, context_tokens: 100_000, ..ModelCard::default() }
    }

    fn load(&self) -> Load {
        Load::default()
    }
}

impl Tokenize for Speaker {
    fn encode(&self, text: &str, _: SpecialTokens) -> Result<Vec<u32>> {
        Ok(text.chars().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(ids.iter().filter_map(|id| char::from_u32(*id)).collect())
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.decode(&[id]).unwrap_or_default().into_bytes()
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        let one = |message: &serde_json::Value| format!("{}: {}\n", message["role"], message["content"]);
        Ok(conversation.messages.iter().map(one).collect())
    }
}

impl Generate for Speaker {
    fn submit_while(&self, request: GenerateRequest, mut sink: Sink, _: &dyn Fn() -> bool) -> Result<Ticket> {
        let prompt = Tokenize::ids(self, &request.prompt)?;
        self.prompts.lock().unwrap().push(self.decode(&prompt)?);
        let left = Arc::new(AtomicBool::new(false));
        let (sees, cancelled) = (left.clone(), self.cancelled.clone());
        let answers: Vec<String> =
            (0..request.answers).map(|at| self.answers[at % self.answers.len()].clone()).collect();
        let slow_ms = self.slow_ms;
        std::thread::spawn(move || {
            let mut usage = Usage { prompt_tokens: prompt.len(), ..Usage::default() };
            sink(Event::Started { prompt, cached_tokens: 0, logprobs: Vec::new() });
            for (answer, text) in answers.iter().enumerate() {
                for c in text.chars() {
                    if sees.load(Ordering::Relaxed) {
                        cancelled.store(true, Ordering::Relaxed);
                        return;
                    }
                    if slow_ms > 0 {
                        std::thread::sleep(std::time::Duration::from_millis(slow_ms));
                    }
                    usage.answer_tokens += 1;
                    let id = u32::from(c);
                    let logprob = TokenLogprob {
                        id,
                        logprob: Some(-1.0),
                        rank: None,
                        top: Vec::new(),
                        kept: Vec::new(),
                    };
                    let logprobs = request.logprobs.map(|_| logprob).into_iter().collect();
                    sink(Event::Piece { answer, text: c.to_string(), ids: vec![id], logprobs });
                }
                sink(Event::Ended { answer, stop: Stop::EndOfText });
            }
            sink(Event::Done(usage));
        });
        Ok(Ticket::new(move || left.store(true, Ordering::Relaxed)))
    }
}

impl Evaluate for Speaker {
    fn read(&self, text: &TextPair, _: Numbers, _: Option<usize>) -> Result<TextIds> {
        Ok(self.encode(&text.0, SpecialTokens::Text)?.into())
    }

    fn numbers(&self, texts: Vec<TextIds>, _: Numbers, sink: VectorSink) -> Result<Ticket> {
        sink(Ok(texts.iter().map(|text| vec![text.ids.len() as f32]).collect()));
        Ok(Ticket::new(|| ()))
    }
}

impl Administer for Speaker {
    fn load_adapter(&self, _: &str, _: &Path) -> Result<()> {
        Ok(())
    }

    fn unload_adapter(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn erase_prefixes(&self) -> Result<u64> {
        Ok(0)
    }
}

/// A prompt of messages with roles.
pub fn talk(messages: &[(&str, &str)]) -> Prompt {
    let one = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
    Conversation { messages: messages.iter().map(one).collect(), ..Conversation::default() }.into()
}
