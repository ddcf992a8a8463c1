//! `fathom curate stages`: the kinds of stages, and a stage's options as a recipe excerpt.

use anyhow::{Result, bail};
use fathom_base::recipe::suggest_name;
use fathom_curate::pipeline::{OptionDoc, stage_kinds};
use serde_json::json;

/// Width of a comment, equal to that of a verb's help.
const COLUMNS: usize = 110;

/// Lists the kinds, or the options of one of them.
pub fn run(name: Option<&str>, as_json: bool) -> Result<()> {
    let Some(name) = name else {
        for kind in stage_kinds() {
            if as_json {
                outln!("{}", json!({"name": kind.name, "about": kind.about}))
            } else {
                outln!("{:<16} {}", kind.name, kind.about)
            }
        }
        return Ok(());
    };
    let Some(kind) = stage_kinds().iter().find(|kind| kind.name == name) else {
        let names: Vec<&str> = stage_kinds().iter().map(|kind| kind.name).collect();
        bail!("no stage is called `{name}`; {}", suggest_name(name, &names, "there are"));
    };
    let options = kind.options();
    if as_json {
        outln!("{}", json!({"name": kind.name, "about": kind.about, "options": options}))
    } else {
        out!("{}", stage(kind.name, kind.about, &options))
    }
    Ok(())
}

/// A stage with all options at their defaults, documented in comments.
fn stage(name: &str, about: &str, options: &[OptionDoc]) -> String {
    let mut out = String::new();
    comment(&mut out, &format!("{name}: {about}."), ["", ""]);
    out += &format!("[[stage]]\nuse = \"{name}\"\n");
    for option in options {
        out.push('\n');
        comment(&mut out, &option.about, ["", ""]);
        comment(&mut out, &format!("Takes {}.", option.takes), ["", ""]);
        for choice in &option.choices {
            comment(&mut out, &format!("{}: {}", choice.name, choice.about), ["  ", "    "]);
        }
        let mark = if stands_alone(option, options) { "" } else { "# " };
        out += &format!("{mark}{} = {}\n", option.name, option.default);
    }
    out
}

/// Returns whether an option can be written together with all others: neither a table whose options are listed, nor
/// an option of an unset table.
fn stands_alone(option: &OptionDoc, options: &[OptionDoc]) -> bool {
    const UNSET: &str = "\"none\"";
    let within = |table: &OptionDoc, name: &str| {
        name.strip_prefix(&table.name).is_some_and(|rest| rest.starts_with('.'))
    };
    let is_table = options.iter().any(|other| within(option, &other.name));
    let is_in_unset = options.iter().any(|other| other.default == UNSET && within(other, &option.name));
    !is_in_unset && (!is_table || option.default == UNSET)
}

/// Appends text as a wrapped comment; `first` and `next` begin its first line and the following ones.
fn comment(out: &mut String, text: &str, [first, next]: [&str; 2]) {
    let mut line = format!("# {first}");
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            *out += &line;
            out.push('\n');
            line = format!("# {next}");
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    *out += &line;
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use fathom_curate::pipeline::stage_kinds;

    use super::*;

    #[test]
    fn every_stage_is_shown_as_a_recipe_holds_it() {
        for kind in stage_kinds() {
            let options = kind.options();
            let text = stage(kind.name, kind.about, &options);
            let long = text.lines().find(|line| {
                line.starts_with("# ") && !line.contains(" = ") && line.chars().count() > COLUMNS
            });
            assert_eq!(long, None);
            let recipe: toml::Table =
                toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", kind.name));
            let table = recipe["stage"][0].as_table().unwrap();
            assert_eq!(table["use"].as_str(), Some(kind.name));
            for option in &options {
                assert!(table.contains_key(option.name.split('.').next().unwrap()), "{}", option.name);
            }
        }
    }

    #[test]
    fn comments_are_wrapped_and_double_values_commented() {
        let option = |name: &str, default: &str| OptionDoc {
            name: name.into(),
            default: default.into(),
            takes: "text".into(),
            about: "What.".into(),
            choices: Vec::new(),
        };
        let options =
            [option("a", "\"none\""), option("a.b", "1"), option("c", "{ d = 2 }"), option("c.d", "2")];
        let text = stage("x", "y", &options);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(" = ")).collect();
        assert_eq!(lines, ["use = \"x\"", "a = \"none\"", "# a.b = 1", "# c = { d = 2 }", "c.d = 2"]);
        let mut out = String::new();
        comment(&mut out, "word ".repeat(30).trim_end(), ["", "  "]);
        let lengths: Vec<usize> = out.lines().map(str::len).collect();
        assert_eq!(lengths, [106, 48]);
    }
}
