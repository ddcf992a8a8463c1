//! What stages over the whole table ask of SQL.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::DataType;
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
