//! The engine of templates with Python's behaviour where Jinja's own differs: methods, printed values, tests, loops.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{concat, items, loops, python, strings, values};

/// Environment for templates whose source went through [`loops::asking`]. It has no limit on steps yet.
pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(|state, value, method, args| {
        if method == "format" {
            python::check_widths(value.as_str().unwrap_or_default())?;
            return unknown_method_callback(state, value, method, &concat::formatted(args)?);
        }
        if let ("join", Some(items)) = (method, args.first()) {
            items::check_joined(items)?;
        }
        if let ("index", ValueKind::Seq | ValueKind::String, [wanted]) = (method, value.kind(), args) {
            return index(value, wanted);
        }
        if let Some(found) = value.as_str().and_then(|text| strings::call(text, method, args)) {
            return found;
        }
        unknown_method_callback(state, value, method, args)
    });
    strings::register(&mut environment);
    environment.set_formatter(|out, _, value| {
        // Print numbers, lists and objects as Python does; everything else with the default, without escaping.
        let printed = match value.kind() {
            ValueKind::Number => out.write_str(&python::number(value)),
            ValueKind::Seq | ValueKind::Map => out.write_str(&python::repr(value)?),
            _ => write!(out, "{value}"),
        };
        printed.map_err(|_| Error::new(ErrorKind::WriteFailure, "the text is too long"))
    });
    // Python's rules: `none` is not iterable; undefined is iterable and a sequence.
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | Seq | Map | Iterable | String)
    });
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | Seq | Map | String)
    });
    environment.add_test("number", values::is_number);
    environment.add_test("float", values::is_float);
    environment.add_function(loops::LOOPED, |value: &Value| items::looped(value));
    concat::register(&mut environment);
    environment
}

/// Python's `index` of a list or a string.
fn index(value: &Value, wanted: &Value) -> Result<Value, Error> {
    let found = match (value.as_str(), wanted.as_str()) {
        (Some(text), Some(part)) => text.find(part).map(|at| text[..at].chars().count()),
        _ => value.try_iter()?.position(|item| item == *wanted),
    };
    let missing =
        || Error::new(ErrorKind::InvalidOperation, format!("index: {wanted:?} is not in {value:?}"));
    found.map(Value::from).ok_or_else(missing)
}
