//! Counts of operations by implementation, for those that both libraries and kernels support.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls handled by a library, and by kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls of cuBLASLt, cuDNN, or matrix units for narrow operands.
    pub library: u64,
    /// Calls of our own kernels; for narrow operands, those that were rounded.
    pub kernels: u64,
}

impl Calls {
    /// Implementation of the calls since an earlier count: `library`, `kernels`, or both.
    pub fn since(&self, before: Calls, library: &str) -> String {
        match (self.library > before.library, self.kernels > before.kernels) {
            (true, false) => library.to_string(),
            (false, true) => "kernels".to_string(),
            (true, true) => format!("{library} and kernels"),
            (false, false) => "nothing".to_string(),
        }
    }
}

/// Counters of one kind of operation.
#[derive(Default)]
struct Counter {
    library: AtomicU64,
    kernels: AtomicU64,
}

impl Counter {
    fn add(&self, by_library: bool) {
        let counter = if by_library { &self.library } else { &self.kernels };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn calls(&self) -> Calls {
        Calls { library: self.library.load(Ordering::Relaxed), kernels: self.kernels.load(Ordering::Relaxed) }
    }
}

/// Counters of one machine.
#[derive(Default)]
pub struct Taken {
    products: Counter,
    attention: Counter,
    narrow: Counter,
    grouped: Counter,
}

impl Taken {
    /// Counts a product.
    pub fn product(&self, by_library: bool) {
        self.products.add(by_library);
    }

    /// Counts attention or its gradient.
    pub fn attention(&self, by_library: bool) {
        self.attention.add(by_library);
    }

    /// Counts a product of narrow operands: by matrix units, or as a product of rounded operands.
    pub fn narrow(&self, by_units: bool) {
        self.narrow.add(by_units);
    }

    /// Counts a product by expert: by a library's groups, or by kernels.
    pub fn grouped(&self, by_library: bool) {
        self.grouped.add(by_library);
    }

    /// Counts of products, and of attention with its gradients.
    pub fn calls(&self) -> [Calls; 2] {
        [self.products.calls(), self.attention.calls()]
    }

    /// Counts of products of narrow operands.
    pub fn narrow_calls(&self) -> Calls {
        self.narrow.calls()
    }

    /// Counts of products by expert.
    pub fn grouped_calls(&self) -> Calls {
        self.grouped.calls()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_who_did_them() {
        let taken = Taken::default();
        let before = taken.calls();
        taken.product(true);
        taken.attention(false);
        let [products, attention] = taken.calls();
        assert_eq!(products.since(before[0], "cuBLASLt"), "cuBLASLt");
        assert_eq!(attention.since(before[1], "cuDNN"), "kernels");
        taken.attention(true);
        assert_eq!(taken.calls()[1].since(before[1], "cuDNN"), "cuDNN and kernels");
        assert_eq!(taken.calls()[0].since(products, "cuBLASLt"), "nothing");
        taken.narrow(false);
        assert_eq!(taken.narrow_calls().since(Calls::default(), "FP8 units"), "kernels");
        assert_eq!(taken.calls()[0], products);
    }
}
