//! Rows of an order that a cluster may have to begin again.

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use arrow_select::coalesce::BatchCoalescer;

use crate::error::Error;

/// Rows that [`repeated`] hands out at once.
const ROWS: usize = 1024;

pub(super) type Visit<'a> = dyn FnMut(RecordBatch) -> Result<(), Error> + 'a;

/// Runs a query of a whole order up to `attempts` times, until it reaches its end. Its rows are handed out `ROWS` at a time: how
/// the query cuts them does not show, and where it is repeated it goes on behind the rows that are there already.
pub(super) fn repeated(
    attempts: usize,
    query: &mut dyn FnMut(&mut Visit<'_>) -> Result<(), Error>,
    visit: &mut Visit<'_>,
) -> Result<(), Error> {
    let mut rows = Rows::default();
    for left in (0..attempts).rev() {
        let mut skip = rows.received;
        let done = query(&mut |batch| {
            let known = skip.min(batch.num_rows());
            skip -= known;
            rows.push(batch.slice(known, batch.num_rows() - known), visit)
        });
        match done {
            // An error of `visit` is none of the query.
            Err(Error::Query { .. }) if left > 0 => {}
            other => return other.and_then(|()| rows.finish(visit)),
        }
    }
    Ok(())
}

/// Rows on their way into batches of [`ROWS`].
#[derive(Default)]
struct Rows {
    open: Option<BatchCoalescer>,
    received: usize,
}

impl Rows {
    fn push(&mut self, batch: RecordBatch, visit: &mut Visit<'_>) -> Result<(), Error> {
        self.received += batch.num_rows();
        let open = self.open.get_or_insert_with(|| BatchCoalescer::new(batch.schema(), ROWS));
        open.push_batch(batch).map_err(unsuitable)?;
        self.hand_out(visit)
    }

    fn finish(mut self, visit: &mut Visit<'_>) -> Result<(), Error> {
        if let Some(open) = &mut self.open {
            open.finish_buffered_batch().map_err(unsuitable)?;
        }
        self.hand_out(visit)
    }

    fn hand_out(&mut self, visit: &mut Visit<'_>) -> Result<(), Error> {
        while let Some(batch) = self.open.as_mut().and_then(BatchCoalescer::next_completed_batch) {
            visit(batch)?;
        }
        Ok(())
    }
}

fn unsuitable(error: ArrowError) -> Error {
    Error::Table { detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Array, UInt64Array};

    use super::*;

    fn numbers(from: u64, to: u64) -> RecordBatch {
        let column = Arc::new(UInt64Array::from_iter_values(from..to)) as Arc<dyn Array>;
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    /// Rows that are handed out when each attempt gives rows cut at the given places; all but the last break off at their end.
    fn handed_out(attempts: &[&[u64]]) -> Vec<RecordBatch> {
        let mut out = Vec::new();
        let mut next = attempts.iter();
        let mut query = |visit: &mut Visit<'_>| {
            let cuts = next.next().unwrap();
            cuts.windows(2).try_for_each(|cut| visit(numbers(cut[0], cut[1])))?;
            let last = next.len() == 0;
            if last { Ok(()) } else { Err(Error::Query { detail: "an executor was lost".into() }) }
        };
        repeated(attempts.len(), &mut query, &mut |batch| {
            out.push(batch);
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn neither_cuts_nor_repetitions_show() {
        let whole = handed_out(&[&[0, 3000]]);
        assert_eq!(whole.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [1024, 1024, 952]);
        assert_eq!(handed_out(&[&[0, 1, 1024, 1030, 2999, 3000]]), whole);
        assert_eq!(handed_out(&[&[0, 700, 1500], &[0], &[0, 1499, 2000], &[0, 1600, 3000]]), whole);
    }
}
