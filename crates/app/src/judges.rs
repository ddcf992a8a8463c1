//! Rewards given by models: the score of a trained reward model, or the number in a judge's text. Their weights are not
//! trained; they are kept whole on the run's device, on the ranks that score.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use fathom_base::{GenerateRequest, Sampling};
use fathom_engine::{Engine, Limits};
use fathom_model::{Model, Spec, open_config};
use fathom_tensor::mesh::Mesh;
use fathom_tensor::{DType, Device, Meta, Profile};
use fathom_text::Tokenizer;
use fathom_text::chat::{Conversation, Keys, Message, Template};
use fathom_train::policy::reward::{Reward, RewardInput, WeightedReward};
use fathom_train::policy::rules::{self, Number, RewardTable, RuleName};
use fathom_train::policy::scores;
use fathom_train::recipe::Recipe;
use serde_json::{Map, Value};

use crate::error::{Result, refuse};
use crate::events::Silent;
use crate::models::{self, TextModel, model_folder};
use fathom_model::LoadedModel;

/// Tokens per batch of a reward model.
const TOKENS: usize = 8192;
/// Tokens of a judge's prompt per forward pass.
const CHUNK_TOKENS: usize = 1024;
/// Default limit on the tokens that a judge writes.
const WRITES: usize = 64;

/// A reward model or a judge.
struct ScoringModel {
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    template: Option<Template>,
}

impl ScoringModel {
    /// Returns the folder and specification of a table's model.
    fn find(table: &RewardTable, file: &Path) -> Result<(PathBuf, Spec)> {
        let RewardTable { name, rule, model, .. } = table;
        let Some(path) = model else {
            refuse!("rl.reward: reward `{name}`: needs a `model`, the folder of one");
        };
        let path = file.parent().map_or(path.clone(), |folder| folder.join(path));
        let folder = model_folder(&path)?;
        let (spec, _) = open_config(&folder)?;
        let is_scorer = spec.scores > 0;
        if is_scorer != (*rule == RuleName::Model) {
            refuse!(
                "rl.reward: reward `{name}`: {} is {}; rule = \"model\" asks a reward model (a head of scores), and rule = \"judge\" one \
                 that writes",
                folder.display(),
                if is_scorer { "a reward model" } else { "a language model" }
            );
        }
        Ok((folder, spec))
    }

    /// Opens the model in a folder; on a machine without data, only declares its shapes.
    fn open((folder, spec): (&Path, &Spec), (device, dtype): (&Device, DType)) -> Result<ScoringModel> {
        // A scoring rank works alone, whatever the mesh.
        let device = Device { mesh: Mesh::alone(), ..device.clone() };
        let tokenizer = models::tokenizer(folder)?;
        let template = Template::from_dir(folder, &tokenizer)?;
        let loaded = if device.machine.has_data() {
            models::load(&device, folder, Some(dtype), &Silent)?
        } else {
            let (model, params) = Model::declare(&device, spec, dtype);
            LoadedModel { device, model, params }
        };
        Ok(ScoringModel { loaded, tokenizer, template })
    }

    fn engine(&self, context_tokens: usize) -> Engine<'_> {
        let limits = Limits { context_tokens, chunk_tokens: CHUNK_TOKENS, ..Limits::default() };
        Engine::new(self.loaded.view(), &self.tokenizer, limits)
    }

    fn spec(&self) -> &Spec {
        &self.loaded.model.spec
    }
}

/// Reward models and judges on a device, each loaded once and shared by the rewards that use it.
pub struct Judges {
    device: Device,
    held: RefCell<BTreeMap<PathBuf, Rc<ScoringModel>>>,
}

impl Judges {
    /// Makes an empty set for a device.
    pub fn on(device: &Device) -> Judges {
        Judges { device: device.clone(), held: RefCell::default() }
    }

    /// Returns the reward of a table's model, which is loaded with weights of type `dtype` unless it is loaded already.
    ///
    /// # Errors
    /// No model there, or one of another kind; an invalid template or pattern.
    pub fn part(&self, table: &RewardTable, file: &Path, dtype: DType) -> Result<Box<dyn Reward>> {
        if !scores(&self.device.mesh) {
            return Ok(Box::new(Elsewhere));
        }
        let model = self.model(table, file, dtype)?;
        let name = &table.name;
        if table.rule == RuleName::Model {
            let (output, scores) = (table.output, model.spec().scores);
            if output >= scores {
                refuse!("rl.reward: reward `{name}`: output is {output}, and the model has {scores}, from 0");
            }
            if table.empty.is_some_and(|score| !score.is_finite()) {
                refuse!(
                    "rl.reward: reward `{name}`: empty is not a finite number; give one, or leave it out"
                );
            }
            return Ok(Box::new(Scorer { model, output, empty: table.empty }));
        }
        let Some(template) = table.template.clone().filter(|text| text.contains("{answer}")) else {
            refuse!(
                "rl.reward: reward `{name}`: needs a `template` of what the judge is asked, with {{answer}} in it, and {{prompt}} or {{a key \
                 of the row}}"
            );
        };
        let number = match Number::of(table) {
            Ok(number) => number,
            Err(why) => refuse!("rl.reward: reward `{name}`: {why}"),
        };
        let max_tokens = if table.max_tokens == 0 { WRITES } else { table.max_tokens };
        Ok(Box::new(JudgeModel { model, template, number, max_tokens }))
    }

    /// Returns the model of a table, loading it if necessary.
    fn model(&self, table: &RewardTable, file: &Path, dtype: DType) -> Result<Rc<ScoringModel>> {
        let (folder, spec) = ScoringModel::find(table, file)?;
        let held = self.held.borrow().get(&folder).cloned();
        if let Some(model) = held {
            return Ok(model);
        }
        let model = Rc::new(ScoringModel::open((&folder, &spec), (&self.device, dtype))?);
        self.held.borrow_mut().insert(folder, model.clone());
        Ok(model)
    }

    /// Returns those of a recipe's rewards that use a model.
    ///
    /// # Errors
    /// Those of [`Judges::part`].
    pub fn parts(&self, recipe: &Recipe) -> Result<Vec<WeightedReward>> {
        let Some(file) = &recipe.rl.reward else { return Ok(Vec::new()) };
        let dtype = recipe.model.precision.dtype();
        let tables = rules::read(file)?.into_iter().filter(RewardTable::asks_model);
        let part = |table: RewardTable| {
            let reward = self.part(&table, file, dtype)?;
            Ok(WeightedReward { name: table.name, weight: table.weight, reward })
        };
        tables.map(part).collect()
    }

    /// [`Judges::parts`], for the other adapters of a run of several.
    ///
    /// # Errors
    /// Those of [`Judges::part`].
    pub fn parts_of_others(&self, recipe: &Recipe) -> Result<Vec<WeightedReward>> {
        let others = recipe.over_same_base().map(|other| self.parts(&other));
        Ok(others.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

/// Returns the bytes of the weights of a run's judges, over all of its adapters.
///
/// # Errors
/// Those of [`Judges::part`].
pub fn bytes(recipe: &Recipe, profile: &Profile) -> Result<u64> {
    let device = Device::new(Arc::new(Meta::new(profile.clone())), u64::MAX);
    let judges = Judges::on(&device);
    judges.parts(recipe)?;
    judges.parts_of_others(recipe)?;
    Ok(device.pool.usage().peak_reserved)
}

/// A model that runs on another rank.
struct Elsewhere;

impl Reward for Elsewhere {
    fn score(&self, _: &[RewardInput<'_>]) -> std::result::Result<Vec<Option<f64>>, String> {
        Err("is asked by another rank".into())
    }
}

/// Makes a reward from a reward model.
///
/// # Errors
/// Not a reward model.
pub fn scorer(ready: TextModel) -> Result<Box<dyn Reward>> {
    let TextModel { folder, tokenizer, loaded } = ready;
    if loaded.model.spec.scores == 0 {
        refuse!(
            "{} is no reward model: it has no head of scores; train one (fathom train reward)",
            folder.display()
        );
    }
    let template = Template::from_dir(&folder, &tokenizer)?;
    let model = Rc::new(ScoringModel { loaded, tokenizer, template });
    Ok(Box::new(Scorer { model, output: 0, empty: None }))
}

/// A trained reward model.
struct Scorer {
    model: Rc<ScoringModel>,
    /// Index of the score that is used.
    output: usize,
    /// Score of an answer without text; if `None`, the model scores such answers too.
    empty: Option<f64>,
}

impl Scorer {
    /// Returns the ids of a prompt with an answer, in the form that reward models are trained on: the score is taken at
    /// the last token, which ends the text. An answer without text is therefore scored too, as in verl; TRL's PPO uses
    /// the token before it, the prompt's last.
    fn ids(&self, answer: &RewardInput<'_>) -> std::result::Result<Vec<u32>, String> {
        let (tokenizer, text) = (&self.model.tokenizer, answer.text);
        let said = |error: fathom_text::Error| error.to_string();
        let ids = match Conversation::asked(answer.row, &Keys::default()) {
            Ok(mut conversation) => {
                let Some(template) = &self.model.template else {
                    return Err("the row is a conversation, and the reward model has no chat template".into());
                };
                conversation.messages.push(Message::new("assistant", text));
                let count = conversation.messages.len();
                tokenizer.encode_special(&template.render(&conversation, count, false)?.text)
            }
            Err(_) => {
                let end = tokenizer.token(tokenizer.require_eos().map_err(said)?).unwrap_or_default();
                tokenizer.encode_prompt(&format!("{}{text}{end}", answer.prompt))
            }
        };
        ids.map_err(said)
    }
}

impl Reward for Scorer {
    fn score(&self, answers: &[RewardInput<'_>]) -> std::result::Result<Vec<Option<f64>>, String> {
        let given = |it: &RewardInput<'_>| self.empty.filter(|_| it.text.is_empty());
        let mut scores: Vec<Option<f64>> = answers.iter().map(given).collect();
        let asked = |at: &usize| scores[*at].is_none();
        let mut waiting: Vec<usize> = (0..answers.len()).filter(asked).rev().collect();
        let ids: Vec<Vec<u32>> =
            answers.iter().map(|it| self.ids(it)).collect::<std::result::Result<_, _>>()?;
        let tokens = |at: usize| ids[at].len();
        while let Some(first) = waiting.pop() {
            let (mut bin, mut held) = (vec![first], tokens(first));
            while let Some(next) = waiting.pop_if(|next| held + tokens(*next) <= TOKENS) {
                held += tokens(next);
                bin.push(next);
            }
            let documents: Vec<Vec<u32>> = bin.iter().map(|at| ids[*at].clone()).collect();
            let engine = self.model.engine(usize::MAX >> 1);
            let found = engine.scores_of(&documents).map_err(|error| error.to_string())?;
            for (at, found) in bin.into_iter().zip(found) {
                scores[at] = found.get(self.output).map(|score| f64::from(*score));
            }
        }
        Ok(scores)
    }
}

/// A judge: a language model that is asked for a number.
struct JudgeModel {
    model: Rc<ScoringModel>,
    /// Template of the question.
    template: String,
    /// Extracts the number from the judge's text.
    number: Number,
    max_tokens: usize,
}

impl JudgeModel {
    /// Returns the judge's question about an answer.
    fn question(&self, answer: &RewardInput<'_>) -> std::result::Result<String, String> {
        let rows = self.model.loaded.device.machine.has_data();
        put_in(&self.template, &|key| match key {
            "prompt" => Ok(Some(answer.prompt.to_string())),
            "answer" => Ok(Some(answer.text.to_string())),
            // Plans have no rows.
            _ => value(answer.row, key).or_else(|why| if rows { Err(why) } else { Ok(Some(String::new())) }),
        })
    }

    fn ids(&self, question: &str) -> std::result::Result<Vec<u32>, String> {
        let tokenizer = &self.model.tokenizer;
        let ids = match &self.model.template {
            Some(template) => {
                let message = Message::new("user", question);
                let text = template.render_with(&[&message.said], &[], true, &Map::new())?.text;
                tokenizer.encode_special(&text)
            }
            None => tokenizer.encode_prompt(question),
        };
        ids.map_err(|error| error.to_string())
    }
}

/// Replaces each `{key}` that `of` knows in a template. `{{` and its matching `}}` become braces; all other braces
/// stay, so that JSON needs no escapes. Inserted texts are not expanded again.
fn put_in(
    template: &str,
    of: &dyn Fn(&str) -> std::result::Result<Option<String>, String>,
) -> std::result::Result<String, String> {
    let (mut text, mut rest, mut open) = (String::new(), template, 0);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let key = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(key, _)| key);
        let found = match key.filter(|key| !key.contains('{')) {
            Some(key) => of(key)?.map(|found| (found, key.len() + 2)),
            None => None,
        };
        let (put, taken) = match found {
            Some(found) => found,
            None if rest.starts_with("{{") => {
                open += 1;
                ("{".to_string(), 2)
            }
            None if rest.starts_with("}}") && open > 0 => {
                open -= 1;
                ("}".to_string(), 2)
            }
            None => (rest[..1].to_string(), 1),
        };
        text.push_str(&put);
        rest = &rest[taken..];
    }
    text.push_str(rest);
    Ok(text)
}

/// Returns a row's value for a key of the template; `None` if the key is not a word.
fn value(row: &Map<String, Value>, key: &str) -> std::result::Result<Option<String>, String> {
    match row.get(key) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(value) if !value.is_null() => Ok(Some(value.to_string())),
        _ if key.starts_with(char::is_alphabetic) && key.chars().all(|c| c.is_alphanumeric() || c == '_') => {
            Err(format!(
                "its template asks for {{{key}}}, which a prompt's row does not have; where it is to stand so, write {{{{{key}}}}}"
            ))
        }
        _ => Ok(None),
    }
}

impl Reward for JudgeModel {
    /// An answer for which the judge writes no number gets no score.
    fn score(&self, answers: &[RewardInput<'_>]) -> std::result::Result<Vec<Option<f64>>, String> {
        let ids = answers.iter().map(|answer| self.ids(&self.question(answer)?));
        let ids: Vec<Vec<u32>> = ids.collect::<std::result::Result<_, _>>()?;
        let longest = ids.iter().map(Vec::len).max().unwrap_or(0) + self.max_tokens;
        let sampling = Sampling { max_tokens: self.max_tokens, ..Sampling::default() };
        let requests = ids.into_iter().map(|ids| GenerateRequest::new(ids, sampling.clone())).collect();
        let written = self.model.engine(longest).generate_all(requests).map_err(|error| error.to_string())?;
        let read =
            |answers: Vec<fathom_base::Generation>| answers.first().and_then(|it| self.number.read(&it.text));
        Ok(written.into_iter().map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use fathom_cpu::Cpu;
    use fathom_model::{Init, initialise};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_without_text_has_the_score_of_the_end_behind_its_prompt() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden_preferences/reward");
        let spec = Spec { vocab: 320, ..open_config(Path::new(golden)).unwrap().0 };
        let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 26);
        let (model, mut params) = Model::declare(&device, &spec, DType::F32);
        initialise(&device, &model, &mut params, Init { deviation: 0.3, seed: 3 });
        let tokenizer = Tokenizer::train_bpe(std::iter::empty(), 257, &["<|endoftext|>"]).unwrap();
        let model = Rc::new(ScoringModel {
            loaded: LoadedModel { device, model, params },
            tokenizer,
            template: None,
        });
        let mut scorer = Scorer { model, output: 0, empty: None };
        let (row, plain) = (Map::new(), ["one", "", "three"]);
        let answer = |text| RewardInput {
            row: &row,
            prompt: "p",
            text,
            messages: &[],
            earned: None,
            tokens: 1,
            ended: true,
        };
        let found = scorer.score(&plain.map(answer)).unwrap().into_iter().flatten().collect::<Vec<f64>>();
        let (tokenizer, engine) = (&scorer.model.tokenizer, scorer.model.engine(64));
        let [prompt, end] = [tokenizer.encode_prompt("p").unwrap(), vec![tokenizer.eos().unwrap()]];
        let want = f64::from(engine.scores_of(&[[prompt, end].concat()]).unwrap()[0][0]);
        assert!(
            found.len() == 3 && (found[1] - want).abs() < 1e-5 && found[0] != found[1],
            "{found:?} {want}"
        );
        scorer.empty = Some(-2.0);
        let given = scorer.score(&plain.map(answer)).unwrap();
        let near = |at: usize| given[at].is_some_and(|score| (score - found[at]).abs() < 1e-5);
        assert!(given[1] == Some(-2.0) && near(0) && near(2), "{given:?} {found:?}");
    }

    #[test]
    fn templates_have_keys_and_other_braces() {
        let row = json!({"n": 7, "a key": "k", "none": null});
        let ask = |template: &str| {
            put_in(template, &|key| match key {
                "answer" => Ok(Some("{n}".to_string())),
                _ => value(row.as_object().unwrap(), key),
            })
        };
        for (template, want) in [
            ("{answer} of {n}, {a key}.", "{n} of 7, k."),
            ("{\"score\": 3, \"of\": {\"n\": {n}}}", "{\"score\": 3, \"of\": {\"n\": 7}}"),
            ("{{n}} {{\"a\": {answer}}}", "{n} {\"a\": {n}}"),
            ("{{\"a\": {\"b\": {n}}}}", "{\"a\": {\"b\": 7}}"),
            ("a } b { c {} {3} {{", "a } b { c {} {3} {"),
            ("{\"a\": {}}", "{\"a\": {}}"),
        ] {
            assert_eq!(ask(template).as_deref(), Ok(want), "{template}");
        }
        for (template, key) in [("{answr}", "answr"), ("{none}", "none")] {
            let error = ask(template).unwrap_err();
            assert!(
                error.contains(&format!("{{{key}}}")) && error.contains(&format!("{{{{{key}}}}}")),
                "{error}"
            );
        }
    }
}
