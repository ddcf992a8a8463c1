//! Giving work up: what takes long and changes nothing ends where it next asks for memory, once somebody wants it to.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::Pool;

/// What unwinds through work that is given up. What was allocated before unwinds as it does for want of memory, and the
/// pool can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp;

/// Work that may be given up, for as long as this lives.
pub struct Revocable {
    pool: Pool,
    before: Option<Arc<AtomicBool>>,
}

impl Pool {
    /// From here on allocations unwind with [`GivenUp`] once `stop` is set, until what is returned is dropped.
    pub fn revocable(&self, stop: &Arc<AtomicBool>) -> Revocable {
        let before = self.replace_stop(Some(stop.clone()));
        Revocable { pool: self.clone(), before }
    }

    /// # Panics
    /// Unwinds with [`GivenUp`] if what is under way is to be given up.
    pub(crate) fn heed_stop(&self) {
        if self.is_stopped() && !std::thread::panicking() {
            // Nothing is wrong, so that no hook reports a panic.
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
    use crate::{Category, DType, Meta, Profile};

    #[test]
    fn work_is_given_up_where_it_asks_for_memory_and_the_pool_goes_on() {
        let pool = Pool::new(&Meta::new(Profile::portable(1)), 1 << 20);
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
