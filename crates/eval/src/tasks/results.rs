//! Results as lm-evaluation-harness writes them, and its table.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::config::TaskConfig;
use super::doc::Doc;
use super::filters::Answers;
use super::index::GroupNode;
use super::measure::OutputType;
use crate::metrics::aggregate::{ItemValue, pooled_error, unweighted_error};
use crate::python::printed;

/// Written where there is no standard error.
const NONE: &str = "N/A";

/// Result of a task.
#[derive(Clone, Debug)]
pub struct TaskResult {
    /// Its configuration.
    pub config: TaskConfig,
    /// Number of items of its split.
    pub original: usize,
    /// Number of items that were asked.
    pub effective: usize,
    /// Number of requests whose context was cut from the left.
    pub cut: usize,
    /// Number of requests.
    pub requests: usize,
    /// Metric, filter, figure and standard error.
    pub figures: Vec<(String, String, f64, Option<f64>)>,
    /// A log entry per item and filter.
    pub samples: Vec<Value>,
}

/// An item and its answers.
pub struct Sample<'s> {
    /// Index of the item.
    pub id: usize,
    /// Its row.
    pub doc: &'s Doc,
    /// Its target.
    pub target: Value,
    /// Texts of the requests.
    pub arguments: &'s [[String; 2]],
    /// The answers, per request and repeat.
    pub answers: &'s [Vec<Value>],
    /// The filtered answers.
    pub filtered: &'s [Answers],
}

impl std::fmt::Debug for Sample<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Sample<'_> {
    /// The log entry.
    pub fn json(&self, config: &TaskConfig, filter: &str, values: &[(String, ItemValue)]) -> Value {
        let named =
            |prefix: &'static str| move |(at, value): (usize, Value)| (format!("{prefix}_{at}"), value);
        let arguments = self.arguments.iter().map(|asked| {
            Value::Object(logged(config, asked).into_iter().enumerate().map(named("arg")).collect())
        });
        let arguments: Map<String, Value> = arguments.enumerate().map(named("gen_args")).collect();
        let doc = Value::Object(self.doc.clone());
        let prompt = self.arguments.first().map_or("", |asked| asked[0].as_str());
        let target = printed::text(&self.target);
        let mut entry = json!({
            "doc_id": self.id,
            "doc": doc,
            "target": target,
            "arguments": arguments,
            "resps": self.answers,
            "filtered_resps": self.filtered.iter().map(Answers::json).collect::<Vec<_>>(),
            "filter": filter,
            "metrics": values.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "doc_hash": digest(&printed::json(&doc, Some(2))),
            "prompt_hash": digest(prompt),
            "target_hash": digest(&target),
        });
        if let Value::Object(entry) = &mut entry {
            entry.extend(values.iter().map(|(name, value)| (name.clone(), item(value))));
        }
        entry
    }
}

/// SHA-256 of a text in hexadecimal.
pub fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn item(value: &ItemValue) -> Value {
    match value {
        ItemValue::Number(number) => json!(number),
        ItemValue::Weighted(sum, of) => json!([sum, *of as u64]),
        ItemValue::Classes(gold, found) => json!([gold, found]),
        ItemValue::Probabilities(gold, all) => json!([gold, all]),
        ItemValue::Texts(golds, answer) if golds.len() == 1 => json!([golds[0], answer]),
        ItemValue::Texts(golds, answer) => json!([golds, answer]),
    }
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Results {
    /// The tasks, in order.
    pub tasks: Vec<TaskResult>,
    /// Aggregated figures of groups, outer ones first.
    groups: Vec<GroupResult>,
    /// Items per task, at most.
    pub limit: Option<f64>,
}

#[derive(Clone, Debug)]
struct GroupResult {
    name: String,
    alias: String,
    members: Vec<String>,
    version: Value,
    figures: Map<String, Value>,
    aggregates: bool,
}

impl Results {
    /// Aggregates the results of tasks over groups.
    pub fn new(tasks: Vec<TaskResult>, groups: &[&GroupNode], limit: Option<f64>) -> Results {
        let groups = groups.iter().map(|group| GroupResult::new(group, &tasks)).collect();
        Results { tasks, groups, limit }
    }

    /// The object that the harness writes, without what it notes of itself.
    pub fn json(&self) -> Map<String, Value> {
        let mut results: Map<String, Value> =
            self.tasks.iter().map(|task| (task.config.name.clone(), task.json().into())).collect();
        // Inner groups first.
        results.extend(self.groups.iter().rev().map(|group| (group.name.clone(), group.json())));
        let named = |of: &dyn Fn(&TaskResult) -> Value| -> Map<String, Value> {
            self.tasks.iter().map(|task| (task.config.name.clone(), of(task))).collect()
        };
        let sorted = |mut map: Map<String, Value>| {
            map.sort_keys();
            Value::Object(map)
        };
        let mut shots = named(&|task| task.config.num_fewshot.into());
        let mut better = named(&|task| {
            let of = task.config.measures.iter().map(|it| (it.name.clone(), it.higher_is_better.into()));
            Value::Object(of.collect())
        });
        for group in &self.groups {
            let mut counts: Vec<&Value> =
                group.members.iter().filter_map(|member| shots.get(member)).collect();
            counts.dedup();
            if let [count] = counts[..] {
                let count = count.clone();
                shots.insert(group.name.clone(), count);
            }
            let mut own = Map::new();
            for of in group.members.iter().filter_map(|member| better.get(member)?.as_object()) {
                for (metric, direction) in of {
                    let known = own.entry(metric.clone()).or_insert_with(|| direction.clone());
                    if known != direction {
                        *known = Value::Null;
                    }
                }
            }
            if !own.is_empty() {
                better.insert(group.name.clone(), own.into());
            }
        }
        let mut versions = named(&|task| task.config.version());
        versions.extend(self.groups.iter().map(|group| (group.name.clone(), group.version.clone())));
        let mut all = Map::new();
        all.insert("results".into(), results.into());
        let aggregated: Map<String, Value> = self
            .groups
            .iter()
            .rev()
            .filter(|it| it.aggregates)
            .map(|it| (it.name.clone(), it.json()))
            .collect();
        if !aggregated.is_empty() {
            all.insert("groups".into(), aggregated.into());
        }
        let members = self.groups.iter().map(|it| (it.name.clone(), json!(it.members)));
        all.insert("group_subtasks".into(), Value::Object(members.collect()));
        all.insert("configs".into(), sorted(named(&|task| task.config.keys.clone().into())));
        all.insert("versions".into(), sorted(versions));
        all.insert("n-shot".into(), sorted(shots));
        all.insert("higher_is_better".into(), sorted(better));
        let counts = named(&|task| json!({"original": task.original, "effective": task.effective}));
        all.insert("n-samples".into(), counts.into());
        all
    }

    /// Hash of what was asked in each task.
    pub fn hashes(&self) -> Map<String, Value> {
        let of = |task: &TaskResult| {
            let text = |sample: &Value, key: &str| sample[key].as_str().unwrap_or_default().to_string();
            let one = |sample: &Value| {
                ["doc_hash", "prompt_hash", "target_hash"].map(|key| text(sample, key)).concat()
            };
            digest(&task.samples.iter().map(one).collect::<String>())
        };
        self.tasks.iter().map(|task| (task.config.name.clone(), of(task).into())).collect()
    }

    /// The harness's table, as Markdown.
    pub fn table(&self) -> String {
        let mut rows = vec![
            ["Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"]
                .map(str::to_string)
                .to_vec(),
        ];
        let json = self.json();
        let mut shown: Vec<(String, String)> = Vec::new();
        let inner: Vec<&String> = self.groups.iter().flat_map(|group| &group.members).collect();
        for group in self.groups.iter().filter(|group| !inner.contains(&&group.name)) {
            self.listed(group, 0, &mut shown);
        }
        let alone = self.tasks.iter().filter(|task| !inner.contains(&&task.config.name));
        shown.extend(alone.map(|task| (task.config.name.clone(), task.alias())));
        for (name, alias) in shown {
            let (figures, better) = (&json["results"][&name], &json["higher_is_better"][&name]);
            let shots = json["n-shot"].get(&name).map_or(String::new(), Value::to_string);
            let mut first = [alias, printed::text(&json["versions"][&name])];
            let figures = figures.as_object().into_iter().flatten().filter(|(key, _)| key.contains(','));
            let mut figures: Vec<(&String, &Value)> =
                figures.filter(|(key, _)| !key.contains("_stderr,")).collect();
            figures.sort_by_key(|(key, _)| *key);
            for (key, value) in figures {
                let (metric, filter) = key.split_once(',').unwrap_or((key, ""));
                let sign = match better[metric].as_bool() {
                    Some(true) => "↑",
                    Some(false) => "↓",
                    None => "",
                };
                let error = &json["results"][&name][format!("{metric}_stderr,{filter}")];
                let number = |value: &Value| value.as_f64().map_or(NONE.to_string(), |it| format!("{it:.4}"));
                let [alias, version] = std::mem::take(&mut first);
                let cells: [&str; 9] =
                    [&alias, &version, filter, &shots, metric, sign, &number(value), "±", &number(error)];
                rows.push(cells.map(|cell: &str| cell.to_string()).to_vec());
            }
        }
        markdown(&rows)
    }

    fn listed(&self, group: &GroupResult, depth: usize, shown: &mut Vec<(String, String)>) {
        let indented = |depth: usize, alias: &str| match depth {
            0 => alias.to_string(),
            depth => format!("{}- {alias}", " ".repeat(depth)),
        };
        shown.push((group.name.clone(), indented(depth, &group.alias)));
        for member in &group.members {
            if let Some(inner) = self.groups.iter().find(|it| it.name == *member) {
                self.listed(inner, depth + 1, shown);
            } else if let Some(task) = self.tasks.iter().find(|it| it.config.name == *member) {
                shown.push((member.clone(), indented(depth + 1, &task.alias())));
            }
        }
    }
}

impl TaskResult {
    fn alias(&self) -> String {
        self.config.text("task_alias").unwrap_or(&self.config.name).to_string()
    }

    fn json(&self) -> Map<String, Value> {
        let mut all = Map::new();
        all.insert("name".into(), self.config.name.clone().into());
        all.insert("alias".into(), self.alias().into());
        all.insert("sample_len".into(), self.effective.into());
        for (name, filter, figure, error) in &self.figures {
            all.insert(format!("{name},{filter}"), json!(figure));
            let error = error.map_or_else(|| NONE.into(), |error| json!(error));
            all.insert(format!("{name}_stderr,{filter}"), error);
        }
        all
    }

    fn figure(&self, metric: &str, filter: &str) -> Option<(f64, Option<f64>)> {
        let found = self.figures.iter().find(|(name, of, ..)| name == metric && of == filter);
        found.map(|(_, _, figure, error)| (*figure, *error))
    }
}

impl GroupResult {
    fn new(group: &GroupNode, tasks: &[TaskResult]) -> GroupResult {
        let leaves: Vec<String> = group.members.iter().flat_map(super::index::Node::task_names).collect();
        let leaves: Vec<&TaskResult> =
            leaves.iter().filter_map(|name| tasks.iter().find(|task| task.config.name == *name)).collect();
        let mut figures = Map::new();
        let mut counts = Map::new();
        for entry in &group.aggregated {
            let Some(metric) = entry.get("metric").and_then(Value::as_str) else { continue };
            let weighs = entry.get("weight_by_size").and_then(Value::as_bool).unwrap_or(true);
            let filters: Vec<String> = match entry.get("filter_list") {
                Some(Value::String(filter)) => vec![filter.clone()],
                Some(Value::Array(all)) => {
                    all.iter().filter_map(|it| it.as_str().map(str::to_string)).collect()
                }
                _ => {
                    let of = leaves.iter().flat_map(|task| &task.figures).filter(|it| it.0 == metric);
                    let mut all: Vec<String> = of.map(|it| it.1.clone()).collect();
                    all.sort();
                    all.dedup();
                    all
                }
            };
            for filter in filters {
                let found: Vec<(usize, f64, Option<f64>)> = leaves
                    .iter()
                    .filter_map(|task| {
                        task.figure(metric, &filter).map(|(x, error)| (task.effective, x, error))
                    })
                    .collect();
                if found.is_empty() {
                    continue;
                }
                let sizes: Vec<usize> = found.iter().map(|it| it.0).collect();
                let weight = |size: usize| if weighs { size as f64 } else { 1.0 };
                let sum: f64 = found.iter().map(|it| it.1 * weight(it.0)).sum();
                let of: f64 = sizes.iter().map(|size| weight(*size)).sum();
                figures.insert(format!("{metric},{filter}"), json!(sum / of));
                counts.insert(format!("{metric},{filter}"), sizes.iter().sum::<usize>().into());
                let errors: Option<Vec<f64>> = found.iter().map(|it| it.2).collect();
                let error = errors.map(|errors| {
                    if weighs { pooled_error(&errors, &sizes) } else { unweighted_error(&errors) }
                });
                figures.insert(
                    format!("{metric}_stderr,{filter}"),
                    error.map_or_else(|| NONE.into(), |it| json!(it)),
                );
            }
        }
        if !group.aggregated.is_empty() {
            let all: usize = leaves.iter().map(|task| task.effective).sum();
            figures.insert("sample_len".into(), all.into());
        }
        if !counts.is_empty() {
            figures.insert("sample_count".into(), counts.into());
        }
        let version = group.metadata.get("version").map_or_else(|| NONE.to_string(), printed::text);
        GroupResult {
            name: group.name.clone(),
            alias: group.alias.clone().unwrap_or_else(|| group.name.clone()),
            members: group.members.iter().map(super::index::Node::name).collect(),
            version: version.into(),
            figures,
            aggregates: !group.aggregated.is_empty(),
        }
    }

    fn json(&self) -> Value {
        let mut all = Map::new();
        all.insert("alias".into(), self.alias.clone().into());
        all.insert("name".into(), self.name.clone().into());
        all.extend(self.figures.clone());
        Value::Object(all)
    }
}

/// A table with columns of equal widths; the last columns hold numbers.
fn markdown(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let is_number = |column: usize| matches!(column, 1 | 3 | 6 | 8);
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            if is_number(column) && at > 0 { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        out += &format!("|{}|\n", cells.collect::<Vec<_>>().join("|"));
        if at == 0 {
            let lines = widths.iter().enumerate().map(|(column, width)| {
                let line = "-".repeat((*width).max(1).saturating_sub(usize::from(is_number(column))));
                if is_number(column) { format!("{line}:") } else { line }
            });
            out += &format!("|{}|\n", lines.collect::<Vec<_>>().join("|"));
        }
    }
    out
}

/// Arguments of a request as the harness logs them.
pub(super) fn logged(config: &TaskConfig, [first, second]: &[String; 2]) -> Vec<Value> {
    match config.output {
        OutputType::Rolling => vec![first.clone().into()],
        OutputType::GenerateUntil => vec![first.clone().into(), config.keys["generation_kwargs"].clone()],
        _ => vec![first.clone().into(), second.clone().into()],
    }
}
