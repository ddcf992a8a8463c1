//! Cancellation: long work without side effects ends at its next allocation once a flag is set.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::Pool;

/// Payload of the panic that unwinds through cancelled work. Earlier allocations unwind as they do when memory runs
/// out, and the pool stays usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp;

/// Scope of cancellable work; ends when dropped.
pub struct Revocable {
    pool: Pool,
    before: Option<Arc<AtomicBool>>,
}

impl Pool {
    /// Makes allocations unwind with [`GivenUp`] once `stop` is set, until the returned value is dropped.
    pub fn revocable(&self, stop: &Arc<AtomicBool>) -> Revocable {
        let before = self.replace_stop(Some(stop.clone()));
        Revocable { pool: self.clone(), before }
    }

    /// # Panics
    /// Unwinds with [`GivenUp`] if the current work is cancelled.
    pub(crate) fn heed_stop(&self) {
        if self.is_stopped() && !std::thread::panicking() {
            // `resume_unwind`, because nothing is wrong and no hook should report a panic.
            std::panic::resume_unwind(Box::new(GivenUp))
        }
    }
}

impl Drop for Revocable {
    fn drop(&mut self) {
        self.pool.replace_stop(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::{Category, DType, Device, Meta, Profile};

    #[test]
    fn work_is_given_up_where_it_asks_for_memory_and_the_pool_goes_on() {
        let pool = Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 20).pool;
        let stop = Arc::new(AtomicBool::new(false));
        let ask = || drop(pool.alloc(1, 4, DType::F32, Category::Data));
        let given_up =
            |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err_and(|panic| panic.is::<GivenUp>());
        {
            let _revocable = pool.revocable(&stop);
            ask();
            stop.store(true, Ordering::Relaxed);
            assert!(given_up(&|| {
                let inner = pool.revocable(&Arc::default());
                let _held = pool.alloc(1, 4, DType::F32, Category::Data);
                drop(inner);
                ask();
            }));
        }
        ask();
        assert_eq!(pool.usage().live, 0);
    }
}
