//! Training on rewards: prompts, rewards, environment and generation.

use std::path::PathBuf;
use std::rc::Rc;

use fathom_text::Tokenizer;
use fathom_text::chat::Follow;
use fathom_text::lessons::{Prompt, prompts};
use fathom_train::policy::environment::{Environment, EpisodeReward};
use fathom_train::policy::reward::WeightedReward;
use fathom_train::policy::rules::RuleName;
use fathom_train::policy::{EpisodePlayer, RolloutInputs, Rollouts, rules};
use serde_json::Value;

use super::environment::Tool;
use super::functions::Functions;
use super::process::Process;
use super::unit_tests::UnitTests;
use crate::error::{Result, refuse};
use crate::job::Job;
use crate::judges::Judges;
use crate::text::lessons::template;
use crate::text::tokenizer_dir;
use crate::writer::writer;

/// Programs and functions from outside that may take part in a run.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// Allows rewards and environments to start processes.
    pub allow_processes: bool,
    /// Functions of the program around the run.
    pub functions: &'a Functions,
}

/// Makes the rollouts of a run; models that judge answers are on the trainer's device.
///
/// # Errors
/// Prompts or rewards that cannot be read; more rows without a prompt than the recipe allows; processes that are not
/// allowed.
pub fn rollouts(job: &Job, judges: &Judges, outside: &Outside<'_>) -> Result<Rollouts> {
    let allow_processes = outside.allow_processes;
    let recipe = job.recipe();
    let tokenizer = Tokenizer::from_dir(tokenizer_dir(&job.data()))?;
    let prompts = asked(job, &tokenizer)?;
    let dtype = recipe.model.precision.dtype();
    let functions = outside.functions;
    let parts = |file: &PathBuf| {
        let outside = |table: &rules::RewardTable| {
            match table.rule {
                RuleName::Process => return Process::boxed(table, allow_processes),
                RuleName::Tests => return UnitTests::boxed(table, file, allow_processes),
                RuleName::Function => return functions.reward(table),
                _ => {}
            }
            judges.part(table, file, dtype).map_err(|error| fathom_train::Error::Hook(error.into()))
        };
        rules::parts(file, &outside)
    };
    let mut rewards = recipe.rl.reward.as_ref().map(parts).transpose()?.unwrap_or_default();
    let tokenizer = Rc::new(tokenizer);
    let playing = playing(job, (&tokenizer, &prompts), outside)?;
    if let Some(playing) = &playing {
        rewards.push(WeightedReward {
            name: "environment".into(),
            weight: playing.weight,
            reward: Box::new(EpisodeReward),
        });
    }
    let writer = writer(tokenizer, recipe.rl.sequences);
    Ok(Rollouts(Rc::new(RolloutInputs {
        fingerprint: fingerprint(&prompts),
        prompts,
        rollout: Box::new(writer),
        rewards,
        playing,
    })))
}

/// Returns the environment that replies to the run's answers, if any.
fn playing(
    job: &Job,
    (tokenizer, prompts): (&Rc<Tokenizer>, &[Prompt]),
    outside: &Outside<'_>,
) -> Result<Option<EpisodePlayer>> {
    let table = &job.recipe().environment;
    if !table.is_on() {
        return Ok(None);
    }
    let environment: Box<dyn Environment> = match &table.function {
        Some(name) => {
            let made = outside.functions.environment(name);
            made.map_err(|message| job.loaded.refuse("environment.function", message))?
        }
        None => {
            let tool = Tool::new(table, outside.allow_processes);
            Box::new(tool.map_err(|message| job.loaded.refuse("environment.command", message))?)
        }
    };
    let template = template(job, tokenizer)?;
    let follow = Follow { tokenizer: Rc::clone(tokenizer), template, role: table.role.clone() };
    // A template that cannot continue a conversation is refused before anything is generated.
    if let Some(first) = prompts.iter().find_map(|prompt| prompt.conversation.as_ref()) {
        follow.check(first).map_err(|why| job.loaded.refuse("environment.role", why))?;
    }
    let (weight, failed_reward) = (table.weight, table.failed_reward);
    Ok(Some(EpisodePlayer { environment, follow, weight, failed_reward }))
}

/// Reads the prompts of the recipe's files.
fn asked(job: &Job, tokenizer: &Tokenizer) -> Result<Vec<Prompt>> {
    let recipe = job.recipe();
    let data = &recipe.data;
    let template = template(job, tokenizer)?;
    let shortest = recipe.stage.iter().map(|stage| stage.seq_tokens).min().unwrap_or(0);
    let room = shortest.saturating_sub(recipe.rl.max_answer_tokens);
    let columns = recipe.teaching().columns;
    let (found, refused) = prompts(&data.paths, (tokenizer, template.as_ref()), &columns, room)?;
    if let Some(first) = refused.get(data.max_rows_dropped as usize) {
        let allowed = refused.len();
        refuse!("{first}; mend the row, or allow some to be left out (data.max_rows_dropped={allowed})");
    }
    if found.is_empty() {
        let message = "has no prompt: a row is a JSON object with a string `prompt`, or a list of messages";
        return Err(job.loaded.refuse("data.paths", message).into());
    }
    Ok(found)
}

/// Returns the BLAKE3 hash of all prompts, as token ids and as rows.
fn fingerprint(prompts: &[Prompt]) -> String {
    let mut hasher = blake3::Hasher::new();
    for prompt in prompts {
        let ids: Vec<u8> = prompt.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        hasher.update(&(ids.len() as u64).to_le_bytes());
        hasher.update(&ids);
        hasher.update(Value::Object(prompt.row.clone()).to_string().as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
