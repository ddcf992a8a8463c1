//! Copies of the columns that a join reads: SQLite makes no index of its own for a virtual table.

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::error::{Error, quoted};

/// A table by the names of its columns.
pub(crate) struct Columns {
    pub table: String,
    pub columns: Vec<String>,
}

/// Copies what the query reads of `tables`, by (table, column) in `reads`, into temporary tables of the same names, if its
/// plan scans one of them once for each row of something else. Returns their names.
pub(crate) fn make(
    connection: &Connection,
    sql: &str,
    tables: &[Columns],
    reads: &BTreeSet<(String, String)>,
) -> Result<Vec<String>, Error> {
    if !scans_again(connection, sql)? {
        return Ok(Vec::new());
    }
    let mut made = Vec::new();
    for Columns { table, columns } in tables {
        if !reads.iter().any(|(read, _)| read == table) {
            continue;
        }
        // In the table's own order, in which `*` names them.
        let read = columns.iter().filter(|column| reads.contains(&(table.clone(), (*column).clone())));
        let read: Vec<String> = read.map(|column| quoted(column)).collect();
        let read = if read.is_empty() { "1".to_owned() } else { read.join(", ") };
        // The table made is not there yet when the one that is read is looked up.
        let copied = connection
            .execute_batch(&format!("CREATE TEMP TABLE {0} AS SELECT {read} FROM {0};", quoted(table)));
        if let Err(error) = copied {
            drop(connection, &made)?;
            return Err(error.into());
        }
        made.push(table.clone());
    }
    Ok(made)
}

/// Removes the copies.
pub(crate) fn drop(connection: &Connection, tables: &[String]) -> Result<(), Error> {
    tables
        .iter()
        .try_for_each(|table| connection.execute_batch(&format!("DROP TABLE temp.{};", quoted(table))))?;
    Ok(())
}

/// Whether a virtual table stands in an inner loop of the plan.
fn scans_again(connection: &Connection, sql: &str) -> Result<bool, Error> {
    // Statements without a plan, such as a plan itself, have no loops.
    let Ok(mut plan) = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")) else { return Ok(false) };
    let mut steps = plan.query([])?;
    let mut loops: BTreeSet<i64> = BTreeSet::new();
    while let Some(step) = steps.next()? {
        let (parent, detail): (i64, String) = (step.get(1)?, step.get(3)?);
        if detail.starts_with("CORRELATED ") {
            return Ok(true);
        }
        let is_loop = detail.starts_with("SCAN ") || detail.starts_with("SEARCH ");
        if is_loop && !loops.insert(parent) && detail.contains(" VIRTUAL TABLE ") {
            return Ok(true);
        }
    }
    Ok(false)
}
