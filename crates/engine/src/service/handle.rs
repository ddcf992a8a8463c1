//! The clients' side: checks and tokenizes requests in the thread of the client, and sends them.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};

use fathom_base::{
    Administer, Conversation, Describe, Evaluate, Generate, GenerateRequest, Load, ModelCard, Numbers,
    Result, Sink, SpecialTokens, TextIds, TextPair, Ticket, Tokenize, VectorSink,
};

use super::state::{Command, Facts, ServiceState};
use crate::error::Error;
use crate::schedule::CheckedRequest;

/// A channel to the engine's thread.
pub struct Handle {
    pub(super) facts: Facts,
    /// Closed with the handle: tickets do not keep the engine's thread alive.
    pub(super) commands: Arc<Sender<Command>>,
    pub(super) shared: Arc<ServiceState>,
}

impl Handle {
    /// Counts an open request.
    fn enter(&self) -> Result<()> {
        let open = self.shared.open.fetch_add(1, Ordering::Relaxed);
        if open < self.facts.queue as u64 {
            return Ok(());
        }
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        let load = self.load();
        let unread = load.waiting_tokens as f64;
        let wait = if load.prefill_tokens_per_s > 0.0 { unread / load.prefill_tokens_per_s } else { 1.0 };
        let what = format!("{} requests are open, which is the most", self.facts.queue);
        Err(fathom_base::Error::Busy { what, retry_after_s: wait.clamp(1.0, 600.0) })
    }

    /// A ticket that cancels its request when dropped.
    fn ticket(&self, id: u64) -> Ticket {
        let commands = Arc::downgrade(&self.commands);
        Ticket::new(move || _ = commands.upgrade().map(|commands| commands.send(Command::Cancel(id))))
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| stopped())
    }
}

fn stopped() -> fathom_base::Error {
    fathom_base::Error::Gone { what: "the engine has stopped".into() }
}

impl Describe for Handle {
    fn card(&self) -> ModelCard {
        let card = self.facts.card.clone();
        let print = |identity: &str| format!("{}_{}", card.fingerprint, &identity[..12]);
        let of = |(name, identity): (&String, &String)| (name.clone(), print(identity));
        let adapters = self.shared.adapters().iter().map(of).collect();
        ModelCard { adapters, ..card }
    }

    fn load(&self) -> Load {
        self.shared.load.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tokenize for Handle {
    fn encode(&self, text: &str, reading: SpecialTokens) -> Result<Vec<u32>> {
        let Facts { tokenizer, .. } = &self.facts;
        let ids = match reading {
            SpecialTokens::Text => tokenizer.encode(text),
            SpecialTokens::Rendered => tokenizer.encode_special(text),
            SpecialTokens::Prompt => tokenizer.encode_prompt(text),
        };
        Ok(ids.map_err(Error::from)?)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.facts.card.vocabulary) {
            return Err(Error::Vocabulary { id: *id, vocab: self.facts.card.vocabulary }.into());
        }
        Ok(self.facts.tokenizer.decode(ids))
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.facts.tokenizer.token_bytes(id)
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        match &self.facts.render {
            Some(render) => render(conversation),
            None => Err(Error::Unsupported(format!(
                "{} has no chat template, so it completes text and does not converse; ask /v1/completions, or name a template (--chat-template FILE)",
                self.facts.card.name
            ))
            .into()),
        }
    }
}

impl Generate for Handle {
    fn submit_while(
        &self,
        request: GenerateRequest,
        sink: Sink,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Ticket> {
        self.submit_from((request, 0), sink, wanted)
    }
}

impl Handle {
    /// [`Generate::submit_while`], where log-probabilities of the prompt are reported from a token on, and the prefix
    /// before it may be cached.
    ///
    /// # Errors
    /// Those of [`Generate::submit_while`].
    pub fn submit_from(
        &self,
        (request, reported_from): (GenerateRequest, usize),
        sink: Sink,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Ticket> {
        if !self.facts.card.generates {
            return Err(Error::Unsupported(format!("{} writes no text", self.facts.card.name)).into());
        }
        let ids = match request.ids {
            Some(ids) => ids,
            None => self.ids(&request.prompt)?,
        };
        let request = GenerateRequest { ids: None, ..request };
        self.facts.bounds.check(&ids, &request)?;
        if let Some(name) =
            request.adapter.as_ref().filter(|name| !self.shared.adapters().contains_key(*name))
        {
            return Err(Error::NoAdapter(name.clone()).into());
        }
        let compile = |structure| {
            let Facts { structures, tokenizer, bounds, .. } = &self.facts;
            structures.compile_while(tokenizer, bounds.vocab, structure, wanted)
        };
        let structure = request.structure.as_ref().map(compile).transpose()?;
        self.enter()?;
        let id = self.shared.requested.fetch_add(1, Ordering::Relaxed) + 1;
        let request = Box::new(CheckedRequest { ids, asked: request, structure, reported_from });
        self.send(Command::Submit(id, request, sink))?;
        Ok(self.ticket(id))
    }
}

impl Evaluate for Handle {
    fn read(&self, text: &TextPair, asked: Numbers, most: Option<usize>) -> Result<TextIds> {
        Ok(self.facts.reading.ids(&self.facts.tokenizer, text, asked, most)?)
    }

    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket> {
        let Facts { card, reading, bounds, .. } = &self.facts;
        let refuse = |why: &str| Err(Error::Unsupported(format!("{} {why}", card.name)).into());
        if bounds.source {
            texts.iter().try_for_each(|text| bounds.text(text, asked))?;
        }
        match asked {
            Numbers::Vector if card.embedding == 0 => {
                return refuse("has a head that classifies, and gives no vectors");
            }
            Numbers::Classes | Numbers::Relevance | Numbers::Scores if card.labels.is_empty() => {
                return refuse("has no head that classifies");
            }
            Numbers::Logprobs | Numbers::Top { .. } | Numbers::Logits { .. } if !card.generates => {
                return refuse("has no head for the next token");
            }
            _ => {}
        }
        texts.iter().try_for_each(|text| bounds.text(text, asked))?;
        let reading = reading.clone();
        let said = move |rows: Result<Vec<Vec<f32>>>| {
            sink(rows.map(|rows| rows.into_iter().map(|row| reading.said(asked, row)).collect()));
        };
        let id = self.shared.requested.fetch_add(1, Ordering::Relaxed) + 1;
        self.send(Command::Numbers(id, texts, asked, Box::new(said)))?;
        Ok(self.ticket(id))
    }
}

impl Administer for Handle {
    fn load_adapter(&self, name: &str, folder: &Path) -> Result<()> {
        let Some(accept) = &self.facts.adapters else {
            return Err(Error::Unsupported(format!("`{name}`: this engine takes no adapters")).into());
        };
        if name == self.facts.card.name || self.shared.adapters().contains_key(name) {
            return Err(Error::AdapterTwice(name.into()).into());
        }
        let folder = accept(folder)?;
        let (reply, loaded) = channel();
        self.send(Command::Load(name.into(), folder, reply))?;
        Ok(loaded.recv().map_err(|_| stopped())??)
    }

    fn unload_adapter(&self, name: &str) -> Result<()> {
        let (reply, unloaded) = channel();
        self.send(Command::Unload(name.into(), reply))?;
        Ok(unloaded.recv().map_err(|_| Error::NoAdapter(name.into()))?)
    }

    fn erase_prefixes(&self) -> Result<u64> {
        let (reply, erased) = channel();
        self.send(Command::Erase(reply))?;
        erased.recv().map_err(|_| stopped())
    }
}
