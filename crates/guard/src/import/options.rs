//! Settings that flows refer to: models, prompts, and `rails.config`.

use std::path::{Path, PathBuf};

use super::colang::Program;
use super::draft::Draft;
use super::yaml::{Entry, Node};

/// Directions with the keys of their flows.
pub(super) const DIRECTIONS: [(&str, &str); 7] = [
    ("input", "input"),
    ("output", "output"),
    ("retrieval", "retrieval"),
    ("tool_call", "tool_call"),
    ("tool_call", "tool_output"),
    ("tool_result", "tool_result"),
    ("tool_result", "tool_input"),
];

/// The files of a folder.
pub(super) struct Settings<'a> {
    /// Configurations.
    pub configs: &'a [(PathBuf, Node)],
    /// Flows.
    pub programs: &'a [(PathBuf, Program)],
}

/// A value with the file that has it.
#[derive(Clone, Copy)]
pub(super) struct FileValue<'a> {
    /// The file.
    pub file: &'a Path,
    /// The value.
    pub node: &'a Node,
}

/// Names below `rails.config` by where they are; `*` is any name. What is below others is read as it is.
const NAMES: &[(&str, &str)] = &[
    (
        "rails.config",
        "content_safety context_bloat_detection fact_checking hf_classifier injection_detection jailbreak_detection \
         language_detector regex_detection sensitive_data_detection",
    ),
    ("rails.config.content_safety", "multilingual reasoning"),
    (
        "rails.config.context_bloat_detection",
        "action max_chars max_repetition_ratio max_run_ratio min_entropy",
    ),
    ("rails.config.fact_checking", "parameters"),
    ("rails.config.fact_checking.parameters", "endpoint"),
    ("rails.config.hf_classifier", "*"),
    ("rails.config.hf_classifier.*", "blocked_labels engine model task threshold"),
    ("rails.config.injection_detection", "action injections yara_path yara_rules"),
    (
        "rails.config.jailbreak_detection",
        "api_key api_key_env_var length_per_perplexity_threshold nim_base_url nim_url \
         prefix_suffix_perplexity_threshold server_endpoint",
    ),
    (
        "rails.config.language_detector",
        "allowed_languages blocked_languages fail_open num_characters_for_prediction refusal_messages",
    ),
    ("rails.config.regex_detection", "input output retrieval"),
    ("rails.config.regex_detection.*", "case_insensitive patterns"),
    ("rails.config.sensitive_data_detection", "input output recognizers retrieval"),
    ("rails.config.sensitive_data_detection.*", "entities score_threshold"),
];

/// Lists the names below a value at a path that are not in [`NAMES`].
pub(super) fn unread(draft: &mut Draft, file: &Path, node: &Node, path: &str) {
    let any = || format!("{}.*", path.rsplit_once('.').map_or("", |(parent, _)| parent));
    let of = |path: &str| NAMES.iter().find(|(at, _)| *at == path).map(|(_, names)| *names);
    let Some(names) = of(path).or_else(|| of(&any())) else { return };
    let names: Vec<&str> = names.split_whitespace().collect();
    for Entry { key, line, node } in node.entries() {
        let path = format!("{path}.{key}");
        if names.contains(&key.as_str()) || names == ["*"] {
            unread(draft, file, node, &path);
        } else {
            let hint = fathom_base::recipe::suggest_name(key, &names, "read are");
            draft.unsaid(file, *line, path, format!("is not read; {hint}"));
        }
    }
}

/// Name of a model of the list.
pub(super) fn model_name(model: &Node) -> Option<String> {
    let parameters = ["model_name", "model", "path"].map(|key| model.at(&["parameters", key]));
    [model.get("model")].into_iter().chain(parameters).flatten().find_map(Node::text)
}

impl<'a> Settings<'a> {
    /// The value at a path, in the first file that has it.
    pub fn at(&self, path: &[&str]) -> Option<FileValue<'a>> {
        self.configs.iter().find_map(|(file, config)| Some(FileValue { file, node: config.at(path)? }))
    }

    /// Options of a rail: `rails.config.NAME`.
    pub fn options(&self, name: &str) -> Option<FileValue<'a>> {
        self.at(&["rails", "config", name])
    }

    /// The items of a list at the top of all files.
    fn items(&self, key: &'static str) -> impl Iterator<Item = FileValue<'a>> {
        let of = move |(file, config): &'a (PathBuf, Node)| {
            let items = config.get(key).map(Node::items).unwrap_or_default();
            items.iter().map(move |node| FileValue { file, node })
        };
        self.configs.iter().flat_map(of)
    }

    /// The model of a type, or else the main one.
    pub fn model(&self, kind: &str) -> Option<String> {
        let of = |kind: &str| {
            let is_kind = |found: &FileValue<'_>| {
                found.node.get("type").and_then(Node::text).is_some_and(|it| it == kind)
            };
            self.items("models").find(is_kind).and_then(|found| model_name(found.node))
        };
        of(kind).or_else(|| of("main"))
    }

    /// The prompt of a task, whatever model it is for.
    pub fn prompt(&self, task: &str) -> Option<FileValue<'a>> {
        let plain = |text: String| text.replace(['"', '\''], "");
        let is_task = |found: &FileValue<'_>| {
            found.node.get("task").and_then(Node::text).is_some_and(|text| plain(text) == task)
        };
        self.items("prompts").find(is_task)
    }
}

/// Text of a prompt: its content, or that of its messages.
pub(super) fn prompt_text(prompt: &Node) -> Option<String> {
    if let Some(content) = prompt.get("content") {
        return content.text();
    }
    let of = |message: &Node| message.get("content").and_then(Node::text).or_else(|| message.text());
    let messages: Vec<String> = prompt.get("messages")?.items().iter().filter_map(of).collect();
    (!messages.is_empty()).then(|| messages.join("\n\n"))
}

/// A prompt with the places of ours in place of theirs.
///
/// # Errors
/// A variable, filter or block that ours do not have.
pub(super) fn translated(text: &str, places: &[(&str, &str)]) -> Result<String, String> {
    if text.contains("{%") {
        return Err("has blocks `{% %}`, which prompts here do not have".into());
    }
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or("has a place that is not closed")?;
        let name = name.trim();
        let Some((_, own)) = places.iter().find(|(theirs, _)| *theirs == name) else {
            let known: Vec<&str> = places.iter().map(|(theirs, _)| *theirs).collect();
            return Err(format!("has the variable `{name}`; only {} are translated", known.join(", ")));
        };
        out += before;
        out += &format!("{{{{ {own} }}}}");
        rest = after;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_prompts_are_translated_and_others_refused() {
        let places = [("user_input", "text"), ("bot_response", "answer")];
        assert_eq!(translated("a {{user_input}} b", &places).unwrap(), "a {{ text }} b");
        for (text, why) in [
            ("{{ history | colang }}", "`history | colang`; only user_input, bot_response"),
            ("{% if x %}", "blocks"),
            ("{{ user_input", "not closed"),
        ] {
            assert!(translated(text, &places).unwrap_err().contains(why), "{text}");
        }
    }
}
