//! Stacked area charts: memory along one step, by category.

use super::frame::Frame;
use super::scale::{Axis, Scale};
use super::{Figure, Hover, HoverSeries, LegendEntry};
use crate::smooth::thin;
use crate::svg::{Anchor, Point, Svg};

/// Maximum number of points drawn along x.
const LIMIT: usize = 500;

/// One layer of the stack.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Name in the legend.
    pub name: String,
    /// Class in the style sheet.
    pub class: String,
    /// Height at every point, not negative.
    pub values: Vec<f64>,
}

/// A stacked area chart over equally spaced points.
#[derive(Clone, Debug)]
pub struct StackedArea {
    /// Title.
    pub title: String,
    /// Sentence below the title; may be empty.
    pub note: String,
    /// Width and height in user units.
    pub size: (f64, f64),
    /// Label of the x axis, e.g. `allocations and releases of one step`.
    pub x_label: String,
    /// Vertical axis.
    pub y: Axis,
    /// Event at every point.
    pub labels: Vec<String>,
    /// Layers from bottom to top.
    pub layers: Vec<Layer>,
    /// Heights to compare the sum with, evenly spaced over the whole width, and their name. A single height is a
    /// horizontal line.
    pub line: Option<(Vec<f64>, String)>,
    /// Parts of the x axis: first point and name of each.
    pub phases: Vec<(usize, String)>,
}

impl StackedArea {
    /// Draws the chart; the peak of the sum is marked with its label.
    pub fn draw(&self) -> Figure {
        let n = self.layers.iter().map(|layer| layer.values.len()).min().unwrap_or(0).min(self.labels.len());
        let totals: Vec<f64> =
            (0..n).map(|i| self.layers.iter().map(|layer| layer.values[i]).sum()).collect();
        let mut frame = Frame::new(self.size, if self.phases.is_empty() { 26.0 } else { 40.0 });
        let x_axis = Axis::linear(&self.x_label, "");
        let ends = [0.0, n.saturating_sub(1).max(1) as f64];
        let heights = totals.iter().copied().chain(self.line.iter().flat_map(|line| line.0.iter().copied()));
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
        let outline: Vec<Point> = kept.iter().zip(&floor).map(|(i, h)| (x.at(*i as f64), y.at(*h))).collect();
        svg.path("outline", &outline);
        for i in &kept {
            let head = format!("{}: {}", self.labels[*i], self.y.show(totals[*i]));
            hover.heads.push(x.at(*i as f64), head);
        }
        let peak = (0..n).rev().max_by(|a, b| totals[*a].total_cmp(&totals[*b]));
        self.draw_phases(&mut svg, &frame, (&x, n, peak));
        if let Some(lane) = self.draw_line(&mut svg, &frame, &y) {
            hover.series.push(lane);
        }
        if let Some(peak) = peak {
            self.draw_peak(&mut svg, (peak, totals[peak]), (&x, &y), &frame);
        }
        let entry = |layer: &Layer| LegendEntry { class: layer.class.clone(), name: layer.name.clone() };
        let mut legend: Vec<LegendEntry> = self.layers.iter().rev().map(entry).collect();
        if let Some((_, name)) = &self.line {
            legend.push(LegendEntry { class: "plan".into(), name: name.clone() });
        }
        let svg = svg.finish(&format!("{}: {} over {}", self.title, self.y.label, self.x_label));
        let (title, note) = (self.title.clone(), self.note.clone());
        Figure { title, note, legend, svg, hover: Some(hover) }
    }

    fn draw_line(&self, svg: &mut Svg, frame: &Frame, y: &Scale) -> Option<HoverSeries> {
        let (heights, name) = self.line.as_ref()?;
        let (left, right) = frame.across();
        if let [height] = heights.as_slice() {
            svg.line("plan", (left, y.at(*height)), (right, y.at(*height)));
            return None;
        }
        let step = (right - left) / heights.len().saturating_sub(1).max(1) as f64;
        let mut lane = HoverSeries::new(name, "plan");
        let mut points: Vec<Point> = Vec::new();
        for i in thin(heights, LIMIT) {
            let x = left + step * i as f64;
            lane.push(x, self.y.show(heights[i]));
            points.push((x, y.at(heights[i])));
        }
        svg.path("plan", &points);
        Some(lane)
    }

    /// Draws a line at the beginning of each part, and its name if there is room next to the peak's line.
    fn draw_phases(&self, svg: &mut Svg, frame: &Frame, x: (&Scale, usize, Option<usize>)) {
        let ends = self.phases.iter().skip(1).map(|phase| phase.0).chain([x.1.saturating_sub(1)]);
        for ((from, name), end) in self.phases.iter().zip(ends) {
            let (at, end) = (x.0.at(*from as f64), x.0.at(end as f64));
            if *from > 0 {
                svg.line("mark stage", (at, frame.plot.y - 12.0), (at, frame.plot.y + frame.plot.h));
            }
            let width = 6.0 * name.chars().count() as f64;
            let peak =
                x.2.map(|peak| x.0.at(peak as f64)).filter(|peak| (at..at + width + 8.0).contains(peak));
            let from = peak.unwrap_or(at) + 4.0;
            if end - from > width + 4.0 {
                svg.text("marktext", (from, frame.plot.y - 5.0), Anchor::Start, name);
            }
        }
    }

    fn draw_peak(&self, svg: &mut Svg, peak: (usize, f64), scales: (&Scale, &Scale), frame: &Frame) {
        let at = (scales.0.at(peak.0 as f64), scales.1.at(peak.1));
        let text = format!("peak {} · {}", self.y.show(peak.1), self.labels[peak.0]);
        svg.circle("peak", at, 3.6, &text);
        let middle = (frame.across().0 + frame.across().1) / 2.0;
        let (anchor, x) = if at.0 > middle { (Anchor::End, at.0 - 6.0) } else { (Anchor::Start, at.0 + 6.0) };
        let y = if self.phases.is_empty() { frame.plot.y - 8.0 } else { frame.plot.y - 24.0 };
        svg.text("peaktext", (x, y), anchor, &text);
        svg.line("mark peakline", (at.0, y - 8.0), (at.0, at.1 - 5.0));
    }
}
