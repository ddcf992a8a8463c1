//! What stages over the whole table ask of SQL.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, UInt64Array};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use twox_hash::XxHash3_64;

use super::Tables;
use crate::error::Error;

/// A name as SQL quotes it.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Rows that [`shuffled`] hands out at once.
const ROWS: usize = 1024;

/// All rows of a table in an order that only `seed` and their ids decide, `ROWS` at a time: how the engine cuts its results
/// does not show. Ids are unique, so the order is whole, and where a query has to be repeated it goes on behind the rows that
/// are there already.
///
/// # Errors
/// As [`Tables::stream`].
pub fn shuffled(tables: &Tables, table: &str, seed: u64, visit: &mut Visit<'_>) -> Result<(), Error> {
    // SQL's integers are signed; the bits are the same.
    let seed = seed as i64;
    let sql = format!("SELECT * FROM {} ORDER BY order_key(id, {seed}), id", quoted(table));
    repeated(tables.attempts, &mut |visit| tables.stream(&sql, visit), visit)
}

type Visit<'a> = dyn FnMut(RecordBatch) -> Result<(), Error> + 'a;

/// Runs a query of a whole order up to `attempts` times, until it reaches its end.
fn repeated(
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
            // What `visit` says is no error of the query.
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

/// The SQL function `order_key(text, seed)`: XXH3-64, a number that orders texts as a shuffled deck.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct OrderKey {
    signature: Signature,
}

impl OrderKey {
    /// The function.
    pub fn udf() -> ScalarUDF {
        let takes = vec![DataType::Utf8, DataType::Int64];
        ScalarUDF::from(OrderKey { signature: Signature::exact(takes, Volatility::Immutable) })
    }
}

impl ScalarUDFImpl for OrderKey {
    fn name(&self) -> &str {
        "order_key"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let [texts, seeds] = &columns[..] else {
            return Err(DataFusionError::Execution("order_key takes a text and a seed".into()));
        };
        let texts = texts.as_string_opt::<i32>();
        let seeds = seeds.as_primitive_opt::<arrow::datatypes::Int64Type>();
        let (Some(texts), Some(seeds)) = (texts, seeds) else {
            return Err(DataFusionError::Execution("order_key takes a text and a whole number".into()));
        };
        let key = |row: usize| {
            (!texts.is_null(row) && !seeds.is_null(row))
                .then(|| XxHash3_64::oneshot_with_seed(seeds.value(row) as u64, texts.value(row).as_bytes()))
        };
        let keys: UInt64Array = (0..texts.len()).map(key).collect();
        Ok(ColumnarValue::Array(Arc::new(keys)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(from: u64, to: u64) -> RecordBatch {
        let column = Arc::new(UInt64Array::from_iter_values(from..to)) as Arc<dyn Array>;
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    /// What is handed out when each attempt gives rows cut at the given places; all but the last break off at their end.
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
