//! Wiki tables as rows of cells.

/// Rows of a table, given without its brackets: one per line, with cells separated by ` | `.
pub(super) fn rows(inner: &str) -> String {
    let mut rows: Vec<Vec<String>> = vec![Vec::new()];
    let mut caption = String::new();
    // The first line contains the attributes of the table.
    for line in inner.lines().skip(1) {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("|+") {
            caption = without_attributes(text).trim().to_string();
        } else if line.starts_with("|-") {
            rows.push(Vec::new());
        } else if let Some(cells) = line.strip_prefix(['|', '!']) {
            let mark = if line.starts_with('!') && cells.contains("!!") { "!!" } else { "||" };
            let row = rows.last_mut();
            row.into_iter().for_each(|row| {
                row.extend(cells.split(mark).map(|c| without_attributes(c).trim().to_string()))
            });
        } else if let Some(cell) = rows.last_mut().and_then(|row| row.last_mut()) {
            cell.push(' ');
            cell.push_str(line.trim());
        }
    }
    let mut out = String::from("\n");
    let lines = rows.iter().map(|row| row.join(" | "));
    for line in std::iter::once(caption).chain(lines).filter(|l| l.chars().any(char::is_alphanumeric)) {
        out.push_str(line.trim());
        out.push('\n');
    }
    out
}

/// Reduces `style="..." | text` to `text`.
fn without_attributes(cell: &str) -> &str {
    match cell.split_once('|') {
        Some((attributes, text)) if attributes.contains('=') => text,
        _ => cell,
    }
}
