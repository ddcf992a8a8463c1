//! Answers of a model that another one judges: against the answers of a file, or by ratings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fathom_base::{Conversation, Describe, GenerateRequest, LanguageModel, Prompt, Sampling, Tokenize};
use fathom_eval::judged::{
    Judgement, Order, RESAMPLES, Rate, Rates, compare, interval, rate, rating, verdict,
};
use fathom_serve::bench::{Target, post_all};
use fathom_text::lessons::Rows;
use serde_json::{Value, json};

use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::host::{Host, HostOptions};
use crate::machine::Machine;

/// Answers that are generated at once.
const SEQUENCES: usize = 16;
/// Requests to a server between two events.
const BATCH: usize = 8;

/// The model that judges.
#[derive(Clone, Debug)]
pub enum Judge {
    /// In a folder.
    Local(PathBuf),
    /// Behind a server of OpenAI's chat completions, with the name of one of its models.
    Remote(Target, Option<String>),
}

/// Options of judged answers.
#[derive(Clone, Debug)]
pub struct Request {
    /// Folder of a run, a Hugging Face folder, or a file of answers: rows of `instruction` and `output`.
    pub model: PathBuf,
    /// Adapter over it: its folder, or that of its run.
    pub adapter: Option<PathBuf>,
    /// Who judges.
    pub judge: Judge,
    /// File of answers to compare with: rows of `instruction` and `output`. Without it, answers are rated.
    pub against: Option<PathBuf>,
    /// File of instructions whose answers are rated.
    pub instructions: Option<PathBuf>,
    /// Context in tokens; `None` for the models' own.
    pub tokens: Option<usize>,
    /// Tokens of an answer, at most.
    pub answer_tokens: usize,
    /// Tokens of a judge's text, at most.
    pub judge_tokens: usize,
    /// File of the results; every text of the judge goes next to it.
    pub out: Option<PathBuf>,
}

/// Result of judged answers.
#[derive(Debug)]
pub struct Verdicts {
    /// Rates of comparisons.
    pub rates: Option<Rates>,
    /// Mean rating from 1 to 10.
    pub rating: Option<Rate>,
    /// Number of instructions.
    pub items: usize,
    /// Number of requests to the judge.
    pub asked: usize,
    /// Number of its texts that hold no verdict.
    pub unread: usize,
    /// Content of the file of the results.
    pub json: Value,
}

/// An instruction with an answer, where there is one.
struct Item {
    instruction: String,
    output: Option<String>,
    difficulty: Option<f64>,
}

/// Has answers judged.
///
/// # Errors
/// Files without instructions or answers; a server that refuses; no verdict that can be read.
pub fn judged(request: &Request, machine: &Machine, events: &dyn Events) -> Result<Verdicts> {
    let (against, file) = (request.against.as_deref(), request.instructions.as_deref());
    let is_file = is_answers(&request.model);
    let source = match against.or(file).or(is_file.then_some(request.model.as_path())) {
        Some(source) => source,
        None => refuse!(
            "--judge needs --against FILE, or --instructions FILE for ratings: rows of `instruction` and `output`"
        ),
    };
    let items = items(source)?;
    let answers = answers(request, &items, (machine, events))?;
    let mut prompts = Vec::new();
    for (item, answer) in items.iter().zip(&answers) {
        match (against, &item.output) {
            (None, _) => prompts.push(rate(&item.instruction, answer)),
            (Some(_), Some(other)) => {
                let both = [Order::First, Order::Second];
                prompts.extend(both.map(|order| compare(&item.instruction, answer, other, order)));
            }
            (Some(path), None) => {
                refuse!("{}: the instruction `{:.60}` has no `output`", path.display(), item.instruction)
            }
        }
    }
    let texts = asked(request, &prompts, (machine, events))?;
    let mut found =
        if against.is_some() { compared(&items, &answers, &texts) } else { rated(&items, &texts) };
    if found.rates.is_none() && found.rating.is_none() {
        let last = texts.iter().flatten().next_back().map_or("", String::as_str);
        refuse!(
            "the judge gave no verdict that can be read in {} texts; the last one: `{last:.200}`",
            texts.len()
        );
    }
    let judge = match &request.judge {
        Judge::Local(folder) => folder.display().to_string(),
        Judge::Remote(_, model) => model.clone().unwrap_or_else(|| "server".into()),
    };
    found.json["judge"] = judge.into();
    found.json["model"] = request.model.display().to_string().into();
    found.json["against"] = against.map(|path| path.display().to_string()).into();
    if let Some(out) = &request.out {
        fathom_base::files::write(out, (serde_json::to_string_pretty(&found.json)? + "\n").as_bytes())?;
        let per_item = texts.len() / items.len().max(1);
        let line = |(at, (item, answer)): (usize, (&Item, &String))| {
            let texts = &texts[at * per_item..(at + 1) * per_item];
            format!(
                "{}\n",
                json!({"instruction": item.instruction, "output": answer, "against": item.output, "judge": texts})
            )
        };
        let lines: String = items.iter().zip(&answers).enumerate().map(line).collect();
        let path = out.with_extension("jsonl");
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(found)
}

/// Preferences over both orders; a pair counts if both of its texts hold a verdict.
fn compared(items: &[Item], answers: &[String], texts: &[Option<String>]) -> Verdicts {
    let read = |text: &Option<String>, order| text.as_deref().and_then(|text| verdict(text, order));
    let (mut all, mut unread) = (Vec::new(), 0);
    for ((item, answer), texts) in items.iter().zip(answers).zip(texts.chunks_exact(2)) {
        let both = [read(&texts[0], Order::First), read(&texts[1], Order::Second)];
        unread += both.iter().filter(|it| it.is_none()).count();
        let [Some(first), Some(second)] = both else { continue };
        let length = |text: &str| text.chars().count();
        all.push(Judgement {
            preference: f64::midpoint(first, second),
            agrees: first == second,
            lengths: [length(answer), length(item.output.as_deref().unwrap_or_default())],
            difficulty: item.difficulty,
        });
    }
    let rates = Rates::of(&all, RESAMPLES);
    let mut json = rates.as_ref().map_or_else(|| json!({}), Rates::json);
    json["instructions"] = items.len().into();
    json["asked"] = texts.len().into();
    json["unread"] = unread.into();
    Verdicts { rates, rating: None, items: items.len(), asked: texts.len(), unread, json }
}

fn rated(items: &[Item], texts: &[Option<String>]) -> Verdicts {
    let found: Vec<f64> = texts.iter().filter_map(|text| rating(text.as_deref()?)).collect();
    let unread = texts.len() - found.len();
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let rating = (!found.is_empty())
        .then(|| Rate { value: mean(&found), interval: interval(&found, RESAMPLES, &mean) });
    let json = json!({
        "rating": rating.map(|it| it.value), "rating_interval": rating.map(|it| it.interval), "items": found.len(),
        "instructions": items.len(), "asked": texts.len(), "unread": unread,
    });
    Verdicts { rates: None, rating, items: items.len(), asked: texts.len(), unread, json }
}

/// True for a file of answers; a GGUF file is a model.
fn is_answers(path: &Path) -> bool {
    path.is_file() && path.extension().is_none_or(|it| it != "gguf")
}

/// The rows of a file.
fn items(path: &Path) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for row in Rows::open(path)? {
        let row = row?;
        let text = |key: &str| row[key].as_str().map(str::to_string);
        let Some(mut instruction) = text("instruction").filter(|text| !text.trim().is_empty()) else {
            refuse!("{}: row {} has no `instruction`", path.display(), items.len() + 1);
        };
        if let Some(input) = text("input").filter(|text| !text.is_empty()) {
            instruction = format!("{instruction}\n\n{input}");
        }
        let difficulty = row["instruction_difficulty"].as_f64();
        items.push(Item { instruction, output: text("output"), difficulty });
    }
    if items.is_empty() {
        refuse!("{}: has no rows", path.display());
    }
    Ok(items)
}

/// The answers to instructions: those of a file by their instruction, or those that the model gives.
fn answers(
    request: &Request,
    wanted: &[Item],
    (machine, events): (&Machine, &dyn Events),
) -> Result<Vec<String>> {
    let missing =
        |instruction: &str| format!("{} has no answer to `{instruction:.60}`", request.model.display());
    if is_answers(&request.model) {
        let found =
            items(&request.model)?.into_iter().filter_map(|item| Some((item.instruction, item.output?)));
        let found: HashMap<String, String> = found.collect();
        let one = |item: &Item| match found.get(&item.instruction) {
            Some(answer) => Ok(answer.clone()),
            None => refuse!("{}", missing(&item.instruction)),
        };
        return wanted.iter().map(one).collect();
    }
    let writer = Writer {
        options: HostOptions {
            adapter: request.adapter.clone(),
            ..HostOptions::new(&request.model, machine)
        },
        context_tokens: request.tokens,
        most: request.answer_tokens,
        doing: "answer",
    };
    let prompts: Vec<String> = wanted.iter().map(|item| item.instruction.clone()).collect();
    let written = writer.written(&prompts, events)?;
    let one = |(item, answer): (&Item, Option<String>)| match answer {
        Some(answer) => Ok(answer),
        None => refuse!(
            "{}: the instruction and {} tokens of an answer do not fit its context",
            missing(&item.instruction),
            request.answer_tokens
        ),
    };
    wanted.iter().zip(written).map(one).collect()
}

/// The judge's texts; `None` for a request that does not fit its context.
fn asked(
    request: &Request,
    prompts: &[String],
    (machine, events): (&Machine, &dyn Events),
) -> Result<Vec<Option<String>>> {
    const PATH: &str = "/v1/chat/completions";
    let (target, model) = match &request.judge {
        Judge::Local(folder) => {
            let writer = Writer {
                options: HostOptions::new(folder, machine),
                context_tokens: request.tokens,
                most: request.judge_tokens,
                doing: "verdict",
            };
            return writer.written(prompts, events);
        }
        Judge::Remote(target, model) => (target, model),
    };
    let mut texts = Vec::with_capacity(prompts.len());
    for batch in prompts.chunks(BATCH) {
        events.doing(&format!("verdict {} of {}", texts.len() + 1, prompts.len()));
        let body = |prompt: &String| {
            let messages = json!([{"role": "user", "content": prompt}]);
            let mut body =
                json!({"messages": messages, "max_tokens": request.judge_tokens, "temperature": 0});
            if let Some(model) = model {
                body["model"] = model.as_str().into();
            }
            body.to_string()
        };
        let bodies: Vec<String> = batch.iter().map(body).collect();
        for (status, found) in post_all(target, PATH, &bodies)? {
            if status != 200 {
                let reason = found["error"]["message"].as_str().unwrap_or("no reason");
                refuse!("the judge answered {status}: {reason}");
            }
            texts.push(Some(
                found["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_string(),
            ));
        }
    }
    Ok(texts)
}

/// A model that writes texts.
struct Writer<'w> {
    options: HostOptions<'w>,
    context_tokens: Option<usize>,
    most: usize,
    doing: &'static str,
}

impl Writer<'_> {
    /// A text for each prompt, through the chat template if the model has one; `None` for prompts that do not fit.
    fn written(self, prompts: &[String], events: &dyn Events) -> Result<Vec<Option<String>>> {
        let options =
            HostOptions { sequences: SEQUENCES, context_tokens: self.context_tokens, ..self.options };
        let host = Host::open_writer(options, events)?;
        let (tokenizer, converses) = (host.facts().tokenizer.clone(), host.service().card().converses);
        let room = host.max_tokens().saturating_sub(self.most);
        let mut texts = Vec::with_capacity(prompts.len());
        for batch in prompts.chunks(SEQUENCES) {
            events.doing(&format!("{} {} of {}", self.doing, texts.len() + 1, prompts.len()));
            let mut requests = Vec::new();
            let mut fits = Vec::with_capacity(batch.len());
            for prompt in batch {
                let messages = vec![json!({"role": "user", "content": prompt})];
                let conversation =
                    Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
                let prompt =
                    if converses { Prompt::Conversation(conversation) } else { Prompt::Text(prompt.clone()) };
                let ids = host.service().ids(&prompt).map_err(|error| host.cause(error))?;
                fits.push(ids.len() <= room);
                if ids.len() <= room {
                    let sampling =
                        Sampling { max_tokens: self.most, temperature: 0.0, ..Sampling::default() };
                    requests.push(GenerateRequest::new(ids, sampling));
                }
            }
            let mut written = host.generate_all(requests).map_err(|error| host.cause(error))?.into_iter();
            let text = |fits: bool| {
                let answer = if fits { written.next() } else { None };
                Some(tokenizer.decode_text(&answer?.into_iter().next()?.ids))
            };
            texts.extend(fits.into_iter().map(text));
        }
        Ok(texts)
    }
}
