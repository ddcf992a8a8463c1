//! Flows that a configuration names, as rails.

use std::path::Path;

use super::colang::Program;
use super::draft::{Draft, RailDraft};
use super::options::{FileValue, Settings, prompt_text, translated};
use super::yaml::{Node, Yaml};

/// A reference to a flow: its name and arguments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Flow {
    /// Name.
    pub name: String,
    /// Arguments by name.
    pub arguments: Vec<(String, String)>,
}

impl Flow {
    /// Reads `name $key=value $other="value"`. There is no blank around `=`.
    ///
    /// # Errors
    /// A name or value is missing, or an argument occurs twice.
    pub fn parse(text: &str) -> Result<Flow, String> {
        let (name, mut rest) = text.find('$').map_or((text, ""), |at| text.split_at(at));
        let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
        if name.is_empty() {
            return Err("has no name of a flow".into());
        }
        let mut flow = Flow { name, ..Flow::default() };
        while let Some(argument) = rest.strip_prefix('$') {
            let (key, value) = argument.split_once('=').ok_or("has an argument without a value")?;
            let plain = |c: char| c.is_alphanumeric() || c == '_';
            if key.is_empty() || !key.chars().all(plain) {
                return Err(format!("has an argument `${key}`, which is no name; no blanks are around `=`"));
            }
            let (value, after) = match value.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    value[1..].split_once(quote).ok_or("has a text that is not closed")?
                }
                _ => value.split_once(char::is_whitespace).unwrap_or((value, "")),
            };
            if value.is_empty() {
                return Err(format!("has no value of `${key}`; no blanks are around `=`"));
            }
            if flow.argument(key).is_some() {
                return Err(format!("has `${key}` twice"));
            }
            flow.arguments.push((key.to_string(), value.to_string()));
            rest = after.trim_start();
        }
        if rest.trim().is_empty() {
            Ok(flow)
        } else {
            Err(format!("has `{}` after its arguments", rest.trim()))
        }
    }

    fn argument(&self, key: &str) -> Option<&str> {
        self.arguments.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }
}

/// Services of others that some flows call.
const SERVICES: &[&str] = &[
    "activefence",
    "ai defense",
    "autoalign",
    "clavata",
    "cleanlab",
    "crowdstrike",
    "detect pii",
    "f5",
    "fiddler",
    "gcpnlp",
    "gliner",
    "guardrailsai",
    "mask pii",
    "pangea",
    "patronus",
    "policyai",
    "polygraf",
    "protect",
    "privateai",
    "trend ai",
    "got it",
    "gotitai",
    "prompt security",
];

/// All flows that are translated.
const FLOWS: &[&str] = &[
    "self check input",
    "self check output",
    "self check facts",
    "self check hallucination",
    "hallucination warning",
    "check facts",
    "alignscore check facts",
    "content safety check input",
    "content safety check output",
    "llama guard check input",
    "llama guard check output",
    "topic safety check input",
    "jailbreak detection heuristics",
    "jailbreak detection model",
    "regex check input",
    "regex check output",
    "regex check retrieval",
    "detect sensitive data on input",
    "mask sensitive data on input",
    "injection detection",
    "context bloat detection on input",
    "hf classifier check input",
    "language detection",
];

/// Direction, file and line of a flow's name.
type Place<'a> = (&'a str, &'a Path, usize);

/// Adds the rail of a flow, or says why there is none.
pub(super) fn add(draft: &mut Draft, settings: &Settings<'_>, flow: &Flow, place: Place<'_>) {
    let (direction, file, line) = place;
    let name = flow.name.as_str();
    let mut maker = Maker { draft, settings, flow, place };
    let made = match name {
        "self check input" => maker.self_check("self_check_input", &[("user_input", "text")]),
        "self check output" => {
            maker.self_check("self_check_output", &[("bot_response", "text"), ("user_input", "question")])
        }
        "self check facts" | "check facts" => maker.facts(),
        "alignscore check facts" => maker.alignscore(),
        "self check hallucination" | "hallucination warning" => maker.hallucination(),
        "content safety check input" | "content safety check output" => {
            maker.content_safety(flow.argument("model").unwrap_or("content_safety"))
        }
        "llama guard check input" | "llama guard check output" => maker.content_safety("llama_guard"),
        "topic safety check input" => maker.topic(),
        "jailbreak detection heuristics" => maker.heuristics(),
        "jailbreak detection model" => {
            Err("asks a forest over embeddings; name a classifier in a rail `jailbreak`".into())
        }
        "injection detection" => maker.injection(),
        _ if name.starts_with("regex check ") => maker.regex(),
        _ if name.starts_with("detect sensitive data on ") => maker.personal_data("block"),
        _ if name.starts_with("mask sensitive data on ") => maker.personal_data("mask"),
        _ if name.starts_with("context bloat detection on ") => maker.bloat(),
        _ if name.starts_with("hf classifier check ") => maker.classifier(),
        _ if name.starts_with("language detect") => maker.language(),
        _ if SERVICES.iter().any(|service| name.starts_with(service)) => {
            Err("asks the service of another company over the network".into())
        }
        _ => Err(unknown(settings.programs.iter().map(|(_, program)| program), name)),
    };
    match made {
        Ok(rail) => draft.rails.push(rail),
        Err(why) => draft.unsaid(file, line, format!("rails.{direction}.flows: {name}"), why),
    }
}

fn unknown<'a>(mut programs: impl Iterator<Item = &'a Program>, name: &str) -> String {
    match programs.find_map(|program| program.flow(name)) {
        Some(flow) => {
            format!("is a flow of its own (line {} of its file); write its check as a rail", flow.line)
        }
        None => format!(
            "is no flow that is known; {}",
            fathom_base::recipe::suggest_name(name, FLOWS, "there are")
        ),
    }
}

struct Maker<'a, 'b> {
    draft: &'a mut Draft,
    settings: &'a Settings<'b>,
    flow: &'a Flow,
    place: Place<'a>,
}

impl Maker<'_, '_> {
    fn rail(&self, kind: &str) -> RailDraft {
        let mut name = self.flow.name.clone();
        self.flow.arguments.iter().for_each(|(_, value)| name += &format!(" {value}"));
        RailDraft::new(kind, &name, self.place.0)
    }

    fn unsaid(&mut self, found: FileValue<'_>, name: &str, why: &str) {
        self.draft.unsaid(found.file, found.node.line, name, why);
    }

    /// The model of a type, with the note that it is a folder here.
    fn model(&mut self, kind: &str) -> Result<String, String> {
        let name = self
            .settings
            .model(kind)
            .ok_or_else(|| format!("needs a model of the type `{kind}` or `main`"))?;
        let (_, file, line) = self.place;
        let why = "is a folder here: put the weights next to guard.toml, or change `model`";
        self.draft.unsaid(file, line, format!("models: {name}"), why);
        Ok(name)
    }

    /// The prompt of a task with our places, unless it says what ours cannot.
    fn prompt(&mut self, task: &str, places: &[(&str, &str)]) -> Option<String> {
        let found = self.settings.prompt(task)?;
        for key in ["output_parser", "max_length", "stop", "max_tokens", "models"] {
            if let Some(node) = found.node.get(key) {
                let why = "has no meaning here: a judge chooses among fixed words, and all of a text is read";
                self.unsaid(FileValue { node, ..found }, &format!("prompts.{task}.{key}"), why);
            }
        }
        match prompt_text(found.node)
            .ok_or("has no text".to_string())
            .and_then(|text| translated(&text, places))
        {
            Ok(text) => Some(text),
            Err(why) => {
                self.unsaid(found, &format!("prompts.{task}"), &why);
                None
            }
        }
    }

    fn self_check(&mut self, task: &str, places: &[(&str, &str)]) -> Result<RailDraft, String> {
        let rail = self.rail("self_check").with("model", self.model(task)?);
        Ok(match self.prompt(task, places) {
            Some(prompt) => rail.with("prompt", prompt),
            None => rail,
        })
    }

    /// The condition of a flow that runs only where a dialog sets a variable.
    fn always(&mut self, variable: &str) {
        let (_, file, line) = self.place;
        let why = "is set by dialog flows for single answers; here the rail judges every answer";
        self.draft.unsaid(file, line, variable, why);
    }

    fn facts(&mut self) -> Result<RailDraft, String> {
        self.always("$check_facts");
        let rail = self
            .rail("facts")
            .with("model", self.model("self_check_facts")?)
            .with("without_evidence", "allow");
        Ok(match self.prompt("self_check_facts", &[("evidence", "evidence"), ("response", "text")]) {
            Some(prompt) => rail.with("prompt", prompt),
            None => rail,
        })
    }

    fn alignscore(&mut self) -> Result<RailDraft, String> {
        self.always("$check_facts");
        let endpoint = self.settings.at(&["rails", "config", "fact_checking", "parameters", "endpoint"]);
        if let Some(found) = endpoint {
            self.unsaid(
                found,
                "fact_checking.parameters.endpoint",
                "is another server; here `model` is a classifier of pairs",
            );
        }
        let rail = self.rail("facts").with("model", "alignscore").with("method", "entailment");
        Ok(rail.with("without_evidence", "allow"))
    }

    fn hallucination(&mut self) -> Result<RailDraft, String> {
        let warns = self.flow.name == "hallucination warning";
        self.always(if warns { "$hallucination_warning" } else { "$check_hallucination" });
        let mut rail = self.rail("hallucination").with("model", self.model("main")?);
        if warns {
            rail = rail.with("action", "flag");
        }
        let places = [("statement", "text"), ("paragraph", "sample")];
        Ok(match self.prompt("self_check_hallucination", &places) {
            Some(prompt) => rail.with("prompt", prompt),
            None => rail,
        })
    }

    fn content_safety(&mut self, kind: &str) -> Result<RailDraft, String> {
        let model = self.model(kind)?;
        let lower = format!("{model} {kind}").to_lowercase().replace('_', "-");
        let format = [
            ("shieldgemma", "shieldgemma"),
            ("llama-guard-4", "llama_guard4"),
            ("llama-guard-3", "llama_guard"),
            ("granite-guardian-3.3", "granite_score"),
            ("granite-guardian", "granite"),
            ("nemotron-3", "nemotron"),
            ("nemoguard", "nemoguard"),
            ("nemotron-safety-guard", "nemoguard"),
            ("safety-guard", "nemoguard"),
        ]
        .iter()
        .find(|(part, _)| lower.contains(part))
        .map(|(_, format)| *format)
        .ok_or_else(|| format!("asks `{model}`, whose form of answers is not known: llama_guard (3), llama_guard4, nemoguard, nemotron, shieldgemma and granite are"))?;
        if let Some(found) = self.settings.options("content_safety") {
            for key in ["multilingual", "reasoning"] {
                if let Some(node) =
                    found.node.get(key).filter(|node| node.get("enabled").is_some_and(Node::is_true))
                {
                    let why = "is not translated: one refusal is configured, and a verdict is one token";
                    self.unsaid(FileValue { node, ..found }, &format!("content_safety.{key}"), why);
                }
            }
        }
        for task in [
            "content_safety_check_input",
            "content_safety_check_output",
            "llama_guard_check_input",
            "llama_guard_check_output",
        ] {
            if let Some(found) =
                self.settings.prompt(&format!("{task} $model={kind}")).or_else(|| self.settings.prompt(task))
            {
                self.unsaid(found, &format!("prompts.{task}"), "is the published text of the format here");
            }
        }
        Ok(self.rail("content_safety").with("model", model).with("format", format))
    }

    fn topic(&mut self) -> Result<RailDraft, String> {
        let kind = self.flow.argument("model").ok_or("needs `$model`")?.to_string();
        let task = format!("topic_safety_check_input $model={kind}");
        let policy =
            self.prompt(&task, &[]).ok_or_else(|| format!("needs the prompt of the task `{task}`"))?;
        Ok(self.rail("topic").with("model", self.model(&kind)?).with("policy", policy))
    }

    fn heuristics(&mut self) -> Result<RailDraft, String> {
        let mut rail = self
            .rail("jailbreak")
            .with("model", "gpt2-large")
            .with("method", "perplexity")
            .with("formula", "windows");
        let Some(found) = self.settings.options("jailbreak_detection") else { return Ok(rail) };
        for (theirs, own) in [
            ("length_per_perplexity_threshold", "length_per_perplexity"),
            ("prefix_suffix_perplexity_threshold", "prefix_suffix_perplexity"),
        ] {
            if let Some(number) = found.node.get(theirs).and_then(Node::number) {
                rail = rail.with(own, number);
            }
        }
        for key in ["server_endpoint", "nim_base_url", "nim_url", "api_key", "api_key_env_var"] {
            if let Some(node) = found.node.get(key) {
                let why = "is another server; here the model is opened in this process";
                self.unsaid(FileValue { node, ..found }, &format!("jailbreak_detection.{key}"), why);
            }
        }
        Ok(rail)
    }

    fn regex(&mut self) -> Result<RailDraft, String> {
        let source = self.flow.name.trim_start_matches("regex check ");
        let found = self.settings.at(&["rails", "config", "regex_detection", source]);
        let found = found.ok_or_else(|| format!("needs `rails.config.regex_detection.{source}.patterns`"))?;
        let insensitive = found.node.get("case_insensitive").is_some_and(Node::is_true);
        let mut patterns = Vec::new();
        for node in found.node.get("patterns").map(Node::items).unwrap_or_default() {
            let pattern = node.text().unwrap_or_default();
            match crate::rails::parsed_pattern(&pattern, insensitive) {
                Ok(_) => patterns.push(pattern),
                Err(why) => {
                    let name = format!("regex_detection.{source}.patterns");
                    self.unsaid(
                        FileValue { node, ..found },
                        &name,
                        &format!("has one that is not read: {why}"),
                    );
                }
            }
        }
        if patterns.is_empty() {
            return Err("has no patterns that are read here: it would find nothing".into());
        }
        let rail = self.rail("regex").with_list("patterns", &patterns);
        Ok(if insensitive { rail.with("case_insensitive", true) } else { rail })
    }

    fn personal_data(&mut self, action: &str) -> Result<RailDraft, String> {
        let source = self.flow.name.rsplit(' ').next().unwrap_or_default().to_string();
        let options = ["rails", "config", "sensitive_data_detection"];
        let found = self.settings.at(&[&options[..], &[&source]].concat());
        let found = found
            .ok_or_else(|| format!("needs `rails.config.sensitive_data_detection.{source}.entities`"))?;
        let mut kinds = Vec::new();
        for node in found.node.get("entities").map(Node::items).unwrap_or_default() {
            let entity = node.text().unwrap_or_default();
            match ENTITIES.iter().find(|(theirs, _)| *theirs == entity) {
                Some((_, own)) => kinds.push(own.to_string()),
                None => self.unsaid(FileValue { node, ..found }, &entity, "is a kind that is not found here"),
            }
        }
        if let Some(node) = found.node.get("score_threshold") {
            self.unsaid(
                FileValue { node, ..found },
                "score_threshold",
                "has no meaning here: kinds are found by rules",
            );
        }
        if let Some(found) = self.settings.at(&[&options[..], &["recognizers"]].concat()) {
            self.unsaid(
                found,
                "recognizers",
                "are recognizers of its own; write them as patterns of a rail `regex`",
            );
        }
        if kinds.is_empty() {
            return Err("has no kind that is found here".into());
        }
        Ok(self.rail("personal_data").with_list("kinds", &kinds).with("action", action))
    }

    fn injection(&mut self) -> Result<RailDraft, String> {
        let found = self.settings.options("injection_detection");
        let found = found.ok_or("needs `rails.config.injection_detection.injections`")?;
        for key in ["yara_rules", "yara_path"] {
            if let Some(node) = found.node.get(key).filter(|node| node.value != Yaml::Null) {
                self.unsaid(
                    FileValue { node, ..found },
                    &format!("injection_detection.{key}"),
                    "has rules of YARA, which are not read",
                );
            }
        }
        let mut kinds = Vec::new();
        for node in found.node.get("injections").map(Node::items).unwrap_or_default() {
            match node.text().unwrap_or_default().as_str() {
                known @ ("code" | "sqli" | "template" | "xss") => kinds.push(known.to_string()),
                other => self.unsaid(
                    FileValue { node, ..found },
                    other,
                    "is no kind of injection that is found here",
                ),
            }
        }
        if kinds.is_empty() {
            return Err("has no kind of injection that is found here".into());
        }
        let omits = found.node.get("action").and_then(Node::text).is_some_and(|action| action == "omit");
        let rail = self.rail("injection").with_list("families", &kinds);
        Ok(rail.with("action", if omits { "omit" } else { "block" }))
    }

    fn bloat(&mut self) -> Result<RailDraft, String> {
        let mut rail = self.rail("length");
        let found = self.settings.options("context_bloat_detection");
        let number = |key: &str, usual: f64| {
            found.and_then(|found| found.node.get(key)).and_then(Node::number).unwrap_or(usual)
        };
        rail = rail.with("max_chars", number("max_chars", 5000.0) as i64);
        let truncates = found.and_then(|found| found.node.get("action")).and_then(Node::text);
        if truncates.as_deref() == Some("truncate") {
            return Ok(rail.with("action", "truncate"));
        }
        for (theirs, own, usual) in [
            ("min_entropy", "min_entropy", 3.5),
            ("max_repetition_ratio", "max_repetition", 0.4),
            ("max_run_ratio", "max_run", 0.1),
        ] {
            rail = rail.with(own, number(theirs, usual));
        }
        Ok(if truncates.as_deref() == Some("warn") { rail.with("action", "flag") } else { rail })
    }

    fn classifier(&mut self) -> Result<RailDraft, String> {
        let name = self.flow.argument("classifier").ok_or("needs `$classifier`")?.to_string();
        let found = self.settings.at(&["rails", "config", "hf_classifier", &name]);
        let found = found.ok_or_else(|| format!("needs `rails.config.hf_classifier.{name}`"))?;
        let text = |key: &str| found.node.get(key).and_then(Node::text);
        match text("engine").as_deref() {
            None | Some("local") => {}
            Some(engine) => {
                return Err(format!("asks a server (`{engine}`); here the model is opened in this process"));
            }
        }
        if text("task").is_some_and(|task| task != "text-classification") {
            return Err("classifies single tokens; only whole texts are classified here".into());
        }
        let labels = found.node.get("blocked_labels").map(Node::texts).unwrap_or_default();
        if labels.is_empty() {
            return Err("has no `blocked_labels`, so it never blocks".into());
        }
        let model = text("model").ok_or("has no model")?;
        let threshold = found.node.get("threshold").and_then(Node::number).unwrap_or(0.5);
        let rail = self.rail("classifier").with("model", model).with_list("blocked_labels", &labels);
        Ok(rail.with("threshold", threshold))
    }

    fn language(&mut self) -> Result<RailDraft, String> {
        let mut rail = self.rail("language");
        let Some(found) = self.settings.options("language_detector") else { return Ok(rail) };
        for key in ["allowed_languages", "blocked_languages"] {
            if let Some(node) = found.node.get(key) {
                rail = rail.with_list(key, &node.texts());
            }
        }
        if let Some(node) = found.node.get("refusal_messages") {
            let text = |entry: &super::yaml::Entry| Some((entry.key.clone(), entry.node.text()?.into()));
            rail = rail
                .with("refusal_messages", node.entries().iter().filter_map(text).collect::<toml::Table>());
        }
        if let Some(number) = found.node.get("num_characters_for_prediction").and_then(Node::number) {
            rail = rail.with("num_characters_for_prediction", number as i64);
        }
        let open = found.node.get("fail_open").map(Node::is_true);
        Ok(open.map_or(rail.clone(), |open| rail.with("fail_open", open)))
    }
}

/// Kinds of personal data by Presidio's names.
const ENTITIES: &[(&str, &str)] = &[
    ("EMAIL_ADDRESS", "email"),
    ("CREDIT_CARD", "card"),
    ("IBAN_CODE", "iban"),
    ("US_SSN", "ssn"),
    ("PHONE_NUMBER", "phone"),
    ("IP_ADDRESS", "ip"),
    ("DATE_TIME", "date"),
    ("URL", "url"),
    ("PERSON", "person"),
    ("LOCATION", "location"),
    ("US_PASSPORT", "us_passport"),
    ("US_DRIVER_LICENSE", "us_driver_license"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_names_and_arguments() {
        let flow = Flow::parse("content safety check input $model=\"a b\" $x=1").unwrap();
        assert_eq!(flow.name, "content safety check input");
        assert_eq!((flow.argument("model"), flow.argument("x")), (Some("a b"), Some("1")));
        assert_eq!(Flow::parse("self  check input").unwrap().name, "self check input");
        for text in ["", "$a=1", "f $a", "f $a = 1", "f $a=1 $a=2", "f $a=\"x", "f $a=", "f $a=1 rest"] {
            assert!(Flow::parse(text).is_err(), "{text}");
        }
    }
}
