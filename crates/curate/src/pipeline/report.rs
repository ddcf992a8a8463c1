//! The HTML report of a curation, rendered from its statistics alone.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use fathom_base::human;
use fathom_report::html::{Heading, document, row, table};
use fathom_report::plots::{Figure, Histogram as Chart};
use fathom_report::svg::escape;

use super::histogram::Histogram;
use super::stats::{StageStats, Stats};
use super::tally::{Sample, Score};
use crate::durable;
use crate::error::Error;

/// Distributions drawn per stage; the tables contain all of them.
const CHARTS: usize = 12;
/// Names listed per group, such as languages.
const NAMES: usize = 20;
/// Damaged records listed.
const DAMAGE: usize = 50;

/// Renders the report as one self-contained HTML document.
pub fn report_page(stats: &Stats) -> String {
    let read = human::counted(stats.documents_read(), "document");
    let facts = vec![
        format!("{} of {read} kept", human::grouped(stats.documents_kept())),
        human::counted(stats.stages.len() as u64, "stage"),
        human::counted(stats.threads as u64, "thread"),
        format!("last run {}", human::seconds(stats.wall_s)),
    ];
    let title =
        stats.tables.last().and_then(|table| table.folder.parent()).map(|out| out.display().to_string());
    let heading = Heading {
        brand: "curation".into(),
        title: title.unwrap_or_else(|| "curation".into()),
        facts,
        source: "stats.json alone".into(),
    };
    let sections = [
        ("funnel", "Funnel", funnel(stats)),
        ("reasons", "Reasons", reasons(stats)),
        ("lengths", "Lengths", lengths(stats)),
        ("groups", "Languages and other groups", groups(stats)),
        ("scores", "Scores", scores(stats)),
        ("duplicates", "Duplicates", duplicates(stats)),
        ("speed", "Speed", speed(stats)),
        ("damage", "Damage", damage(stats)),
        ("tables", "Tables", tables(stats)),
    ];
    document(&heading, &sections)
}

/// Writes the report into the folder of a curation and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn save_page(out: &Path, stats: &Stats) -> Result<PathBuf, Error> {
    let path = out.join("report.html");
    durable::write_whole(&path, report_page(stats).as_bytes())?;
    Ok(path)
}

/// One bar per stage: documents passed on, and documents dropped by reason. Copies are passed on too, so a stage can
/// output more documents than it received.
fn funnel(stats: &Stats) -> String {
    let wide = |stage: &StageStats| stage.tally.documents_in.max(stage.tally.documents_out);
    let most = stats.stages.iter().map(wide).max().unwrap_or(0).max(1) as f64;
    let mut html = String::from("<div class=\"chart funnel\">");
    for stage in &stats.stages {
        let tally = &stage.tally;
        let [from, to] = [tally.documents_in, tally.documents_out].map(human::grouped);
        let share = 100.0 * tally.documents_out as f64 / tally.documents_in.max(1) as f64;
        let name = escape(&stage.name);
        let _ = write!(html, "<p><b>{name}</b> {to} of {from} ({share:.1} %)</p><div>");
        let mut bar = |class: &str, documents: u64, title: &str| {
            let width = 100.0 * documents as f64 / most;
            if documents > 0 {
                let (title, documents) = (escape(title), human::grouped(documents));
                let _ = write!(
                    html,
                    "<i class=\"{class}\" style=\"width:{width:.3}%\" title=\"{title}: {documents}\"></i>"
                );
            }
        };
        bar("s1", tally.documents_out, "handed on");
        for (i, (reason, d)) in by_documents(tally.dropped.iter()).into_iter().enumerate() {
            bar(["s2", "s3", "s4", "s5", "s6"][i % 5], d.documents, reason);
        }
        html.push_str("</div>");
    }
    html.push_str("<p class=\"note\">Blue is handed on, the other colours are dropped, by reason.</p></div>");
    html
}

/// Entries in descending order of documents; ties by name.
fn by_documents<'a>(
    entries: impl Iterator<Item = (&'a String, &'a crate::DocumentCounts)>,
) -> Vec<(&'a String, &'a crate::DocumentCounts)> {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by(|a, b| b.1.documents.cmp(&a.1.documents).then(a.0.cmp(b.0)));
    entries
}

fn reasons(stats: &Stats) -> String {
    let mut rows = Vec::new();
    for stage in &stats.stages {
        for (reason, dropped) in by_documents(stage.tally.dropped.iter()) {
            let share = 100.0 * dropped.documents as f64 / stage.tally.documents_in.max(1) as f64;
            rows.push(vec![
                stage.name.clone(),
                reason.clone(),
                human::grouped(dropped.documents),
                format!("{share:.2}"),
                human::grouped(dropped.bytes),
            ]);
        }
    }
    if rows.is_empty() {
        return "<p class=\"note\">Nothing was dropped.</p>".into();
    }
    table(&["stage", "reason", "documents", "% of what came in", "bytes"], &rows)
}

fn chart(title: String, label: &str, histogram: &Histogram, limits: &[f64]) -> Figure {
    let buckets = histogram.buckets().collect();
    let note = match (histogram.quantile(0.1), histogram.quantile(0.5), histogram.quantile(0.9)) {
        (Some(low), Some(middle), Some(high)) => {
            let n = human::grouped(histogram.total());
            let [low, middle, high] = [low, middle, high].map(human::number);
            format!(
                "{n} values; a tenth lies below about {low}, half below about {middle}, a tenth above about {high}."
            )
        }
        _ => String::new(),
    };
    Chart { title, note, label: label.into(), buckets, limits: limits.to_vec() }.draw()
}

/// Text lengths after the reader and after the last stage.
fn lengths(stats: &Stats) -> String {
    let with = |stage: &&StageStats| stage.tally.lengths.total() > 0;
    let first = stats.stages.iter().find(with);
    let last = stats.stages.iter().rev().find(with);
    let figures: Vec<Figure> = first
        .into_iter()
        .chain(last)
        .map(|stage| {
            let title = format!("Behind `{}`", stage.name);
            chart(title, "bytes of a document", &stage.tally.lengths, &[])
        })
        .collect();
    row(&figures)
}

fn groups(stats: &Stats) -> String {
    let mut html = String::new();
    for stage in &stats.stages {
        for (group, names) in &stage.tally.groups {
            let named: u64 = names.values().map(|d| d.documents).sum();
            let all = named.max(stage.tally.documents_in);
            let listed = by_documents(names.iter());
            let more = listed.len().saturating_sub(NAMES);
            let line = |(name, d): &(&String, &crate::DocumentCounts)| {
                let share = 100.0 * d.documents as f64 / all.max(1) as f64;
                vec![
                    (*name).clone(),
                    human::grouped(d.documents),
                    format!("{share:.2}"),
                    human::grouped(d.bytes),
                ]
            };
            let rows: Vec<_> = listed.iter().take(NAMES).map(line).collect();
            let _ = write!(html, "<h3>{}: {}</h3>", escape(&stage.name), escape(group));
            html.push_str(&table(&[group, "documents", "%", "bytes"], &rows));
            if more > 0 {
                let _ = write!(html, "<p class=\"note\">and {more} more</p>");
            }
        }
    }
    html
}

fn scores(stats: &Stats) -> String {
    let mut html = String::new();
    for stage in &stats.stages {
        let tally = &stage.tally;
        if tally.scores.is_empty() {
            continue;
        }
        let _ = write!(html, "<h3>{}</h3>", escape(&stage.name));
        // Scores that dropped something come first.
        let mut scores: Vec<(&String, &Score)> = tally.scores.iter().collect();
        scores.sort_by_key(|(name, score)| (score.dropped.is_empty(), *name));
        let drawn = scores.iter().take(CHARTS);
        let figures: Vec<Figure> = drawn
            .map(|(name, score)| chart((*name).clone(), name, &score.histogram, &score.limits))
            .collect();
        figures.chunks(2).for_each(|pair| html.push_str(&row(pair)));
        for (name, score) in scores.iter().filter(|(_, score)| !score.dropped.is_empty()) {
            let _ = write!(html, "<details><summary>{} near its limit</summary>", escape(name));
            html.push_str(&samples(score));
            html.push_str("</details>");
        }
    }
    html
}

/// Table of documents near the threshold, kept and dropped.
fn samples(score: &Score) -> String {
    let line = |kept: &str, sample: &Sample| {
        vec![kept.to_owned(), human::number(sample.value), sample.id.clone(), sample.text.clone()]
    };
    let kept = score.kept.iter().map(|sample| line("kept", sample));
    let dropped = score.dropped.iter().map(|sample| line("dropped", sample));
    table(&["", "value", "document", "text"], &kept.chain(dropped).collect::<Vec<_>>())
}

/// Sizes of the clusters of duplicates, with examples.
fn duplicates(stats: &Stats) -> String {
    let mut html = String::new();
    for stage in stats.stages.iter().filter(|stage| !stage.tally.clusters.is_empty()) {
        let rows: Vec<Vec<String>> = stage
            .tally
            .clusters
            .iter()
            .map(|cluster| {
                vec![human::grouped(cluster.documents), cluster.first.clone(), cluster.text.clone()]
            })
            .collect();
        let _ = write!(html, "<h3>{}: the largest clusters</h3>", escape(&stage.name));
        html.push_str(&table(&["documents", "kept", "text"], &rows));
    }
    html
}

fn speed(stats: &Stats) -> String {
    let line = |stage: &StageStats| {
        let rate = stage.bytes_per_s();
        let documents = stage.tally.documents_in as f64 / stage.seconds.max(1e-9);
        vec![
            stage.name.clone(),
            human::seconds(stage.seconds),
            rate.map_or("-".into(), |rate| format!("{:.1}", rate / 1e6)),
            rate.map_or("-".into(), |_| human::grouped(documents as u64)),
        ]
    };
    let rows: Vec<_> = stats.stages.iter().filter(|stage| stage.seconds > 0.0).map(line).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["stage", "seconds of all threads", "MB/s per thread", "documents/s per thread"], &rows)
}

fn damage(stats: &Stats) -> String {
    let all = || stats.stages.iter().flat_map(|stage| stage.tally.damage.iter());
    let rows: Vec<Vec<String>> = all()
        .take(DAMAGE)
        .map(|d| vec![d.file.clone(), d.place.clone(), d.reason.to_string(), d.detail.clone()])
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let more = all().count() - rows.len();
    let more =
        if more > 0 { format!("<p class=\"note\">and {more} more in stats.json</p>") } else { String::new() };
    table(&["file", "place", "reason", "detail"], &rows) + &more
}

fn tables(stats: &Stats) -> String {
    let line = |table: &super::TableStats| {
        vec![
            table.name.clone(),
            table.folder.display().to_string(),
            human::grouped(table.parts as u64),
            human::grouped(table.documents),
            human::bytes(table.text_bytes),
            human::bytes(table.file_bytes),
        ]
    };
    let rows: Vec<_> = stats.tables.iter().map(line).collect();
    table(&["table", "folder", "parts", "documents", "text", "on disk"], &rows)
}
