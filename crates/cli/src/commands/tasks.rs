//! `fathom eval --tasks`: tasks in the format of lm-evaluation-harness.

use std::path::Path;

use anyhow::Result;
use fathom_app::Machine;
use fathom_app::tasks::{Request, compared, tasks};
use fathom_base::human;
use fathom_eval::lengths::Scores;
use fathom_eval::tasks::Languages;
use fathom_train::recipe::Precision;

use crate::args::Eval;
use crate::listen::Plain;

/// Runs the tasks that the flags name.
pub fn eval(args: &Eval, model: &Path) -> Result<()> {
    let listener = Plain::default();
    let flags = &args.tasks;
    let request = Request {
        model: model.to_path_buf(),
        adapter: args.adapter.clone(),
        tasks: flags.tasks.clone(),
        tasks_dir: flags.tasks_dir.clone(),
        data_dir: flags.data_dir.clone(),
        lengths: flags.lengths.clone(),
        run_programs: flags.run_programs,
        dtype: flags.precision.map(Precision::dtype),
        limit: flags.limit,
        num_fewshot: flags.num_fewshot,
        resamples: flags.bootstrap_iters,
        tokens: args.tokens,
        chat_template: flags.apply_chat_template,
        multiturn: flags.fewshot_as_multiturn,
        system: flags.system_instruction.clone(),
        out: flags.out.clone(),
        log_samples: flags.log_samples,
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let ran = tasks(&request, &machine, &listener)?;
    if args.json {
        outln!("{}", serde_json::to_string(&ran.json)?);
        return Ok(());
    }
    out!("{}", ran.results.table());
    if let Some(scores) = Scores::of(&ran.results) {
        out!("\n{}\n", scores.table());
    }
    if let Some(languages) = Languages::of(&ran.results) {
        out!("\n{}\n", languages.table());
    }
    let count = |items: usize| human::counted(items as u64, "item");
    let sum =
        |of: fn(&fathom_eval::tasks::TaskResult) -> usize| ran.results.tasks.iter().map(of).sum::<usize>();
    let (asked, all) = (sum(|task| task.effective), sum(|task| task.original));
    match flags.limit {
        Some(limit) => outln!("{} of {}: --limit {limit}", count(asked), count(all)),
        None => outln!("{}", count(asked)),
    }
    if ran.kept > 0 {
        closing!("{} kept from an earlier run", human::counted(ran.kept as u64, "answer"));
    }
    if let Some(out) = &flags.out {
        closing!("{}", out.display());
    }
    Ok(())
}

/// Compares files of results.
pub fn compare(args: &Eval) -> Result<()> {
    let compared = compared(&args.tasks.compare, args.tasks.out.as_deref())?;
    out!("{compared}");
    if let Some(out) = &args.tasks.out {
        closing!("{}", out.display());
    }
    Ok(())
}
