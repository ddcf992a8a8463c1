//! The keys of `config.yml`.

use std::path::Path;

use super::dialog;
use super::draft::Draft;
use super::flows::{self, Flow};
use super::folder::Files;
use super::options::{DIRECTIONS, Settings};
use super::outcome::NemoImport;
use super::yaml::{Entry, Node};

/// Keys whose meaning is elsewhere in Fathom, or that mean nothing without a dialog.
const ELSEWHERE: &[(&str, &str)] = &[
    ("instructions", "are instructions for the answering model: send them as its system message"),
    ("sample_conversation", "is an example for dialog flows; here forms have examples of their own"),
    ("knowledge_base", "is retrieval: `fathom index` and `serve.knowledge`"),
    ("core", "chooses an embedding search; here the rail `dialog` names its model"),
    ("docs", "is retrieval: `fathom index` and `serve.knowledge`"),
    ("import_paths", "names other folders: translate each"),
    ("actions_server_url", "calls code on another server"),
    ("custom_data", "is read by code, which is not executed"),
    ("user_messages", "is read from Colang files alone"),
    ("bot_messages", "is read from Colang files alone"),
    ("flows", "is read from Colang files alone"),
    ("tracing", "is an option of the server: `fathom serve --help` lists its traces"),
    ("metrics", "is always on: the server's /metrics has every rail"),
];
/// Keys that change nothing here.
const IMPLIED: &[&str] = &[
    "models",
    "prompts",
    "rails",
    "colang_version",
    "streaming",
    "passthrough",
    "lowest_temperature",
    "prompting_mode",
    "enable_rails_exceptions",
    "enable_multi_step_generation",
    "event_source_uid",
];

/// Translates the files of a folder.
pub(super) fn translate(files: &Files) -> NemoImport {
    let mut draft = Draft { unsaid: files.unsaid.clone(), ..Draft::default() };
    let settings = Settings { configs: &files.configs, programs: &files.programs };
    for (file, config) in &files.configs {
        top(&mut draft, file, config);
        if let Some(rails) = config.get("rails") {
            rails_keys(&mut draft, file, rails);
        }
    }
    let mut used = Vec::new();
    for (direction, key) in DIRECTIONS {
        for (file, config) in &files.configs {
            let flows = config.at(&["rails", key, "flows"]).map(Node::items).unwrap_or_default();
            for node in flows {
                match node
                    .text()
                    .ok_or_else(|| "is no name of a flow".to_string())
                    .and_then(|text| Flow::parse(&text))
                {
                    Ok(flow) => {
                        flows::add(&mut draft, &settings, &flow, (direction, file, node.line));
                        used.push(flow.name);
                    }
                    Err(why) => draft.unsaid(file, node.line, format!("rails.{key}.flows"), why),
                }
            }
        }
    }
    dialog::add(&mut draft, files, &settings, &used);
    draft.finish()
}

fn top(draft: &mut Draft, file: &Path, config: &Node) {
    for Entry { key, line, node } in config.entries() {
        if let Some((_, why)) = ELSEWHERE.iter().find(|(name, _)| name == key) {
            draft.unsaid(file, *line, key, *why);
        } else if !IMPLIED.contains(&key.as_str()) {
            let hint = fathom_base::recipe::suggest_name(key, IMPLIED, "there are");
            draft.unsaid(file, *line, key, format!("is unknown; {hint}"));
        }
        if key == "passthrough" && !node.is_true() && node.text().is_some() {
            draft.unsaid(file, *line, key, "is always on: prompts of clients reach the model unchanged");
        }
    }
    for model in config.get("models").map(Node::items).unwrap_or_default() {
        let kind = model.get("type").and_then(Node::text).unwrap_or_default();
        if kind == "main" {
            let name = super::options::model_name(model).unwrap_or_default();
            draft.unsaid(
                file,
                model.line,
                "models.main",
                format!("is the guarded model `{name}`: `fathom serve MODEL --guard DIR`"),
            );
        }
        if let Some(cache) = model.get("cache") {
            draft.unsaid(
                file,
                cache.line,
                "models.cache",
                "caches verdicts; here a judge's prompts share cached prefixes",
            );
        }
    }
}

fn rails_keys(draft: &mut Draft, file: &Path, rails: &Node) {
    for Entry { key, line, node } in rails.entries() {
        match key.as_str() {
            "input" | "output" | "retrieval" => {}
            "config" => super::options::unread(draft, file, node, "rails.config"),
            "tool_output" | "tool_call" | "tool_input" | "tool_result" => {
                if let Some(tools) = node.get("per_tool") {
                    let why = "names flows of single tools; write `tools = [\"NAME\"]` in the rail's table";
                    draft.unsaid(file, tools.line, format!("rails.{key}.per_tool"), why);
                }
            }
            "dialog" => {
                draft.unsaid(file, *line, "rails.dialog", "is for dialog flows, which are not translated")
            }
            "actions" => {
                draft.unsaid(file, *line, "rails.actions", "is for actions in code, which is not executed")
            }
            other => {
                let names = ["input", "output", "retrieval", "config", "dialog", "tool_output", "tool_input"];
                let hint = fathom_base::recipe::suggest_name(other, &names, "there are");
                draft.unsaid(file, *line, format!("rails.{other}"), format!("is unknown; {hint}"));
            }
        }
    }
    if rails.at(&["input", "speculative_generation"]).is_some_and(Node::is_true) {
        draft.guard.push(("speculative", true.into()));
    }
    if let Some(streaming) = rails.at(&["output", "streaming"]) {
        let why = "counts pieces of a stream; here text is held by tokens and released once it is judged";
        for key in ["chunk_size", "context_size"] {
            if let Some(node) = streaming.get(key) {
                draft.unsaid(file, node.line, format!("rails.output.streaming.{key}"), why);
            }
        }
        if streaming.get("stream_first").is_some_and(Node::is_true) {
            draft.guard.push(("stream_first", true.into()));
        } else if streaming.get("enabled").is_some_and(Node::is_true)
            && streaming.get("stream_first").is_none()
        {
            let why = "is true by default there; here nothing is sent before it is judged";
            draft.unsaid(file, streaming.line, "rails.output.streaming.stream_first", why);
        }
    }
}
