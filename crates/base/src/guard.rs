//! Guarded calls of third-party code on untrusted data: a panic is treated as a statement about the data. It is
//! caught without printing anything.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Nesting depth of guarded calls on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Counts a guarded call while it runs.
struct Inside;

impl Inside {
    fn enter() -> Inside {
        DEPTH.set(DEPTH.get() + 1);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Runs a call on this thread and catches panics. Threads started by the call are not guarded.
///
/// # Errors
/// The panic message.
pub fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                report(info);
            }
        }));
    });
    let inside = Inside::enter();
    let ended = catch_unwind(AssertUnwindSafe(call));
    drop(inside);
    ended.map_err(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_guarded_panic_is_an_answer_and_prints_nothing() {
        static REPORTED: AtomicUsize = AtomicUsize::new(0);
        set_hook(Box::new(|_| {
            REPORTED.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(guarded(|| 7), Ok(7));
        assert_eq!(guarded(|| -> u8 { panic!("at {}", 3) }), Err("at 3".to_owned()));
        assert_eq!(guarded(|| guarded(|| -> u8 { panic!("in two") })), Ok(Err("in two".to_owned())));
        assert_eq!(REPORTED.load(Ordering::Relaxed), 0);
        assert!(catch_unwind(|| panic!("of our own")).is_err());
        assert_eq!(REPORTED.load(Ordering::Relaxed), 1, "a panic outside is reported as before");
    }
}
