//! A run over tasks: contexts with examples, requests, filters, metrics.

use serde_json::{Map, Value, json};

use super::config::TaskConfig;
use super::data::{Data, Sets, Split, fewshot_split};
use super::doc::Doc;
use super::filters::{Answers, Filters};
use super::index::{GroupNode, Node};
use super::measure::OutputType;
use super::measures::values;
use super::pass_at_k::PASS_AT_K;
use super::programs::{self, RunPrograms};
use super::prompt::{Message, Writer, joined};
use super::results::{Results, Sample, TaskResult};
use super::subject::Subject;
use crate::error::{Error, Result};
use crate::metrics::aggregate::ItemValue;
use crate::python::printed;
use crate::python::random::Random;

/// Renders a conversation, given as messages, to a prompt; true adds the beginning of an answer.
pub type Render<'r> = &'r dyn Fn(&[Value], bool) -> Result<String>;

/// Options of a run.
#[derive(Clone, Default)]
pub struct Options<'r> {
    /// Items per task, at most; below 1 a share of them.
    pub limit: Option<f64>,
    /// Number of examples, for tasks whose file does not say 0.
    pub num_fewshot: Option<usize>,
    /// Resamples of the bootstrap; 0 for no standard errors.
    pub resamples: usize,
    /// Chat template that contexts go through.
    pub chat: Option<Render<'r>>,
    /// True if examples are turns of a conversation of their own.
    pub multiturn: bool,
    /// Text before the descriptions of tasks.
    pub system: Option<String>,
    /// Runs generated programs; without it, tasks that need it are refused.
    pub run_programs: Option<RunPrograms<'r>>,
    /// Called with what is being done.
    pub doing: Option<&'r dyn Fn(&str)>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Options<'_> {
    /// Number of items that are asked, of `all`.
    fn items(&self, all: usize) -> usize {
        match self.limit.map(|limit| if limit < 1.0 { (all as f64 * limit).ceil() } else { limit }) {
            Some(limit) if limit >= 1.0 => all.min(limit as usize),
            _ => all,
        }
    }
}

/// Seed of the examples, that of the harness.
const SEED: u64 = 1234;

/// Reads the configurations and sets of all tasks, so that what is missing shows before the first is run.
///
/// # Errors
/// A configuration or a set that cannot be used.
pub fn prepare(nodes: &[Node], sets: &Sets<'_>, options: &Options<'_>) -> Result<Vec<(TaskConfig, Data)>> {
    let configs = nodes.iter().flat_map(Node::tasks);
    let one = |config: &Map<String, Value>| {
        let config = TaskConfig::new(config, options.num_fewshot)?;
        if options.run_programs.is_none() && config.measures.iter().any(|measure| measure.name == PASS_AT_K) {
            return Err(programs::not_allowed(&config.name));
        }
        let data = Data::open(&config, sets, &|rows| options.items(rows))?;
        Ok((config, data))
    };
    configs.map(one).collect()
}

/// Runs prepared tasks.
///
/// # Errors
/// A template, a row or a label that cannot be used; the model fails.
pub fn run(
    nodes: &[Node],
    prepared: &[(TaskConfig, Data)],
    subject: &mut Subject<'_>,
    options: &Options<'_>,
) -> Result<Results> {
    let mut tasks = Vec::with_capacity(prepared.len());
    for (config, data) in prepared {
        if let Some(doing) = options.doing {
            doing(&config.name);
        }
        tasks.push(run_task(config, data, subject, options)?);
    }
    let groups: Vec<&GroupNode> = nodes.iter().flat_map(Node::groups).collect();
    Ok(Results::new(tasks, &groups, options.limit))
}

/// Requests of an item: pairs, a text, or a prompt.
struct Requests {
    arguments: Vec<[String; 2]>,
}

fn run_task(
    config: &TaskConfig,
    data: &Data,
    subject: &mut Subject<'_>,
    options: &Options<'_>,
) -> Result<TaskResult> {
    let split = data.split(config.split()?);
    let writer = Writer::new(config, &split.columns, &split.rows[0])?;
    let original = split.rows.len();
    let docs = &split.rows[..options.items(original)];
    let mut examples = Examples::new(config, data);
    // Prompts of some tasks are no questions, and stay as they are.
    let is_plain = config.keys.get("metadata").is_some_and(|metadata| metadata["chat_template"] == false);
    let options = &Options { chat: options.chat.filter(|_| !is_plain), ..options.clone() };
    let mut asked = Vec::with_capacity(docs.len());
    for doc in docs {
        let shown = examples.draw(doc)?;
        let messages = writer.context(doc, &shown, options.system.as_deref())?;
        let prefix = writer.prefix(doc)?;
        let contexts: Vec<String> =
            messages.into_iter().map(|it| contextual(it, &prefix, options)).collect::<Result<_>>()?;
        asked.push(Requests { arguments: arguments(config, &writer, doc, contexts, options)? });
    }
    let (cut, before) = (subject.cut, subject.asked);
    let answers = answer(config, &asked, subject).map_err(|error| match error {
        Error::Impossible(reason) => Error::task(&config.name, reason),
        other => other,
    })?;
    let mut result = TaskResult {
        config: config.clone(),
        original,
        effective: docs.len(),
        cut: subject.cut - cut,
        requests: subject.asked - before,
        figures: Vec::new(),
        samples: Vec::new(),
    };
    for filters in &config.filters {
        let mut raw: Vec<(String, Vec<ItemValue>)> = Vec::new();
        let filtered: Vec<Vec<Answers>> = filtered(config, filters, docs, &answers)?;
        let programs = programs::values((config, &writer), docs, &filtered, options.run_programs)?;
        let items = docs.iter().zip(asked.iter().zip(&answers)).zip(filtered.iter().zip(programs));
        for (at, ((doc, (asked, answers)), (filtered, of_programs))) in items.enumerate() {
            let mut found = values(config, &writer, doc, filtered)?;
            found.extend(of_programs);
            for (name, value) in &found {
                match raw.iter_mut().find(|(known, _)| known == name) {
                    Some((_, all)) => all.push(value.clone()),
                    None => raw.push((name.clone(), vec![value.clone()])),
                }
            }
            let target = writer.target(doc)?;
            let kept = Sample { id: at, doc, target, arguments: &asked.arguments, answers, filtered };
            result.samples.push(kept.json(config, &filters.name, &found));
        }
        for (name, items) in raw {
            let known = config.measures.iter().find(|measure| measure.name == name);
            let aggregation = known.map_or(crate::metrics::aggregate::Aggregation::Mean, |it| it.aggregation);
            let (figure, error) = aggregation.figure(&items, options.resamples);
            result.figures.push((name, filters.name.clone(), figure, error));
        }
    }
    Ok(result)
}

/// The answers of all items after a pipeline of filters.
fn filtered(
    config: &TaskConfig,
    filters: &Filters,
    docs: &[Doc],
    answers: &[Vec<Vec<Value>>],
) -> Result<Vec<Vec<Answers>>> {
    let one = |(doc, answers): (&Doc, &Vec<Vec<Value>>)| {
        let filter = |answers: &Vec<Value>| {
            let filtered = filters.apply(Answers::Many(answers.clone()), doc);
            filtered
                .map_err(|reason| Error::task(&config.name, format!("filter `{}`: {reason}", filters.name)))
        };
        answers.iter().map(filter).collect()
    };
    docs.iter().zip(answers).map(one).collect()
}

/// The examples of items, drawn in the order of the items.
struct Examples<'d> {
    config: &'d TaskConfig,
    pool: Vec<Doc>,
    /// True if the items are of the same split, so that an item is left out of its examples.
    same: bool,
    random: Random,
}

impl<'d> Examples<'d> {
    fn new(config: &'d TaskConfig, data: &'d Data) -> Examples<'d> {
        let split = || fewshot_split(config).map(|name| data.split(&name));
        let pool = match (&config.fewshot.samples, config.num_fewshot) {
            (_, 0) => Vec::new(),
            (Some(samples), _) if config.fewshot.split.is_none() => {
                samples.iter().filter_map(|row| row.as_object().cloned()).collect()
            }
            _ => split().map_or_else(Vec::new, |split: &Split| split.rows.clone()),
        };
        let same = config.fewshot.split.as_deref() == config.text("test_split");
        Examples { config, pool, same, random: Random::new(SEED) }
    }

    fn draw(&mut self, doc: &Doc) -> Result<Vec<&Doc>> {
        let wanted = self.config.num_fewshot;
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let too_few = |rows: usize| {
            Error::task(
                &self.config.name,
                format!("{wanted} examples are wanted, and there are {rows} rows for them"),
            )
        };
        let is_other = |other: &&Doc| !self.same || *other != doc;
        if self.config.fewshot.first_n {
            let found: Vec<&Doc> = self.pool.iter().filter(is_other).take(wanted).collect();
            return if found.len() < wanted { Err(too_few(found.len())) } else { Ok(found) };
        }
        let rows = self.pool.len();
        let drawn = self.random.sample(rows, wanted + usize::from(self.same)).ok_or_else(|| too_few(rows))?;
        let found: Vec<&Doc> =
            drawn.into_iter().map(|at| &self.pool[at]).filter(is_other).take(wanted).collect();
        if found.len() == wanted {
            return Ok(found);
        }
        // Copies of the item were drawn.
        let others: Vec<&Doc> = self.pool.iter().filter(is_other).collect();
        let drawn = self.random.sample(others.len(), wanted).ok_or_else(|| too_few(others.len()))?;
        Ok(drawn.into_iter().map(|at| others[at]).collect())
    }
}

/// The text of a context, through the chat template if there is one.
fn contextual(messages: Vec<Message>, prefix: &str, options: &Options<'_>) -> Result<String> {
    let Some(render) = options.chat else { return Ok(joined(&messages)) };
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns: Vec<Value> = if options.multiturn {
        messages.iter().map(|message| said(message.role, &message.content)).collect()
    } else {
        let is_system = messages.first().is_some_and(|first| first.role == "system");
        let (system, rest) = messages.split_at(usize::from(is_system));
        let ends = rest.last().is_some_and(|last| last.role == "assistant");
        let (user, assistant) = rest.split_at(rest.len() - usize::from(ends));
        let mut user = user.to_vec();
        if let Some(last) = user.last_mut() {
            last.delimiter.clear();
        }
        let system = system.iter().map(|it| said("system", &it.content));
        let user = std::iter::once(said("user", &joined(&user)));
        system.chain(user).chain(assistant.iter().map(|it| said("assistant", &it.content))).collect()
    };
    render(&turns, prefix.is_empty())
}

/// Requests about an item: context and continuation, or a text, or a prompt and its settings.
fn arguments(
    config: &TaskConfig,
    writer: &Writer<'_>,
    doc: &Doc,
    mut contexts: Vec<String>,
    options: &Options<'_>,
) -> Result<Vec<[String; 2]>> {
    let target = || writer.target(doc).map(|target| printed::text(&target));
    Ok(match config.output {
        OutputType::LogLikelihood => vec![[contexts.remove(0), target()?]],
        OutputType::Rolling => vec![[target()?, String::new()]],
        OutputType::GenerateUntil => vec![[contexts.remove(0), String::new()]],
        OutputType::MultipleChoice => {
            let own = config.text("target_delimiter").unwrap_or_default();
            let prefix = config.text("gen_prefix").unwrap_or_default();
            let keeps =
                options.chat.is_none() || (!prefix.is_empty() && !prefix.ends_with(crate::python::is_space));
            let delimiter = if keeps { own } else { "" };
            let continuation = |text: &str| format!("{delimiter}{text}");
            let choices = writer.choices(doc)?;
            let mut all: Vec<[String; 2]> = if writer.many_inputs {
                let target = target()?;
                contexts.into_iter().map(|context| [context, continuation(&target)]).collect()
            } else {
                choices.iter().map(|choice| [contexts[0].clone(), continuation(choice)]).collect()
            };
            if config.measures.iter().any(|measure| measure.name == "acc_mutual_info") {
                all.extend(choices.iter().map(|choice| [String::new(), continuation(choice)]));
            }
            all
        }
    })
}

/// The answers to all requests: per item and request one for each repeat.
fn answer(
    config: &TaskConfig,
    asked: &[Requests],
    subject: &mut Subject<'_>,
) -> Result<Vec<Vec<Vec<Value>>>> {
    let all: Vec<&[String; 2]> = asked.iter().flat_map(|asked| &asked.arguments).collect();
    let first = |it: &&[String; 2]| it[0].clone();
    let mut answers: Vec<Vec<Value>> = vec![Vec::new(); all.len()];
    let mut push = |found: Vec<Value>| answers.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
    for repeat in 0..config.repeats {
        match config.output {
            OutputType::MultipleChoice | OutputType::LogLikelihood => {
                let pairs: Vec<(String, String)> =
                    all.iter().map(|it| (it[0].clone(), it[1].clone())).collect();
                push(
                    subject
                        .likelihoods(&pairs)?
                        .into_iter()
                        .map(|(sum, greedy)| json!([sum, greedy]))
                        .collect(),
                );
            }
            OutputType::Rolling => {
                let texts: Vec<String> = all.iter().map(first).collect();
                push(subject.rolling(&texts)?.into_iter().map(Value::from).collect());
            }
            OutputType::GenerateUntil => {
                let settings = config.keys["generation_kwargs"].as_object().cloned().unwrap_or_default();
                let asks: Vec<(String, Map<String, Value>)> =
                    all.iter().map(|it| (it[0].clone(), settings.clone())).collect();
                push(subject.generate(&asks, repeat)?.into_iter().map(Value::from).collect());
            }
        }
    }
    let mut rest = answers.into_iter();
    Ok(asked.iter().map(|asked| rest.by_ref().take(asked.arguments.len()).collect()).collect())
}
