//! Gantt charts: lanes of bars over time, with the idle time between them.

use super::{Figure, LegendEntry};
use crate::svg::{Anchor, Rect, Svg};

/// A bar of a lane, such as a pass.
#[derive(Clone, Debug)]
pub struct GanttBar {
    /// Class in the style sheet.
    pub class: String,
    /// Word inside the bar, shown if it fits.
    pub text: String,
    /// Tooltip.
    pub title: String,
    /// Share of the bar marked by a stripe below it.
    pub stripe: f64,
    /// Start time.
    pub start: f64,
    /// End time.
    pub end: f64,
}

/// A Gantt chart.
#[derive(Clone, Debug)]
pub struct Gantt {
    /// Title.
    pub title: String,
    /// Sentence below the title.
    pub note: String,
    /// Names of the lanes, from the top.
    pub lanes: Vec<String>,
    /// `bars[lane]`, in time order.
    pub bars: Vec<Vec<GanttBar>>,
    /// Labels at both ends of the axis.
    pub ends: [String; 2],
    /// Kinds of bars: class and name.
    pub kinds: Vec<(String, String)>,
}

const WIDTH: f64 = 1060.0;
const ROW: f64 = 24.0;

impl Gantt {
    /// Draws the chart.
    pub fn draw(&self) -> Figure {
        let letters = self.lanes.iter().map(|lane| lane.chars().count()).max().unwrap_or(0);
        let (left, top) = (16.0 + 6.6 * letters as f64, 6.0);
        let bars = || self.bars.iter().flatten();
        let begin = bars().map(|bar| bar.start).fold(f64::INFINITY, f64::min);
        let span = bars().map(|bar| bar.end).fold(0.0, f64::max) - begin;
        let bottom = top + ROW * self.lanes.len() as f64;
        let mut svg = Svg::new(WIDTH, bottom + 24.0);
        let x = |time: f64| left + (time - begin) / span.max(f64::MIN_POSITIVE) * (WIDTH - left - 8.0);
        for (index, lane) in self.lanes.iter().enumerate() {
            let y = top + ROW * index as f64;
            svg.text("tick", (left - 8.0, y + 16.0), Anchor::End, lane);
            for bar in self.bars.get(index).into_iter().flatten() {
                let (from, to) = (x(bar.start), x(bar.end));
                let rect = Rect { x: from, y: y + 1.0, w: (to - from - 0.5).max(0.3), h: ROW - 2.0 };
                svg.rect(&format!("pass {}", bar.class), rect, &bar.title);
                if bar.stripe > 0.0 {
                    let stripe = Rect { y: y + ROW - 5.0, w: rect.w * bar.stripe, h: 4.0, ..rect };
                    svg.rect("pass waits", stripe, &bar.title);
                }
                if to - from > 6.4 * bar.text.chars().count() as f64 + 4.0 {
                    svg.text("kindtext", ((from + to) / 2.0, y + 16.0), Anchor::Middle, &bar.text);
                }
            }
        }
        svg.text("tick", (left, bottom + 16.0), Anchor::Start, &self.ends[0]);
        svg.text("tick", (WIDTH - 8.0, bottom + 16.0), Anchor::End, &self.ends[1]);
        let entry =
            |(class, name): &(String, String)| LegendEntry { class: class.clone(), name: name.clone() };
        let svg = svg.finish(&self.title);
        let (title, note) = (self.title.clone(), self.note.clone());
        Figure { title, note, legend: self.kinds.iter().map(entry).collect(), svg, hover: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_lie_in_their_lanes_in_proportion() {
        let bar = |start: f64, end: f64, text: &str| GanttBar {
            class: "forward".into(),
            text: text.into(),
            title: format!("pass {text}"),
            stripe: if text == "2" { 0.5 } else { 0.0 },
            start,
            end,
        };
        let gantt = Gantt {
            title: "A step".into(),
            note: String::new(),
            lanes: vec!["rank 0".into(), "rank 1".into()],
            bars: vec![vec![bar(10.0, 11.0, "0")], vec![bar(11.0, 12.0, "1"), bar(12.0, 14.0, "2")]],
            ends: ["0 s".into(), "4 s".into()],
            kinds: vec![("forward".into(), "forward".into())],
        };
        let html = gantt.draw().html();
        // (1060 - 55.6 - 8) / 4 per unit of time.
        assert!(html.contains(r#"x="55.6" y="7" width="248.6""#), "{html}");
        assert!(html.contains(r#"x="553.8" y="31" width="497.7""#), "{html}");
        assert!(html.contains(r#"class="pass waits" x="553.8" y="49""#), "{html}");
        assert!(html.contains("<title>pass 2</title>") && html.contains(">4 s</text>"), "{html}");
    }
}
