//! Definitions of Colang 1.0 as a rail `dialog`: forms of users' messages with their examples, and fixed answers where a
//! flow gives one. Forms that the model answers are said without an answer.

use std::path::Path;

use super::colang::{Definition, DefinitionKind, Form, Program, Step, StepKind};
use super::draft::{Draft, RailDraft};
use super::folder::Files;
use super::options::Settings;

/// Adds the rail, and lists what definitions say that it does not. `used` are the flows of rails.
pub(super) fn add(draft: &mut Draft, files: &Files, settings: &Settings<'_>, used: &[String]) {
    let mut answers: Vec<(String, String)> = Vec::new();
    for (file, program) in &files.programs {
        for (line, why) in &program.refused {
            draft.unsaid(file, *line, "Colang", why);
        }
        for it in &program.definitions {
            let DefinitionKind::Flow { steps, sub, .. } = &it.kind else { continue };
            if used.contains(&it.name) {
                continue;
            }
            match answer(steps, *sub, &files.programs) {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => {}
                Err((line, why)) => draft.unsaid(file, line, format!("flow {}", it.name).trim_end(), why),
            }
        }
    }
    let refusal = bot(&files.programs, "refuse to respond");
    if let Some(text) = refusal {
        draft.guard.push(("refusal", text.into()));
    }
    let forms = forms(draft, files, &answers);
    if !answers.is_empty() && !forms.is_empty() {
        let embeds = settings.at(&["rails", "dialog", "user_messages", "embeddings_only"]);
        let model = if embeds.is_some_and(|found| found.node.is_true()) {
            settings.model("embeddings")
        } else {
            None
        };
        let model = model.or_else(|| settings.model("main")).unwrap_or("model".into());
        let threshold =
            settings.at(&["rails", "dialog", "user_messages", "embeddings_only_similarity_threshold"]);
        let mut rail = RailDraft::new("dialog", "dialog", "input").with("model", model);
        if let Some(number) = threshold.and_then(|found| found.node.number()) {
            rail = rail.with("threshold", number);
        }
        draft.rails.push(rail.with("forms", toml::Value::Array(forms)));
    }
}

/// First text of a bot's message.
fn bot<'a>(programs: &'a [(std::path::PathBuf, Program)], name: &str) -> Option<&'a str> {
    programs.iter().find_map(|(_, program)| program.bot(name)?.first().map(|text| &**text))
}

/// The forms as tables. Those without examples cannot be recognised.
fn forms(draft: &mut Draft, files: &Files, answers: &[(String, String)]) -> Vec<toml::Value> {
    let mut forms: Vec<toml::Value> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (file, program) in &files.programs {
        for it in &program.definitions {
            match &it.kind {
                DefinitionKind::User(examples) => {
                    let answer = answers.iter().find(|(form, _)| *form == it.name);
                    if answers.is_empty() {
                        draft.unsaid(
                            file,
                            it.line,
                            format!("user {}", it.name),
                            "has no flow with a fixed answer",
                        );
                    } else if examples.is_empty() || seen.contains(&&*it.name) {
                        let why = "has no examples, or was defined before; it is not recognised";
                        draft.unsaid(file, it.line, format!("user {}", it.name), why);
                    } else {
                        seen.push(&it.name);
                        forms.push(form(&it.name, examples, answer.map(|(_, text)| &**text)));
                    }
                }
                DefinitionKind::Bot(texts) => fixed(draft, file, it, texts),
                DefinitionKind::Flow { .. } => {}
            }
        }
    }
    for (form, _) in answers.iter().filter(|(form, _)| !seen.contains(&&**form)) {
        let file = files.programs.first().map_or(Path::new(""), |(file, _)| file);
        draft.unsaid(file, 1, format!("user {form}"), "is answered by a flow and has no examples");
    }
    forms
}

/// Lists texts of a message beyond the first, among which one is chosen at random there.
fn fixed(draft: &mut Draft, file: &Path, it: &Definition, texts: &[String]) {
    if texts.len() > 1 {
        let why = format!("has {} texts, of which the first is always sent", texts.len());
        draft.unsaid(file, it.line, format!("bot {}", it.name), why);
    }
    if texts.iter().any(|text| text.contains('$') || text.contains("{{")) {
        draft.unsaid(file, it.line, format!("bot {}", it.name), "has variables, which are sent as they are");
    }
}

fn form(name: &str, examples: &[String], answer: Option<&str>) -> toml::Value {
    let mut table = toml::Table::new();
    table.insert("name".into(), name.into());
    let examples = examples.iter().map(|text| text.as_str().into()).collect();
    table.insert("examples".into(), toml::Value::Array(examples));
    if let Some(answer) = answer {
        table.insert("answer".into(), answer.into());
    }
    toml::Value::Table(table)
}

/// The form that a flow answers, with its fixed answer; `None` if the model answers.
///
/// # Errors
/// The line of a step that a rail does not have.
fn answer(
    steps: &[Step],
    sub: bool,
    programs: &[(std::path::PathBuf, Program)],
) -> Result<Option<(String, String)>, (usize, String)> {
    let first = steps.first().map_or(1, |step| step.line);
    if sub {
        return Err((first, "is a subflow, which no rail names".into()));
    }
    let Some((StepKind::User(Form::Named(form)), rest)) =
        steps.split_first().map(|(step, rest)| (&step.kind, rest))
    else {
        return Err((first, "does not begin with a user's form, so it is no answer to a message".into()));
    };
    let mut texts = Vec::new();
    for step in rest {
        match &step.kind {
            StepKind::Bot(_, given) if !given.is_empty() => texts.push(given[0].clone()),
            StepKind::Bot(Form::Text(text), _) => texts.push(text.clone()),
            // Without a text the model writes the answer.
            StepKind::Bot(Form::Named(name), _) => match bot(programs, name) {
                Some(text) => texts.push(text.to_string()),
                None => return Ok(None),
            },
            StepKind::Stop => break,
            StepKind::Execute(..) => return Err((step.line, "executes an action, which is code".into())),
            StepKind::User(_) | StepKind::When(_) => {
                return Err((
                    step.line,
                    "waits for a further message: one answer to one form is translated".into(),
                ));
            }
            _ => return Err((step.line, "has a step that depends on variables".into())),
        }
    }
    Ok((!texts.is_empty()).then(|| (form.clone(), texts.join("\n"))))
}
