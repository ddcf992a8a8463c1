//! All tasks, groups and tags that are known by name: those that are built in, and those of a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::builtin;
use super::languages;
use super::yaml::{self, FUNCTION};
use crate::error::{Error, Result};
use crate::{long, ruler};

/// Names that a message lists, at most.
const LISTED: usize = 40;

/// A file's configuration.
#[derive(Clone, Debug)]
struct Entry {
    /// Path of the file, as lm-evaluation-harness notes it (`config_source`).
    source: String,
    kind: Kind,
    config: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Task,
    Group,
}

/// A task or a group that was asked for.
#[derive(Clone, Debug)]
pub enum Node {
    /// A task's configuration, `include` resolved.
    Task(Map<String, Value>),
    /// A group.
    Group(GroupNode),
}

/// A group with its members.
#[derive(Clone, Debug)]
pub struct GroupNode {
    /// Name; that of a group written inside another one follows the other's: `outer::inner`.
    pub name: String,
    /// Name to show.
    pub alias: Option<String>,
    /// Metrics that are aggregated over its tasks.
    pub aggregated: Vec<Map<String, Value>>,
    /// Its `metadata`.
    pub metadata: Value,
    /// Members, in order.
    pub members: Vec<Node>,
}

/// All known names.
#[derive(Debug, Default)]
pub struct Index {
    entries: BTreeMap<String, Entry>,
    tags: BTreeMap<String, BTreeSet<String>>,
    /// Files that could not be read, and why.
    broken: Vec<(String, String)>,
}

impl Index {
    /// Reads the files under a folder, after those that are built in, which they replace.
    ///
    /// # Errors
    /// The folder cannot be read. A broken file is reported when a name is not found.
    pub fn open(folder: Option<&Path>) -> Result<Index> {
        let mut index = Index::default();
        for (name, text) in builtin::FILES {
            let found = yaml::read(text).and_then(|config| included(config, &mut builtin::include));
            index.add(format!("built in: {name}"), found);
        }
        for (source, files) in [
            ("mmlu_base.yaml", builtin::mmlu()),
            ("math_base.yaml", builtin::mathematics()),
            ("longbench.jsonl", builtin::longbench()),
        ] {
            for task in files.map_err(Error::Impossible)? {
                index.add(format!("built in: {source}"), Ok(task));
            }
        }
        for file in long::helmet_files() {
            index.add("built in: helmet.jsonl".into(), Ok(file));
        }
        index.draw(&[ruler::LENGTH]);
        let Some(folder) = folder else { return Ok(index) };
        if !folder.is_dir() {
            return Err(Error::Impossible(format!("--tasks-dir {}: is no folder", folder.display())));
        }
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
        let files = walkdir::WalkDir::new(&folder).sort_by_file_name().into_iter().filter_map(|it| it.ok());
        let mut paths: Vec<PathBuf> =
            files.map(walkdir::DirEntry::into_path).filter(|path| is_yaml(path)).collect();
        paths.sort();
        let mut own = BTreeSet::new();
        for path in paths {
            let name = index.add(path.display().to_string(), load(&path));
            if let Some(name) = name.filter(|name| !own.insert(name.clone())) {
                index.broken.push((path.display().to_string(), format!("`{name}` is defined by two files")));
            }
        }
        Ok(index)
    }

    /// Adds RULER's and NoLiMa's tasks at lengths in place of its usual one.
    pub fn draw(&mut self, lengths: &[usize]) {
        for file in ruler::task_files(lengths) {
            self.add("built in: ruler".into(), Ok(file));
        }
        for file in long::nolima_files(lengths) {
            self.add("built in: nolima".into(), Ok(file));
        }
    }

    /// Adds the tasks of sets with a part for each language, for the languages whose files are in a folder of sets.
    ///
    /// # Errors
    /// A built-in file cannot be read.
    pub fn add_languages(&mut self, folder: &Path) -> Result<()> {
        for file in languages::task_files(folder).map_err(Error::Impossible)? {
            self.add("built in: by language".into(), Ok(file));
        }
        Ok(())
    }

    /// Adds a file; returns the name it defines.
    fn add(&mut self, source: String, found: MappingResult) -> Option<String> {
        let config = match found {
            Ok(config) => config,
            Err(reason) => {
                self.broken.push((source, reason));
                return None;
            }
        };
        let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_string);
        let (kind, name) = match (text("group"), text("task")) {
            (Some(name), _) => (Kind::Group, name),
            (None, Some(name)) => (Kind::Task, name),
            // A file that others include.
            (None, None) => return None,
        };
        let tags = config.get("tag").filter(|_| kind == Kind::Task);
        let tags =
            tags.map_or_else(Vec::new, |tags| tags.as_array().cloned().unwrap_or_else(|| vec![tags.clone()]));
        for tag in tags.iter().filter_map(Value::as_str) {
            self.tags.entry(tag.to_string()).or_default().insert(name.clone());
        }
        self.entries.insert(name.clone(), Entry { source, kind, config });
        Some(name)
    }

    /// The tasks and groups of names, which may also be tags, patterns with `*`, or paths of files.
    ///
    /// # Errors
    /// A name that is not known; a group that holds itself.
    pub fn find(&self, names: &[String]) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
            nodes.extend(self.named(name, &Map::new(), &mut Vec::new())?);
        }
        if nodes.is_empty() {
            return Err(Error::Impossible("--tasks names no task".into()));
        }
        let mut seen = BTreeSet::new();
        for task in nodes.iter().flat_map(Node::task_names) {
            if !seen.insert(task.clone()) {
                return Err(Error::task(&task, "is named twice, alone or by two groups"));
            }
        }
        Ok(nodes)
    }

    fn named(&self, name: &str, over: &Map<String, Value>, open: &mut Vec<String>) -> Result<Vec<Node>> {
        if let Some(entry) = self.entries.get(name) {
            return match entry.kind {
                Kind::Task => Ok(vec![Node::Task(overridden(&entry.config, over, &entry.source))]),
                Kind::Group => {
                    if open.iter().any(|it| it == name) {
                        return Err(Error::task(name, "the group holds itself"));
                    }
                    open.push(name.to_string());
                    let group = self.group(name, &entry.config, over, open)?;
                    open.pop();
                    Ok(vec![Node::Group(group)])
                }
            };
        }
        if let Some(tasks) = self.tags.get(name) {
            return tasks.iter().map(|task| Ok(self.named(task, over, open)?.remove(0))).collect();
        }
        if name.contains('*') {
            let known = self.entries.keys().filter(|known| matches(name, known));
            let found: Vec<Vec<Node>> =
                known.map(|known| self.named(known, over, open)).collect::<Result<_>>()?;
            if !found.is_empty() {
                return Ok(found.concat());
            }
        }
        let path = Path::new(name);
        if is_yaml(path) && path.is_file() {
            let mut alone =
                Index { entries: self.entries.clone(), tags: self.tags.clone(), broken: Vec::new() };
            return match alone.add(path.display().to_string(), load(path)) {
                Some(own) => alone.named(&own, over, open),
                None => {
                    let reason =
                        alone.broken.pop().map_or("defines no task".to_string(), |(_, reason)| reason);
                    Err(Error::Impossible(format!("{name}: {reason}")))
                }
            };
        }
        Err(self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let mut message = format!("no task, group or tag is named `{name}`");
        if let Some(source) = languages::source(name) {
            message += &format!(
                "; it has a task for each language whose files --data-dir has, and none of them is there. People get them from {source}"
            );
            return Error::Impossible(message);
        }
        if name.starts_with(long::HELMET) {
            message += "; HELMET's tasks are of plain files: its summaries, citations, NarrativeQA and ∞Bench need a judge or \
                        other models, and are not here";
        }
        for (source, reason) in self.broken.iter().take(LISTED) {
            message += &format!("\n  {source}: {reason}");
        }
        let known: Vec<&str> = self.entries.keys().chain(self.tags.keys()).map(String::as_str).collect();
        message += &format!("\nknown: {}", known[..known.len().min(LISTED)].join(", "));
        if known.len() > LISTED {
            message += &format!(" and {} more", known.len() - LISTED);
        }
        Error::Impossible(message + "; --tasks-dir DIR adds a folder of task files")
    }

    fn group(
        &self,
        name: &str,
        config: &Map<String, Value>,
        over: &Map<String, Value>,
        open: &mut Vec<String>,
    ) -> Result<GroupNode> {
        const OWN: [&str; 5] = ["group", "group_alias", "task", "aggregate_metric_list", "metadata"];
        let others = config.iter().filter(|(key, _)| !OWN.contains(&key.as_str()) && *key != "tag");
        let mut all: Map<String, Value> = others.map(|(key, value)| (key.clone(), value.clone())).collect();
        all.extend(over.clone().into_iter().filter(|(key, _)| key != "task"));
        let mut members = Vec::new();
        for item in list(config.get("task")) {
            match &item {
                Value::String(member) => members.extend(self.named(member, &all, open)?),
                Value::Object(member) => members.extend(self.member(name, member, &all, open)?),
                other => {
                    return Err(Error::task(
                        name,
                        format!("a member of the group is neither a name nor a mapping: {other}"),
                    ));
                }
            }
        }
        if members.is_empty() {
            return Err(Error::task(name, "the group has no members"));
        }
        let aggregated = list(config.get("aggregate_metric_list")).into_iter();
        Ok(GroupNode {
            name: name.to_string(),
            alias: config.get("group_alias").and_then(Value::as_str).map(str::to_string),
            aggregated: aggregated.filter_map(|it| it.as_object().cloned()).collect(),
            metadata: config.get("metadata").cloned().unwrap_or_default(),
            members,
        })
    }

    /// Members of a group that are written as a mapping: a group inside it, or a task with other settings.
    fn member(
        &self,
        group: &str,
        member: &Map<String, Value>,
        over: &Map<String, Value>,
        open: &mut Vec<String>,
    ) -> Result<Vec<Node>> {
        let mut all = over.clone();
        if let Some(name) = member.get("group").and_then(Value::as_str) {
            if self.entries.contains_key(name) {
                all.extend(member.clone().into_iter().filter(|(key, _)| key != "group"));
                return self.named(name, &all, open);
            }
            if open.len() > self.entries.len() + LISTED {
                return Err(Error::task(group, "groups are nested too deep"));
            }
            let inner = self.group(&format!("{group}::{name}"), member, over, open)?;
            return Ok(vec![Node::Group(inner)]);
        }
        let Some(name) = member.get("task").and_then(Value::as_str) else {
            return Err(Error::task(group, "a member of the group has neither `task` nor `group`"));
        };
        all.extend(member.clone());
        if self.entries.contains_key(name) || self.tags.contains_key(name) {
            let is_tag = !self.entries.contains_key(name);
            all.retain(|key, _| key != "task" || !is_tag);
            return self.named(name, &all, open);
        }
        all.insert("task".into(), json!(format!("{group}::{name}")));
        Ok(vec![Node::Task(overridden(&all, &Map::new(), "inline"))])
    }
}

impl Node {
    /// Names of the tasks in it.
    pub fn task_names(&self) -> Vec<String> {
        match self {
            Node::Task(config) => {
                vec![config.get("task").and_then(Value::as_str).unwrap_or_default().to_string()]
            }
            Node::Group(group) => group.members.iter().flat_map(Node::task_names).collect(),
        }
    }

    /// Configurations of the tasks in it.
    pub fn tasks(&self) -> Vec<&Map<String, Value>> {
        match self {
            Node::Task(config) => vec![config],
            Node::Group(group) => group.members.iter().flat_map(Node::tasks).collect(),
        }
    }

    /// This group and the groups in it, outer ones first.
    pub fn groups(&self) -> Vec<&GroupNode> {
        match self {
            Node::Task(_) => Vec::new(),
            Node::Group(group) => {
                std::iter::once(group).chain(group.members.iter().flat_map(Node::groups)).collect()
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> String {
        match self {
            Node::Task(_) => self.task_names().remove(0),
            Node::Group(group) => group.name.clone(),
        }
    }
}

/// A value as a list: none is empty, a single one is a list of it.
fn list(value: Option<&Value>) -> Vec<Value> {
    match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items.clone(),
        Some(other) => vec![other.clone()],
    }
}

fn overridden(config: &Map<String, Value>, over: &Map<String, Value>, source: &str) -> Map<String, Value> {
    let mut config = config.clone();
    config.extend(over.clone());
    ["tag", "group", "task_list"].iter().for_each(|key| _ = config.shift_remove(*key));
    let mut metadata = match config.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        None => Map::new(),
        Some(other) => [("_metadata".to_string(), other.clone())].into_iter().collect(),
    };
    if source != "inline" {
        metadata.insert("config_source".into(), source.into());
    }
    config.insert("metadata".into(), Value::Object(metadata));
    config
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// True if a name fits a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let (first, rest) = pattern.split_once('*').unwrap_or((pattern, ""));
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    if pattern.contains('*') { name.ends_with(last) } else { name.is_empty() }
}

/// A file with what it includes.
fn load(path: &Path) -> MappingResult {
    let mut open = BTreeSet::new();
    load_in(path, &mut open)
}

fn load_in(path: &Path, open: &mut BTreeSet<PathBuf>) -> MappingResult {
    let real = path.canonicalize().map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if !open.insert(real.clone()) {
        return Err(format!("{} includes itself", real.display()));
    }
    let text =
        std::fs::read_to_string(&real).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let config = yaml::read(&text).map_err(|reason| format!("{}: {reason}", path.display()))?;
    let folder = real.parent().map(Path::to_path_buf).unwrap_or_default();
    let found = included(config, &mut |name| load_in(&folder.join(name), open));
    open.remove(&real);
    found
}

/// A file's mapping, or why there is none.
type MappingResult = std::result::Result<Map<String, Value>, String>;

/// A configuration over those that it includes.
fn included(mut config: Map<String, Value>, read: &mut dyn FnMut(&str) -> MappingResult) -> MappingResult {
    let includes = list(config.shift_remove("include").as_ref());
    if includes.is_empty() {
        return Ok(config);
    }
    let mut merged = Map::new();
    for name in includes {
        let name = name.as_str().ok_or("`include` names files")?;
        let mut other = read(name)?;
        other.shift_remove("task_list");
        merged.extend(other);
    }
    merged.extend(config);
    Ok(merged)
}

/// Name of the Python function that a value stands for.
pub fn function(value: &Value) -> Option<&str> {
    value.get(FUNCTION)?.as_str()
}
