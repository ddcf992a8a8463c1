//! Parquet columns passed along with the text: strings unchanged, numbers and booleans as in JSON.

use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type,
};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::SchemaDescriptor;

/// A column by its index in the schema.
pub(super) struct Column {
    pub name: String,
    pub index: usize,
    /// Rows with a lower definition level have no value.
    full_level: i16,
    unsigned: bool,
}

impl Column {
    pub(super) fn new(schema: &SchemaDescriptor, name: &str, index: usize) -> Column {
        let column = schema.column(index);
        let unsigned = matches!(column.logical_type_ref(), Some(LogicalType::Integer(int)) if !int.is_signed)
            || is_unsigned(column.converted_type());
        Column { name: name.to_string(), index, full_level: column.max_def_level(), unsigned }
    }

    /// Column of this name, if its type is supported: no lists, dates or decimals.
    pub(super) fn named(schema: &SchemaDescriptor, name: &str) -> Option<Column> {
        let index = (0..schema.num_columns()).find(|&c| schema.column(c).path().string() == name)?;
        let column = schema.column(index);
        let plain = matches!(column.logical_type_ref(), None | Some(LogicalType::Integer(_)))
            && (is_unsigned(column.converted_type())
                || matches!(
                    column.converted_type(),
                    ConvertedType::NONE
                        | ConvertedType::INT_8
                        | ConvertedType::INT_16
                        | ConvertedType::INT_32
                        | ConvertedType::INT_64
                ));
        let usable = match column.physical_type() {
            PhysicalType::BYTE_ARRAY => true,
            PhysicalType::INT96 | PhysicalType::FIXED_LEN_BYTE_ARRAY => false,
            _ => plain,
        };
        (usable && column.max_rep_level() == 0).then(|| Column::new(schema, name, index))
    }
}

fn is_unsigned(converted: ConvertedType) -> bool {
    use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
    matches!(converted, UINT_8 | UINT_16 | UINT_32 | UINT_64)
}

/// The values of a column in a row group.
pub(super) enum Values {
    Bool(ColumnReaderImpl<BoolType>),
    Int32(ColumnReaderImpl<Int32Type>),
    Int64(ColumnReaderImpl<Int64Type>),
    Float(ColumnReaderImpl<FloatType>),
    Double(ColumnReaderImpl<DoubleType>),
    Bytes(ColumnReaderImpl<ByteArrayType>),
}

impl Values {
    pub(super) fn of(reader: ColumnReader) -> Result<Values> {
        Ok(match reader {
            ColumnReader::BoolColumnReader(cells) => Values::Bool(cells),
            ColumnReader::Int32ColumnReader(cells) => Values::Int32(cells),
            ColumnReader::Int64ColumnReader(cells) => Values::Int64(cells),
            ColumnReader::FloatColumnReader(cells) => Values::Float(cells),
            ColumnReader::DoubleColumnReader(cells) => Values::Double(cells),
            ColumnReader::ByteArrayColumnReader(cells) => Values::Bytes(cells),
            _ => return Err(ParquetError::NYI("columns of this type".to_string())),
        })
    }

    /// Next values as text, at most `count` rows; `None` for null and for bytes that are not UTF-8.
    pub(super) fn next(&mut self, column: &Column, count: usize) -> Result<Vec<Option<String>>> {
        let text = |bytes: ByteArray| std::str::from_utf8(bytes.data()).ok().map(str::to_owned);
        match self {
            Values::Bool(cells) => texts(cells, column, count, |v| Some(v.to_string())),
            Values::Int32(cells) if column.unsigned => {
                texts(cells, column, count, |v| Some(v.cast_unsigned().to_string()))
            }
            Values::Int32(cells) => texts(cells, column, count, |v| Some(v.to_string())),
            Values::Int64(cells) if column.unsigned => {
                texts(cells, column, count, |v| Some(v.cast_unsigned().to_string()))
            }
            Values::Int64(cells) => texts(cells, column, count, |v| Some(v.to_string())),
            Values::Float(cells) => texts(cells, column, count, |v| Some(v.to_string())),
            Values::Double(cells) => texts(cells, column, count, |v| Some(v.to_string())),
            Values::Bytes(cells) => texts(cells, column, count, text),
        }
    }
}

fn texts<T: DataType>(
    cells: &mut ColumnReaderImpl<T>,
    column: &Column,
    count: usize,
    text: impl Fn(T::T) -> Option<String>,
) -> Result<Vec<Option<String>>> {
    Ok(read_cells(cells, column, count)?.into_iter().map(|value| value.and_then(&text)).collect())
}

/// Next values of a column, at most `count` rows; `None` for null.
pub(super) fn read_cells<T: DataType>(
    cells: &mut ColumnReaderImpl<T>,
    column: &Column,
    count: usize,
) -> Result<Vec<Option<T::T>>> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    // One call may stop at the end of a page, hence the loop.
    while rows.len() < count {
        levels.clear();
        values.clear();
        let (read, _, _) = cells.read_records(count - rows.len(), Some(&mut levels), None, &mut values)?;
        if read == 0 {
            break;
        }
        let mut values = values.drain(..);
        // A required column has no definition levels: every row has a value.
        let present = |i: usize| column.full_level == 0 || levels.get(i) == Some(&column.full_level);
        rows.extend((0..read).map(|i| if present(i) { values.next() } else { None }));
    }
    Ok(rows)
}
