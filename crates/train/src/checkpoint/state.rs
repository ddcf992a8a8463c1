//! `state.json`: the run's progress and the files of its checkpoint. Its last key is the hash of everything before it,
//! so that an altered file is refused. The contents are validated all the same, since older layouts have no such hash.

use std::fs;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::base::Base;
use super::files::{Files, STATE, io, refuse};
use crate::run::Progress;

/// Contents of `state.json` without its own hash.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// Version of the layout.
    pub version: u32,
    pub progress: Progress,
    pub optimizer_step: u64,
    pub files: Files,
    /// The base model of a checkpoint without the untrained weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
}

/// The version that is written. 2 had no hash of `state.json`; 1 also had whole tensors only; both are read.
pub(super) const VERSION: u32 = 3;
/// First version with a hash of `state.json`.
const SEALED: u32 = 3;
/// Separator between the hashed text and the hash. No other key is indented by two spaces and follows another.
const SEAL: &str = ",\n  \"hash\": \"";
/// Maximum number of steps, which ranks exchange as i32.
const MOST_STEPS: u64 = i32::MAX as u64;
/// Maximum token count, such that no sum of them overflows.
const MOST_TOKENS: u64 = 1 << 60;

impl State {
    /// True if it has a hash of `state.json`.
    pub fn is_sealed(&self) -> bool {
        self.version >= SEALED
    }

    /// The text of `state.json`.
    pub fn to_text(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(self)?;
        let body = text.strip_suffix("\n}").unwrap_or(&text);
        Ok(format!("{body}{SEAL}{}", ending(body)))
    }

    /// Parses the text of `state.json`.
    ///
    /// # Errors
    /// A message: malformed, altered, of a later version, or with impossible values.
    pub fn parse(text: &str) -> Result<State, String> {
        let sealed = text.rsplit_once(SEAL);
        let altered = || "was altered since the checkpoint wrote it (its hash differs)".to_string();
        if sealed.is_some_and(|(body, rest)| rest.trim_end() != ending(body)) {
            return Err(altered());
        }
        let whole = sealed.map(|(body, _)| format!("{body}\n}}"));
        let state: State =
            serde_json::from_str(whole.as_deref().unwrap_or(text)).map_err(|error| error.to_string())?;
        if !(1..=VERSION).contains(&state.version) {
            return Err(format!("layout version {}; this binary reads 1 to {VERSION}", state.version));
        }
        if state.is_sealed() != sealed.is_some() {
            return Err(altered());
        }
        state.check()?;
        Ok(state)
    }

    /// Refuses numbers that no run has, and files outside the checkpoint.
    fn check(&self) -> Result<(), String> {
        self.progress.check()?;
        let (updates, step) = (self.optimizer_step, self.progress.step);
        if updates > step {
            return Err(format!("optimizer_step is {updates}, after {step} steps"));
        }
        let inside = |name: &&String| {
            let mut parts = Path::new(name.as_str()).components();
            !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        match self.files.keys().find(|name| !inside(name)) {
            Some(name) => Err(format!("files: {name:?} is no file of a checkpoint")),
            None => Ok(()),
        }
    }
}

/// The hash and the end of a text that begins with `body`.
fn ending(body: &str) -> String {
    format!("{:032x}\"\n}}", XxHash3_128::oneshot(body.as_bytes()))
}

impl Progress {
    /// Refuses numbers that no run has.
    ///
    /// # Errors
    /// A message that names the number.
    fn check(&self) -> Result<(), String> {
        let steps = [("step", self.step), ("stage_step", self.stage_step), ("stage", self.stage as u64)];
        for (key, number) in steps {
            if number > MOST_STEPS {
                return Err(format!("progress.{key} is {number}; at most {MOST_STEPS} can be"));
            }
        }
        if self.stage_step > self.step {
            return Err(format!("progress.stage_step is {}, after {} steps", self.stage_step, self.step));
        }
        if self.tokens > MOST_TOKENS {
            return Err(format!("progress.tokens is {}; at most {MOST_TOKENS} can be", self.tokens));
        }
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let ended = self.ended.as_ref().map_or(0.0, |ended| ended.stage_time_s);
        if ![self.time_s, self.stage_time_s, ended].into_iter().all(is_time) {
            return Err("progress: a time is not a number from zero up".into());
        }
        match self.ended.as_ref().filter(|ended| ended.stage_step > self.step || self.stage == 0) {
            Some(ended) => {
                Err(format!("progress.ended is of {} steps, after {}", ended.stage_step, self.step))
            }
            None => Ok(()),
        }
    }

    /// Refuses a stage that a run of `stages` stages does not have.
    ///
    /// # Errors
    /// A message.
    pub fn check_stage(&self, stages: usize) -> Result<(), String> {
        let Progress { stage, stage_step, .. } = *self;
        // One past the last stage is a finished run, which has no steps in it.
        if stage < stages || (stage == stages && stage_step == 0) {
            return Ok(());
        }
        Err(format!("progress.stage is {stage} with {stage_step} steps, and the recipe has {stages} stages"))
    }
}

/// Parses the bytes as a `state.json` without panicking; an accepted state survives being written and read back.
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(state) = State::parse(text) else { return };
    for stages in [0, 1, 3] {
        let _ = state.progress.check_stage(stages);
    }
    let again = State { version: VERSION, ..state }.to_text().map(|text| State::parse(&text));
    assert!(matches!(again, Ok(Ok(_))), "{again:?}");
}

pub(super) fn read_state(folder: &Path) -> crate::error::Result<State> {
    let path = folder.join(STATE);
    let text = fs::read_to_string(&path).map_err(io("read", &path))?;
    State::parse(&text).map_err(|why| refuse(&path, why))
}

pub(super) fn write_state(folder: &Path, state: &State) -> crate::error::Result<()> {
    let path = folder.join(STATE);
    let text = state.to_text().map_err(|error| refuse(&path, error.to_string()))?;
    Ok(fathom_model::write_private(&path, &[text.as_bytes()])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::files::FileState;
    use crate::run::StageEnd;

    fn state() -> State {
        let files = [("model/model.safetensors".to_string(), FileState::of((7, 9)))].into();
        let ended = Some(StageEnd { stage_step: 4, stage_time_s: 0.1, ..StageEnd::default() });
        let progress =
            Progress { step: 9, stage: 1, stage_step: 0, time_s: 0.3, ended, ..Progress::default() };
        State { version: VERSION, progress, optimizer_step: 9, files, base: None }
    }

    #[test]
    fn any_byte_that_changes_is_refused() {
        let text = state().to_text().unwrap();
        assert_eq!(State::parse(&text).unwrap().progress, state().progress);
        assert!(State::parse(&format!("{text}\n")).is_ok(), "an editor's line break");
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert!(State::parse(&changed).is_err(), "byte {at}: {changed}");
        }
        for cut in 1..text.len() {
            assert!(State::parse(&text[..cut]).is_err(), "{cut} bytes");
        }
        // Without its hash it is not accepted as an older layout either.
        let (body, _) = text.rsplit_once(SEAL).unwrap();
        assert!(State::parse(&format!("{body}\n}}")).unwrap_err().contains("altered"));
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut State), words: &str) {
        let mut state = state();
        state.version = 2;
        change(&mut state);
        let text = serde_json::to_string(&state).unwrap();
        match State::parse(&text) {
            Ok(state) => assert!(words.is_empty() && !state.is_sealed(), "accepted: {text}"),
            Err(error) => assert!(!words.is_empty() && error.contains(words), "{error}"),
        }
    }

    #[test]
    fn an_older_layout_is_read_and_its_numbers_are_checked() {
        check(|_| {}, "");
        check(|state| state.progress.step = u64::MAX, "progress.step");
        check(|state| state.progress.stage = usize::MAX, "progress.stage");
        check(|state| state.progress.stage_step = 10, "progress.stage_step is 10, after 9");
        check(|state| state.progress.tokens = u64::MAX, "progress.tokens");
        check(|state| state.progress.time_s = -1.0, "a time");
        check(|state| state.optimizer_step = 10, "optimizer_step is 10, after 9 steps");
        check(|state| state.progress.stage = 0, "progress.ended");
        check(|state| state.version = 4, "version 4");
        check(|state| drop(state.files.insert("../x".into(), FileState::of((1, 1)))), "../x");
        check(|state| drop(state.files.insert("/x".into(), FileState::of((1, 1)))), "/x");
        let progress = |stage, stage_step| Progress { stage, stage_step, ..Progress::default() };
        assert!(progress(3, 0).check_stage(3).is_ok() && progress(2, 7).check_stage(3).is_ok());
        assert!(progress(3, 1).check_stage(3).is_err() && progress(99, 0).check_stage(3).is_err());
    }
}
