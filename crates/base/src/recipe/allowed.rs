//! What the number of a key may be.

use std::fmt;

use crate::human;

/// What a number may be; of a list, each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowed {
    /// Anything that its type holds.
    Any,
    /// From the first to the second, whole.
    Whole(u64, u64),
    /// From the first to the second; without an end from [`Allowed::NO_END`] on.
    Real(f64, f64),
    /// Above 0, up to this.
    Above0(f64),
    /// 0 or more, below 1.
    Below1,
}

use Allowed::{Above0, Any, Below1, Real, Whole};

impl Allowed {
    /// No upper end but that of the type that kernels compute with.
    pub const NO_END: f64 = f32::MAX as f64;

    /// Whether it may be this number.
    pub fn holds(self, number: f64) -> bool {
        match self {
            Any => true,
            Whole(from, to) => (from as f64..=to as f64).contains(&number),
            Real(from, to) => (from..=to).contains(&number),
            Above0(to) => number > 0.0 && number <= to,
            Below1 => (0.0..1.0).contains(&number),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up_to =
            |end: f64| if end < Allowed::NO_END { format!(" and at most {end}") } else { String::new() };
        match *self {
            Any => f.write_str("a number"),
            Real(from, to) if from <= -Allowed::NO_END => write!(f, "a finite number{}", up_to(to)),
            Whole(from, u64::MAX) => write!(f, "{from} or more"),
            Whole(from, to) => write!(f, "from {} to {}", human::grouped(from), human::grouped(to)),
            Real(from, to) => write!(f, "{from} or more{}", up_to(to)),
            Above0(to) => write!(f, "above 0{}", up_to(to)),
            Below1 => f.write_str("0 or more and below 1"),
        }
    }
}
