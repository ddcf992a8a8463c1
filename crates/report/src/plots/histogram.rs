//! Histograms with the limits of a decision drawn in.

use super::Figure;
use crate::svg::{Anchor, Rect, Svg};

/// Maximum number of bars; neighbours are merged beyond it.
const BARS: usize = 64;

/// A histogram.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Title.
    pub title: String,
    /// Sentence below the title; may be empty.
    pub note: String,
    /// Label of the values, with unit.
    pub label: String,
    /// Lower end, upper end and count of each bar, in ascending order; all bars are drawn equally wide.
    pub buckets: Vec<(f64, f64, u64)>,
    /// Limits of the decision.
    pub limits: Vec<f64>,
}

impl Histogram {
    /// Draws the chart.
    pub fn draw(&self) -> Figure {
        let (width, height, left, right, top, bottom) = (520.0, 200.0, 12.0, 12.0, 20.0, 40.0);
        let buckets = joined(&self.buckets);
        let greatest = buckets.iter().map(|b| b.2).max().unwrap_or(1).max(1) as f64;
        let each = (width - left - right) / buckets.len().max(1) as f64;
        let (base, room) = (height - bottom, height - bottom - top);
        let mut svg = Svg::new(width, height);
        let total: u64 = buckets.iter().map(|b| b.2).sum();
        for (number, (from, to, count)) in buckets.iter().enumerate() {
            let h = *count as f64 / greatest * room;
            let x = left + each * number as f64;
            let rect = Rect { x: x + 0.5, y: base - h, w: (each - 1.0).max(0.5), h };
            let share = *count as f64 / total.max(1) as f64;
            let title = format!("{} to {}: {count} ({:.2} %)", short(*from), short(*to), share * 100.0);
            svg.rect("bar s1", rect, &title);
        }
        svg.line("axis", (left, base), (width - right, base));
        let ticks = buckets.len().min(6);
        for tick in 0..ticks {
            let number = tick * buckets.len() / ticks;
            let x = left + each * number as f64;
            svg.text("tick", (x, base + 15.0), Anchor::Start, &short(buckets[number].0));
        }
        for limit in &self.limits {
            let Some(place) = place(&buckets, *limit) else { continue };
            let x = left + each * place;
            svg.line("mark trained", (x, top - 6.0), (x, base));
            svg.text("marktext", (x, top - 8.0), Anchor::Middle, &short(*limit));
        }
        svg.text("label", (width / 2.0, height - 8.0), Anchor::Middle, &self.label);
        let (title, note) = (self.title.clone(), self.note.clone());
        let svg = svg.finish(&format!("{}: {}", self.title, self.label));
        Figure { title, note, legend: Vec::new(), svg, hover: None }
    }
}

/// Merges neighbouring buckets until at most [`BARS`] are left.
fn joined(buckets: &[(f64, f64, u64)]) -> Vec<(f64, f64, u64)> {
    let each = buckets.len().div_ceil(BARS).max(1);
    buckets
        .chunks(each)
        .map(|chunk| (chunk[0].0, chunk[chunk.len() - 1].1, chunk.iter().map(|b| b.2).sum()))
        .collect()
}

/// Position of a value, counted in bars; `None` outside all of them.
fn place(buckets: &[(f64, f64, u64)], value: f64) -> Option<f64> {
    let number = buckets.iter().position(|(_, to, _)| value <= *to)?;
    let (from, to, _) = buckets[number];
    (value >= from || number > 0).then(|| number as f64 + ((value - from) / (to - from)).clamp(0.0, 1.0))
}

/// Writes a number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1000.0 => fathom_base::human::count(size as u64).replace(' ', ""),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stand_where_they_are() {
        let buckets: Vec<(f64, f64, u64)> = (0..200).map(|i| (i as f64, i as f64 + 1.0, 1)).collect();
        let joined = joined(&buckets);
        assert!(joined.len() <= BARS && joined.iter().map(|b| b.2).sum::<u64>() == 200);
        assert_eq!(place(&joined, 6.0), Some(1.5));
        assert_eq!(place(&joined, -1.0), None);
        assert_eq!(place(&joined, 1e9), None);
    }
}
