//! The report: one self-contained page, readable offline, with a light and a dark theme, with or without scripts.
//!
//! Every section is a function from the log to HTML and returns an empty string if the log has no data for it, so a
//! page can be made at any moment of a run.

mod context;
mod facts;
mod memory;
mod pipeline;
mod placement;
mod rewards;
mod table;
mod training;
mod usage;

use std::fmt::Write;
use std::path::Path;

use fathom_base::human;

pub use table::{row, table};

use crate::error::{Error, Result};
use crate::log::RunLog;
use crate::svg::{escape, sentence};
use crate::{objective, verdict};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page of a log atomically.
///
/// # Errors
/// Fails if the page cannot be written.
pub fn write_page(log: &RunLog, page_path: &Path) -> Result<()> {
    // The process id makes the name unique: a run may finish while another process writes the same page.
    let temporary = page_path.with_extension(format!("html.{}.tmp", std::process::id()));
    std::fs::write(&temporary, page(log)).map_err(|error| Error::write(&temporary, error))?;
    std::fs::rename(&temporary, page_path).map_err(|error| Error::write(page_path, error))
}

/// Returns the page of a run.
pub fn page(log: &RunLog) -> String {
    let objective = objective::of(log);
    // The long-context evaluation matters for every run that extends a context, whatever its objective.
    let context = objective.of_text || log.positions.iter().any(|eval| eval.when.ends_with("_extension"));
    let of_text = |section: fn(&RunLog) -> String| if context { section(log) } else { String::new() };
    let mut sections = [
        ("training", "Training", training::section(log)),
        ("measured", "Measured in training", training::measured(log)),
        ("context", "Context", of_text(context::section)),
        ("compression", "Compression", of_text(context::compression)),
        ("speed", "Speed", usage::section(log)),
        ("memory", "Memory", memory::section(log)),
        ("ranks", "Ranks", pipeline::section(log)),
        ("lessons", "Lessons", facts::lessons(log)),
        ("rewards", "Rewards", rewards::section(log)),
        ("samples", "Samples", facts::samples(log)),
        ("data", "Data and model", facts::data_and_model(log)),
        ("recipe", "Recipe", facts::recipe(log)),
        ("machine", "Machine", facts::machine(log)),
    ];
    sections.sort_by_key(|(id, ..)| *id != objective.first);
    let version = log.run.as_ref().map_or(String::new(), |run| format!(" {}", escape(&run.version)));
    let source = if log.is_plan() { "the plan; no step was run" } else { "metrics.jsonl alone" };
    let foot = format!("Drawn by Fathom{version} from {source}.");
    let (head, cards) = (header(log), cards(log));
    assemble(log.name(), (&head, &cards), &sections, &foot)
}

/// Heading and footer of a page.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// Kind of page, shown after the word Fathom.
    pub brand: String,
    /// Title.
    pub title: String,
    /// Short facts below the title.
    pub facts: Vec<String>,
    /// Source of the data, for the footer.
    pub source: String,
}

/// Returns a page of sections (id, title, HTML) in the common style; empty sections are left out.
pub fn document(heading: &Heading, sections: &[(&str, &str, String)]) -> String {
    let facts: String = heading.facts.iter().map(|fact| format!("<span>{}</span>", escape(fact))).collect();
    let (brand, title) = (escape(&heading.brand), escape(&heading.title));
    let head = format!(
        "<header><p class=\"brand\">Fathom · {brand}</p><h1>{title}</h1><p class=\"facts\">{facts}</p></header>\n"
    );
    let foot = format!("Drawn by Fathom from {}.", escape(&heading.source));
    assemble(&heading.title, (&head, ""), sections, &foot)
}

fn assemble(
    title: &str,
    (head, cards): (&str, &str),
    sections: &[(&str, &str, String)],
    foot: &str,
) -> String {
    let shown: Vec<_> = sections.iter().filter(|(_, _, body)| !body.is_empty()).collect();
    let mut main = head.to_owned();
    let links: String =
        shown.iter().map(|(id, title, _)| format!(r##"<a href="#{id}">{title}</a>"##)).collect();
    let _ = write!(main, "<nav>{links}</nav>");
    main.push_str(cards);
    if shown.is_empty() {
        main.push_str("<p class=\"note\">The log holds no event yet.</p>");
    }
    for (id, title, body) in shown {
        let _ = write!(main, "<section id=\"{id}\"><h2>{title}</h2>\n{body}</section>\n");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title} · Fathom</title>\n<style>{STYLE}{heat}</style></head>\n<body><main>{main}\
         <footer>{foot} This page loads nothing from anywhere.</footer>\
         </main><script>{SCRIPT}</script></body></html>\n",
        title = escape(title),
        heat = heat_style(),
    )
}

fn header(log: &RunLog) -> String {
    let mut facts = Vec::new();
    if let Some(model) = &log.model {
        facts.push(format!("{}, {} parameters", model.family, human::count(model.params)));
    }
    if let Some(step) = log.steps.last() {
        facts.push(format!("{} tokens", human::count(step.tokens_total)));
    }
    if let Some(longest) = log.longest_tokens() {
        facts.push(format!("context {}", fathom_base::tokens::format(longest)));
    }
    if log.num_ranks() > 1 {
        facts.push(format!("{} ranks", human::grouped(log.num_ranks())));
    }
    if log.is_plan() {
        let profile = log.plans.iter().map(|plan| &plan.profile).find(|profile| !profile.is_empty());
        facts.extend(profile.map(|profile| format!("planned for {profile}")));
    } else if let Some(machine) = log.run.as_ref().map(|run| &run.machine).filter(|m| !m.cpu.is_empty()) {
        facts.push(format!("{}, {} threads", machine.cpu, machine.cores));
    }
    let facts: String = facts.iter().map(|fact| format!("<span>{}</span>", escape(fact))).collect();
    let start = log.run.as_ref().map_or(0, |run| run.start_unix_s);
    let date = if start > 0 { format!("{} UTC", date(start)) } else { String::new() };
    let (brand, state) = match (log.is_plan(), log.done.is_some()) {
        (true, _) => ("plan", "planned, not run"),
        (false, true) => ("run report", "finished"),
        (false, false) => ("run report", "not finished"),
    };
    format!(
        "<header><p class=\"brand\">Fathom · {brand}</p><h1>{}</h1><p class=\"facts\">{facts}</p>\
         <p class=\"when\">{date} <span class=\"state\">{state}</span></p></header>\n",
        escape(log.name())
    )
}

fn cards(log: &RunLog) -> String {
    let figures = if log.is_plan() { verdict::planned(log) } else { crate::objective::verdicts(log) };
    let cards: String = figures
        .iter()
        .map(|verdict| {
            let (class, sign) = match verdict.passes {
                Some(true) => ("card good", "<b title=\"passes\">✓</b> "),
                Some(false) => ("card bad", "<b title=\"misses\">✗</b> "),
                None => ("card", ""),
            };
            let (name, value, note) = (verdict.name, escape(&verdict.value), sentence(&verdict.note));
            format!(
                "<div class=\"{class}\"><h3>{name}</h3><p class=\"figure\">{value}</p><p>{sign}{note}</p></div>\n"
            )
        })
        .collect();
    let short = log.too_few_tokens().map_or(String::new(), |[trained, least]| {
        format!(
            "<p class=\"note\">{} tokens are too few to learn to find a needle or to use a long context: as a rule {} are needed. \
             Figures that lack them are not marked as missed.</p>\n",
            human::grouped(trained),
            human::grouped(least)
        )
    });
    if cards.is_empty() { cards } else { format!("<div class=\"cards\">{cards}</div>\n{short}") }
}

/// Colours of heat maps: one ramp per theme, with a readable text colour on each step.
fn heat_style() -> String {
    let mix = |from: [u8; 3], to: [u8; 3], share: f64| {
        let c = |i: usize| (from[i] as f64 + (to[i] as f64 - from[i] as f64) * share).round() as u8;
        format!("#{:02x}{:02x}{:02x}", c(0), c(1), c(2))
    };
    let ramp = |from, to, low_text: &str, high_text: &str, turn: usize| {
        let steps = crate::plots::HEAT_LEVELS;
        (0..steps).fold(String::new(), |mut out, i| {
            let fill = mix(from, to, i as f64 / (steps - 1) as f64);
            let text = if i < turn { low_text } else { high_text };
            let _ = write!(out, "rect.h{i},i.h{i}{{fill:{fill}}}text.h{i}{{fill:{text}}}");
            out
        })
    };
    let light = ramp([238, 241, 243], [15, 84, 122], "#24303a", "#ffffff", 6);
    let dark = ramp([36, 43, 50], [122, 202, 232], "#e4e9ed", "#0e1a21", 6);
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

/// Date and time to the minute of a Unix time, in UTC (days to civil date by Howard Hinnant's algorithm).
pub fn date(unix_s: u64) -> String {
    let (days, second) = ((unix_s / 86400) as i64, unix_s % 86400);
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_part = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_part + 2) / 5 + 1;
    let month = if month_part < 10 { month_part + 3 } else { month_part - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(4_102_444_799), "2099-12-31 23:59");
    }
}
