//! Offsets in a range that only ever grows at its end: best fit, the lowest offset among equals, and past everything in
//! use if no hole is wide enough. A placement depends only on what is in use now, not on earlier calls. The same calls
//! therefore give the same offsets, a plan and a run agree, and programs that take turns need no more than the largest
//! of them, in memory ([`Pool`](crate::Pool)) and in the spill file.

/// The parts of a range that are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BestFit {
    /// Highest end of any part so far.
    pub peak_end: u64,
    /// End of the highest part in use.
    end: u64,
    /// Free holes below `end`, ascending: offset and length. Adjacent holes are always merged, and none touches the
    /// end. Holes are few, so a vector is searched faster than a tree.
    holes: Vec<(u64, u64)>,
}

impl BestFit {
    /// Takes the smallest hole that holds `size`, the lowest among equals, else the end of the parts in use; `None` if
    /// the range would grow beyond `limit`.
    pub fn place(&mut self, size: u64, limit: u64) -> Option<u64> {
        let (mut best, mut least) = (usize::MAX, u64::MAX);
        for (at, (_, len)) in self.holes.iter().enumerate() {
            if *len >= size && *len < least {
                (best, least) = (at, *len);
                if least == size {
                    break;
                }
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
        let start = self.end;
        self.end = start.checked_add(size).filter(|end| *end <= limit)?;
        self.peak_end = self.peak_end.max(self.end);
        Some(start)
    }

    /// Largest size that can still be placed below `peak_end`.
    pub fn widest(&self) -> u64 {
        let holes = self.holes.iter().map(|(_, len)| *len);
        holes.fold(self.peak_end - self.end, u64::max)
    }

    /// Undoes a [`BestFit::place`] that grew the range from `peak_end`.
    pub fn withdraw(&mut self, offset: u64, peak_end: u64) {
        self.give_back(offset, self.end - offset);
        self.peak_end = peak_end;
    }

    /// Frees a part.
    pub fn give_back(&mut self, offset: u64, size: u64) {
        let at = self.holes.partition_point(|(start, _)| *start < offset);
        let follows = at > 0 && self.holes[at - 1].0 + self.holes[at - 1].1 == offset;
        if offset + size == self.end {
            self.end = offset;
            if follows {
                self.end = self.holes[at - 1].0;
                self.holes.pop();
            }
            return;
        }
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
        // The earlier peak does not matter either.
        fit.give_back(0, 10);
        assert_eq!((fit.place(20, 100), fit.place(15, 100), fit.peak_end), (Some(0), Some(20), 35));
    }

    #[test]
    fn places_follow_from_what_is_taken() {
        let (mut fresh, mut used) = (BestFit::default(), BestFit::default());
        let far = used.place(25, 100).unwrap();
        used.give_back(far, 25);
        for fit in [&mut fresh, &mut used] {
            let placed = [10, 15, 10].map(|size| fit.place(size, 100));
            fit.give_back(10, 15);
            // The hole fits better than the end, whatever was there before.
            let placed = [placed[0], placed[2], fit.place(4, 100), fit.place(12, 100)];
            assert_eq!(placed, [Some(0), Some(25), Some(10), Some(35)]);
        }
        assert_eq!((fresh.end, &fresh.holes), (used.end, &used.holes));
    }
}
