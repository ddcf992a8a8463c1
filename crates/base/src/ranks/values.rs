//! Values of environment variables.

use super::claim::{Environment, Setting};

/// A number from the environment, if it is set.
pub(super) type NumberResult = Result<Option<Setting<usize>>, String>;

/// Value of a variable; `None` if it is unset or empty.
pub(super) fn text<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Number in the first of several variables that is set.
pub(super) fn number(environment: &Environment, names: &[&str]) -> NumberResult {
    let Some((name, value)) = names.iter().find_map(|name| Some((*name, text(environment, name)?))) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(value) => Ok(Some(Setting { value, by: name.into() })),
        Err(_) => Err(format!("{name}={value} is not a number from 0; unset it, or set it rightly")),
    }
}

/// Port derived from a job's number, so that two jobs on a machine use different ports.
pub(super) fn port(job: u64) -> u64 {
    20_000 + job % 20_000
}
