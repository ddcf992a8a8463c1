//! Offsets in a range that only ever grows at its end: best fit, the lowest offset among equals. The same calls give
//! the same offsets, so a plan and a run agree, in memory ([`Pool`](crate::Pool)) and in the spill file.

use std::collections::BTreeMap;

/// Which parts of a range are taken.
#[derive(Default)]
pub(crate) struct BestFit {
    /// End of the highest part ever taken.
    pub peak_end: u64,
    /// Free holes below `peak_end`: offset -> length. Neighbours are always merged.
    holes: BTreeMap<u64, u64>,
}

impl BestFit {
    /// The smallest hole that holds `size`, the lowest among equals, else the end of the range; none if the range would
    /// grow beyond `limit`.
    pub fn place(&mut self, size: u64, limit: u64) -> Option<u64> {
        let best =
            self.holes.iter().filter(|(_, len)| **len >= size).min_by_key(|(offset, len)| (**len, **offset));
        if let Some((&offset, &len)) = best {
            self.holes.remove(&offset);
            if len > size {
                self.holes.insert(offset + size, len - size);
            }
            return Some(offset);
        }
        // A hole that touches the end is grown rather than left behind.
        let last = self.holes.last_key_value().map(|(&offset, &len)| (offset, len));
        let start = last
            .filter(|(offset, len)| offset + len == self.peak_end)
            .map_or(self.peak_end, |(offset, _)| offset);
        let end = start.checked_add(size).filter(|end| *end <= limit)?;
        self.holes.remove(&start);
        self.peak_end = end;
        Some(start)
    }

    /// Undoes a [`BestFit::place`] that grew the range from `peak_end`.
    pub fn withdraw(&mut self, offset: u64, peak_end: u64) {
        self.peak_end = peak_end;
        if offset < peak_end {
            self.holes.insert(offset, peak_end - offset);
        }
    }

    /// Frees a part.
    pub fn give_back(&mut self, offset: u64, size: u64) {
        let (mut start, mut len) = (offset, size);
        if let Some((&before, &before_len)) = self.holes.range(..offset).next_back()
            && before + before_len == offset
        {
            self.holes.remove(&before);
            start = before;
            len += before_len;
        }
        if let Some(after_len) = self.holes.remove(&(offset + size)) {
            len += after_len;
        }
        self.holes.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withdrawn_never_was() {
        let mut fit = BestFit::default();
        let placed = [10, 20].map(|size| fit.place(size, 100));
        fit.give_back(10, 20);
        assert_eq!(placed, [Some(0), Some(10)]);
        for (size, expected) in [(50, 10), (21, 10)] {
            assert_eq!(fit.place(size, 100), Some(expected));
            fit.withdraw(expected, 30);
            assert_eq!(fit.peak_end, 30);
        }
        // All of the hole at the end is there again.
        assert_eq!((fit.place(20, 100), fit.peak_end), (Some(10), 30));
        assert_eq!(fit.place(5, 100), Some(30));
        fit.withdraw(30, 30);
        assert_eq!((fit.place(5, 100), fit.peak_end), (Some(30), 35));
    }
}
