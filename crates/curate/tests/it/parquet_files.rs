//! Parquet, written here by the crate's own writer.

use std::sync::Arc;

use fathom_curate::{Counters, Document, Error, ReadOptions, Reason};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::{dropped, folder, path, read, read_file, texts};

const SCHEMA: &str = "message m {
    required int64 id;
    optional binary text (UTF8);
    required binary title (UTF8);
    optional group meta { optional binary url (UTF8); }
    optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
}";

/// A file with one row group per slice of texts; every other column has values too.
pub(crate) fn write(groups: &[&[Option<&[u8]>]], compression: Compression) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_data_page_row_count_limit(3)
        .set_write_batch_size(1)
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let num = rows.len();
        let strings = |prefix: &str| -> Vec<ByteArray> {
            (0..num).map(|i| ByteArray::from(format!("{prefix}{i}").into_bytes())).collect()
        };
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<i64> = (0..num as i64).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();

        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = rows.iter().flatten().map(|t| ByteArray::from(t.to_vec())).collect();
        let levels: Vec<i16> = rows.iter().map(|t| i16::from(t.is_some())).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();

        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&strings("title "), None, None).unwrap();
        column.close().unwrap();

        let mut column = group.next_column().unwrap().unwrap();
        let full = vec![2i16; num];
        column.typed::<ByteArrayType>().write_batch(&strings("url "), Some(&full), None).unwrap();
        column.close().unwrap();

        let mut column = group.next_column().unwrap().unwrap();
        let (full, new_row) = (vec![3i16; num], vec![0i16; num]);
        column.typed::<ByteArrayType>().write_batch(&strings("tag "), Some(&full), Some(&new_row)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

fn read_field(bytes: &[u8], field: &str) -> Result<(Vec<Document>, Counters), Error> {
    let dir = folder(&[("d.parquet", bytes)]);
    let options = ReadOptions { field: field.to_string(), ..ReadOptions::default() };
    read(&path(&dir, "d.parquet"), &options)
}

#[test]
fn rows_are_read_in_every_packing() {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(Default::default()),
    ];
    for codec in codecs {
        let one: Vec<String> = (0..50).map(|i| format!("text {i}")).collect();
        let one: Vec<Option<&[u8]>> = one.iter().map(|t| Some(t.as_bytes())).collect();
        let bytes =
            write(&[&one, &[None, Some(b"x"), Some(b"\xff"), Some(b""), Some("é".as_bytes())]], codec);
        let (documents, counters) = read_file("d.parquet", &bytes).unwrap();
        assert_eq!(documents.len(), 52, "{codec:?}");
        assert_eq!(documents[49].text, "text 49");
        assert!(documents[50].source.ends_with("d.parquet#52") && documents[50].text == "x");
        assert_eq!(documents[51].text, "é");
        assert_eq!(dropped(&counters, Reason::NoTextField), 1);
        assert_eq!(dropped(&counters, Reason::InvalidUtf8), 1);
        assert_eq!(dropped(&counters, Reason::Blank), 1);
        assert_eq!(counters.damage[0].place, "row 51");
        let (documents, _) = read_field(&bytes, "title").unwrap();
        assert_eq!(texts(&documents)[..2], ["title 0", "title 1"]);
        let (documents, _) = read_field(&bytes, "meta.url").unwrap();
        assert_eq!((documents.len(), documents[54].text.as_str()), (55, "url 4"));
    }
}

#[test]
fn a_column_that_holds_no_text_is_refused_by_name() {
    let bytes = write(&[&[Some(b"x")]], Compression::SNAPPY);
    for (field, wanted) in
        [("body", "no column `body`"), ("id", "holds INT64"), ("tags.list.element", "holds lists")]
    {
        let message = read_field(&bytes, field).unwrap_err().to_string();
        assert!(message.contains(wanted) && message.contains("d.parquet"), "{message}");
        assert!(message.contains("text, title, meta.url"), "{message}");
    }
}

#[test]
fn a_value_over_the_limit_is_dropped() {
    let long = vec![b'x'; 2000];
    let dir = folder(&[("d.parquet", &write(&[&[Some(&long), Some(b"short")]], Compression::SNAPPY))]);
    let options = ReadOptions { max_document_bytes: 1000, ..ReadOptions::default() };
    let (documents, counters) = read(dir.path(), &options).unwrap();
    assert_eq!(texts(&documents), ["short"]);
    assert_eq!(counters.dropped[&Reason::TooLarge].bytes, 2000);
}

#[test]
fn a_broken_row_group_is_counted_and_the_next_one_read() {
    let first: Vec<Vec<u8>> = (0..100).map(|i| format!("first {i} {}", i * 7919).into_bytes()).collect();
    let first: Vec<Option<&[u8]>> = first.iter().map(|t| Some(t.as_slice())).collect();
    let mut bytes = write(&[&first, &[Some(b"second group")]], Compression::SNAPPY);
    let at = bytes.windows(8).position(|w| w == b"first 0 ").unwrap();
    bytes[at + 20..at + 220].fill(0xff);
    let (documents, counters) = read_file("d.parquet", &bytes).unwrap();
    assert_eq!(documents.last().unwrap().text, "second group");
    assert!(documents.last().unwrap().source.ends_with("#101"));
    let lost = dropped(&counters, Reason::BrokenArchive);
    assert!((1..=100).contains(&lost), "{counters:?}");
    assert!(counters.damage.iter().any(|d| d.place.starts_with("row group 1, row ")), "{counters:?}");
}

#[test]
fn a_file_that_is_not_parquet_is_an_error_only_if_named() {
    let dir = folder(&[("in/d.parquet", b"PAR1 this is not it"), ("in/ok.txt", b"ok")]);
    let message = read(&path(&dir, "in/d.parquet"), &ReadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("not a readable Parquet file"), "{message}");
    let (documents, counters) = read(&path(&dir, "in"), &ReadOptions::default()).unwrap();
    assert_eq!(texts(&documents), ["ok"]);
    assert_eq!(dropped(&counters, Reason::BrokenArchive), 1);
}
