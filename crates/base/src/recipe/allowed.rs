//! Allowed ranges of numeric keys.

use std::fmt;

use crate::human;

/// Allowed range of a number, or of each number of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AllowedRange {
    /// Every number of the key's type.
    Any,
    /// Whole numbers from the first to the second, both included.
    Whole(u64, u64),
    /// Numbers from the first to the second, both included. [`AllowedRange::NO_END`] as the second stands for no upper
    /// limit.
    Real(f64, f64),
    /// Numbers above 0, up to this one.
    Above0(f64),
    /// Numbers from 0 up to but not including 1.
    Below1,
}

use AllowedRange::{Above0, Any, Below1, Real, Whole};

impl AllowedRange {
    /// Upper end of an open range: the largest value of the type that kernels compute with.
    pub const NO_END: f64 = f32::MAX as f64;

    /// Returns whether a number is allowed.
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

impl fmt::Display for AllowedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up_to =
            |end: f64| if end < AllowedRange::NO_END { format!(" and at most {end}") } else { String::new() };
        match *self {
            Any => f.write_str("a number"),
            Real(from, to) if from <= -AllowedRange::NO_END => write!(f, "a finite number{}", up_to(to)),
            Whole(from, u64::MAX) => write!(f, "{from} or more"),
            Whole(from, to) => write!(f, "from {} to {}", human::grouped(from), human::grouped(to)),
            Real(from, to) => write!(f, "{from} or more{}", up_to(to)),
            Above0(to) => write!(f, "above 0{}", up_to(to)),
            Below1 => f.write_str("0 or more and below 1"),
        }
    }
}
