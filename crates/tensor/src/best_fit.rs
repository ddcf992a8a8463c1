//! Offsets in a range that only ever grows at its end: best fit, the lowest offset among equals. The same calls give
//! the same offsets, so a plan and a run agree, in memory ([`Pool`](crate::Pool)) and in the spill file.

/// Which parts of a range are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BestFit {
    /// End of the highest part ever taken.
    pub peak_end: u64,
    /// Free holes below `peak_end`, ascending: offset and length. Neighbours are always merged. They are few, and a row of
    /// them is searched faster than a tree.
    holes: Vec<(u64, u64)>,
}

impl BestFit {
    /// The smallest hole that holds `size`, the lowest among equals, else the end of the range; none if the range would
    /// grow beyond `limit`.
    pub fn place(&mut self, size: u64, limit: u64) -> Option<u64> {
        let (mut best, mut least) = (usize::MAX, u64::MAX);
        for (at, (_, len)) in self.holes.iter().enumerate() {
            if *len >= size && *len < least {
                (best, least) = (at, *len);
            }
        }
        if let Some((offset, len)) = self.holes.get_mut(best) {
            let start = *offset;
            (*offset, *len) = (*offset + size, *len - size);
            if *len == 0 {
                self.holes.remove(best);
            }
            return Some(start);
        }
        // A hole that touches the end is grown rather than left behind.
        let last = self.holes.last().filter(|(offset, len)| offset + len == self.peak_end);
        let start = last.map_or(self.peak_end, |(offset, _)| *offset);
        let end = start.checked_add(size).filter(|end| *end <= limit)?;
        if start < self.peak_end {
            self.holes.pop();
        }
        self.peak_end = end;
        Some(start)
    }

    /// The largest hole, what is beyond the end apart.
    pub fn widest(&self) -> u64 {
        self.holes.iter().map(|(_, len)| *len).max().unwrap_or(0)
    }

    /// Undoes a [`BestFit::place`] that grew the range from `peak_end`.
    pub fn withdraw(&mut self, offset: u64, peak_end: u64) {
        self.peak_end = peak_end;
        if offset < peak_end {
            self.holes.push((offset, peak_end - offset));
        }
    }

    /// Frees a part.
    pub fn give_back(&mut self, offset: u64, size: u64) {
        let at = self.holes.partition_point(|(start, _)| *start < offset);
        let follows = at > 0 && self.holes[at - 1].0 + self.holes[at - 1].1 == offset;
        let precedes = self.holes.get(at).is_some_and(|(start, _)| *start == offset + size);
        match (follows, precedes) {
            (true, true) => {
                self.holes[at - 1].1 += size + self.holes[at].1;
                self.holes.remove(at);
            }
            (true, false) => self.holes[at - 1].1 += size,
            (false, true) => self.holes[at] = (offset, size + self.holes[at].1),
            (false, false) => self.holes.insert(at, (offset, size)),
        }
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
