//! Stacked areas: memory along one step, by category.

use super::frame::Frame;
use super::scale::{Axis, Scale};
use super::{Figure, Hover, HoverSeries, LegendEntry};
use crate::smooth::thin;
use crate::svg::{Anchor, Point, Svg};

/// Points along x that are drawn.
const LIMIT: usize = 500;

/// One layer of the stack.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name in the legend.
    pub name: String,
    /// Its class in the style sheet.
    pub class: String,
    /// Its height at every point, not negative.
    pub values: Vec<f64>,
}

/// A stacked area chart over equally spaced points.
#[derive(Clone, Debug)]
pub struct StackedArea {
    /// What it shows.
    pub title: String,
    /// A sentence below it; may be empty.
    pub note: String,
    /// Width and height in user units.
    pub size: (f64, f64),
    /// What the points are, e.g. `allocations and releases of one step`.
    pub x_label: String,
    /// The axis upwards.
    pub y: Axis,
    /// What happened at every point.
    pub labels: Vec<String>,
    /// From the bottom to the top.
    pub layers: Vec<Layer>,
    /// A height to compare the sum with, and its name.
    pub line: Option<(f64, String)>,
}

impl StackedArea {
    /// Draws the chart; the greatest sum is marked with its label.
    pub fn draw(&self) -> Figure {
        let n = self.layers.iter().map(|layer| layer.values.len()).min().unwrap_or(0).min(self.labels.len());
        let totals: Vec<f64> =
            (0..n).map(|i| self.layers.iter().map(|layer| layer.values[i]).sum()).collect();
        let mut frame = Frame::new(self.size, 26.0);
        let x_axis = Axis::linear(&self.x_label, "");
        let ends = [0.0, n.saturating_sub(1).max(1) as f64];
        let heights = totals.iter().copied().chain(self.line.as_ref().map(|line| line.0));
        let y = Scale::over(&self.y, heights, frame.upwards(), true);
        frame.make_room(&self.y, &y);
        let x = Scale::over(&x_axis, ends.into_iter(), frame.across(), false);
        let mut svg = Svg::new(frame.width, frame.height);
        frame.draw_axes(&mut svg, (&x_axis, &x), (&self.y, &y));
        let kept = thin(&totals, LIMIT);
        let mut hover = Hover {
            y: (frame.plot.y, frame.plot.y + frame.plot.h),
            width: frame.width,
            heads: HoverSeries::new("", ""),
            series: Vec::new(),
        };
        let mut floor = vec![0.0; kept.len()];
        for layer in &self.layers {
            let corners = |heights: &[f64]| -> Vec<Point> {
                kept.iter().zip(heights).map(|(i, h)| (x.at(*i as f64), y.at(*h))).collect()
            };
            let lower = corners(&floor);
            kept.iter().zip(&mut floor).for_each(|(i, h)| *h += layer.values[*i]);
            svg.area(&layer.class, &corners(&floor), &lower);
            let mut lane = HoverSeries::new(&layer.name, &layer.class);
            kept.iter().for_each(|i| lane.push(x.at(*i as f64), self.y.show(layer.values[*i])));
            hover.series.insert(0, lane);
        }
        for i in &kept {
            let head = format!("{}: {}", self.labels[*i], self.y.show(totals[*i]));
            hover.heads.push(x.at(*i as f64), head);
        }
        self.draw_line(&mut svg, &frame, &y);
        self.draw_peak(&mut svg, &totals, (&x, &y), &frame);
        let entry = |layer: &Layer| LegendEntry { class: layer.class.clone(), name: layer.name.clone() };
        let mut legend: Vec<LegendEntry> = self.layers.iter().rev().map(entry).collect();
        if let Some((_, name)) = &self.line {
            legend.push(LegendEntry { class: "plan".into(), name: name.clone() });
        }
        let svg = svg.finish(&format!("{}: {} over {}", self.title, self.y.label, self.x_label));
        let (title, note) = (self.title.clone(), self.note.clone());
        Figure { title, note, legend, svg, hover: Some(hover) }
    }

    fn draw_line(&self, svg: &mut Svg, frame: &Frame, y: &Scale) {
        if let Some((height, _)) = &self.line {
            let (left, right) = frame.across();
            svg.line("plan", (left, y.at(*height)), (right, y.at(*height)));
        }
    }

    fn draw_peak(&self, svg: &mut Svg, totals: &[f64], scales: (&Scale, &Scale), frame: &Frame) {
        let peak = (0..totals.len()).rev().max_by(|a, b| totals[*a].total_cmp(&totals[*b]));
        let Some(peak) = peak else { return };
        let at = (scales.0.at(peak as f64), scales.1.at(totals[peak]));
        let text = format!("peak {} · {}", self.y.show(totals[peak]), self.labels[peak]);
        svg.circle("peak", at, 3.6, &text);
        let middle = (frame.across().0 + frame.across().1) / 2.0;
        let (anchor, x) = if at.0 > middle { (Anchor::End, at.0 - 6.0) } else { (Anchor::Start, at.0 + 6.0) };
        svg.text("peaktext", (x, frame.plot.y - 8.0), anchor, &text);
        svg.line("mark peakline", (at.0, frame.plot.y - 6.0), (at.0, at.1 - 5.0));
    }
}
