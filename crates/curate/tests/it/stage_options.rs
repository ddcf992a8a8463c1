//! Every stage kind: its options, their documentation, and the enforcement of documented ranges.

use std::collections::{BTreeMap, BTreeSet};

use fathom_curate::pipeline::{OptionDoc, stage_kinds};
use toml::Value;

fn value(text: &str) -> Value {
    let table: toml::Table = toml::from_str(&format!("x = {text}")).unwrap();
    table["x"].clone()
}

/// Options to write, excluding those of an unset table.
fn written(options: &[OptionDoc]) -> BTreeMap<String, Value> {
    let unset = |name: &str| options.iter().any(|o| o.name == name && o.default == "\"none\"");
    let within_unset =
        |option: &&OptionDoc| option.name.rsplit_once('.').is_some_and(|(table, _)| unset(table));
    let given = options.iter().filter(|option| !within_unset(option));
    given.map(|option| (option.name.clone(), value(&option.default))).collect()
}

#[test]
fn every_kind_knows_its_options_and_reads_its_own_defaults() {
    for kind in stage_kinds() {
        let options = kind.options();
        // An unnamed file, model or function cannot be loaded, no sets match nothing, and a blend without weights is empty;
        // everything else must be accepted.
        match kind.read(&written(&options)) {
            Ok(Err(mistake)) => {
                let files = ["quality", "classify", "perplexity", "semantic", "histogram", "tokens"];
                let unset = ["decontaminate", "blend", "function"];
                let without = files.contains(&kind.name) || unset.contains(&kind.name);
                assert!(without, "{}: {mistake:?}", kind.name);
            }
            Ok(Ok(table)) => {
                let named = |key: &String| {
                    let within = |option: &OptionDoc| option.name.split('.').next() == Some(key);
                    options.iter().any(within)
                };
                assert!(table.keys().all(named), "{}: {table}", kind.name);
            }
            Err(error) => panic!("{}: {error}", kind.name),
        }
    }
}

#[test]
fn every_option_says_what_it_takes_and_means() {
    for kind in stage_kinds() {
        let options = kind.options();
        let names: BTreeSet<&str> = options.iter().map(|option| &*option.name).collect();
        assert_eq!(names.len(), options.len(), "{}: an option is there twice", kind.name);
        for OptionDoc { name, takes, about, choices, .. } in &options {
            let at = format!("{}.{name}", kind.name);
            assert_ne!(takes, "any value", "{at}");
            let texts = choices.iter().map(|choice| &choice.about).chain([about]);
            for text in texts {
                assert!(text.ends_with(['.', ')']) && text.len() > 3, "{at} says `{text}`");
                // Intra-doc links would be dead in this text.
                assert!(!text.contains("[`"), "{at} says `{text}`");
            }
        }
    }
}

/// Values just beyond the documented range of an option.
fn beyond(takes: &str) -> Vec<f64> {
    let takes = takes.strip_suffix(", or none").unwrap_or(takes);
    let words: Vec<&str> = takes.split(' ').collect();
    let is_number = takes.starts_with("a number") || takes.starts_with("a whole number");
    let bounds = words.windows(2).filter_map(|pair| Some((pair[0], pair[1].parse::<f64>().ok()?)));
    let beyond = bounds.map(|(word, bound)| match word {
        "from" => bound - 1.0,
        "of" if takes.ends_with("or more") => bound - 1.0,
        "to" | "of" => bound + 1.0,
        "above" | "below" => bound,
        other => panic!("a range is documented by `{other}`: {takes}"),
    });
    if is_number { beyond.collect() } else { Vec::new() }
}

#[test]
fn what_is_documented_of_ranges_holds() {
    assert_eq!(beyond("a number from 0 to below 1, or none"), [-1.0, 1.0]);
    for kind in stage_kinds() {
        for OptionDoc { name, takes, .. } in kind.options() {
            for wrong in beyond(&takes) {
                let whole = takes.starts_with("a whole number");
                let wrong = if whole { Value::Integer(wrong as i64) } else { Value::Float(wrong) };
                let mut given = BTreeMap::from([(name.clone(), wrong.clone())]);
                // Files are not looked for until the options are valid.
                for (stage, file) in [("quality", "model"), ("histogram", "file"), ("tokens", "tokenizer")] {
                    if stage == kind.name {
                        given.insert(file.to_owned(), Value::String("none.bin".to_owned()));
                    }
                }
                match kind.read(&given) {
                    Ok(Err(mistake)) => assert_eq!(mistake.key, name, "{} = {wrong}: {mistake:?}", kind.name),
                    Ok(Ok(_)) => panic!("{}.{name} = {wrong} stands; it takes {takes}", kind.name),
                    Err(error) => panic!("{}.{name} = {wrong}: {error}", kind.name),
                }
            }
        }
    }
}
