//! Heat maps of shares from 0 to 1, with the number in every cell. The colour is a single hue of monotone lightness,
//! which reads the same to colour-blind viewers and in print.

use super::Figure;
use crate::svg::{Anchor, Rect, Svg};

/// A heat map.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Sentence below the title; may be empty.
    pub note: String,
    /// Label of the columns.
    pub x_label: String,
    /// Label of the rows.
    pub y_label: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// `values[row][column]`, from 0 to 1; a missing or non-finite value is an empty cell.
    pub values: Vec<Vec<f64>>,
    /// A line before this column with a label, such as the end of the trained length.
    pub divider: Option<(usize, String)>,
}

/// Number of colour steps: classes `h0` to `h10`.
pub(crate) const LEVELS: usize = 11;

impl HeatMap {
    /// Draws the map.
    pub fn draw(&self) -> Figure {
        let (left, top, bottom) = (62.0, 22.0, 70.0);
        let width = 520.0;
        let (columns, rows) = (self.columns.len().max(1), self.rows.len().max(1));
        let cell = ((width - left - 8.0) / columns as f64, 34.0f64.min(300.0 / rows as f64).max(20.0));
        let height = top + cell.1 * rows as f64 + bottom;
        let mut svg = Svg::new(width, height);
        for (r, row) in self.rows.iter().enumerate() {
            let y = top + cell.1 * r as f64;
            svg.text("tick", (left - 8.0, y + cell.1 / 2.0 + 4.0), Anchor::End, row);
            for (c, column) in self.columns.iter().enumerate() {
                let value = self.values.get(r).and_then(|row| row.get(c)).copied().unwrap_or(f64::NAN);
                let x = left + cell.0 * c as f64;
                let rect = Rect { x: x + 1.0, y: y + 1.0, w: cell.0 - 2.0, h: cell.1 - 2.0 };
                let title = format!("{column}, {row}: {}", fathom_base::human::percent(value));
                svg.rect(&format!("cell {}", level(value)), rect, &title);
                let text = if value.is_finite() { format!("{:.0}", value * 100.0) } else { "-".into() };
                let at = (x + cell.0 / 2.0, y + cell.1 / 2.0 + 4.0);
                svg.text(&format!("celltext {}", level(value)), at, Anchor::Middle, &text);
            }
        }
        let under = top + cell.1 * rows as f64;
        for (c, column) in self.columns.iter().enumerate() {
            svg.text("tick", (left + cell.0 * (c as f64 + 0.5), under + 16.0), Anchor::Middle, column);
        }
        if let Some((column, word)) = &self.divider {
            let x = left + cell.0 * *column as f64;
            svg.line("mark trained", (x, top - 12.0), (x, under));
            let right = *column as f64 > columns as f64 / 2.0;
            let (anchor, x) = if right { (Anchor::End, x - 4.0) } else { (Anchor::Start, x + 4.0) };
            svg.text("marktext", (x, top - 5.0), anchor, word);
        }
        svg.text("label", ((left + width) / 2.0, under + 34.0), Anchor::Middle, &self.x_label);
        svg.text_upwards("label", (13.0, top + cell.1 * rows as f64 / 2.0), &self.y_label);
        draw_key(&mut svg, ((left + width) / 2.0, under + 48.0));
        let svg = svg.finish(&format!("{}: {} against {}", self.title, self.y_label, self.x_label));
        let (title, note, legend) = (self.title.clone(), self.note.clone(), Vec::new());
        Figure { title, note, legend, svg, hover: None }
    }
}

/// Draws the colour scale from 0 to 100 %, centred at a point.
fn draw_key(svg: &mut Svg, at: (f64, f64)) {
    let (w, h) = (16.0, 9.0);
    let left = at.0 - w * LEVELS as f64 / 2.0;
    for i in 0..LEVELS {
        svg.rect(&format!("cell h{i}"), Rect { x: left + w * i as f64, y: at.1, w, h }, "");
    }
    svg.text("tick", (left - 6.0, at.1 + 9.0), Anchor::End, "0 %");
    svg.text("tick", (left + w * LEVELS as f64 + 6.0, at.1 + 9.0), Anchor::Start, "100 %");
}

fn level(value: f64) -> String {
    if value.is_finite() {
        format!("h{}", (value.clamp(0.0, 1.0) * (LEVELS - 1) as f64).round() as usize)
    } else {
        "hnone".into()
    }
}
