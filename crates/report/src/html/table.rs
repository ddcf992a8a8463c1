//! Rows of figures, and tables.

use crate::plots::Figure;
use crate::svg::escape;

/// Places figures side by side where there is room.
pub fn row(figures: &[Figure]) -> String {
    let inner: String = figures.iter().map(Figure::html).collect();
    if inner.is_empty() { inner } else { format!("<div class=\"row\">{inner}</div>\n") }
}

/// Returns a table. Cells are escaped here. Columns that contain only numbers are right-aligned.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let figure = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit()) || cell == "-";
    let columns = 0..head.len();
    let right: Vec<bool> = columns
        .map(|c| c > 0 && !head[c].is_empty() && rows.iter().all(|row| row.get(c).is_some_and(figure)))
        .collect();
    let cells = |tag: &str, cells: &[String]| -> String {
        let class = |c: usize| if right.get(c) == Some(&true) { " class=\"num\"" } else { "" };
        cells
            .iter()
            .enumerate()
            .map(|(c, cell)| format!("<{tag}{}>{}</{tag}>", class(c), escape(cell)))
            .collect()
    };
    let head: Vec<String> = head.iter().map(|cell| cell.to_string()).collect();
    let body: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
    let head = if head.iter().all(String::is_empty) {
        String::new()
    } else {
        format!("<thead><tr>{}</tr></thead>", cells("th", &head))
    };
    format!("<div class=\"scroll\"><table>{head}<tbody>{body}</tbody></table></div>\n")
}
