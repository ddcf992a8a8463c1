//! Maps of kinds: rows by columns, each cell one of a few kinds with a colour, and numbers next to the rows. Used for
//! the placement of activations, with anything from two columns to eighty.

use super::{Figure, LegendEntry};
use crate::svg::{Anchor, Rect, Svg};

/// One cell.
#[derive(Clone, Debug, Default)]
pub struct MapCell {
    /// Class in the style sheet.
    pub class: String,
    /// Word inside the cell, shown if it fits; may be empty.
    pub text: String,
    /// Tooltip.
    pub title: String,
    /// Share of the cell, from the right, that has another class, and that class.
    pub part: Option<(f64, String)>,
}

/// A map of kinds.
#[derive(Clone, Debug)]
pub struct KindMap {
    /// Title.
    pub title: String,
    /// Sentence below the title; may be empty.
    pub note: String,
    /// Label of the columns.
    pub x_label: String,
    /// Names of the columns; thinned out if there are many.
    pub columns: Vec<String>,
    /// Names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// `cells[row][column]`; `None` is an empty cell.
    pub cells: Vec<Vec<Option<MapCell>>>,
    /// Headings of the numbers next to the rows.
    pub heads: Vec<String>,
    /// `figures[row][head]`.
    pub figures: Vec<Vec<String>>,
    /// Kinds: class and name, in legend order.
    pub kinds: Vec<(String, String)>,
}

const WIDTH: f64 = 1060.0;
const ROW: f64 = 21.0;
/// Width of a column of numbers.
const FIGURE: f64 = 92.0;
/// Maximum width of a cell.
const WIDEST: f64 = 104.0;

impl KindMap {
    /// Draws the map.
    pub fn draw(&self) -> Figure {
        let letters = self.rows.iter().map(|row| row.chars().count()).max().unwrap_or(0);
        let (left, top) = (16.0 + 6.6 * letters as f64, 24.0);
        let room = WIDTH - left - FIGURE * self.heads.len() as f64 - 8.0;
        let cell = (room / self.columns.len().max(1) as f64).min(WIDEST);
        let bottom = top + ROW * self.rows.len() as f64;
        let mut svg = Svg::new(WIDTH, bottom + 46.0);
        let gap = if cell > 20.0 { 2.0 } else { 1.0 };
        for (r, row) in self.rows.iter().enumerate() {
            let y = top + ROW * r as f64;
            svg.text("tick", (left - 8.0, y + 15.0), Anchor::End, row);
            for (c, kind) in self.cells.get(r).into_iter().flatten().enumerate() {
                let Some(kind) = kind else { continue };
                let x = left + cell * c as f64;
                let rect = Rect { x, y: y + 1.0, w: cell - gap, h: ROW - 2.0 };
                svg.rect(&format!("kind {}", kind.class), rect, &kind.title);
                if let Some((share, class)) = &kind.part {
                    let w = rect.w * share.clamp(0.0, 1.0);
                    let part = Rect { x: rect.x + rect.w - w, w, ..rect };
                    svg.rect(&format!("kind {class}"), part, &kind.title);
                }
                if cell > 6.4 * kind.text.chars().count() as f64 + 8.0 {
                    let at = (x + (cell - gap) / 2.0, y + 15.0);
                    svg.text(&format!("kindtext {}", kind.class), at, Anchor::Middle, &kind.text);
                }
            }
        }
        let right = left + cell * self.columns.len() as f64;
        self.draw_columns(&mut svg, (left, bottom), cell);
        self.draw_figures(&mut svg, (right, top));
        svg.text("label", ((left + right) / 2.0, bottom + 38.0), Anchor::Middle, &self.x_label);
        let entry =
            |(class, name): &(String, String)| LegendEntry { class: class.clone(), name: name.clone() };
        let (title, note) = (self.title.clone(), self.note.clone());
        let svg = svg.finish(&format!("{}, by {}", self.title, self.x_label));
        Figure { title, note, legend: self.kinds.iter().map(entry).collect(), svg, hover: None }
    }

    /// Draws as many column names as fit. Words (names that are not numbers) take precedence.
    fn draw_columns(&self, svg: &mut Svg, at: (f64, f64), cell: f64) {
        let width = |name: &str| 6.8 * name.chars().count() as f64 + 12.0;
        let middle = |c: usize| at.0 + cell * (c as f64 + 0.5);
        let is_word = |name: &str| name.parse::<u32>().is_err();
        let words: Vec<usize> = (0..self.columns.len()).filter(|c| is_word(&self.columns[*c])).collect();
        for c in &words {
            svg.text("tick", (middle(*c), at.1 + 17.0), Anchor::Middle, &self.columns[*c]);
        }
        let numbers = self.columns.iter().filter(|name| !is_word(name));
        let widest = numbers.map(|name| width(name)).fold(1.0, f64::max);
        // Layers at regular intervals, with round numbers.
        let every =
            [1, 2, 4, 5, 10, 20, 50, 100].into_iter().find(|n| cell * f64::from(*n) >= widest).unwrap_or(200);
        for (c, name) in self.columns.iter().enumerate() {
            let covered =
                |w: &usize| (middle(*w) - middle(c)).abs() < (width(&self.columns[*w]) + width(name)) / 2.0;
            let round = name.parse::<i32>().is_ok_and(|layer| layer % every == 0);
            if round && !words.iter().any(covered) {
                svg.text("tick", (middle(c), at.1 + 17.0), Anchor::Middle, name);
            }
        }
    }

    /// Draws the numbers to the right of the rows.
    fn draw_figures(&self, svg: &mut Svg, at: (f64, f64)) {
        let edge = |h: usize| at.0 + FIGURE * (h + 1) as f64;
        for (h, head) in self.heads.iter().enumerate() {
            svg.text("label", (edge(h), at.1 - 9.0), Anchor::End, head);
        }
        for (r, figures) in self.figures.iter().enumerate() {
            for (h, figure) in figures.iter().enumerate() {
                svg.text("value", (edge(h), at.1 + ROW * r as f64 + 15.0), Anchor::End, figure);
            }
        }
    }
}
