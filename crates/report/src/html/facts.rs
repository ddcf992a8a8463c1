//! The sections that are tables and text: samples, data and model, recipe, machine.

use fathom_base::human;
use fathom_base::metrics::events::{Data, DroppedText, EvalAnswers};
use fathom_base::recipe::Row;

use super::{row, table};
use crate::log::RunLog;
use crate::plots::{BarGroup, Bars};
use crate::svg::escape;

/// Text the model wrote; empty without samples.
pub fn samples(log: &RunLog) -> String {
    let sample = |s: &fathom_base::metrics::events::Sample| {
        format!(
            "<figure class=\"sample\"><figcaption>after step {}</figcaption><pre><b>{}</b>{}</pre></figure>\n",
            s.step,
            escape(&s.prompt),
            escape(&s.text)
        )
    };
    let all: String = log.samples.iter().map(sample).collect();
    if all.is_empty() { all } else { format!("<p class=\"note\">The prompt is bold.</p>{all}") }
}

/// A lesson as it is learned, and how held-out ones are answered; empty without lessons.
pub fn lessons(log: &RunLog) -> String {
    let Some(lesson) = &log.lesson else { return String::new() };
    let piece = |piece: &fathom_base::metrics::events::Piece| {
        let text = escape(&piece.text);
        if piece.learned { format!("<mark>{text}</mark>") } else { format!("<span>{text}</span>") }
    };
    let pieces: String = lesson.pieces.iter().map(piece).collect();
    let cut = if lesson.cut == 0 {
        String::new()
    } else {
        format!(", {} more cut off", human::grouped(lesson.cut))
    };
    let mut html = answers(log);
    if !log.answers.is_empty() {
        let row = |eval: &fathom_base::metrics::events::EvalAnswers| {
            vec![
                eval.when.replace('_', " "),
                human::number(eval.loss),
                human::percent(eval.token_accuracy),
                human::number(eval.bits_per_byte),
                human::grouped(eval.tokens),
                if eval.text_bits_per_byte > 0.0 {
                    human::number(eval.text_bits_per_byte)
                } else {
                    "-".into()
                },
            ]
        };
        let mut rows: Vec<Vec<String>> = log.answers.iter().map(row).collect();
        // Not the held-out text of the tiles, and not in their windows.
        let context = log.answers.iter().map(|eval| eval.text_context_tokens).max().unwrap_or(0);
        let of_text = match context {
            0 => "bits per byte of text".to_string(),
            tokens => format!("bits per byte of the first {tokens} tokens of texts"),
        };
        let mut head: Vec<&str> =
            vec!["held-out lessons", "loss", "token accuracy", "bits per byte", "learned tokens", &of_text];
        if log.answers.iter().all(|eval| eval.text_bits_per_byte == 0.0) {
            head.pop();
            rows.iter_mut().for_each(|row| _ = row.pop());
        }
        html += &table(&head, &rows);
    }
    html += &format!(
        "<p class=\"note\">The first lesson: marked text is learned, the rest is context. {} of {} tokens are learned{cut}.</p>\
         <figure class=\"sample lesson\"><pre>{pieces}</pre></figure>\n",
        human::grouped(lesson.supervised),
        human::grouped(lesson.tokens),
    );
    html
}

/// How held-out lessons are answered before and after, as bars; empty where they were not asked.
fn answers(log: &RunLog) -> String {
    let bars = |title: &str, label: &str, of: fn(&EvalAnswers) -> f64| {
        let group =
            |eval: &EvalAnswers| BarGroup { name: eval.when.replace('_', " "), values: vec![of(eval)] };
        let groups: Vec<BarGroup> = log.answers.iter().map(group).collect();
        let kinds = vec![("held-out lessons".to_string(), "s1".to_string())];
        Bars { title: title.into(), note: String::new(), label: label.into(), kinds, groups }.draw()
    };
    if log.answers.is_empty() {
        return String::new();
    }
    row(&[
        bars("Loss of held-out answers", "loss [nats per learned token]", |eval| eval.loss),
        bars("Accuracy of held-out answers", "likeliest tokens that are right [%]", |eval| {
            100.0 * eval.token_accuracy
        }),
    ])
}

/// What was trained on what; empty when the log says neither.
pub fn data_and_model(log: &RunLog) -> String {
    let mut html = String::new();
    if let Some(data) = &log.data {
        let total = data.sources.iter().fold(0, |sum: u64, source| sum.saturating_add(source.bytes));
        let mut rows = vec![
            ("documents", human::grouped(data.documents)),
            ("tokens", human::grouped(data.tokens)),
            ("bytes of text", human::bytes(data.bytes)),
            ("bytes per token", human::number(data.bytes as f64 / data.tokens.max(1) as f64)),
            ("vocabulary", human::grouped(data.vocabulary)),
            ("exact copies dropped", human::grouped(data.duplicate_documents)),
            ("held-out documents", human::grouped(data.held_out_documents)),
        ];
        if data.synthetic_share > 0.0 {
            rows.push(("synthetic share of tokens", human::percent(data.synthetic_share)));
        }
        rows.push(("time to prepare", human::seconds(data.seconds)));
        let rows: Vec<_> = rows.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        html += &pairs("Data", &rows);
        html += &sources(data, total);
        html += &dropped(data);
    }
    if let Some(model) = &log.model {
        let mut rows = vec![
            ("family".to_string(), model.family.clone()),
            ("parameters".to_string(), human::grouped(model.params)),
        ];
        rows.extend(model.config.iter().map(|entry| (entry.name.clone(), entry.value.clone())));
        html += &pairs("Model", &rows);
    }
    if html.is_empty() { html } else { format!("<div class=\"columns\">{html}</div>\n") }
}

/// Where the text came from: the largest sources, of `total` bytes.
fn sources(data: &Data, total: u64) -> String {
    if data.sources.is_empty() {
        return String::new();
    }
    let row = |name: &str, documents: u64, bytes: u64| {
        let share = human::percent(bytes as f64 / total.max(1) as f64);
        vec![name.to_string(), human::grouped(documents), human::bytes(bytes), share]
    };
    let mut sources: Vec<_> = data.sources.iter().collect();
    sources.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
    let rest = sources.split_off(sources.len().min(12));
    let mut rows: Vec<Vec<String>> = sources.iter().map(|s| row(&s.name, s.documents, s.bytes)).collect();
    if !rest.is_empty() {
        let (documents, bytes) = rest
            .iter()
            .fold((0u64, 0u64), |(d, b), s| (d.saturating_add(s.documents), b.saturating_add(s.bytes)));
        rows.push(row(&format!("{} more", rest.len()), documents, bytes));
    }
    format!("<div><h3>Sources</h3>{}</div>", table(&["source", "documents", "bytes", "share"], &rows))
}

/// What was not read or not kept, and the first damaged records.
fn dropped(data: &Data) -> String {
    if data.dropped.is_empty() {
        return String::new();
    }
    let row = |text: &DroppedText| {
        vec![text.reason.clone(), human::grouped(text.documents), human::bytes(text.bytes)]
    };
    let rows: Vec<Vec<String>> = data.dropped.iter().map(row).collect();
    let damage: String = data.damage.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    let damage = match damage.as_str() {
        "" => damage,
        lines => format!("<details><summary>The first damaged records</summary><ul>{lines}</ul></details>"),
    };
    format!(
        "<div><h3>Not read, or dropped</h3>{}{damage}</div>",
        table(&["reason", "files or records", "bytes"], &rows)
    )
}

/// The resolved recipe: what was set, then everything; empty when the log has none.
pub fn recipe(log: &RunLog) -> String {
    let Some(run) = log.run.as_ref().filter(|run| !run.recipe.is_empty()) else { return String::new() };
    let row = |row: &Row| vec![row.path.clone(), row.value.clone(), row.source.clone()];
    let head = ["key", "value", "source"];
    let set: Vec<Vec<String>> = run.recipe.iter().filter(|r| r.source != "default").map(row).collect();
    let all: Vec<Vec<String>> = run.recipe.iter().map(row).collect();
    let command = match run.command.as_str() {
        "" => String::new(),
        command => format!("<pre class=\"command\">{}</pre>", escape(command)),
    };
    let set = if set.is_empty() {
        "<p class=\"note\">Every key has its default.</p>".to_string()
    } else {
        table(&head, &set)
    };
    let (count, all) = (run.recipe.len(), table(&head, &all));
    format!(
        "{command}<div class=\"code\">{set}<details><summary>All {count} keys, defaults included</summary>{all}\
         </details></div>\n"
    )
}

/// What machine it ran on; empty when the log does not say.
pub fn machine(log: &RunLog) -> String {
    // A plan is for the machine that its head names, not for the one that it was made on.
    let Some(run) = log.run.as_ref().filter(|_| !log.is_plan()) else { return String::new() };
    let mut rows: Vec<(String, String)> =
        run.machine.rows().into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    if rows.is_empty() {
        return String::new();
    }
    if let Some(done) = log.done.as_ref().filter(|done| done.peak_rss_bytes > 0) {
        rows.push(("peak resident, files included".into(), human::bytes(done.peak_rss_bytes)));
    }
    rows.push(("Fathom".into(), run.version.clone()));
    format!("<div class=\"columns\">{}</div>", pairs("", &rows))
}

/// Names and values as a table with a heading.
fn pairs(title: &str, rows: &[(String, String)]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
    let title = if title.is_empty() { String::new() } else { format!("<h3>{title}</h3>") };
    format!("<div>{title}{}</div>", table(&["", ""], &rows))
}

#[cfg(test)]
mod tests {
    use fathom_base::metrics::events::{Lesson, Piece};

    use super::*;

    #[test]
    fn a_lesson_is_escaped() {
        let piece = |learned, text: &str| Piece { learned, text: text.into() };
        let pieces = vec![piece(false, "<script>"), piece(true, "a & b")];
        let lesson = Lesson { pieces, tokens: 5, supervised: 3, cut: 0 };
        let html = lessons(&RunLog { lesson: Some(lesson), ..RunLog::default() });
        assert!(html.contains("<span>&lt;script&gt;</span><mark>a &amp; b</mark>"), "{html}");
        assert!(html.contains("3 of 5 tokens"), "{html}");
    }
}
