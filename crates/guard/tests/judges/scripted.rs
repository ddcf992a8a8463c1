//! A scripted model: it answers by a distribution over whole texts that a function of its prompt gives. Its tokens are
//! bytes, and a few special tokens with spellings.

use std::path::Path;
use std::sync::{Arc, Mutex};

use fathom_base::{
    Administer, Conversation, Describe, Error, Evaluate, Event, Generate, GenerateRequest, Load, ModelCard,
    Numbers, Result, Sink, SpecialTokens, Stop, Structure, TextIds, TextPair, Ticket, TokenLogprob, Tokenize,
    Usage, VectorSink,
};
use fathom_guard::Needs;
use fathom_guard::needs::Models;

/// Special tokens; the first has the id 256.
const SPECIAL: &[&str] = &[
    "<bos>",
    "<cls>",
    "<sep>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "<turn>",
];
const BOS: u32 = 256;
/// Probability of a token that no answer contains.
const RARE: f64 = 1e-9;

/// Answers with their probabilities, for a prompt's text.
type Script = dyn Fn(&str) -> Vec<(String, f64)> + Send + Sync;
/// Probabilities of labels, for a text and its pair.
type Labels = dyn Fn(&str, Option<&str>) -> Vec<f32> + Send + Sync;
/// Loss of each token after the first.
type Losses = dyn Fn(&[u32]) -> Vec<f32> + Send + Sync;

/// The scripted model.
pub struct ScriptedModel {
    script: Box<Script>,
    labels: Vec<String>,
    classes: Box<Labels>,
    losses: Box<Losses>,
    context_tokens: usize,
    converses: bool,
    fails: bool,
    /// Answers nothing until it is not wanted.
    hangs: bool,
    /// Prompts as token ids, in order.
    pub prompts: Mutex<Vec<Vec<u32>>>,
    /// Texts that were classified, as numbers of tokens.
    pub classified: Mutex<Vec<usize>>,
}

impl ScriptedModel {
    /// A model that generates by a script.
    pub fn new(script: impl Fn(&str) -> Vec<(String, f64)> + Send + Sync + 'static) -> ScriptedModel {
        ScriptedModel {
            script: Box::new(script),
            labels: Vec::new(),
            classes: Box::new(|_, _| Vec::new()),
            losses: Box::new(|ids| vec![1.0; ids.len() - 1]),
            context_tokens: 1 << 16,
            converses: true,
            fails: false,
            hangs: false,
            prompts: Mutex::default(),
            classified: Mutex::default(),
        }
    }

    /// A model that answers every prompt by one distribution.
    pub fn always(answers: &[(&str, f64)]) -> ScriptedModel {
        let answers: Vec<(String, f64)> = answers.iter().map(|(text, p)| (text.to_string(), *p)).collect();
        ScriptedModel::new(move |_| answers.clone())
    }

    /// A classifier.
    pub fn labelled(
        labels: &[&str],
        classes: impl Fn(&str, Option<&str>) -> Vec<f32> + Send + Sync + 'static,
    ) -> ScriptedModel {
        let labels = labels.iter().map(|label| label.to_string()).collect();
        ScriptedModel { labels, classes: Box::new(classes), ..ScriptedModel::always(&[]) }
    }

    /// With these losses.
    pub fn losing(self, losses: impl Fn(&[u32]) -> Vec<f32> + Send + Sync + 'static) -> ScriptedModel {
        ScriptedModel { losses: Box::new(losses), ..self }
    }

    /// With this context.
    pub fn context(self, context_tokens: usize) -> ScriptedModel {
        ScriptedModel { context_tokens, ..self }
    }

    /// Without a chat template.
    pub fn plain(self) -> ScriptedModel {
        ScriptedModel { converses: false, ..self }
    }

    /// A model that refuses every request.
    pub fn failing(self) -> ScriptedModel {
        ScriptedModel { fails: true, ..self }
    }

    /// A model that never answers.
    pub fn hanging(self) -> ScriptedModel {
        ScriptedModel { hangs: true, ..self }
    }

    /// The last prompt's text.
    pub fn last_prompt(&self) -> String {
        let prompts = self.prompts.lock().unwrap();
        spelled(prompts.last().unwrap())
    }
}

/// Needs with one model, whatever it is called.
pub fn needs(model: &Arc<ScriptedModel>) -> Needs {
    struct One(Arc<ScriptedModel>);
    impl Models for One {
        fn service(&self, name: &str) -> Result<Arc<dyn fathom_base::Service>> {
            match name {
                "missing" => Err(Error::product("there is no model `missing`")),
                _ => Ok(self.0.clone()),
            }
        }
    }
    Needs { models: Some(Arc::new(One(model.clone()))), ..Needs::default() }
}

fn spelled(ids: &[u32]) -> String {
    let mut bytes = Vec::new();
    for id in ids {
        match id.checked_sub(256) {
            None => bytes.push(*id as u8),
            Some(special) => bytes.extend(SPECIAL[special as usize].bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Probability of each next byte after a beginning; an answer's end is the byte 0.
fn next(answers: &[(String, f64)], beginning: &[u8]) -> Vec<f64> {
    let mut masses = vec![RARE; 256];
    for (text, probability) in answers {
        let text = [text.as_bytes(), &[0]].concat();
        if text.len() > beginning.len() && text.starts_with(beginning) {
            masses[usize::from(text[beginning.len()])] += probability;
        }
    }
    let total: f64 = masses.iter().sum();
    masses.into_iter().map(|mass| mass / total).collect()
}

impl ScriptedModel {
    /// Bytes that a structure allows after a beginning; `None` for all.
    fn allowed(structure: Option<&Structure>, beginning: &[u8]) -> Option<Vec<u8>> {
        let Some(Structure::Choice(choices)) = structure else { return None };
        let rest = |choice: &String| choice.as_bytes().strip_prefix(beginning)?.first().copied();
        Some(choices.iter().filter_map(rest).collect())
    }

    fn answer(&self, request: &GenerateRequest, prompt: &str) -> (String, Vec<TokenLogprob>) {
        let answers = (self.script)(prompt);
        let (mut text, mut logprobs) = (Vec::new(), Vec::new());
        while text.len() < request.sampling.max_tokens {
            let masses = next(&answers, &text);
            let allowed = ScriptedModel::allowed(request.structure.as_ref(), &text);
            let open = |byte: &usize| allowed.as_ref().is_none_or(|all| all.contains(&(*byte as u8)));
            let best = (0..256).filter(open).max_by(|a, b| masses[*a].total_cmp(&masses[*b]));
            let Some(best) = best.filter(|best| *best != 0) else { break };
            // Bytes of no answer are equally rare.
            let (mut order, rare): (Vec<usize>, Vec<usize>) =
                (0..256).partition(|byte| masses[*byte] > 2.0 * RARE);
            order.sort_by(|a, b| masses[*b].total_cmp(&masses[*a]));
            order.extend(rare);
            let logprob = |byte: usize| masses[byte].ln() as f32;
            let most = request.logprobs.unwrap_or(0);
            logprobs.push(TokenLogprob {
                id: best as u32,
                logprob: Some(logprob(best)),
                rank: None,
                top: order.into_iter().take(most).map(|byte| (byte as u32, logprob(byte))).collect(),
                kept: Vec::new(),
            });
            text.push(best as u8);
        }
        (String::from_utf8_lossy(&text).into_owned(), logprobs)
    }
}

impl Describe for ScriptedModel {
    fn card(&self) -> ModelCard {
        ModelCard {
            name: "scripted".into(),
            context_tokens: self.context_tokens,
            generates: self.labels.is_empty(),
            converses: self.converses,
            labels: self.labels.clone(),
            bos: Some(BOS),
            ..ModelCard::default()
        }
    }

    fn load(&self) -> Load {
        Load::default()
    }
}

impl Tokenize for ScriptedModel {
    fn encode(&self, text: &str, reading: SpecialTokens) -> Result<Vec<u32>> {
        let mut ids = if reading == SpecialTokens::Prompt { vec![BOS] } else { Vec::new() };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let special = SPECIAL.iter().position(|spelling| rest.starts_with(spelling));
            match special.filter(|_| reading != SpecialTokens::Text) {
                Some(at) => {
                    ids.push(BOS + at as u32);
                    rest = &rest[SPECIAL[at].len()..];
                }
                None => {
                    ids.extend(rest[..first.len_utf8()].bytes().map(u32::from));
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(spelled(ids))
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        spelled(&[id]).into_bytes().into_iter().take(if id < 256 { 1 } else { usize::MAX }).collect()
    }

    fn render(&self, conversation: &Conversation) -> Result<String> {
        let mut text = String::from("<bos>");
        for message in &conversation.messages {
            let (role, content) = (message["role"].as_str().unwrap(), message["content"].as_str().unwrap());
            text += &format!("<turn>{role}\n{content}\n");
        }
        for (name, value) in &conversation.variables {
            text += &format!("[{name}={value}]");
        }
        Ok(text + "<turn>assistant\n")
    }
}

impl Generate for ScriptedModel {
    fn submit_while(&self, request: GenerateRequest, mut sink: Sink, _: &dyn Fn() -> bool) -> Result<Ticket> {
        if self.fails {
            return Err(Error::Gone { what: "the model has stopped".into() });
        }
        let ids = self.ids(&request.prompt)?;
        self.prompts.lock().unwrap().push(ids.clone());
        if self.hangs {
            // The sink stays open until the ticket is dropped.
            let sink = Mutex::new(Some(sink));
            return Ok(Ticket::new(move || drop(sink.lock().unwrap().take())));
        }
        sink(Event::Started { prompt: ids.clone(), cached_tokens: 0, logprobs: Vec::new() });
        for answer in 0..request.answers {
            let (text, logprobs) = self.answer(&request, &spelled(&ids));
            let ids = text.bytes().map(u32::from).collect();
            sink(Event::Piece { answer, text, ids, logprobs });
            sink(Event::Ended { answer, stop: Stop::EndOfText });
        }
        sink(Event::Done(Usage::default()));
        Ok(Ticket::new(|| ()))
    }
}

impl Evaluate for ScriptedModel {
    fn read(&self, (text, second): &TextPair, _: Numbers, _: Option<usize>) -> Result<TextIds> {
        let mut all = format!("<cls>{text}<sep>");
        if let Some(second) = second {
            all += &format!("{second}<sep>");
        }
        Ok(self.encode(&all, SpecialTokens::Rendered)?.into())
    }

    fn numbers(&self, texts: Vec<TextIds>, asked: Numbers, sink: VectorSink) -> Result<Ticket> {
        if self.fails {
            return Err(Error::Gone { what: "the model has stopped".into() });
        }
        let row = |text: &TextIds| match asked {
            Numbers::Logprobs => (self.losses)(&text.ids).into_iter().flat_map(|loss| [-loss, 0.0]).collect(),
            _ => {
                self.classified.lock().unwrap().push(text.ids.len());
                let text = spelled(&text.ids);
                let mut parts = text.trim_start_matches("<cls>").split("<sep>");
                let first = parts.next().unwrap();
                (self.classes)(first, parts.next().filter(|second| !second.is_empty()))
            }
        };
        sink(Ok(texts.iter().map(row).collect()));
        Ok(Ticket::new(|| ()))
    }
}

impl Administer for ScriptedModel {
    fn load_adapter(&self, _: &str, _: &Path) -> Result<()> {
        Err(Error::product("takes no adapters"))
    }

    fn unload_adapter(&self, _: &str) -> Result<()> {
        Err(Error::product("has no adapters"))
    }

    fn erase_prefixes(&self) -> Result<u64> {
        Ok(0)
    }
}
