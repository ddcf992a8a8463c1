//! Line charts: loss, rates, loss by position.

use super::frame::Frame;
use super::scale::{Axis, Scale};
use super::{Figure, Hover, HoverSeries, LegendEntry};
use crate::smooth::thin;
use crate::svg::{Anchor, Point, Svg};

/// Maximum number of points drawn per series.
const LIMIT: usize = 600;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend; a line without a name is left out there.
    pub name: String,
    /// Class in the style sheet: `s1` to `s6`, with `faint`, `dashed`, `dots`, or `dots bare` for dots without a line, added.
    pub class: String,
    /// Points by ascending x; a y that is not finite breaks the line.
    pub points: Vec<Point>,
}

/// A labelled vertical line, such as the beginning of a stage.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Position.
    pub x: f64,
    /// Label above the line.
    pub label: String,
    /// Class: `stage`, `resume` or `trained`.
    pub class: &'static str,
}

/// A line chart.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Title.
    pub title: String,
    /// Sentence below the title; may be empty.
    pub note: String,
    /// Width and height in user units.
    pub size: (f64, f64),
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines in drawing order.
    pub series: Vec<Series>,
    /// Vertical lines.
    pub marks: Vec<Mark>,
    /// Height of a horizontal reference line, and its name.
    pub level: Option<(f64, String)>,
}

impl LineChart {
    /// Draws the chart.
    pub fn draw(&self) -> Figure {
        let mut frame = Frame::new(self.size, if self.marks.is_empty() { 10.0 } else { 24.0 });
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let level = self.level.iter().map(|level| level.0);
        let y = Scale::over(&self.y, points().map(|p| p.1).chain(level), frame.upwards(), true);
        frame.make_room(&self.y, &y);
        let marks = self.marks.iter().map(|mark| mark.x);
        let x = Scale::over(&self.x, points().map(|p| p.0).chain(marks), frame.across(), false);
        let mut svg = Svg::new(frame.width, frame.height);
        frame.draw_axes(&mut svg, (&self.x, &x), (&self.y, &y));
        self.draw_marks(&mut svg, &frame, &x);
        if let Some((height, name)) = &self.level {
            let (left, right) = frame.across();
            svg.line("plan", (left, y.at(*height)), (right, y.at(*height)));
            svg.text("value halo", (left + 6.0, y.at(*height) - 5.0), Anchor::Start, name);
        }
        let mut hover = Hover {
            y: (frame.plot.y, frame.plot.y + frame.plot.h),
            width: frame.width,
            heads: HoverSeries::new("", ""),
            series: Vec::new(),
        };
        for series in &self.series {
            let values: Vec<f64> = series.points.iter().map(|p| p.1).collect();
            let kept: Vec<Point> = thin(&values, LIMIT).into_iter().map(|i| series.points[i]).collect();
            let at: Vec<Point> = kept.iter().map(|p| (x.at(p.0), y.at(p.1))).collect();
            if !series.class.contains("bare") {
                svg.path(&series.class, &at);
            }
            if series.class.contains("dots") {
                at.iter().filter(|p| p.1.is_finite()).for_each(|p| svg.circle(&series.class, *p, 2.6, ""));
            }
            let mut lane = HoverSeries::new(&series.name, &series.class);
            let mut heads = HoverSeries::new("", "");
            for (point, (x_at, _)) in kept.iter().zip(&at) {
                lane.push(*x_at, self.y.show(point.1));
                heads.push(*x_at, self.x.show(point.0));
            }
            if heads.at.len() > hover.heads.at.len() {
                hover.heads = heads;
            }
            if !series.name.is_empty() {
                hover.series.push(lane);
            }
        }
        let svg = svg.finish(&format!("{}: {} over {}", self.title, self.y.label, self.x.label));
        let legend = if self.series.len() < 2 { Vec::new() } else { self.legend() };
        let (title, note) = (self.title.clone(), self.note.clone());
        Figure { title, note, legend, svg, hover: Some(hover) }
    }

    fn legend(&self) -> Vec<LegendEntry> {
        let entry = |s: &Series| LegendEntry { class: s.class.clone(), name: s.name.clone() };
        self.series.iter().filter(|series| !series.name.is_empty()).map(entry).collect()
    }

    fn draw_marks(&self, svg: &mut Svg, frame: &Frame, x: &Scale) {
        let (left, right) = frame.across();
        let (bottom, top) = frame.upwards();
        let mut free_from = f64::NEG_INFINITY;
        for mark in &self.marks {
            let at = x.at(mark.x);
            if !at.is_finite() || at < left - 0.5 || at > right + 0.5 {
                continue;
            }
            svg.line(&format!("mark {}", mark.class), (at, top - 8.0), (at, bottom));
            // A label of n letters is about 6 n units wide; one that would overlap the previous label is left out.
            let width = 6.0 * mark.label.chars().count() as f64;
            let (anchor, from) = if at + width + 4.0 > right {
                (Anchor::End, at - width - 4.0)
            } else {
                (Anchor::Start, at + 4.0)
            };
            if from >= free_from && !mark.label.is_empty() {
                let x = if anchor == Anchor::End { at - 4.0 } else { at + 4.0 };
                svg.text("marktext", (x, top - 4.0), anchor, &mark.label);
                free_from = from + width + 6.0;
            }
        }
    }
}
