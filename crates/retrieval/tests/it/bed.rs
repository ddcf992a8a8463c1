//! A folder of documents with its index.

use std::fs;
use std::path::{Path, PathBuf};

use fathom_retrieval::{Hit, Index, IndexOptions, IndexReport, Query, index as write};

/// A folder of documents and the index of it.
pub struct Bed {
    pub folder: tempfile::TempDir,
}

impl Bed {
    pub fn new(files: &[(&str, &str)]) -> Bed {
        let bed = Bed { folder: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(name, text)| bed.put(name, text.as_bytes()));
        bed
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.docs().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn docs(&self) -> PathBuf {
        self.folder.path().join("docs")
    }

    pub fn out(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    pub fn index(&self) -> fathom_retrieval::Result<IndexReport> {
        write(&[self.docs()], &self.out(), &IndexOptions::default(), None, &|_| ())
    }

    pub fn search(&self, text: &str) -> Vec<Hit> {
        let index = Index::open(&self.out()).unwrap();
        index.search(&Query { text, k: 10, ..Query::default() }).unwrap()
    }
}

/// All files below a folder with their bytes, by their paths.
pub fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { all.push((path.clone(), fs::read(path).unwrap())) }
        }
    }
    all.sort();
    all
}
