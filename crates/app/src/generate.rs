//! Generation of text after a prompt.

use std::path::Path;
use std::time::Duration;

use fathom_base::{Flow, GenerateRequest, Generation, Prompt, Sampling, human};
use fathom_engine::{Engine, Limits};
use fathom_tensor::mesh::Grid;
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

use crate::crew::on_threads;
use crate::error::{Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, TextModel};
use crate::spread::{AskedMesh, ResolvedMesh};

/// Default number of tokens of an answer, if the context has room for them.
const MAX_TOKENS: usize = 256;
/// Bytes of a prompt that are encoded at once, since encoding takes a hundred times as much memory.
const COUNTED_BYTES: usize = 1 << 20;
/// Timeout of a rank's wait for another one.
const WAIT: Duration = Duration::from_secs(600);
/// Bound on the extra tokens due to cutting a text in two.
const CUT_TOKENS: usize = 16;

/// Options of a generation.
#[derive(Clone, Debug)]
pub struct Request {
    /// Text to continue.
    pub prompt: String,
    /// Sampling settings; the number of tokens is set below.
    pub sampling: Sampling,
    /// Maximum number of new tokens; `None` for 256, or fewer if the context has no room.
    pub max_tokens: Option<usize>,
    /// Maximum number of tokens of prompt and answer together; `None` for the model's context.
    pub context_tokens: Option<usize>,
}

/// Generates a continuation of a prompt; `stream` receives the text as it is generated, and may stop it.
///
/// # Errors
/// A prompt that does not fit; settings out of range; out of memory.
pub fn generate(
    model: &TextModel,
    request: &Request,
    stream: &mut dyn FnMut(&str) -> Flow,
) -> Result<Generation> {
    let TextModel { folder, tokenizer, loaded } = model;
    models::check_writes(folder, &loaded.model.spec)?;
    let (spec, prompt) = (&loaded.model.spec, &request.prompt);
    let context_tokens = request.context_tokens.unwrap_or(spec.max_positions);
    let limits = Limits { context_tokens, ..Limits::default() };
    caught(|| {
        let engine = Engine::new(loaded.view(), tokenizer, limits);
        let room = context_tokens.min(spec.learned_positions.unwrap_or(usize::MAX));
        refuse_endless(tokenizer, prompt, room)?;
        let left = room.saturating_sub(tokenizer.encode_prompt(prompt)?.len().max(1));
        // A prompt that leaves no room is refused by the engine.
        let max_tokens = request.max_tokens.unwrap_or(MAX_TOKENS.min(left.max(1)));
        let sampling = Sampling { max_tokens, ..request.sampling.clone() };
        Ok(engine.generate(&GenerateRequest::new(Prompt::Text(prompt.clone()), sampling), stream)?)
    })
}

/// A model split over ranks, each a thread with a part of the weights.
pub struct SplitModel<'a> {
    /// Folder of a run, or a Hugging Face folder.
    pub model: &'a Path,
    /// Type of the weights; `None` for that of the files.
    pub dtype: Option<DType>,
    /// Machine that the ranks share.
    pub machine: &'a Machine,
    /// Mesh of the ranks.
    pub mesh: AskedMesh,
    /// Receives notes about the ranks.
    pub events: &'a dyn Events,
}

impl SplitModel<'_> {
    /// Returns the grid over which the model is split.
    fn grid(&self) -> Result<Grid> {
        let opened = fathom_model::open(&models::model_folder(self.model)?)?;
        let dtype = self.dtype.unwrap_or_else(|| models::stored_dtype(&opened.source));
        let ResolvedMesh { grid, experts } = self.mesh.spread(self.machine, (&opened, dtype), None)?;
        experts.iter().for_each(|experts| self.events.note(&format!("experts: {experts}")));
        Ok(grid)
    }

    /// [`generate`], by all ranks together.
    ///
    /// # Errors
    /// Those of [`generate`]; no model there; a model that cannot be split so; no memory for its parts.
    pub fn generate(&self, request: &Request, stream: &mut dyn FnMut(&str) -> Flow) -> Result<Generation> {
        let SplitModel { model, dtype, machine, .. } = *self;
        let grid = self.grid()?;
        let link = |error| fathom_train::Error::Link(error);
        let first = |device: Device| {
            let ready = caught(|| models::open_part(model, dtype, None, device))?;
            let mut stopped = false;
            let answer = generate(&ready, request, &mut |text| {
                let flow = stream(text);
                stopped |= flow == Flow::Stop;
                flow
            });
            if let (true, Some(link)) = (stopped, ready.loaded.device.mesh.link()) {
                link.abort("the answer is not wanted any more");
                return answer;
            }
            // If a rank failed, its reason is returned; the answer of the others is then meaningless.
            ready.loaded.device.mesh.check().map_err(link)?;
            answer
        };
        let other = |device: Device| {
            let ready = caught(|| models::open_part(model, dtype, None, device))?;
            let answer = generate(&ready, request, &mut |_| Flow::Continue);
            if ready.loaded.device.mesh.check().is_ok() { answer.map(drop) } else { Ok(()) }
        };
        on_threads((machine, grid), WAIT, first, &other)
    }
}

/// Refuses a long prompt once its beginning fills the context, before all of it is encoded.
fn refuse_endless(tokenizer: &Tokenizer, prompt: &str, room: usize) -> Result<()> {
    if prompt.len() <= COUNTED_BYTES {
        return Ok(());
    }
    let (mut tokens, mut rest) = (0, prompt);
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(rest.floor_char_boundary(COUNTED_BYTES));
        tokens += tokenizer.encode_special(piece)?.len().saturating_sub(CUT_TOKENS);
        rest = tail;
        if tokens > room {
            refuse!(
                "the prompt has {} and fills the context of {} tokens {} before its end; shorten it, or raise --context",
                human::bytes(prompt.len() as u64),
                human::grouped(room as u64),
                human::bytes(rest.len() as u64)
            );
        }
    }
    Ok(())
}
