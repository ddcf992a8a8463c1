//! Errors as exceptions of the Python package.

use std::error::Error as StdError;
use std::io;

use fathom_app::{Error, in_full};
use fathom_base::Error as BaseError;
use fathom_train::Error as TrainError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Name of an exception class of `fathom.errors`, and its fields.
type Class = (&'static str, Vec<(&'static str, String)>);

/// Converts an error to an exception.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let (class, fields) = class(error);
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, text)| (*name, text.as_str())).collect();
    make(py, class, &in_full(error), &fields)
}

/// Makes an exception of `fathom.errors`.
pub fn make(py: Python<'_>, class: &str, message: &str, fields: &[(&str, &str)]) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let keywords = PyDict::new(py);
        for (name, text) in fields {
            keywords.set_item(name, text)?;
        }
        let made = py.import("fathom.errors")?.getattr(class)?.call((message,), Some(&keywords))?;
        Ok(PyErr::from_value(made))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(message.to_string()))
}

/// Converts a message that refuses an argument.
pub fn refuse(py: Python<'_>, message: &str) -> PyErr {
    make(py, "Error", message, &[])
}

fn class(error: &Error) -> Class {
    match error {
        Error::OutOfMemory(_) => ("OutOfMemory", Vec::new()),
        Error::Panicked(_) => ("Bug", Vec::new()),
        Error::NotBuilt(_) => ("NotBuilt", Vec::new()),
        Error::InUse { .. } => ("InUse", Vec::new()),
        Error::Base(error) => of_base(error),
        Error::Train(error) => of_train(error),
        Error::Io(error) => of_io(error),
        Error::Context { source, .. } => of_any(&**source),
        other => other.source().map_or(("Error", Vec::new()), of_any),
    }
}

fn of_any(error: &(dyn StdError + 'static)) -> Class {
    if let Some(error) = error.downcast_ref::<Error>() {
        return class(error);
    }
    if let Some(error) = error.downcast_ref::<TrainError>() {
        return of_train(error);
    }
    if let Some(error) = error.downcast_ref::<BaseError>() {
        return of_base(error);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return of_io(error);
    }
    error.source().map_or(("Error", Vec::new()), of_any)
}

fn of_base(error: &BaseError) -> Class {
    let recipe = |key: &str, place: &str, hint: &str| {
        let fields = vec![("key", key.to_string()), ("place", place.to_string()), ("hint", hint.to_string())];
        ("RecipeError", fields)
    };
    match error {
        BaseError::Toml { place, .. } => recipe("", place, ""),
        BaseError::UnknownKey { place, key, hint } => recipe(key, place, hint),
        BaseError::WrongType { place, key, hint, .. } => recipe(key, place, hint.trim_start_matches("; ")),
        BaseError::NotASetting { text } => recipe(text, "", ""),
        BaseError::UnknownRecipe { place, name, hint } => recipe(name, place, hint),
        BaseError::ExtendsCircle { .. } => recipe("extends", "", ""),
        BaseError::Refused { place, key, message } | BaseError::Outdated { place, key, message, .. } => {
            recipe(key, place, message)
        }
        BaseError::Io(refused) => refused
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            .map_or(("Error", Vec::new()), of_io),
        BaseError::Product(product) => of_any(&**product),
        _ => ("Error", Vec::new()),
    }
}

fn of_train(error: &TrainError) -> Class {
    match error {
        TrainError::Recipe { key, .. } => ("RecipeError", vec![("key", key.clone())]),
        TrainError::NotFinite { step, .. } => ("NotFinite", vec![("step", step.to_string())]),
        TrainError::DoesNotFit { .. } => ("OutOfMemory", Vec::new()),
        TrainError::OtherRecipe { .. } => ("RecipeError", Vec::new()),
        TrainError::Base(error) => of_base(error),
        TrainError::Hook(error) => of_any(&**error),
        other => other.source().map_or(("Error", Vec::new()), of_any),
    }
}

fn of_io(error: &io::Error) -> Class {
    let number = error.raw_os_error().map(|number| ("errno", number.to_string()));
    ("FileError", number.into_iter().collect())
}
