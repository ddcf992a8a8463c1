//! Axes: mapping from numbers to positions, and placement of ticks.

/// Spacing of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisKind {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios, ticks at powers of two. Numbers must be positive.
    Log2,
    /// Equal distances for equal ratios, ticks at 1, 2 and 5 times powers of ten. Numbers must be positive.
    Log10,
}

/// An axis: label, unit and format of its numbers.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Label with the unit, e.g. `loss [nats]`.
    pub label: String,
    /// Spacing.
    pub kind: AxisKind,
    /// True if a linear axis begins at zero.
    pub from_zero: bool,
    /// Formats a tick; the second argument is the distance between ticks.
    pub tick: fn(f64, f64) -> String,
    /// Formats a value under the pointer, without the unit.
    pub value: fn(f64) -> String,
    /// Unit that follows such a value, e.g. ` nats`; may be empty.
    pub unit: String,
}

impl Axis {
    /// Creates a linear axis that begins near its smallest number.
    pub fn linear(label: &str, unit: &str) -> Axis {
        Axis {
            label: label.into(),
            kind: AxisKind::Linear,
            from_zero: false,
            tick: plain_tick,
            value: fathom_base::human::number,
            unit: unit.into(),
        }
    }

    /// Creates a linear axis that begins at zero.
    pub fn zero(label: &str, unit: &str) -> Axis {
        Axis { from_zero: true, ..Axis::linear(label, unit) }
    }

    /// Creates a linear axis of counts, written like `1.2M`.
    pub fn counts(label: &str, unit: &str) -> Axis {
        let tick = |x: f64, _: f64| short_count(x);
        let value = |x: f64| fathom_base::human::grouped(x.round().max(0.0) as u64);
        Axis { tick, value, ..Axis::linear(label, unit) }
    }

    /// Creates a logarithmic axis of token counts, written like `16k`.
    pub fn log2_tokens(label: &str) -> Axis {
        let tick = |x: f64, _: f64| fathom_base::tokens::format(x.round() as u64);
        let value = |x: f64| fathom_base::human::grouped(x.round().max(0.0) as u64);
        Axis { kind: AxisKind::Log2, tick, value, ..Axis::linear(label, " tokens") }
    }

    /// Creates a logarithmic axis of bytes, written like `16 GiB`.
    pub fn log2_bytes(label: &str) -> Axis {
        let value = |x: f64| fathom_base::human::bytes(x.round().max(0.0) as u64);
        Axis { kind: AxisKind::Log2, tick: |x, _| short_bytes(x), value, ..Axis::linear(label, "") }
    }

    /// Creates a logarithmic axis of times in seconds, written like `200 ms`.
    pub fn log_seconds(label: &str) -> Axis {
        Axis {
            kind: AxisKind::Log10,
            tick: |x, _| short_seconds(x),
            value: fathom_base::human::seconds,
            ..Axis::linear(label, "")
        }
    }

    /// Formats a value with its unit.
    pub(crate) fn show(&self, x: f64) -> String {
        format!("{}{}", (self.value)(x), self.unit)
    }
}

fn plain_tick(x: f64, step: f64) -> String {
    if x.abs() >= 1e5 {
        return short_count(x);
    }
    if x != 0.0 && step < 1e-4 {
        return fathom_base::human::number(x);
    }
    let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{x:.decimals$}")
}

/// Writes `1500000` as `1.5M`.
fn short_count(x: f64) -> String {
    for (unit, name) in [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")] {
        if x.abs() >= unit {
            return format!("{}{name}", fathom_base::human::number(x / unit));
        }
    }
    fathom_base::human::number(x)
}

/// Writes a power of two of bytes as `512 MiB`.
fn short_bytes(x: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = ((x.log2() + 1e-9) / 10.0).floor().clamp(0.0, 5.0);
    let unit = units.get(power as usize).copied().unwrap_or("B");
    format!("{} {unit}", fathom_base::human::number(x / 1024f64.powf(power)))
}

/// Writes a round time as `20 ms` or `500 s`.
fn short_seconds(x: f64) -> String {
    let (scale, unit) = match x {
        x if x < 0.999e-3 => (1e6, "µs"),
        x if x < 0.999 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", fathom_base::human::grouped((x * scale).round() as u64))
}

/// Largest number on an axis, and the limit below which a number counts as zero. Between them, differences, ratios
/// and squares stay finite. A damaged log or a diverged run may contain any number.
const GREATEST: f64 = 1e150;
const LEAST: f64 = 1e-150;

/// Prepares a number for an axis: tiny numbers become zero; `None` if it is not a number, too large, or not positive
/// on a logarithmic axis.
fn usable(x: f64, log: bool) -> Option<f64> {
    let x = if x.abs() < LEAST { 0.0 } else { x };
    (x.abs() <= GREATEST && (!log || x > 0.0)).then_some(x)
}

/// A map from numbers to positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    kind: AxisKind,
    domain: (f64, f64),
    range: (f64, f64),
}

impl Scale {
    /// Creates a scale that covers all usable numbers, with a little room at the ends if `pad`.
    pub fn over(axis: &Axis, numbers: impl Iterator<Item = f64>, range: (f64, f64), pad: bool) -> Scale {
        let log = axis.kind != AxisKind::Linear;
        let (mut low, mut high) = numbers
            .filter_map(|x| usable(x, log))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low > high {
            (low, high) = if log { (1.0, 2.0) } else { (0.0, 1.0) };
        }
        if log {
            if high <= low * (1.0 + 1e-9) {
                high = low * 2.0;
            }
            if pad {
                (low, high) = (low / 1.15, high * 1.15);
            }
            return Scale { kind: axis.kind, domain: (low, high), range };
        }
        if axis.from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high - low <= low.abs().max(high.abs()) * 1e-9 {
            let room = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            (low, high) = (if axis.from_zero { low } else { low - room }, high + room);
        }
        let room = if pad { (high - low) * 0.04 } else { 0.0 };
        let below = if axis.from_zero && low == 0.0 { 0.0 } else { room };
        Scale { kind: axis.kind, domain: (low - below, high + room), range }
    }

    /// Returns the position of a number.
    pub fn at(&self, x: f64) -> f64 {
        let share = match self.kind {
            AxisKind::Linear => (x - self.domain.0) / (self.domain.1 - self.domain.0),
            AxisKind::Log2 | AxisKind::Log10 => {
                (x.ln() - self.domain.0.ln()) / (self.domain.1.ln() - self.domain.0.ln())
            }
        };
        self.range.0 + share * (self.range.1 - self.range.0)
    }

    /// Returns about `count` ticks within the domain, and their distance (a ratio on logarithmic axes).
    pub fn ticks(&self, count: usize) -> (Vec<f64>, f64) {
        let (low, high) = self.domain;
        match self.kind {
            AxisKind::Linear => {
                let step = nice_step((high - low) / count.max(1) as f64);
                let first = (low / step - 1e-9).ceil() as i64;
                let last = (high / step + 1e-9).floor() as i64;
                ((first..=last).map(|i| i as f64 * step).collect(), step)
            }
            AxisKind::Log2 => {
                let (first, last) = ((low.log2() - 1e-9).ceil() as i64, (high.log2() + 1e-9).floor() as i64);
                let every = ((last - first + 1) as usize).div_ceil(count.max(1)).max(1);
                ((first..=last).step_by(every).map(|i| 2f64.powi(i as i32)).collect(), 2.0)
            }
            AxisKind::Log10 => {
                let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
                let within = |factors: &[f64]| -> Vec<f64> {
                    let decade = |power: i32| factors.iter().map(move |factor| factor * 10f64.powi(power));
                    let inside = |x: &f64| *x >= low * (1.0 - 1e-9) && *x <= high * (1.0 + 1e-9);
                    (first..=last).flat_map(decade).filter(inside).collect()
                };
                let fine = within(&[1.0, 2.0, 5.0]);
                let ticks = if fine.len() <= count + 1 { fine } else { within(&[1.0]) };
                let every = ticks.len().div_ceil(count.max(1)).max(1);
                (ticks.into_iter().step_by(every).collect(), 10.0)
            }
        }
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is not less than `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let factor =
        [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough * (1.0 - 1e-9)).unwrap_or(10.0);
    factor * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis, numbers: &[f64], count: usize) -> Vec<String> {
        let scale = Scale::over(axis, numbers.iter().copied(), (0.0, 100.0), false);
        let (at, step) = scale.ticks(count);
        at.iter().map(|x| (axis.tick)(*x, step)).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(&Axis::linear("", ""), &[1.9, 4.1], 5), ["2.0", "2.5", "3.0", "3.5", "4.0"]);
        assert_eq!(ticks(&Axis::zero("", ""), &[0.0003], 3), ["0.0000", "0.0001", "0.0002", "0.0003"]);
        assert_eq!(ticks(&Axis::counts("", ""), &[0.0, 2e6], 4), ["0", "500K", "1M", "1.5M", "2M"]);
        assert_eq!(ticks(&Axis::log2_tokens(""), &[128.0, 2048.0], 9), ["128", "256", "512", "1k", "2k"]);
        assert_eq!(ticks(&Axis::log2_tokens(""), &[1.0, 1e6], 7).len(), 7);
    }

    #[test]
    fn nothing_and_one_number_still_make_a_scale() {
        for numbers in [&[][..], &[0.0], &[5.0], &[f64::NAN, -2.0]] {
            for axis in [Axis::linear("", ""), Axis::zero("", ""), Axis::log2_tokens("")] {
                let scale = Scale::over(&axis, numbers.iter().copied(), (0.0, 100.0), true);
                assert!(scale.at(1.5).is_finite() && !scale.ticks(5).0.is_empty(), "{numbers:?} {axis:?}");
            }
        }
    }

    #[test]
    fn any_numbers_have_few_ticks() {
        let extremes = [5e-324, f64::MIN_POSITIVE, 1e-9, 1.0, 1.0 + f64::EPSILON, 1e15, 1e300, f64::MAX];
        let all: Vec<f64> = extremes.iter().flat_map(|x| [*x, -x]).chain([0.0]).collect();
        for (low, high) in all.iter().flat_map(|low| all.iter().map(move |high| (*low, *high))) {
            for axis in
                [Axis::linear("", ""), Axis::zero("", ""), Axis::log2_bytes(""), Axis::log_seconds("")]
            {
                let scale = Scale::over(&axis, [low, high].into_iter(), (0.0, 100.0), true);
                let (at, step) = scale.ticks(5);
                assert!(at.len() <= 8, "{low:e} to {high:e}: {} ticks", at.len());
                assert!(at.iter().all(|x| scale.at(*x).is_finite()), "{low:e} to {high:e}: {at:?}");
                at.iter().for_each(|x| drop((axis.tick)(*x, step)));
            }
        }
    }
}
