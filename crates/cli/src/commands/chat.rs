//! `fathom chat`: a conversation in the terminal.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use fathom_app::Machine;
use fathom_app::chat::{self, Input, Person, Settings};
use fathom_base::{Flow, Stop, Usage};
use fathom_train::recipe::Precision;
use signal_hook::consts::SIGINT;

use super::generate::{chosen, ends};
use crate::listen::Plain;
use crate::{args, console};

/// Commands available besides text.
const HELP: &str = "/reset begins again, /system TEXT begins again with other instructions, /exit or ctrl-D ends; ctrl-C stops an answer";

/// Runs the verb.
pub fn run(args: &args::Chat) -> Result<()> {
    let listener = Plain::default();
    let dtype = args.precision.map(Precision::dtype);
    let machine = Machine::of_kind(args.machine.kind(), args.threads, &listener);
    let settings = Settings {
        sampling: ends(&args.sampling),
        chosen: chosen(&args.sampling),
        max_tokens: args.sampling.max_tokens,
        context_tokens: args.context,
        system: args.system.clone(),
        template: args.chat_template.clone(),
    };
    let model = (args.model.as_path(), args.adapter.as_deref());
    let host = chat::open(model, dtype, &machine, &settings, &listener)?;
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, stop.clone()).context("cannot watch for signals")?;
    let asks = std::io::stdin().is_terminal();
    if asks {
        console::note(HELP);
    }
    Ok(chat::chat(&host, &settings, &mut Terminal { asks, stop })?)
}

/// Reads from a terminal, or lines from a file.
struct Terminal {
    asks: bool,
    stop: Arc<AtomicBool>,
}

impl Person for Terminal {
    fn next(&mut self) -> Option<Input> {
        loop {
            if self.asks {
                out!("> ");
                self.flush();
            }
            let mut line = Vec::new();
            match std::io::stdin().lock().read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => {
                    console::note(&format!("cannot read what is said: {error}"));
                    return None;
                }
            }
            let Ok(line) = String::from_utf8(line) else {
                console::note("a line is not UTF-8, and is left out");
                continue;
            };
            self.stop.store(false, Ordering::Relaxed);
            let line = line.trim();
            match line.split_once(' ').map_or((line, ""), |(word, rest)| (word, rest.trim())) {
                ("", _) => {}
                ("/exit" | "/quit", _) => return None,
                ("/reset", _) => return Some(Input::Reset),
                ("/system", text) => return Some(Input::System(text.to_string())),
                (word, _) if word.starts_with('/') => console::note(HELP),
                _ => return Some(Input::Text(line.to_string())),
            }
        }
    }

    fn hear(&mut self, text: &str) -> Flow {
        out!("{text}");
        self.flush();
        if self.stop.swap(false, Ordering::Relaxed) { Flow::Stop } else { Flow::Continue }
    }

    fn heard(&mut self, stop: Stop, usage: &Usage) {
        outln!();
        let why = match stop {
            Stop::Length => "; the answer was cut off at its most tokens (--max-tokens)",
            Stop::Receiver => "stopped",
            _ => "",
        };
        if stop == Stop::Receiver {
            console::note(&format!("[{why}]"));
            return;
        }
        let rate = usage.answer_tokens.saturating_sub(1) as f64 / usage.decode_s.max(1e-9);
        console::note(&format!(
            "[{} of {} prompt tokens read in {:.2} s, {} new tokens at {rate:.1} tokens/s{why}]",
            usage.prompt_tokens - usage.cached_tokens,
            usage.prompt_tokens,
            usage.prefill_s,
            usage.answer_tokens
        ));
    }

    fn refused(&mut self, message: &str) {
        console::line(&format!("error: {message}"));
    }
}

impl Terminal {
    fn flush(&self) {
        if let Err(error) = std::io::stdout().flush() {
            crate::console::unprinted(&error);
        }
    }
}
