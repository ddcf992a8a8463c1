//! A task's configuration: the keys of lm-evaluation-harness's `TaskConfig`, with its defaults.

use serde_json::{Map, Value, json};

use super::filters::Filters;
use super::index::function;
use super::measure::{Measure, OutputType};
use super::pass_at_k::PassAtK;
use crate::error::{Error, Result};

/// Keys that a task may have, in the order in which the harness writes them.
const KEYS: [&str; 35] = [
    "task",
    "task_alias",
    "tag",
    "custom_dataset",
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "training_split",
    "validation_split",
    "test_split",
    "fewshot_split",
    "process_docs",
    "doc_to_text",
    "doc_to_target",
    "doc_to_image",
    "doc_to_audio",
    "unsafe_code",
    "doc_to_choice",
    "process_results",
    "use_prompt",
    "description",
    "target_delimiter",
    "fewshot_delimiter",
    "fewshot_config",
    "num_fewshot",
    "metric_list",
    "output_type",
    "generation_kwargs",
    "repeats",
    "filter_list",
    "should_decontaminate",
    "doc_to_decontamination_query",
    "gen_prefix",
    "metadata",
    "group_alias",
];
/// Keys that need Python or another kind of model if they are set.
const FOREIGN: [&str; 6] =
    ["custom_dataset", "doc_to_image", "doc_to_audio", "use_prompt", "process_results", "class"];
/// Tokens of an answer, if a task does not say.
const ANSWER_TOKENS: i64 = 256;

/// Where examples come from and how they are written.
#[derive(Clone, Debug)]
pub struct Fewshot {
    /// `first_n`, or else `default`.
    pub first_n: bool,
    /// Split of the examples.
    pub split: Option<String>,
    /// Examples that the file itself lists.
    pub samples: Option<Vec<Value>>,
    /// Overrides of the keys of the same names.
    pub own: Map<String, Value>,
}

/// A task's configuration.
#[derive(Clone, Debug)]
pub struct TaskConfig {
    /// Name.
    pub name: String,
    /// All keys, defaults included, as the harness writes them.
    pub keys: Map<String, Value>,
    /// Kind of requests.
    pub output: OutputType,
    /// Examples.
    pub fewshot: Fewshot,
    /// Number of examples.
    pub num_fewshot: usize,
    /// Figures, in order.
    pub measures: Vec<Measure>,
    /// Filters of answers, by name.
    pub filters: Vec<Filters>,
    /// How often each request is made.
    pub repeats: usize,
}

/// Refusal of a task that is written in Python, with the command that runs it.
pub fn needs_python(task: &str, what: &str) -> Error {
    Error::task(
        task,
        format!(
            "{what} is written in Python, which Fathom does not run. The harness itself can, against a served model:\n  \
             fathom serve MODEL --port 8000\n  lm_eval run --model local-completions --tasks {task} --model_args \
             base_url=http://127.0.0.1:8000/v1/completions,model=NAME,tokenizer=MODEL,tokenized_requests=False"
        ),
    )
}

impl TaskConfig {
    /// Reads a configuration whose files were included. `num_fewshot` replaces the file's number unless that is 0.
    ///
    /// # Errors
    /// A key that is unknown or needs Python; a value that is invalid.
    pub fn new(config: &Map<String, Value>, num_fewshot: Option<usize>) -> Result<TaskConfig> {
        let name = config.get("task").and_then(Value::as_str).unwrap_or_default().to_string();
        let wrong = |reason: String| Error::task(&name, reason);
        for (key, value) in config {
            let set = !matches!(value, Value::Null | Value::Bool(false));
            if let Some(called) = function(value) {
                return Err(needs_python(&name, &format!("`{key}: !function {called}`")));
            }
            if FOREIGN.contains(&key.as_str()) && set {
                return Err(needs_python(&name, &format!("`{key}`")));
            }
            if !KEYS.contains(&key.as_str()) && key != "dataset_revision" {
                return Err(wrong(format!("`{key}` is no key of a task")));
            }
        }
        let mut keys = with_defaults(config);
        let output = match keys["output_type"].as_str() {
            Some("multiple_choice") => OutputType::MultipleChoice,
            Some("loglikelihood") => OutputType::LogLikelihood,
            Some("loglikelihood_rolling") => OutputType::Rolling,
            Some("generate_until") => OutputType::GenerateUntil,
            _ => {
                return Err(wrong(format!(
                    "output_type {} is none of multiple_choice, loglikelihood, loglikelihood_rolling, generate_until",
                    keys["output_type"]
                )));
            }
        };
        if output == OutputType::GenerateUntil || keys.contains_key("generation_kwargs") {
            keys.insert("generation_kwargs".into(), generation(&keys));
        }
        let own = fewshot_keys(&name, &keys)?;
        let count = |key: &str| keys.get(key).and_then(Value::as_u64).map(|count| count as usize);
        let repeats = count("repeats").unwrap_or(1).max(1);
        let shots = match (count("num_fewshot"), num_fewshot) {
            (Some(0), _) => 0,
            (_, Some(wanted)) => wanted,
            (own, None) => own.unwrap_or(0),
        };
        keys.insert("num_fewshot".into(), shots.into());
        let samples = own.get("samples").and_then(Value::as_array).cloned();
        let fewshot = Fewshot {
            first_n: own["sampler"] == "first_n",
            split: own.get("split").and_then(Value::as_str).map(str::to_string),
            samples,
            own: own.clone(),
        };
        keys.insert("fewshot_config".into(), Value::Object(own));
        let measures = Measure::all(&keys, output).map_err(wrong)?;
        let programs = PassAtK::of(&measures, repeats).map_err(wrong)?;
        if programs.is_some() && output != OutputType::GenerateUntil {
            return Err(wrong("pass_at_k is of generated answers (`output_type: generate_until`)".into()));
        }
        if programs.is_none() && config.get("unsafe_code") == Some(&Value::Bool(true)) {
            return Err(wrong(
                "runs generated programs (`unsafe_code: true`) by code of its own; the metric `pass_at_k` runs them in a \
                 jail"
                    .into(),
            ));
        }
        let filters = Filters::all(keys.get("filter_list")).map_err(wrong)?;
        // The harness writes its keys in their own order.
        let keys = KEYS.iter().filter_map(|key| Some((key.to_string(), keys.get(*key)?.clone())));
        let keys: Map<String, Value> = keys.filter(|(_, value)| !value.is_null()).collect();
        Ok(TaskConfig { name, keys, output, fewshot, num_fewshot: shots, measures, filters, repeats })
    }

    /// A key's text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key)?.as_str()
    }

    /// The split that is evaluated.
    ///
    /// # Errors
    /// There is none.
    pub fn split(&self) -> Result<&str> {
        let split = self.text("test_split").or(self.text("validation_split"));
        split.ok_or_else(|| Error::task(&self.name, "names neither a `test_split` nor a `validation_split`"))
    }

    /// Version of the task.
    pub fn version(&self) -> Value {
        let version = self.keys.get("metadata").and_then(|metadata| metadata.get("version"));
        version.cloned().unwrap_or_else(|| "Yaml".into())
    }
}

fn with_defaults(config: &Map<String, Value>) -> Map<String, Value> {
    let mut keys = config.clone();
    ["tag", "group_alias"].iter().for_each(|key| _ = keys.shift_remove(*key));
    let defaults = json!({
        "unsafe_code": false, "description": "", "target_delimiter": " ", "fewshot_delimiter": "\n\n",
        "output_type": "generate_until", "repeats": 1, "should_decontaminate": false,
    });
    for (key, value) in defaults.as_object().into_iter().flatten() {
        keys.entry(key.clone()).or_insert_with(|| value.clone());
    }
    keys
}

/// `generation_kwargs` with the harness's defaults.
fn generation(keys: &Map<String, Value>) -> Value {
    let delimiter = keys["fewshot_delimiter"].clone();
    let Some(Value::Object(given)) = keys.get("generation_kwargs") else {
        return json!({"temperature": 0.0, "do_sample": false, "max_gen_toks": ANSWER_TOKENS, "until": [delimiter]});
    };
    let mut given = given.clone();
    if let Some(temperature) = given.get("temperature").and_then(Value::as_f64) {
        given.insert("temperature".into(), temperature.into());
    }
    given.entry("until").or_insert_with(|| json!([delimiter]));
    Value::Object(given)
}

/// `fewshot_config` with what it inherits from the task.
fn fewshot_keys(name: &str, keys: &Map<String, Value>) -> Result<Map<String, Value>> {
    let given = keys.get("fewshot_config").and_then(Value::as_object).cloned().unwrap_or_default();
    let of = |key: &str| keys.get(key).cloned().unwrap_or_default();
    let mut own = Map::new();
    own.insert("sampler".into(), "default".into());
    own.insert("split".into(), of("fewshot_split"));
    for key in ["process_docs", "fewshot_indices", "samples"] {
        own.insert(key.into(), Value::Null);
    }
    for key in [
        "doc_to_text",
        "doc_to_choice",
        "doc_to_target",
        "gen_prefix",
        "fewshot_delimiter",
        "target_delimiter",
    ] {
        own.insert(key.into(), of(key));
    }
    for (key, value) in given {
        if let Some(called) = function(&value) {
            return Err(needs_python(name, &format!("`fewshot_config.{key}: !function {called}`")));
        }
        if !own.contains_key(&key) {
            return Err(Error::task(name, format!("`{key}` is no key of `fewshot_config`")));
        }
        own.insert(key, value);
    }
    let sampler = own["sampler"].as_str().unwrap_or_default();
    if !["default", "first_n"].contains(&sampler) {
        return Err(Error::task(
            name,
            format!("fewshot sampler `{sampler}` is neither `default` nor `first_n`"),
        ));
    }
    Ok(own)
}
