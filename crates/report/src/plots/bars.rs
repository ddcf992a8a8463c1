//! Horizontal bars in groups, to compare a figure of a run with a reference.

use super::{Figure, LegendEntry};
use crate::svg::{Anchor, Rect, Svg};

/// Bars that belong together, such as those of one text.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// Name of the group.
    pub name: String,
    /// One value per kind of bar; values that are not finite are left out.
    pub values: Vec<f64>,
}

/// A chart of grouped horizontal bars from zero.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Title.
    pub title: String,
    /// Sentence below the title; may be empty.
    pub note: String,
    /// Meaning of the length of a bar, with unit.
    pub label: String,
    /// Kinds of bars: name and class.
    pub kinds: Vec<(String, String)>,
    /// Groups from top to bottom.
    pub groups: Vec<BarGroup>,
}

impl Bars {
    /// Draws the chart.
    pub fn draw(&self) -> Figure {
        let longest = self.groups.iter().map(|group| short(&group.name).chars().count()).max().unwrap_or(0);
        let left = 14.0 + LETTER * longest as f64;
        let (width, right, bar, gap) = (520.0, 64.0, 20.0, 14.0);
        let group = bar * self.kinds.len() as f64 + gap;
        let height = 12.0 + group * self.groups.len() as f64 + 34.0;
        let greatest =
            self.groups.iter().flat_map(|g| &g.values).copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
        let unit = (width - left - right) / if greatest > 0.0 { greatest } else { 1.0 };
        let mut svg = Svg::new(width, height);
        for (g, group_data) in self.groups.iter().enumerate() {
            let top = 12.0 + group * g as f64;
            let middle = top + bar * self.kinds.len() as f64 / 2.0 + 4.0;
            svg.text("tick", (left - 10.0, middle), Anchor::End, &short(&group_data.name));
            for (k, ((name, class), value)) in self.kinds.iter().zip(&group_data.values).enumerate() {
                if !value.is_finite() {
                    continue;
                }
                let y = top + bar * k as f64;
                let rect = Rect { x: left, y: y + 1.5, w: value * unit, h: bar - 3.0 };
                svg.rect(&format!("bar {class}"), rect, &format!("{name}: {value:.3}"));
                let text = format!("{value:.3}");
                svg.text("value", (left + value * unit + 6.0, y + bar / 2.0 + 4.0), Anchor::Start, &text);
            }
        }
        let bottom = 6.0 + group * self.groups.len() as f64;
        svg.line("axis", (left, 6.0), (left, bottom));
        svg.text("label", ((left + width - right) / 2.0, height - 10.0), Anchor::Middle, &self.label);
        let entry =
            |(name, class): &(String, String)| LegendEntry { class: class.clone(), name: name.clone() };
        let legend = self.kinds.iter().map(entry).collect();
        let (title, note) = (self.title.clone(), self.note.clone());
        Figure {
            title,
            note,
            legend,
            svg: svg.finish(&format!("{}: {}", self.title, self.label)),
            hover: None,
        }
    }
}

/// Generous estimate of the average width of a letter.
const LETTER: f64 = 6.4;
/// Maximum number of letters of a name.
const LETTERS: usize = 30;

/// Shortens a name to leave room for the bars.
fn short(name: &str) -> String {
    if name.chars().count() <= LETTERS {
        name.into()
    } else {
        format!("{}…", name.chars().take(LETTERS - 1).collect::<String>())
    }
}
