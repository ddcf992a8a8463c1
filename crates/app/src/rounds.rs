//! Training in rounds: in each round the model generates answers, from which pairs are made, and a preference run that
//! starts from it trains on them. Each round is a separate run below `OUT`, so that an interrupted one continues.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use fathom_base::recipe::Loaded;
use fathom_base::{GenerateRequest, Sampling, human};
use fathom_engine::{Engine, Limits};
use fathom_text::Tokenizer;
use fathom_text::chat::{Conversation, Speaker, Template};
use fathom_text::lessons::{Columns, Prompt, prompts};
use fathom_train::Outcome;
use fathom_train::recipe::{Recipe, RoundsTable, WriteName};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Context, Result, caught, refuse};
use crate::events::Events;
use crate::export::{Conversion, export};
use crate::job::Job;
use crate::library::{layers, load};
use crate::models::{self, TextModel};
use crate::text::templates;
use crate::train::{Order, RunOutcome, train};

/// Rows per batch of generation.
const TOGETHER: usize = 64;
/// Tokens per forward pass of a prompt.
const CHUNK_TOKENS: usize = 512;

/// Follow-up questions to the model about its answer.
#[derive(Deserialize)]
struct Principle {
    critique: String,
    revision: String,
}

/// Runs all rounds and returns the result of the last one, whose model is then at `OUT/model`.
///
/// # Errors
/// Those of training and generation; rows without an answer of their own.
pub fn run(loaded: &Loaded<Recipe>, order: &Order, events: &dyn Events) -> Result<RunOutcome> {
    let Recipe { run, rounds, objective, model, .. } = &loaded.value;
    if !objective.method.judges() {
        return Err(loaded
            .refuse("rounds.write", "needs an objective over pairs (objective.method = \"dpo\", ..)")
            .into());
    }
    let (Some(mut from), 1..) = (model.from.clone(), rounds.count) else {
        return Err(loaded
            .refuse("rounds.count", "needs one round at least, and a model to start from (model.from)")
            .into());
    };
    fs::create_dir_all(&run.out).with_context(|| format!("cannot create {}", run.out.display()))?;
    let recipe = run.out.join("rounds.toml");
    write_new(&recipe, loaded.text())?;
    let mut last = None;
    for round in 1..=rounds.count {
        let (pairs, folder) =
            (run.out.join(format!("round-{round}.jsonl")), run.out.join(format!("round-{round}")));
        let kept = round.saturating_sub(rounds.earlier).max(1)..=round;
        let all: Vec<PathBuf> = kept.map(|round| run.out.join(format!("round-{round}.jsonl"))).collect();
        let settings = round_settings((&from, &all, &folder), (round, rounds.count));
        let job = Job::new(load(layers(&recipe.display().to_string(), &settings))?, events)?;
        if !pairs.is_file() {
            events.line(&format!("round {round} of {}: {} writes answers", rounds.count, from.display()));
            let writer = Writer { loaded, job: &job, round, order, events };
            if !writer.write(&from, &pairs)? {
                return Ok(RunOutcome::without_report(Outcome::Interrupted));
            }
        }
        let trained = train(&job, order, events)?;
        if trained.outcome == Outcome::Interrupted {
            return Ok(trained);
        }
        from = folder.join("model");
        whole(&folder, &from, events)?;
        last = Some(trained);
    }
    let (link, last) = (run.out.join("model"), last.context("no round")?);
    if link.symlink_metadata().is_err() {
        std::os::unix::fs::symlink(format!("round-{}/model", rounds.count), &link)
            .with_context(|| format!("cannot create {}", link.display()))?;
    }
    Ok(last)
}

/// Merges the adapter of a round, if it trained one, so that the next round starts from the merged model.
fn whole(round: &Path, model: &Path, events: &dyn Events) -> Result<()> {
    if model.join("config.json").is_file() {
        return Ok(());
    }
    let part = model.with_extension("part");
    if part.is_dir() {
        fs::remove_dir_all(&part).with_context(|| format!("cannot clear {}", part.display()))?;
    }
    events.line(&format!("merges {} into {}", round.join("adapter").display(), model.display()));
    let what = Conversion {
        from: round.to_owned(),
        to: part.clone(),
        gguf: None,
        precision: None,
        quantised: None,
        max_shard_bytes: 5_000_000_000,
        adapter: false,
        with: Vec::new(),
    };
    export(&what, events)?;
    fs::rename(&part, model).with_context(|| format!("cannot write {}", model.display()))?;
    Ok(())
}

/// Returns the settings of a round's run: the recipe over its pairs and those of the earlier rounds that are kept.
fn round_settings(
    (from, pairs, folder): (&Path, &[PathBuf], &Path),
    (round, count): (u64, u64),
) -> Vec<String> {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    vec![
        format!("model.from={}", quoted(from)),
        format!("data.paths=[{}]", pairs.iter().map(|pairs| quoted(pairs)).collect::<Vec<_>>().join(", ")),
        format!("run.out={}", quoted(folder)),
        format!("run.name=round {round} of {count}"),
        "rounds.write=none".to_string(),
    ]
}

/// Writes a file atomically unless it exists.
fn write_new(path: &Path, text: &str) -> Result<()> {
    if path.is_file() {
        return Ok(());
    }
    fathom_base::files::write(path, text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the pairs of a round.
struct Writer<'a> {
    loaded: &'a Loaded<Recipe>,
    job: &'a Job,
    round: u64,
    order: &'a Order,
    events: &'a dyn Events,
}

/// Model that generates the answers.
struct Generator<'a> {
    engine: Engine<'a>,
    tokenizer: &'a Tokenizer,
    template: Option<&'a Template>,
    how: &'a RoundsTable,
}

impl Writer<'_> {
    /// Writes the pairs to a file; returns false if the run was asked to stop.
    fn write(&self, model: &Path, to: &Path) -> Result<bool> {
        let Recipe { data, rounds, stage, .. } = &self.loaded.value;
        let principles = self.principles()?;
        let TextModel { folder, tokenizer, loaded } =
            models::open(model, None, &self.job.machine, self.events)?;
        let template = match &data.chat_template {
            Some(file) => Some(templates::named(file, &tokenizer)?),
            None => Template::from_dir(&folder, &tokenizer)?,
        };
        let room = stage.first().map_or(usize::MAX, |stage| stage.seq_tokens / 2);
        let columns = self.loaded.value.teaching().columns;
        let rows = prompts(
            &data.paths,
            (&tokenizer, template.as_ref()),
            &columns,
            room.saturating_sub(rounds.max_answer_tokens),
        );
        let (rows, refused) = rows?;
        if let Some(error) = refused.into_iter().next() {
            return Err(error.into());
        }
        caught(|| {
            let context_tokens = loaded.model.spec.max_positions;
            let limits = Limits { context_tokens, chunk_tokens: CHUNK_TOKENS, ..Limits::default() };
            let engine = Engine::new(loaded.view(), &tokenizer, limits);
            let generator =
                Generator { engine, tokenizer: &tokenizer, template: template.as_ref(), how: rounds };
            let part = to.with_extension("part");
            let mut file =
                fs::File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
            let mut written = 0;
            for (at, some) in rows.chunks(TOGETHER).enumerate() {
                if self.order.stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let done = (at * TOGETHER) as u64;
                self.events.doing(&format!(
                    "answers to {} of {}",
                    human::grouped(done),
                    human::counted(rows.len() as u64, "row")
                ));
                let seed = self.loaded.value.run.seed.wrapping_add((self.round << 32) + done);
                let pairs = match rounds.write {
                    WriteName::Revised => generator.revised(some, seed, (&principles, at * TOGETHER))?,
                    _ => generator.own(some, seed, &columns)?,
                };
                for pair in pairs.iter().filter(|pair| is_whole(pair)) {
                    written += 1;
                    writeln!(file, "{pair}").with_context(|| format!("cannot write {}", part.display()))?;
                }
            }
            let empty = rows.len() - written;
            if written == 0 {
                refuse!(
                    "{}: all {empty} answers of the model are empty, so there is nothing to compare; give fewer rounds (rounds.count), or a \
                     smaller step (optimizer.lr)",
                    to.display()
                );
            }
            if empty > 0 {
                self.events.warn(&format!(
                    "round {}: left out of {}, as the model answered nothing: {}",
                    self.round,
                    human::counted(rows.len() as u64, "row"),
                    human::grouped(empty as u64)
                ));
            }
            file.sync_all().with_context(|| format!("cannot write {}", part.display()))?;
            fs::rename(&part, to).with_context(|| format!("cannot write {}", to.display()))?;
            Ok(true)
        })
    }

    fn principles(&self) -> Result<Vec<Principle>> {
        let RoundsTable { write, principles, .. } = &self.loaded.value.rounds;
        let path: &PathBuf = match (write, principles) {
            (WriteName::Revised, Some(path)) => path,
            (WriteName::Revised, None) => {
                let what = "is needed to revise by: rows with `critique` and `revision`";
                return Err(self.loaded.refuse("rounds.principles", what).into());
            }
            _ => return Ok(Vec::new()),
        };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let row = |(at, line): (usize, &str)| {
            serde_json::from_str(line).with_context(|| {
                format!("{}:{}: no row with `critique` and `revision`", path.display(), at + 1)
            })
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let all = lines.map(row).collect::<Result<Vec<_>>>()?;
        if all.is_empty() {
            refuse!("{}: has no principle", path.display());
        }
        Ok(all)
    }
}

/// Returns whether both answers of a pair have a target token: an empty text has none, whereas an empty turn of a
/// conversation has its end.
fn is_whole(pair: &Value) -> bool {
    [&pair["chosen"], &pair["rejected"]].into_iter().all(|answer| answer.as_str() != Some(""))
}

/// Returns a message in the form that rows use.
fn said(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Returns the messages of a row's prompt, and the model's message after them, if any.
fn conversation(
    row: &Map<String, Value>,
    columns: &Columns,
) -> std::result::Result<(Vec<Value>, Option<Value>), String> {
    let keys = columns.keys();
    if let Some(Value::String(text)) = row.get(columns.prompt.as_deref().unwrap_or("prompt")) {
        return Ok((vec![said("user", text)], None));
    }
    let asked = Conversation::asked(row, &keys)?.messages;
    let all = Conversation::read(row, &keys)?.map(|all| all.messages).unwrap_or_default();
    let answer = all.into_iter().nth(asked.len()).filter(|message| message.by() == Speaker::Model);
    Ok((asked.into_iter().map(|message| message.said).collect(), answer.map(|message| message.said)))
}

impl Generator<'_> {
    fn answers(&self, prompts: Vec<Vec<u32>>, seed: u64) -> Result<Vec<String>> {
        let request = |(at, ids): (usize, Vec<u32>)| {
            let (temperature, max_tokens) = (self.how.temperature, self.how.max_answer_tokens);
            let seed = seed.wrapping_add(at as u64);
            GenerateRequest::new(ids, Sampling { temperature, max_tokens, seed, ..Sampling::default() })
        };
        let requests = prompts.into_iter().enumerate().map(request).collect();
        let said = self.engine.generate_all(requests).map_err(fathom_base::Error::from)?;
        Ok(said.into_iter().flatten().map(|answer| answer.text).collect())
    }

    /// Makes pairs of a row's own answer and the model's.
    fn own(&self, rows: &[Prompt], seed: u64, columns: &Columns) -> Result<Vec<Value>> {
        let answers = self.answers(rows.iter().map(|row| row.ids.clone()).collect(), seed)?;
        let completion = columns.completion.as_deref();
        let pair = |(row, answer): (&Prompt, String)| {
            let own = ["completion", "output"].into_iter().chain(completion).find_map(|key| row.row.get(key));
            if let (Some(Value::String(text)), Some(own)) =
                (row.row.get("prompt").or(row.row.get("input")), own)
            {
                return Ok(json!({"prompt": text, "chosen": own, "rejected": answer}));
            }
            match conversation(&row.row, columns) {
                Ok((asked, Some(own))) => {
                    Ok(json!({"prompt": asked, "chosen": [own], "rejected": [said("assistant", &answer)]}))
                }
                _ => {
                    refuse!("a row has no answer of its own, which the model's is held against: {}", row.text)
                }
            }
        };
        rows.iter().zip(answers).map(pair).collect()
    }

    /// Makes pairs of the model's revised answer and its first one.
    fn revised(
        &self,
        rows: &[Prompt],
        seed: u64,
        (principles, first): (&[Principle], usize),
    ) -> Result<Vec<Value>> {
        let read = |row: &Prompt| conversation(&row.row, &Columns::default()).map(|(asked, _)| asked);
        let mut talks = match rows.iter().map(read).collect::<std::result::Result<Vec<_>, _>>() {
            Ok(talks) => talks,
            Err(why) => refuse!("a row {why}"),
        };
        let asked = talks.clone();
        let principle = |at: usize| &principles[(first + at) % principles.len()];
        let drafts = self.say(&mut talks, seed)?;
        talks.iter_mut().enumerate().for_each(|(at, talk)| talk.push(said("user", &principle(at).critique)));
        self.say(&mut talks, seed.wrapping_add(1 << 28))?;
        talks.iter_mut().enumerate().for_each(|(at, talk)| talk.push(said("user", &principle(at).revision)));
        let revisions = self.say(&mut talks, seed.wrapping_add(2 << 28))?;
        let pair = |((asked, draft), revision): ((Vec<Value>, String), String)| json!({"prompt": asked, "chosen": [said("assistant", &revision)], "rejected": [said("assistant", &draft)]});
        Ok(asked.into_iter().zip(drafts).zip(revisions).map(pair).collect())
    }

    /// Generates the model's next message in each conversation and appends it.
    fn say(&self, talks: &mut [Vec<Value>], seed: u64) -> Result<Vec<String>> {
        let Some(template) = self.template else {
            refuse!("the model has no chat template; name one (data.chat_template=FILE)");
        };
        let ids = |talk: &Vec<Value>| -> Result<Vec<u32>> {
            let messages: Vec<&Value> = talk.iter().collect();
            let text = template.render_with(&messages, &[], true, &Map::new());
            Ok(self.tokenizer.encode_special(&text.map_err(fathom_base::Error::product)?.text)?)
        };
        let answers = self.answers(talks.iter().map(ids).collect::<Result<_>>()?, seed)?;
        talks.iter_mut().zip(&answers).for_each(|(talk, answer)| talk.push(said("assistant", answer)));
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_with_an_empty_answer_is_left_out() {
        let said = |text: &str| json!([said("assistant", text)]);
        for (pair, expected) in [
            (json!({"chosen": "a", "rejected": "b"}), true),
            (json!({"chosen": "a", "rejected": ""}), false),
            (json!({"chosen": said("a"), "rejected": said("")}), true),
            (json!({"chosen": "", "rejected": "b"}), false),
            (json!({"chosen": said("a"), "rejected": said("b")}), true),
        ] {
            assert_eq!(is_whole(&pair), expected, "{pair}");
        }
    }
}
