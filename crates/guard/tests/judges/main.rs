//! Rails that ask models, with a scripted model.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod evaluation;
mod faults;
mod formats;
mod import;
mod perplexity;
mod rails;
mod scripted;

use std::path::Path;
use std::sync::Arc;

use fathom_base::clock::Clock;
use fathom_guard::{Config, Context, Direction, Failure, Opinion, RailInput, Until};
use scripted::{ScriptedModel, needs};
use serde_json::json;

/// Loads one rail of a configuration.
fn config(model: &Arc<ScriptedModel>, toml: &str) -> Result<Config, String> {
    let text = format!("[[rail]]\n{toml}\n");
    Config::parse(&text, Path::new("guard.toml"), &needs(model)).map_err(|error| error.to_string())
}

/// The opinion of a rail about a text.
fn judge_in(
    model: &Arc<ScriptedModel>,
    toml: &str,
    text: &str,
    direction: Direction,
    context: &Context,
) -> Result<Opinion, Failure> {
    let config = config(model, toml).unwrap();
    config.rails[0].rail.judge(&input(text, direction, context), &Until::within(&Clock::default(), 2.0))
}

/// A whole text.
fn input<'a>(text: &'a str, direction: Direction, context: &'a Context) -> RailInput<'a> {
    RailInput { text, from: 0, whole: true, direction, context, tool: None }
}

/// The opinion of a rail about a user's message.
fn judge(model: &Arc<ScriptedModel>, toml: &str, text: &str) -> Opinion {
    let context = Context { messages: vec![json!({"role": "user", "content": text})], ..Context::default() };
    judge_in(model, toml, text, Direction::Input, &context).unwrap()
}
