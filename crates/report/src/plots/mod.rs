//! Charts of a report: line charts, stacked areas, heat maps, maps of kinds, bars, histograms and Gantt charts. Each
//! is a struct with titles, axes with units, and numbers; drawing it makes a [`Figure`].

mod area;
mod bars;
mod frame;
mod gantt;
mod heatmap;
mod histogram;
mod line;
mod map;
mod scale;

use serde::Serialize;

pub use area::{Layer, StackedArea};
pub use bars::{BarGroup, Bars};
pub use gantt::{Gantt, GanttBar};
pub use heatmap::HeatMap;
pub(crate) use heatmap::LEVELS as HEAT_LEVELS;
pub use histogram::Histogram;
pub use line::{LineChart, Mark, Series};
pub use map::{KindMap, MapCell};
pub use scale::{Axis, AxisKind};

use crate::svg::{escape, sentence};

/// A drawn chart with its title, note and legend.
#[derive(Clone, Debug)]
pub struct Figure {
    title: String,
    note: String,
    legend: Vec<LegendEntry>,
    svg: String,
    hover: Option<Hover>,
}

/// A class of the style sheet and the name shown for it.
#[derive(Clone, Debug)]
struct LegendEntry {
    class: String,
    name: String,
}

/// Data for the page's script, which shows it under the pointer. All text is already formatted.
#[derive(Clone, Debug, Serialize)]
struct Hover {
    /// Upper and lower end of the plot, in user units.
    y: (f64, f64),
    /// Width of the chart, in user units.
    width: f64,
    /// Heading at each x position.
    heads: HoverSeries,
    series: Vec<HoverSeries>,
}

#[derive(Clone, Debug, Serialize)]
struct HoverSeries {
    name: String,
    class: String,
    /// Positions along x, in tenths of user units, ascending.
    at: Vec<u32>,
    text: Vec<String>,
}

impl HoverSeries {
    fn new(name: &str, class: &str) -> HoverSeries {
        HoverSeries { name: name.into(), class: class.into(), at: Vec::new(), text: Vec::new() }
    }

    fn push(&mut self, x: f64, text: String) {
        self.at.push((x * 10.0).round().max(0.0) as u32);
        self.text.push(text);
    }
}

impl Figure {
    /// Returns the chart as an HTML `figure`.
    pub fn html(&self) -> String {
        let legend: String = self
            .legend
            .iter()
            .map(|e| format!(r#"<span class="key"><i class="{}"></i>{}</span>"#, e.class, escape(&e.name)))
            .collect();
        let legend =
            if legend.is_empty() { legend } else { format!(r#"<div class="legend">{legend}</div>"#) };
        let note = match self.note.as_str() {
            "" => String::new(),
            note => format!(r#"<p class="note">{}</p>"#, sentence(note)),
        };
        let hover = match &self.hover {
            // `<` would end the script element.
            Some(hover) => format!(
                r#"<script type="application/json">{}</script>"#,
                serde_json::to_string(hover).unwrap_or_default().replace('<', "\\u003c")
            ),
            None => String::new(),
        };
        let class = if self.hover.is_some() { "chart hoverable" } else { "chart" };
        let title = sentence(&self.title);
        format!(
            "<figure class=\"{class}\"><figcaption><h3>{title}</h3>{legend}</figcaption><div class=\"plot\">{}</div>{hover}{note}</figure>\n",
            self.svg
        )
    }
}

/// Returns the class of a memory category, the same in every chart. Unknown names share the last class.
pub(crate) fn category_class(name: &str) -> &'static str {
    match name {
        "params" => "m0",
        "grads" => "m1",
        "optimizer" => "m2",
        "activations" => "m3",
        "workspace" => "m4",
        "kv" => "m5",
        "comm" => "m6",
        "staging" => "m7",
        "data" => "m8",
        _ => "m9",
    }
}
