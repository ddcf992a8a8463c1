//! The frame of a chart: plot area, grid, ticks, axis labels.

use super::scale::{Axis, Scale};
use crate::svg::{Anchor, Rect, Svg};

/// Size and plot area of a chart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub width: f64,
    pub height: f64,
    pub plot: Rect,
}

impl Frame {
    /// Creates a frame with room for ticks and labels; `top` is the room for marks above the plot.
    pub fn new(size: (f64, f64), top: f64) -> Frame {
        let (width, height) = size;
        let (left, right, bottom) = (58.0, 14.0, 44.0);
        let plot = Rect { x: left, y: top, w: width - left - right, h: height - top - bottom };
        Frame { width, height, plot }
    }

    /// Moves the left edge so that the ticks of the vertical axis fit next to its label.
    pub fn make_room(&mut self, axis: &Axis, scale: &Scale) {
        let (ticks, step) = self.ticks_upwards(scale);
        let longest = ticks.iter().map(|tick| (axis.tick)(*tick, step).chars().count()).max().unwrap_or(0);
        let left = 34.0 + 6.8 * longest as f64;
        self.plot.w += self.plot.x - left;
        self.plot.x = left;
    }

    fn ticks_upwards(&self, scale: &Scale) -> (Vec<f64>, f64) {
        scale.ticks((self.plot.h / 38.0) as usize)
    }

    /// Positions of the plot's left and right edges.
    pub fn across(&self) -> (f64, f64) {
        (self.plot.x, self.plot.x + self.plot.w)
    }

    /// Positions of the plot's lower and upper edges, in that order, since larger numbers are higher.
    pub fn upwards(&self) -> (f64, f64) {
        (self.plot.y + self.plot.h, self.plot.y)
    }

    /// Draws grid lines, ticks and labels of both axes.
    pub fn draw_axes(&self, svg: &mut Svg, x: (&Axis, &Scale), y: (&Axis, &Scale)) {
        let (left, right) = self.across();
        let (bottom, top) = self.upwards();
        let (ticks, step) = self.ticks_upwards(y.1);
        for tick in ticks {
            let at = y.1.at(tick);
            svg.line("grid", (left, at), (right, at));
            svg.text("tick", (left - 8.0, at + 4.0), Anchor::End, &(y.0.tick)(tick, step));
        }
        let (ticks, step) = x.1.ticks((self.plot.w / 80.0) as usize);
        for tick in ticks {
            let at = x.1.at(tick);
            svg.line("axis", (at, bottom), (at, bottom + 4.0));
            svg.text("tick", (at, bottom + 17.0), Anchor::Middle, &(x.0.tick)(tick, step));
        }
        svg.line("axis", (left, bottom), (right, bottom));
        svg.text("label", ((left + right) / 2.0, self.height - 6.0), Anchor::Middle, &x.0.label);
        svg.text_upwards("label", (13.0, (top + bottom) / 2.0), &y.0.label);
    }
}
