//! `fathom index`, `fathom search` and `fathom eval --retrieval`.

use std::path::Path;

use anyhow::{Result, bail};
use fathom_app::Machine;
use fathom_app::retrieval::{
    IndexRequest, Library, LibraryOptions, MeasureRequest, Question, account, index as write, measure,
};
use fathom_base::human;
use fathom_retrieval::{Condition, Hit, IndexOptions, IndexReport, Mode};
use serde_json::json;

use crate::args::{Eval, Index, Search};
use crate::console;
use crate::listen::Plain;

/// Files that are named when they are skipped; of more, `--verbose` names all.
const NAMED: usize = 10;

/// Writes or updates an index.
pub fn index(args: &Index) -> Result<()> {
    let Some((out, paths)) = args.paths.split_last() else {
        bail!("name files or folders, then a folder for the index")
    };
    let listener = Plain::default();
    let machine = Machine::of_kind(args.encoder_on.machine.kind(), args.encoder_on.threads, &listener);
    let request = IndexRequest {
        paths: paths.to_vec(),
        out: out.clone(),
        options: IndexOptions {
            chunk_bytes: args.chunk_bytes,
            personal_data_out: args.no_personal_data,
            store: args.store.clone(),
        },
        encoder: args.encoder.clone(),
    };
    let report = write(&request, &machine, &listener)?;
    if args.json {
        outln!("{}", account(&report));
    } else {
        print(&report, out);
    }
    Ok(())
}

fn print(report: &IndexReport, out: &Path) {
    let [files, documents, chunks, near] = [
        human::counted(report.files as u64, "file"),
        human::counted(report.documents, "document"),
        human::counted(report.chunks, "passage"),
        human::counted(report.duplicates as u64, "near-duplicate"),
    ];
    let read = human::grouped(report.read_files as u64);
    closing!("{files}, {documents}, {chunks}, {near}; {read} read; {}", out.display());
    if report.encoded > 0 {
        closing!("{} computed", human::counted(report.encoded as u64, "vector"));
    }
    if report.stored > 0 {
        closing!("{} written to the store", human::counted(report.stored, "vector"));
    }
    let named = if console::is_verbose() { usize::MAX } else { NAMED };
    for (path, why) in report.skipped.iter().take(named) {
        outln!("skipped {path}: {why}");
    }
    if report.skipped.len() > named {
        outln!("and {} more (--verbose, --json)", human::grouped((report.skipped.len() - named) as u64));
    }
    for (path, rows, first) in report.skipped_rows.iter().take(named) {
        outln!("skipped {} of {path}: {first}", human::counted(*rows, "row"));
    }
    let ignored: usize = report.ignored.values().sum();
    if ignored > 0 {
        let endings: Vec<&str> = report
            .ignored
            .keys()
            .map(|it| if it.is_empty() { "none" } else { it.as_str() })
            .take(8)
            .collect();
        closing!(
            "{} of other kinds left out ({})",
            human::counted(ignored as u64, "file"),
            endings.join(" ")
        );
    }
}

/// Answers a query.
pub fn search(args: &Search) -> Result<()> {
    let listener = Plain::default();
    let machine = Machine::of_kind(args.encoder_on.machine.kind(), args.encoder_on.threads, &listener);
    let mode = args.ranking.mode.mode();
    let options = LibraryOptions {
        index: args.index.clone(),
        encoder: args.encoder.clone(),
        reranker: args.ranking.rerank.clone(),
        sparse: mode == Mode::Sparse,
    };
    let conditions =
        args.conditions.iter().map(|text| text.parse::<Condition>()).collect::<Result<_, _>>()?;
    let library = Library::open(&options, &machine, &listener)?;
    let question = Question { text: args.query.clone(), k: args.k, conditions, mode, exact: args.exact };
    let hits = library.ask(&question)?;
    for hit in &hits {
        if args.json { outln!("{}", serde_json::to_string(hit)?) } else { show(hit) }
    }
    if hits.is_empty() && !args.json {
        outln!("nothing found");
    }
    Ok(())
}

fn show(hit: &Hit) {
    let path = hit.headings.join(" > ");
    let title = [hit.title.as_str(), path.as_str()]
        .into_iter()
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    outln!("{:>2}. {}  {title}  ({:.3})", hit.rank, hit.place(), hit.score);
    for line in hit.text.lines() {
        outln!("    {line}");
    }
    if !hit.also.is_empty() {
        outln!("    also in {}", hit.also.join(", "));
    }
    outln!("");
}

/// Measures a search.
pub fn eval(args: &Eval, folder: &Path) -> Result<()> {
    let listener = Plain::default();
    let machine = Machine::of_kind(args.machine.kind(), 0, &listener);
    let request = MeasureRequest {
        folder: folder.to_path_buf(),
        index: None,
        encoder: args.model.clone(),
        reranker: args.ranking.rerank.clone(),
        mode: args.ranking.mode.mode(),
        split: "test".into(),
    };
    let found = measure(&request, &machine, &listener)?;
    if !args.json {
        let documents = human::counted(found.documents, "document");
        outln!("{documents}, queries with judgements: {}", human::grouped(found.queries as u64));
        outln!("{:>6}  {:>7}  {:>7}  {:>7}", "at", "nDCG", "MRR", "recall");
    }
    for (k, at) in &found.depths {
        if args.json {
            let row = json!({"k": k, "ndcg": at.ndcg, "mrr": at.mrr, "recall": at.recall, "queries": found.queries});
            outln!("{row}");
        } else {
            outln!("{k:>6}  {:>7.4}  {:>7.4}  {:>7.4}", at.ndcg, at.mrr, at.recall);
        }
    }
    Ok(())
}
