//! Who did what libraries and kernels can both do, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that a library took, and those that kernels did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// By cuBLASLt, cuDNN, or units for narrow operands.
    pub library: u64,
    /// By kernels of our own; of narrow operands, by rounding them.
    pub kernels: u64,
}

impl Calls {
    /// Who did the calls since an earlier count: `library`'s name, `kernels`, or both.
    pub fn since(&self, before: Calls, library: &str) -> String {
        match (self.library > before.library, self.kernels > before.kernels) {
            (true, false) => library.to_string(),
            (false, true) => "kernels".to_string(),
            (true, true) => format!("{library} and kernels"),
            (false, false) => "nothing".to_string(),
        }
    }
}

/// Counts.
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

/// Of one machine.
#[derive(Default)]
pub struct Taken {
    products: Counter,
    attention: Counter,
    narrow: Counter,
    grouped: Counter,
}

impl Taken {
    /// A product was issued.
    pub fn product(&self, by_library: bool) {
        self.products.add(by_library);
    }

    /// Attention or its gradient was.
    pub fn attention(&self, by_library: bool) {
        self.attention.add(by_library);
    }

    /// A product of narrow operands was: by units for such, else as a product of what they are rounded to.
    pub fn narrow(&self, by_units: bool) {
        self.narrow.add(by_units);
    }

    /// A product by expert was: by a library's groups, or by kernels.
    pub fn grouped(&self, by_library: bool) {
        self.grouped.add(by_library);
    }

    /// Products, and attention with its gradients.
    pub fn calls(&self) -> [Calls; 2] {
        [self.products.calls(), self.attention.calls()]
    }

    /// Products of narrow operands.
    pub fn narrow_calls(&self) -> Calls {
        self.narrow.calls()
    }

    /// Products by expert.
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
