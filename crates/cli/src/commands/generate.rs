//! `fathom generate`: continues a prompt, streaming.

use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};
use fathom_base::{Flow, Generate, GenerateRequest, Prompt, Sampling, human};
use fathom_engine::{Engine, Limits};
use fathom_text::Tokenizer;
use fathom_train::recipe::Machine;

use crate::{args, console, device};

/// Tokens of an answer, where the context has room for them and nothing is said.
const MAX_TOKENS: usize = 256;

/// Runs the verb.
pub fn run(args: &args::Generate) -> Result<()> {
    let folder = device::model_folder(&args.model)?;
    let dtype = args.precision.map(device::precision);
    let device = device::open(&Machine { threads: args.threads, ..device::on(args.machine) })?;
    let loaded = device::load(&device, &folder, dtype)?;
    let tokenizer = device::tokenizer(&folder)?;
    let context_tokens = args.context.unwrap_or(loaded.model.spec.max_positions);
    let limits = Limits { context_tokens, ..Limits::default() };
    let mut engine = Engine::new(&device, &loaded.model, &loaded.params, &tokenizer, limits);
    let prompt = prompt(args)?;
    let room = context_tokens.min(loaded.model.spec.learned_positions.unwrap_or(usize::MAX));
    refuse_endless(&tokenizer, &prompt, room)?;
    let left = room.saturating_sub(tokenizer.encode_prompt(&prompt)?.len().max(1));
    // A prompt that leaves no room is refused by what makes the answer.
    let max_tokens = args.sampling.max_tokens.unwrap_or(MAX_TOKENS.min(left.max(1)));
    let request =
        GenerateRequest { prompt: Prompt::Text(prompt), sampling: sampling(&args.sampling, max_tokens) };
    let (mut out, mut unwritten) = (std::io::stdout(), None);
    let mut stream = |text: &str| {
        let written =
            if args.ids { Ok(()) } else { out.write_all(text.as_bytes()).and_then(|()| out.flush()) };
        unwritten = written.err();
        if unwritten.is_none() { Flow::Continue } else { Flow::Stop }
    };
    let answer = engine.generate(&request, &mut stream)?;
    if let Some(error) = unwritten {
        crate::unprinted(&error.to_string());
    }
    if args.ids {
        println!("{}", serde_json::json!(answer.ids));
        return Ok(());
    }
    println!();
    let decoded = answer.ids.len().saturating_sub(1) as f64 / answer.decode_s.max(1e-9);
    console::note(&format!(
        "[{} prompt tokens in {:.2} s, {} new tokens at {decoded:.1} tokens/s]",
        answer.prompt_tokens,
        answer.prefill_s,
        answer.ids.len()
    ));
    Ok(())
}

/// Bytes of a prompt that are counted at once: encoding takes a hundred times as much memory.
const COUNTED_BYTES: usize = 1 << 20;
/// Tokens more than the whole has, at most, where a text is cut.
const CUT_TOKENS: usize = 16;

/// Refuses a long prompt as soon as its beginning fills the context, before all of it is encoded.
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
            bail!(
                "the prompt has {} and fills the context of {} tokens {} before its end; shorten it, or raise --context",
                human::bytes(prompt.len() as u64),
                human::grouped(room as u64),
                human::bytes(rest.len() as u64)
            );
        }
    }
    Ok(())
}

fn prompt(args: &args::Generate) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if std::io::stdin().is_terminal() {
        eprintln!("prompt (end with ctrl-D):");
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
    Ok(text)
}

fn sampling(args: &args::Sampling, max_tokens: usize) -> Sampling {
    Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
        max_tokens,
        stop: args.stop.clone(),
    }
}
