//! What stages over the whole table ask of SQL: groups, sorts, joins, shuffles.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, UInt64Type};
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

/// The least `number` of every group of rows with the same `key`, ascending: which documents stay when the first of each
/// group stays. `number` is a column of u64.
///
/// # Errors
/// As [`Tables::stream`].
pub fn first_of_groups(
    tables: &Tables,
    (table, key, number): (&str, &str, &str),
    visit: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (table, key, number) = (quoted(table), quoted(key), quoted(number));
    let sql = format!("SELECT min({number}) AS first FROM {table} GROUP BY {key} ORDER BY first");
    tables.stream(&sql, &mut |batch| numbers(&batch)?.values().iter().try_for_each(|n| visit(*n)))
}

/// The rows of a table in the order of `columns`, which are also what comes out: for bands, hashes and ids.
///
/// # Errors
/// As [`Tables::stream`].
pub fn sorted(
    tables: &Tables,
    table: &str,
    columns: &[&str],
    visit: &mut dyn FnMut(RecordBatch) -> Result<(), Error>,
) -> Result<(), Error> {
    let columns = columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    let sql = format!("SELECT {columns} FROM {} ORDER BY {columns}", quoted(table));
    tables.stream(&sql, visit)
}

/// The rows of `table` whose `id` is not in `removed`, in the order of their ids.
///
/// # Errors
/// As [`Tables::stream`].
pub fn without(
    tables: &Tables,
    (table, removed, id): (&str, &str, &str),
    visit: &mut dyn FnMut(RecordBatch) -> Result<(), Error>,
) -> Result<(), Error> {
    let (table, removed, id) = (quoted(table), quoted(removed), quoted(id));
    let sql = format!(
        "SELECT {table}.* FROM {table} LEFT ANTI JOIN {removed} ON {table}.{id} = {removed}.{id} \
         ORDER BY {table}.{id}"
    );
    tables.stream(&sql, visit)
}

/// All rows of a table in an order that only `seed` and their ids decide.
///
/// # Errors
/// As [`Tables::stream`].
pub fn shuffled(
    tables: &Tables,
    table: &str,
    seed: u64,
    visit: &mut dyn FnMut(RecordBatch) -> Result<(), Error>,
) -> Result<(), Error> {
    // SQL's integers are signed; the bits are the same.
    let seed = seed as i64;
    let sql = format!("SELECT * FROM {} ORDER BY order_key(id, {seed}), id", quoted(table));
    tables.stream(&sql, visit)
}

fn numbers(batch: &RecordBatch) -> Result<&UInt64Array, Error> {
    batch.column(0).as_primitive_opt::<UInt64Type>().ok_or_else(|| Error::Table {
        detail: format!("a column of document numbers holds {}", batch.column(0).data_type()),
    })
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
