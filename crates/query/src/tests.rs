//! Queries over folders of Parquet files.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::fs::File;

use arrow_array::{ArrayRef, BooleanArray, Float32Array, RecordBatch, StringArray, UInt64Array};
use parquet::arrow::ArrowWriter;
use serde_json::json;

use super::*;

/// A folder of documents, two files with the given numbers each.
fn folder(parts: &[std::ops::Range<u64>]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (number, part) in parts.iter().enumerate() {
        let ids = part.clone().map(|n| format!("d{n:05}"));
        let columns: [(&str, ArrayRef); 5] = [
            (
                "text",
                Arc::new(StringArray::from_iter(
                    part.clone().map(|n| (n % 5 > 0).then(|| "é".repeat(n as usize % 7))),
                )),
            ),
            ("id", Arc::new(StringArray::from_iter_values(ids))),
            ("tokens", Arc::new(UInt64Array::from_iter_values(part.clone()))),
            ("score", Arc::new(Float32Array::from_iter_values(part.clone().map(|n| n as f32 / 10.0)))),
            ("kept", Arc::new(BooleanArray::from_iter(part.clone().map(|n| Some(n % 2 == 0))))),
        ];
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)));
        let batch = batch.unwrap();
        let file = File::create(folder.path().join(format!("part-{number}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    folder
}

/// Tables `all` of 1000 documents and `few` of the first 700.
fn database(memory_bytes: u64) -> (Database, Vec<tempfile::TempDir>) {
    let folders =
        vec![folder(&[0..600, 600..1000]), folder(&[0..350, 350..700]), tempfile::tempdir().unwrap()];
    let mut database = Database::new(memory_bytes, folders[2].path()).unwrap();
    database.register("all", folders[0].path()).unwrap();
    database.register("few", folders[1].path()).unwrap();
    (database, folders)
}

fn rows(database: &Database, sql: &str) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    let ran = database.query(sql, &mut |names, row| {
        assert_eq!(names.len(), row.len());
        rows.push(row.to_vec());
        true
    });
    ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
    rows
}

#[test]
fn values_come_as_they_are_stored() {
    let (database, _folders) = database(64 << 20);
    let row = rows(&database, "select * from \"all\" where tokens = 13");
    assert_eq!(row, [[json!("é".repeat(6)), json!("d00013"), json!(13), json!(1.3), json!(false)]]);
    assert_eq!(rows(&database, "select text from \"all\" where id = 'd00010'"), [[json!(null)]]);
    let counted = "select count(*), sum(kept), max(length(text)), round(median(score), 2) from \"all\"";
    assert_eq!(rows(&database, counted), [[json!(1000), json!(500), json!(6), json!(49.95)]]);
    let texts = "select starts_with('abc', 'ab'), contains('abc', 'd'), strpos('éab', 'a'), split_part('a/b/c', '/', 2), \
                 'A' like 'a', character_length('éa')";
    assert_eq!(rows(&database, texts), [[json!(1), json!(0), json!(2), json!("b"), json!(0), json!(2)]]);
}

#[test]
fn joins_read_each_table_once() {
    let (database, _folders) = database(64 << 20);
    // A scan for each row would take a million steps; the copies keep the order of the columns.
    let gone =
        "select a.* from \"all\" a left join few f on a.id = f.id where f.id is null order by a.id limit 1";
    let row = rows(&database, gone);
    assert_eq!(row, [[json!(null), json!("d00700"), json!(700), json!(70.0), json!(true)]]);
    let counts = "select (select count(*) from few f where f.id < a.id) from \"all\" a where a.tokens = 300";
    assert_eq!(rows(&database, counts), [[json!(300)]]);
    assert_eq!(rows(&database, "select count(*) from \"all\" a join few f using (id)"), [[json!(700)]]);
    assert_eq!(rows(&database, "select count(*) from few"), [[json!(700)]], "a copy is left");
}

#[test]
fn sorts_beyond_the_memory_spill_and_give_the_same() {
    let (small, folders) = database(1 << 20);
    let (large, _folders) = database(256 << 20);
    let sql =
        "select a.id, b.id from \"all\" a, few b where b.tokens < 60 order by b.tokens * 7919 % 1000, a.id";
    let (small, large) = (rows(&small, sql), rows(&large, sql));
    assert!(small == large && small.len() == 60_000);
    assert_eq!(std::fs::read_dir(folders[2].path()).unwrap().count(), 0, "files are left");
}

#[test]
fn what_is_no_query_is_refused() {
    let (database, _folders) = database(64 << 20);
    let refused = |sql: &str| database.query(sql, &mut |_, _| true).unwrap_err().to_string();
    for change in [
        "drop table few",
        "create table x (a)",
        "attach 'x' as y",
        "pragma cache_size = 1",
        "delete from few",
    ] {
        assert!(refused(change).contains("DDL"), "{change}: {}", refused(change));
    }
    assert!(refused("select 1; select 2").contains("one query"));
    assert!(refused("").contains("one query"));
    assert!(refused("select x from few").contains("no such column: x"));
    assert_eq!(rows(&database, "select name from pragma_table_info('few') limit 1"), [[json!("text")]]);
    assert_eq!(rows(&database, "select 1; -- that is all"), [[json!(1)]]);
    let stopped = database.query("select id from few", &mut |_, _| false);
    assert!(stopped.is_ok());
}

#[test]
fn folders_that_are_no_tables_are_named() {
    let (mut database, _folders) = database(64 << 20);
    let empty = tempfile::tempdir().unwrap();
    let refused = database.register("empty", empty.path()).unwrap_err().to_string();
    assert!(refused.contains("no Parquet files"), "{refused}");
    std::fs::write(empty.path().join("a.parquet"), "not Parquet").unwrap();
    let refused = database.register("empty", empty.path()).unwrap_err().to_string();
    assert!(refused.contains("a.parquet"), "{refused}");
}
