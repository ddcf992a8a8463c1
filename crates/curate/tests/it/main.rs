//! Readers, gathering, deduplication and joining, through the public interface and real files.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod access;
mod adapters;
mod corpus;
mod corpus_curated;
mod crawl;
mod decontamination;
mod dedup;
mod gathering;
mod hostile;
mod inputs;
mod mutated;
mod naming;
mod pages;
mod parquet_files;
mod pipeline;
mod pipeline_corpus;
mod pipeline_filters;
mod pipeline_models;
mod pipeline_scale;
mod readers;
mod secrets;
mod server;
mod special_files;
mod stage_options;

use std::path::{Path, PathBuf};

use fathom_curate::{Counters, Document, Documents, Error, ReadOptions, Reason, open};
use tempfile::TempDir;

/// A folder with files of the given names and contents.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    dir
}

/// All documents and the final counters.
fn drain(mut documents: Documents) -> Result<(Vec<Document>, Counters), Error> {
    let all = documents.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((all, documents.counters().clone()))
}

fn read(path: &Path, options: &ReadOptions) -> Result<(Vec<Document>, Counters), Error> {
    drain(open(&[path.to_path_buf()], options)?)
}

/// Reads one file of the given name and content with default options.
fn read_file(name: &str, bytes: &[u8]) -> Result<(Vec<Document>, Counters), Error> {
    let dir = folder(&[(name, bytes)]);
    read(&dir.path().join(name), &ReadOptions::default())
}

fn texts(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|d| d.text.as_str()).collect()
}

/// Sources relative to `dir`.
fn sources(documents: &[Document], dir: &Path) -> Vec<String> {
    let prefix = format!("{}/", dir.display());
    documents.iter().map(|d| d.source.replace(&prefix, "")).collect()
}

fn dropped(counters: &Counters, reason: Reason) -> u64 {
    counters.dropped.get(&reason).map_or(0, |d| d.documents)
}

fn path(dir: &TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}
