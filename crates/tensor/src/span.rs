//! A part of a buffer that can be lent to other threads.

/// Bytes of the address range that hold a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) rows: u64,
    pub(crate) row: u64,
    pub(crate) stride: u64,
}

impl Span {
    fn end(&self) -> u64 {
        self.start + (self.rows - 1) * self.stride + self.row
    }

    /// True if the spans share a byte. Two views of different strides count as overlapping if their ranges do.
    pub fn overlaps(&self, other: &Span) -> bool {
        if [self, other].iter().any(|span| span.rows * span.row == 0) {
            return false;
        }
        let (low, high) = if self.start <= other.start { (self, other) } else { (other, self) };
        if high.start >= low.end() {
            return false;
        }
        match (low.rows, high.rows) {
            (1, 1) => true,
            (1, _) => high.meets(low.start, low.end()),
            (_, 1) => low.meets(high.start, high.end()),
            _ if low.stride != high.stride => true,
            _ => {
                let (rows, col) =
                    ((high.start - low.start) / low.stride, (high.start - low.start) % low.stride);
                let wrapped = (col + high.row).saturating_sub(low.stride);
                (rows < low.rows && col < low.row) || (wrapped > 0 && rows + 1 < low.rows)
            }
        }
    }

    /// True if a row has a byte in `start..end`.
    fn meets(&self, start: u64, end: u64) -> bool {
        if end <= self.start {
            return false;
        }
        let (low, high) = (start.saturating_sub(self.start), end - self.start);
        let first = if low < self.row { 0 } else { (low - self.row) / self.stride + 1 };
        first < self.rows && first * self.stride < high
    }
}
