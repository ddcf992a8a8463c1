//! Stages that are functions of the program around a curation (Python's `@fathom.stage`).

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{Array, BooleanArray, RecordBatch, new_null_array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Maker;
use crate::error::Error;
use crate::pipeline::{Batch, Functions, KEEP, Stage, Tally, Tools, Work};

/// Types of columns that a function adds.
const TYPES: [(&str, DataType); 6] = [
    ("text", DataType::Utf8),
    ("bool", DataType::Boolean),
    ("i32", DataType::Int32),
    ("i64", DataType::Int64),
    ("f32", DataType::Float32),
    ("f64", DataType::Float64),
];

/// Options of `function`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionOptions {
    /// The function's name in the program around the curation.
    pub function: String,
    /// Its version, which its owner changes with its results; another version is another table.
    pub version: String,
    /// Hash of its source.
    pub source: String,
    /// Columns that it adds, each as `name:type`; types are `text`, `bool`, `i32`, `i64`, `f32` and `f64`.
    pub adds: Vec<String>,
}

/// Asks a function for each batch.
pub(super) struct Function {
    name: String,
    adds: Vec<(String, DataType)>,
    /// The program's functions, while the stage's segment runs.
    functions: Mutex<Option<Arc<dyn Functions>>>,
}

impl Maker for Function {
    type Options = FunctionOptions;
    const NAME: &'static str = "function";
    const ABOUT: &'static str =
        "asks a function of the program around the curation, in Python by Arrow batches";

    fn make(options: FunctionOptions) -> Result<Work, Error> {
        if options.function.is_empty() {
            let advice = "a program that has functions names one (Python's `stages=`)".to_owned();
            return Err(Error::Setting { key: "function", found: "nothing".to_owned(), advice });
        }
        let column = |text: &String| {
            let (name, kind) = text.split_once(':')?;
            let (_, kind) = TYPES.iter().find(|(known, _)| *known == kind.trim())?;
            Some((name.trim().to_owned(), kind.clone()))
        };
        let adds = options.adds.iter().map(|text| {
            column(text).ok_or_else(|| {
                let advice = "write `name:type`, with a type of text, bool, i32, i64, f32 or f64".to_owned();
                Error::Setting { key: "adds", found: format!("`{text}`"), advice }
            })
        });
        let adds = adds.collect::<Result<_, _>>()?;
        Ok(Work::Rows(Box::new(Function { name: options.function, adds, functions: Mutex::default() })))
    }
}

impl Function {
    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::Recipe(fathom_base::Error::product(format!("stage `{}`: {why}", self.name)))
    }

    /// The functions of the program; `None` before the segment runs.
    fn functions(&self) -> Option<Arc<dyn Functions>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Stage for Function {
    fn run(&self, batch: Batch, tally: &mut Tally) -> Result<Batch, Error> {
        let Some(functions) = self.functions().filter(|_| batch.rows() > 0) else {
            // Empty batches are processed before the segment runs, and must have the same columns.
            let rows = batch.rows();
            let add = |batch: Batch, (name, kind): &(String, DataType)| {
                batch.with_column(name, new_null_array(kind, rows))
            };
            return Ok(self.adds.iter().fold(batch, add));
        };
        let asked = to_bytes(batch.table()).map_err(|error| self.failed(error))?;
        let answer = functions.call(&self.name, asked).map_err(|why| self.failed(why))?;
        let table = of_bytes(&answer).map_err(|error| self.failed(error))?;
        if table.num_rows() != batch.rows() {
            let (found, rows) = (table.num_rows(), batch.rows());
            return Err(self.failed(format!(
                "answered {found} rows for {rows}; rows leave by the flags that it returns"
            )));
        }
        let keep = table.column_by_name(KEEP).and_then(|flags| flags.as_any().downcast_ref::<BooleanArray>());
        let keep: Vec<bool> = (0..table.num_rows())
            .map(|row| keep.is_none_or(|flags| flags.is_valid(row) && flags.value(row)))
            .collect();
        let mut made = batch;
        for (name, kind) in &self.adds {
            let column = table.column_by_name(name).filter(|column| column.data_type() == kind);
            let Some(column) = column else {
                return Err(
                    self.failed(format!("answered no column `{name}` of {kind}, which it says it adds"))
                );
            };
            made = made.with_column(name, column.clone());
        }
        if let Some(texts) = table.column_by_name("text") {
            if texts.data_type() != &DataType::Utf8 || texts.null_count() > 0 {
                return Err(self.failed("answered a column `text` that is no text without nulls"));
            }
            made = made.with_column("text", texts.clone());
        }
        for row in (0..keep.len()).filter(|&row| !keep[row]) {
            tally.drop(&self.name, made.text(row).len() as u64);
        }
        Ok(made.keep(&keep))
    }

    fn begin(&self, tools: &Tools) -> Result<(), Error> {
        let Some(functions) = tools.functions().filter(|functions| functions.has(&self.name)) else {
            return Err(self.failed(
                "is a function of the program that began the curation, and this one has none of that name; curate from Python with it in \
                 `stages=`",
            ));
        };
        *self.functions.lock().unwrap_or_else(PoisonError::into_inner) = Some(functions.clone());
        Ok(())
    }

    fn end(&self) {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn to_bytes(table: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &table.schema())?;
    writer.write(table)?;
    writer.into_inner()
}

fn of_bytes(bytes: &[u8]) -> Result<RecordBatch, ArrowError> {
    let mut batches = StreamReader::try_new(Cursor::new(bytes), None)?;
    let first = batches.next().ok_or_else(|| ArrowError::IpcError("an answer without a batch".into()))?;
    if batches.next().is_some() {
        return Err(ArrowError::IpcError("an answer of several batches".into()));
    }
    first
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float32Array, StringArray};

    use super::*;
    use crate::stage::kind::build;

    /// Adds the length of each text, and drops texts without an `a`.
    struct Lengths;

    impl Functions for Lengths {
        fn has(&self, name: &str) -> bool {
            name == "lengths"
        }

        fn call(&self, _: &str, batch: Vec<u8>) -> Result<Vec<u8>, String> {
            let batch = Batch::new(of_bytes(&batch).unwrap()).unwrap();
            let texts: Vec<&str> = (0..batch.rows()).map(|row| batch.text(row)).collect();
            if texts.contains(&"bad") {
                return Err("ValueError: a bad text".into());
            }
            let lengths = Float32Array::from_iter_values(texts.iter().map(|text| text.len() as f32));
            let keep = BooleanArray::from(texts.iter().map(|text| text.contains('a')).collect::<Vec<_>>());
            let batch = batch.with_column("length", Arc::new(lengths)).with_column(KEEP, Arc::new(keep));
            to_bytes(batch.table()).map_err(|error| error.to_string())
        }
    }

    fn batch(texts: &[&str]) -> Batch {
        let of = |texts: &[&str]| StringArray::from(texts.to_vec());
        Batch::of(of(texts), of(texts), of(texts))
    }

    #[test]
    fn a_function_adds_columns_and_drops_documents() {
        let written = [
            ("function".to_owned(), toml::Value::from("lengths")),
            ("adds".to_owned(), toml::Value::from(vec!["length:f32"])),
        ];
        let Ok(Ok((Work::Rows(stage), _))) = build::<Function>(&written.into_iter().collect()) else {
            panic!("not a stage of rows")
        };
        let empty = stage.run(batch(&[]), &mut Tally::default()).unwrap();
        assert_eq!(empty.table().column_by_name("length").unwrap().data_type(), &DataType::Float32);
        let none = Tools { models: None, functions: None, threads: 1 };
        assert!(stage.begin(&none).unwrap_err().to_string().contains("stages="));
        stage.begin(&Tools { functions: Some(Arc::new(Lengths)), ..none }).unwrap();
        let mut tally = Tally::default();
        let found = stage.run(batch(&["abc", "xy", "a"]), &mut tally).unwrap();
        let lengths = found.table().column_by_name("length").unwrap();
        assert_eq!(lengths.as_any().downcast_ref::<Float32Array>().unwrap().values(), &[3.0, 1.0]);
        assert_eq!((found.text(1), tally.dropped_documents()), ("a", 1));
        assert!(found.table().column_by_name(KEEP).is_none());
        let failed = stage.run(batch(&["bad"]), &mut tally).unwrap_err().to_string();
        assert!(failed.contains("lengths") && failed.contains("a bad text"), "{failed}");
    }
}
