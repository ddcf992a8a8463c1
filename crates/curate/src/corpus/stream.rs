//! The texts of a corpus in order, without exact duplicates, up to the byte budget.

use crate::corpus::curated::CuratedTexts;
use crate::corpus::spec::{CorpusSpec, Input};
use crate::counters::{Counters, Reason};
use crate::dedup::{Sameness, Unique};
use crate::document::Document;
use crate::error::Error;
use crate::gather::{GatherOptions, gather};
use crate::join::{DocumentJoiner, group_documents};
use crate::read::{Documents, ReadOptions, open};

/// Origin of the documents.
enum Origin {
    Files(Documents),
    Curated(CuratedTexts),
}

impl Origin {
    fn open(spec: &CorpusSpec) -> Result<Origin, Error> {
        if spec.curation.is_some() {
            return Ok(Origin::Curated(CuratedTexts::open(spec)?));
        }
        Ok(Origin::Files(match &spec.input {
            Input::Default { roots, fallback } => {
                let options =
                    GatherOptions { max_bytes: spec.max_bytes.unwrap_or(u64::MAX), seed: spec.seed };
                gather(roots, fallback.as_deref(), &options)?
            }
            Input::Paths(paths) => {
                let options = ReadOptions { field: spec.text_field.clone(), ..ReadOptions::default() };
                open(paths, &options)?
            }
        }))
    }

    fn counters(&self) -> &Counters {
        match self {
            Origin::Files(documents) => documents.counters(),
            Origin::Curated(texts) => &texts.counters,
        }
    }

    /// Remaining bytes, of files on disk or of curated texts.
    fn remaining_bytes(&self) -> u64 {
        match self {
            Origin::Files(documents) => documents.remaining_bytes(),
            Origin::Curated(texts) => texts.remaining_bytes(),
        }
    }

    /// Files or table parts not yet opened.
    fn remaining_files(&self) -> usize {
        match self {
            Origin::Files(documents) => documents.remaining_files(),
            Origin::Curated(texts) => texts.remaining_parts(),
        }
    }
}

impl Iterator for Origin {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Origin::Files(documents) => documents.next(),
            Origin::Curated(texts) => texts.next(),
        }
    }
}

/// Documents in disk order without exact duplicates, up to `max_bytes`.
pub(super) struct Texts {
    documents: Unique<Origin>,
    max_bytes: u64,
    given_bytes: u64,
    ended: bool,
    over_budget: Counters,
}

impl Texts {
    pub(super) fn open(spec: &CorpusSpec) -> Result<Texts, Error> {
        Ok(Texts {
            documents: Unique::new(Origin::open(spec)?, Sameness::Bytes),
            max_bytes: spec.max_bytes.unwrap_or(u64::MAX),
            given_bytes: 0,
            ended: false,
            over_budget: Counters::default(),
        })
    }

    /// Remaining bytes, estimated from the file sizes.
    pub(super) fn estimated_bytes(&self) -> u64 {
        self.documents.inner().remaining_bytes().min(self.max_bytes - self.given_bytes.min(self.max_bytes))
    }

    /// Joins neighbouring documents of one group.
    pub(super) fn joined<'t>(&'t mut self, spec: &CorpusSpec) -> JoinedTexts<'t> {
        JoinedTexts { joined: group_documents(self, spec.document_bytes) }
    }

    /// Combined counters of all stages.
    fn counters(&self) -> Counters {
        let read = self.documents.inner().counters().clone();
        let kept = self.documents.counters();
        let mut all = read.then(kept).then(&self.over_budget);
        // The document that exceeded the budget was counted as read by the earlier stages.
        let left = self.over_budget.dropped.get(&Reason::OverBudget).copied().unwrap_or_default();
        let not_given = u64::from(left.documents > 0);
        all.read_documents = kept.read_documents - not_given.min(kept.read_documents);
        all.read_bytes = self.given_bytes;
        all
    }
}

impl Iterator for Texts {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let document = match self.documents.next() {
            Some(Ok(document)) => document,
            other => {
                self.ended = true;
                return other;
            }
        };
        let length = document.text.len() as u64;
        // The first text is accepted whatever its size, since an empty corpus is useless.
        if self.given_bytes > 0 && self.given_bytes.saturating_add(length) > self.max_bytes {
            self.ended = true;
            let rest = self.documents.inner();
            let (files, bytes) = (rest.remaining_files() as u64, rest.remaining_bytes());
            self.over_budget.drop_documents(Reason::OverBudget, 1 + files, length + bytes);
            return None;
        }
        self.given_bytes += length;
        Some(Ok(document))
    }
}

/// The joined documents, followed by the counters of all stages.
pub(super) struct JoinedTexts<'t> {
    joined: DocumentJoiner<&'t mut Texts>,
}

impl JoinedTexts<'_> {
    pub(super) fn into_counters(self) -> Counters {
        self.joined.into_inner().counters()
    }
}

impl Iterator for JoinedTexts<'_> {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.joined.next()
    }
}
