//! Stages over the whole table.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::Maker;
use crate::error::Error;
use crate::pipeline::{Barrier, Job, RowSet, Tally, Work};

/// Keeps the first of all documents with the same text.
pub(super) struct Exact;

/// Options of `exact`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExactOptions {}

impl Maker for Exact {
    type Options = ExactOptions;
    const NAME: &'static str = "exact";
    const ABOUT: &'static str = "keeps the first of all documents with the same text";

    fn make(_: ExactOptions) -> Result<Work, Error> {
        Ok(Work::Table(Box::new(Exact)))
    }
}

impl Barrier for Exact {
    fn run(&self, job: &Job<'_>, tally: &mut Tally) -> Result<(), Error> {
        let mut seen = HashSet::new();
        let mut dropped = RowSet::new();
        for batch in job.batches() {
            let (number, batch) = batch?;
            for row in 0..batch.rows() {
                if !seen.insert(XxHash3_128::oneshot(batch.text(row).as_bytes())) {
                    dropped.insert(number + row as u64);
                }
            }
        }
        job.write_without(&dropped, "duplicate", tally)
    }
}
