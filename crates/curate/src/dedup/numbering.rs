//! Maps the caller's ascending document numbers, which may have gaps, to indices 0..n and back.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Runs of consecutive numbers; a single run if there are no gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NumberRuns {
    /// First number and first index of each run.
    runs: Vec<(u64, u64)>,
    next: u64,
    last: Option<u64>,
}

impl NumberRuns {
    /// Appends a document and returns its index.
    ///
    /// # Errors
    /// `number` is not larger than all earlier ones.
    pub(super) fn push(&mut self, number: u64) -> Result<u64, Error> {
        if let Some(last) = self.last.filter(|&last| last >= number) {
            return Err(Error::setting(
                "document number",
                format!("{number} after {last}"),
                "numbers must ascend in the order of documents",
            ));
        }
        if self.last.and_then(|last| last.checked_add(1)) != Some(number) {
            self.runs.push((number, self.next));
        }
        self.last = Some(number);
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Number of documents so far.
    pub(super) fn len(&self) -> u64 {
        self.next
    }

    /// Number of the last document.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// Number at an index below [`NumberRuns::len`].
    pub(super) fn number(&self, place: u64) -> u64 {
        let run = self.runs.partition_point(|&(_, first)| first <= place) - 1;
        let (number, first) = self.runs[run];
        number + (place - first)
    }

    /// Index of a number; `None` if there is no such document.
    pub(super) fn place(&self, number: u64) -> Option<u64> {
        let run = self.runs.partition_point(|&(first, _)| first <= number).checked_sub(1)?;
        let (first, place) = self.runs[run];
        let end = self.runs.get(run + 1).map_or(self.next, |&(_, place)| place);
        Some(place + (number - first)).filter(|&place| place < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_places_go_both_ways() {
        let mut numbering = NumberRuns::default();
        let numbers = [3, 4, 5, 9, 10, u64::MAX - 1, u64::MAX];
        for (place, &number) in numbers.iter().enumerate() {
            assert_eq!(numbering.push(number).unwrap(), place as u64);
        }
        for (place, &number) in numbers.iter().enumerate() {
            assert_eq!(numbering.number(place as u64), number);
            assert_eq!(numbering.place(number), Some(place as u64));
        }
        for missing in [0, 2, 6, 8, 11, u64::MAX - 2] {
            assert_eq!(numbering.place(missing), None, "{missing}");
        }
        assert_eq!((numbering.len(), numbering.runs.len()), (7, 3));
        let refused = numbering.push(10).unwrap_err().to_string();
        assert!(refused.contains("10 after"), "{refused}");
    }
}
