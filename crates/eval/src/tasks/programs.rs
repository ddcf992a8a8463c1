//! Generated programs: answers that are run with the tests of their items, for [`PassAtK`].

use std::collections::BTreeMap;

use super::config::TaskConfig;
use super::doc::Doc;
use super::filters::{Answers, said};
use super::pass_at_k::PassAtK;
use super::prompt::Writer;
use crate::error::{Error, Result};
use crate::metrics::aggregate::ItemValue;

/// Runs programs; true for each that ends well.
pub type RunPrograms<'r> = &'r dyn Fn(&[String]) -> Result<Vec<bool>>;

/// The values of all items: their filtered answers are put into programs, of which equal ones run once.
///
/// # Errors
/// Programs are not allowed; a template fails; they cannot be run.
pub fn values(
    (config, writer): (&TaskConfig, &Writer<'_>),
    docs: &[Doc],
    answers: &[Vec<Answers>],
    run: Option<RunPrograms<'_>>,
) -> Result<Vec<Vec<(String, ItemValue)>>> {
    let wrong = |reason: String| Error::task(&config.name, reason);
    let Some(metric) = PassAtK::of(&config.measures, config.repeats).map_err(wrong)? else {
        return Ok(vec![Vec::new(); docs.len()]);
    };
    let run = run.ok_or_else(|| not_allowed(&config.name))?;
    let mut programs = Vec::with_capacity(docs.len());
    for (doc, answers) in docs.iter().zip(answers) {
        let mut of_item = Vec::new();
        for answer in answers {
            let all = match answer {
                Answers::Many(all) => all.as_slice(),
                Answers::One(one) => std::slice::from_ref(one),
            };
            for answer in all {
                let mut row = doc.clone();
                row.insert("answer".into(), said(answer).into());
                of_item.push(writer.program(&metric.program, &row)?);
            }
        }
        programs.push(of_item);
    }
    let mut results: BTreeMap<&String, bool> = programs.iter().flatten().map(|it| (it, false)).collect();
    let distinct: Vec<String> = results.keys().map(|program| program.to_string()).collect();
    for (passed, found) in results.values_mut().zip(run(&distinct)?) {
        *passed = found;
    }
    let of_item = |programs: &Vec<String>| {
        let passed: Vec<bool> = programs.iter().map(|program| results[program]).collect();
        metric.values(&passed).collect()
    };
    Ok(programs.iter().map(of_item).collect())
}

/// Refusal of a task that runs programs.
pub fn not_allowed(task: &str) -> Error {
    Error::task(
        task,
        "runs generated programs, in a jail without a network, and nothing does unless it is allowed; give --run-programs",
    )
}
