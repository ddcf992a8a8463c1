//! `cargo xtask check-quickstart DIR`: checks that a quickstart left everything it promises. Reads only the files, as a
//! person would, without using the crates' code.

mod html;

use std::fs;
use std::path::Path;

use serde_json::Value;

/// Number of steps at the beginning and at the end whose mean losses are compared.
const WINDOW: usize = 5;

/// Files of a Hugging Face folder.
const MODEL_FILES: [&str; 4] =
    ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"];

/// Allowed duration of a run with a time limit, as shares of the limit; wide because the machine may be busy with other
/// work.
const IN_TIME: std::ops::RangeInclusive<f64> = 0.75..=1.5;

/// Texts about the needle that a quickstart's page must contain.
const SAYS: [&str; 3] = ["the longest tested", "built-in copying circuit", "look-up drills"];

/// Checks the folder of a finished quickstart. Returns complaints, each `file: message`.
pub fn check(folder: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut say = |file: &str, message: String| complaints.push(format!("{file}: {message}"));
    let log = "metrics.jsonl";
    let model = read(folder, log).and_then(|text| events(&text)).and_then(|events| {
        losses_fell(&events)?;
        is_measured(&events)?;
        is_in_time(&events)?;
        model_path(&events).map(str::to_string)
    });
    match model {
        Ok(model) => {
            for file in MODEL_FILES {
                let path = format!("{model}/{file}");
                check_model_file(folder, &path).unwrap_or_else(|message| say(&path, message));
            }
        }
        Err(message) => say(log, message),
    }
    let report = "report.html";
    match read(folder, report) {
        Ok(text) if text.is_empty() => say(report, "is empty".to_string()),
        Ok(text) => {
            html::loads(&text)
                .into_iter()
                .for_each(|load| say(report, format!("is not self-contained: {load}")));
            let unsaid = SAYS.iter().filter(|words| !text.contains(*words));
            unsaid.for_each(|words| say(report, format!("does not say: {words}")));
        }
        Err(message) => say(report, message),
    }
    complaints
}

fn read(folder: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(folder.join(file)).map_err(|error| format!("cannot be read: {error}"))
}

fn events(text: &str) -> Result<Vec<Value>, String> {
    let parse =
        |(index, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1));
    text.lines().enumerate().map(parse).collect()
}

/// Every loss is a number, and the mean of the last steps is below that of the first ones. The second check applies
/// only if there are enough steps: a minute on a slow machine may allow just one.
fn losses_fell(events: &[Value]) -> Result<(), String> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    let losses: Option<Vec<f64>> = steps.map(|step| step["loss"].as_f64()).collect();
    let losses = losses.ok_or("a step has no finite loss")?;
    if losses.is_empty() {
        return Err("no step was made".into());
    }
    if losses.len() < 2 * WINDOW {
        return Ok(());
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..WINDOW]), mean(&losses[losses.len() - WINDOW..]));
    if last < first {
        Ok(())
    } else {
        Err(format!("the loss did not fall: {first:.4} at first, {last:.4} at last"))
    }
}

/// The needle test was run on the first and last weights, bits per byte record their windows, and a difference has its
/// standard error.
fn is_measured(events: &[Value]) -> Result<(), String> {
    let of = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
    let needle = |when: &str| of("needle").any(|needle| needle["when"] == when);
    let missing = ["first_weights", "after_extension"].into_iter().find(|when| !needle(when));
    if let Some(when) = missing {
        return Err(format!("no needle was asked for {when}"));
    }
    if let Some(bits) = of("eval_bits").find(|bits| bits["context_tokens"].as_u64().is_none_or(|n| n == 0)) {
        return Err(format!("bits per byte of {} do not say in which windows", bits["name"]));
    }
    match of("eval_context").find(|context| context["standard_error"].as_f64().is_none()) {
        Some(context) => Err(format!("what context is worth {} has no standard error", context["when"])),
        None => Ok(()),
    }
}

/// A run with a time limit ended within it.
fn is_in_time(events: &[Value]) -> Result<(), String> {
    let done = events.iter().rev().find(|event| event["event"] == "done");
    let [took_s, given_s] =
        ["time_s", "given_s"].map(|key| done.and_then(|done| done[key].as_f64()).unwrap_or(0.0));
    if given_s > 0.0 && !IN_TIME.contains(&(took_s / given_s)) {
        return Err(format!("was given {given_s:.0} s and took {took_s:.0} s"));
    }
    Ok(())
}

/// The model's folder, as named by the final `done` event.
fn model_path(events: &[Value]) -> Result<&str, String> {
    let done =
        events.last().filter(|event| event["event"] == "done").ok_or("does not end with a done event")?;
    done["model_path"]
        .as_str()
        .filter(|path| !path.is_empty())
        .ok_or_else(|| "done names no model_path".to_string())
}

/// The file exists and is complete: JSON that parses, or tensors that extend to the end of the file.
fn check_model_file(folder: &Path, path: &str) -> Result<(), String> {
    if path.ends_with(".json") {
        let parsed: Result<Value, _> = serde_json::from_str(&read(folder, path)?);
        return parsed.map(|_| ()).map_err(|error| format!("is not JSON: {error}"));
    }
    let bytes = fs::read(folder.join(path)).map_err(|error| format!("cannot be read: {error}"))?;
    let (length, rest) = bytes.split_first_chunk().ok_or("is too short for a header")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let header = rest.get(..length).ok_or("is shorter than its header says")?;
    let header: Value =
        serde_json::from_slice(header).map_err(|error| format!("its header is not JSON: {error}"))?;
    let tensors = header.as_object().ok_or("its header is not an object")?;
    let end = tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max();
    let (end, data) = (end.ok_or("holds no tensors")?, (rest.len() - length) as u64);
    if end == data { Ok(()) } else { Err(format!("holds {data} bytes of tensors, its header says {end}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<p>At 32k, the longest tested; a built-in copying circuit, look-up drills</p>";
    const NEEDLES: &str = "{\"event\":\"needle\",\"when\":\"first_weights\"}\n{\"event\":\"needle\",\"when\":\"after_extension\"}\n";

    /// Checks a good folder with one file replaced, or removed if `text` is empty.
    fn check_with(file: &str, text: &str, expected: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
        let length = String::from_utf8((header.len() as u64).to_le_bytes().to_vec()).unwrap();
        write("metrics.jsonl", &log(|step| 9.0 - step as f64, r#"{"event":"done","model_path":"hf"}"#));
        write("report.html", PAGE);
        write("hf/model.safetensors", &format!("{length}{header}xy"));
        for name in ["config", "tokenizer", "generation_config"] {
            write(&format!("hf/{name}.json"), "{}");
        }
        match text {
            "" => fs::remove_file(folder.path().join(file)).unwrap(),
            text => write(file, text),
        }
        let found = check(folder.path());
        let found: Vec<&str> = found.iter().map(|text| text.split(" (").next().unwrap()).collect();
        assert_eq!(found, expected);
    }

    fn log(loss: impl Fn(usize) -> f64, last: &str) -> String {
        let steps = (0..20).map(|step| format!("{{\"event\":\"step\",\"loss\":{}}}\n", loss(step)));
        format!("{}{NEEDLES}{last}\n", steps.collect::<String>())
    }

    #[test]
    fn a_good_folder_passes() {
        check_with("other.txt", "x", &[]);
    }

    #[test]
    fn a_slow_machine_may_make_a_step() {
        let step = "{\"event\":\"step\",\"loss\":8.5}\n";
        let done = r#"{"event":"done","model_path":"hf"}"#;
        check_with("metrics.jsonl", &format!("{step}{NEEDLES}{done}\n"), &[]);
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        check_with("report.html", "", &["report.html: cannot be read: No such file or directory"]);
        check_with(
            "report.html",
            "<p>the longest tested, look-up drills</p>",
            &["report.html: does not say: built-in copying circuit"],
        );
        check_with(
            "hf/config.json",
            "{",
            &["hf/config.json: is not JSON: EOF while parsing an object at line 1 column 1"],
        );
        check_with(
            "hf/tokenizer.json",
            "",
            &["hf/tokenizer.json: cannot be read: No such file or directory"],
        );
        check_with(
            "hf/model.safetensors",
            "12345678",
            &["hf/model.safetensors: is shorter than its header says"],
        );
        check_with(
            "report.html",
            &format!("{PAGE}<img src=a.png>"),
            &["report.html: is not self-contained: <img src=a.png>"],
        );
    }

    #[test]
    fn the_log_tells_of_a_good_run() {
        let done = r#"{"event":"done","model_path":"hf"}"#;
        let bad = |text: &str, message: &str| {
            check_with("metrics.jsonl", text, &[&format!("metrics.jsonl: {message}")])
        };
        bad(&log(|_| 2.0, done), "the loss did not fall: 2.0000 at first, 2.0000 at last");
        bad(&log(|step| 9.0 - step as f64, ""), "line 23: EOF while parsing a value at line 1 column 0");
        bad(&log(|step| 9.0 - step as f64, r#"{"event":"sample"}"#), "does not end with a done event");
        bad(done, "no step was made");
        let falls = |step: usize| 9.0 - step as f64;
        bad(
            &log(falls, done).replace("first_weights", "before_extension"),
            "no needle was asked for first_weights",
        );
        let bits = format!("{{\"event\":\"eval_bits\",\"name\":\"x\"}}\n{done}");
        bad(&log(falls, &bits), "bits per byte of \"x\" do not say in which windows");
        let context =
            format!("{{\"event\":\"eval_context\",\"when\":\"x\",\"standard_error\":null}}\n{done}");
        bad(&log(falls, &context), "what context is worth \"x\" has no standard error");
        for (took, given) in [(95.0, 60.0), (40.0, 60.0)] {
            let late =
                format!("{{\"event\":\"done\",\"model_path\":\"hf\",\"time_s\":{took},\"given_s\":{given}}}");
            bad(&log(falls, &late), &format!("was given {given} s and took {took} s"));
        }
        bad(&format!("{{\"event\":\"step\",\"loss\":null}}\n{done}"), "a step has no finite loss");
    }
}
