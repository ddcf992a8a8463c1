//! A session of the query engine: its memory and its functions.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, UInt64Array};
use arrow_schema::DataType;
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use twox_hash::XxHash3_64;

/// Limits shared by every context of this process: memory that its sorts share, and a folder for the rest, as large as the
/// disk.
pub(super) fn within(memory_bytes: u64, spill: &Path) -> Result<Arc<RuntimeEnv>, DataFusionError> {
    let disk = DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![spill.to_path_buf()]))
        // The engine would stop at 100 GiB.
        .with_max_temp_directory_size(u64::MAX);
    let memory = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
        .with_disk_manager_builder(disk)
        .build_arc()
}

/// The functions that plans have besides DataFusion's own. Every process that runs or plans a query knows them.
pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![OrderKey::udf()]
}

/// The SQL function `order_key(text, seed)`: XXH3-64, a number that orders texts as a shuffled deck.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OrderKey {
    signature: Signature,
}

impl OrderKey {
    fn udf() -> ScalarUDF {
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
        let seeds = seeds.as_primitive_opt::<Int64Type>();
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
