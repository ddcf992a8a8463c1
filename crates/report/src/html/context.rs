//! Section on context: loss by position before and after extension, needle maps and bits per byte.

use fathom_base::metrics::events::{EvalContext, EvalPosition, EvalRuler, Needle};
use fathom_base::{human, tokens};

use super::table::row;
use crate::log::RunLog;
use crate::plots::{Axis, BarGroup, Bars, Figure, HeatMap, LineChart, Mark, Series};
use crate::verdict::{in_windows, span};

/// Draws the section; empty if nothing was evaluated.
pub fn section(log: &RunLog) -> String {
    let mut html = String::new();
    if !log.positions.is_empty() {
        html.push_str(&positions(log).draw().html());
        html.push_str(&regression(log));
    }
    html.push_str(&ruler(log));
    html.push_str(&worth(log));
    let maps: Vec<Figure> = log.needles.iter().map(|needle| needle_map(needle).draw()).collect();
    html + &row(&maps)
}

/// Tables of RULER's tasks, with the loss within the short context as the price: figures before and after, and tasks by
/// length; empty if none was asked.
fn ruler(log: &RunLog) -> String {
    let Some(last) = log.rulers.last() else { return String::new() };
    let columns = |first: &str| {
        let mut head = vec![first.to_string()];
        head.extend(log.rulers.iter().map(|eval| words(&eval.when)));
        head
    };
    let row = |name: String, cell: &dyn Fn(&EvalRuler) -> Option<String>| {
        let cells = log.rulers.iter().map(|eval| cell(eval).unwrap_or_else(|| "-".into()));
        std::iter::once(name).chain(cells).collect::<Vec<String>>()
    };
    let score = |eval: &EvalRuler, tokens: u64, task: Option<&str>| {
        let length = eval.lengths.iter().find(|length| length.tokens == tokens)?;
        let of_task = |name: &str| length.tasks.iter().find(|(task, _)| task == name).map(|task| task.1);
        Some(format!("{:.1}", task.map_or(Some(length.mean), of_task)?))
    };
    let effective = |eval: &EvalRuler| Some(eval.effective_tokens).filter(|it| *it > 0).map(tokens::format);
    let mut rows = vec![row("effective length".into(), &effective)];
    for length in &last.lengths {
        let at = tokens::format(length.tokens);
        rows.push(row(format!("mean at {at}, %"), &|eval| score(eval, length.tokens, None)));
    }
    let before = log.positions.first().filter(|eval| eval.when.starts_with("before_"));
    let measured = |eval: &EvalPosition| eval.buckets.iter().map(|bucket| bucket.to).max();
    if let Some(short) =
        before.and_then(|eval| Some(eval.trained_tokens.min(measured(eval)?))).filter(|it| *it > 0)
    {
        let loss = |eval: &EvalRuler| {
            let position = log.positions.iter().find(|position| position.when == eval.when)?;
            Some(format!("{:.4}", within(position, short)?))
        };
        let name = format!("loss within {}, nats per token", tokens::format(short));
        rows.push(row(name, &loss));
    }
    let mut tasks = Vec::new();
    for length in &last.lengths {
        for (task, _) in &length.tasks {
            let name = format!("{task} at {}", tokens::format(length.tokens));
            tasks.push(row(name, &|eval| score(eval, length.tokens, Some(task))));
        }
    }
    let table = |first: &str, rows: &[Vec<String>]| {
        let head = columns(first);
        super::table::table(&Vec::from_iter(head.iter().map(String::as_str)), rows)
    };
    let rule = if last.all_tasks {
        "over its thirteen tasks"
    } else {
        "over the six tasks that need no file, so that it is not RULER's own, which is over thirteen"
    };
    format!(
        "<h3>RULER</h3><p class=\"note\">The effective length is the longest whose mean reaches {}, {rule}. {} of each task at each \
         length. The loss within the length before the extension is what the short context pays.</p>{}\
         <details><summary>RULER by task</summary>{}</details>",
        last.threshold,
        human::counted(last.rows, "row"),
        table("", &rows),
        table("task, %", &tasks)
    )
}

/// Mean loss of the positions up to a length, each with the same weight; `None` if buckets are missing.
fn within(eval: &EvalPosition, tokens: u64) -> Option<f64> {
    let inside = eval.buckets.iter().filter(|bucket| bucket.to <= tokens && bucket.tokens > 0);
    let (sum, positions) = inside.fold((0.0, 0.0), |(sum, positions), bucket| {
        let own = bucket.to.saturating_sub(bucket.from) as f64;
        (sum + bucket.loss * own, positions + own)
    });
    (positions > 0.0).then(|| sum / positions)
}

/// Table of the benefit of context, one row per evaluation; empty if none was compared.
fn worth(log: &RunLog) -> String {
    let row = |eval: &EvalContext| {
        vec![
            words(&eval.when),
            tokens::format(eval.full_tokens),
            format!("{:.4}", eval.full_loss),
            tokens::format(eval.cut_tokens),
            format!("{:.4}", eval.cut_loss),
            format!("{:.4}", eval.cut_loss - eval.full_loss),
            human::number(eval.standard_error),
            human::grouped(eval.tokens),
        ]
    };
    let rows: Vec<Vec<String>> = log.contexts.iter().map(row).collect();
    let head = ["moment", "context", "loss", "cut to", "loss", "gain", "standard error", "tokens scored"];
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<h3>The same tokens with all of their context and with a part of it</h3>\
         <p class=\"note\">Tokens of the second half of held-out documents, predicted after all that precedes them, and after the last \
         tokens alone. A gain of less than two standard errors may be chance.</p>{}",
        super::table::table(&head, &rows)
    )
}

/// Writes a moment such as `before_extension` as words.
fn words(when: &str) -> String {
    when.replace('_', " ")
}

fn positions(log: &RunLog) -> LineChart {
    const CLASSES: [&str; 4] = ["s2 dashed dots", "s1 dots", "s3 dots", "s4 dots"];
    let first = if log.positions.len() == 1 { 1 } else { 0 };
    let line = |(i, eval): (usize, &EvalPosition)| {
        let filled = eval.buckets.iter().filter(|bucket| bucket.tokens > 0 && bucket.to > 0);
        // A bucket is drawn at the geometric mean of its ends. For the first, which begins at 0, half its end stands
        // for the beginning, in line with the other buckets.
        let middle =
            |from: u64, to: u64| (if from == 0 { to as f64 / 2.0 } else { from as f64 } * to as f64).sqrt();
        let points = filled.map(|bucket| (middle(bucket.from, bucket.to), bucket.loss)).collect();
        let class = CLASSES[(i + first) % CLASSES.len()].to_string();
        Series { name: words(&eval.when), class, points }
    };
    let mut trained: Vec<u64> = log.positions.iter().map(|e| e.trained_tokens).filter(|t| *t > 0).collect();
    trained.sort_unstable();
    trained.dedup();
    let mark = |tokens: &u64| Mark {
        x: *tokens as f64,
        label: format!("trained to {}", tokens::format(*tokens)),
        class: "trained",
    };
    LineChart {
        title: "Loss by position in the document".into(),
        note: "Held-out text. A model that was not trained on a length gets much worse there; small differences between positions are \
               of the text that lies there."
            .into(),
        size: (1060.0, 340.0),
        x: Axis::log2_tokens("position in the document [tokens]"),
        y: Axis::linear("loss [nats per token]", " nats"),
        series: log.positions.iter().enumerate().map(line).collect(),
        marks: trained.iter().map(mark).collect(),
        level: None,
    }
}

/// Table of the buckets, with one column per evaluation.
fn regression(log: &RunLog) -> String {
    let Some(last) = log.positions.last() else { return String::new() };
    let mut head = vec!["positions".to_string()];
    head.extend(log.positions.iter().map(|eval| words(&eval.when)));
    head.push("tokens scored".into());
    let rows: Vec<Vec<String>> = last
        .buckets
        .iter()
        .filter(|bucket| bucket.tokens > 0)
        .map(|bucket| {
            let mut row = vec![span(bucket)];
            for eval in &log.positions {
                let same =
                    eval.buckets.iter().find(|b| b.from == bucket.from && b.to == bucket.to && b.tokens > 0);
                row.push(same.map_or("-".into(), |b| format!("{:.4}", b.loss)));
            }
            row.push(human::grouped(bucket.tokens));
            row
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!(
        "<details><summary>Loss by position as a table</summary>{}</details>",
        super::table::table(&head, &rows)
    )
}

fn needle_map(needle: &Needle) -> HeatMap {
    let beyond = needle.lengths_tokens.iter().position(|length| *length > needle.trained_tokens);
    let divider = beyond
        .filter(|column| *column > 0 && needle.trained_tokens > 0)
        .map(|column| (column, format!("trained to {}", tokens::format(needle.trained_tokens))));
    let task = if needle.task.is_empty() { "needle".to_string() } else { words(&needle.task) };
    HeatMap {
        title: format!("Found in the haystack, {}", words(&needle.when)),
        note: match needle.trials {
            1 => format!("Task: {task}; one trial in each cell."),
            trials => format!("Task: {task}; per cent of {trials} trials in each cell."),
        },
        x_label: "length of the prompt [tokens]".into(),
        y_label: "depth of the fact".into(),
        columns: needle.lengths_tokens.iter().map(|length| tokens::format(*length)).collect(),
        rows: needle.depths.iter().map(|depth| format!("{:.0} %", depth * 100.0)).collect(),
        values: needle.accuracy.clone(),
        divider,
    }
}

/// Draws the section on compression; empty if it was not evaluated.
pub fn compression(log: &RunLog) -> String {
    if log.bits.is_empty() {
        return String::new();
    }
    let group = |bits: &fathom_base::metrics::events::EvalBits| BarGroup {
        name: words(&bits.name),
        values: vec![bits.bits_per_byte, bits.gzip_bits_per_byte],
    };
    // A text measured several times is counted once.
    let bytes = log.bits.iter().map(|bits| bits.bytes).max().unwrap_or(0);
    let bars = Bars {
        title: "Bits per byte of held-out text".into(),
        note: format!(
            "Fewer is better; {} of text that no training step has seen{}. It does not depend on the tokenizer.",
            human::bytes(bytes),
            in_windows(log.bits.last().map_or(0, |bits| bits.context_tokens))
        ),
        label: "bits per byte".into(),
        kinds: vec![("this model".into(), "s1".into()), ("gzip -9".into(), "s6".into())],
        groups: log.bits.iter().map(group).collect(),
    };
    row(&[bars.draw()])
}
