//! `fathom eval --judge`: answers that another model judges.

use std::path::Path;

use anyhow::{Context, Result};
use fathom_app::Machine;
use fathom_app::judged::{Judge, Request, judged};
use fathom_base::human;
use fathom_serve::bench::Target;

use crate::args::Eval;
use crate::listen::Plain;

/// Has answers judged.
pub fn eval(args: &Eval, model: &Path, judge: &str) -> Result<()> {
    let listener = Plain::default();
    let flags = &args.judged;
    let judge = if judge.contains("://") {
        let mut target = Target::parse(judge)?;
        if let Some(file) = &flags.judge_key_file {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read {}", file.display()))?;
            target.key = text.lines().next().map(|line| line.trim().to_string());
        }
        Judge::Remote(target, flags.judge_model.clone())
    } else {
        Judge::Local(judge.into())
    };
    let request = Request {
        model: model.to_path_buf(),
        adapter: args.adapter.clone(),
        judge,
        against: flags.against.clone(),
        instructions: flags.instructions.clone(),
        tokens: args.tokens,
        answer_tokens: flags.answer_tokens,
        judge_tokens: flags.judge_tokens,
        out: args.tasks.out.clone(),
    };
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let found = judged(&request, &machine, &listener)?;
    if args.json {
        outln!("{}", found.json);
        return Ok(());
    }
    let percent = |rate: f64| format!("{:.1} %", 100.0 * rate);
    let interval = |[low, high]: [f64; 2]| format!("[{}, {}]", percent(low), percent(high));
    if let Some(rates) = &found.rates {
        let wins = &rates.wins;
        outln!("win rate           {}  {}", percent(wins.value), interval(wins.interval));
        match &rates.length_controlled {
            Some(rate) => outln!("length-controlled  {}  {}", percent(rate.value), interval(rate.interval)),
            None => outln!("length-controlled  none of fewer than 5 comparisons"),
        }
        outln!("both orders agree  {}", percent(rates.agreement));
        outln!("characters         {:.0} against {:.0}", rates.lengths[0], rates.lengths[1]);
    }
    if let Some(rating) = &found.rating {
        let [low, high] = rating.interval;
        outln!("rating  {:.2} of 10  [{low:.2}, {high:.2}]", rating.value);
    }
    let [items, texts] = [(found.items, "instruction"), (found.asked, "text")];
    let [items, texts] = [items, texts].map(|(count, name)| human::counted(count as u64, name));
    outln!("{items}, {texts} of the judge, {} without a verdict", human::grouped(found.unread as u64));
    if let Some(out) = &args.tasks.out {
        closing!("{}", out.display());
    }
    Ok(())
}
