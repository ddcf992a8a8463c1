//! A cache of values that are derived from others, kept next to them and cleared when they change. Its owner does not
//! know what is kept, so that it may lie below what computes it.

use std::any::Any;
use std::cell::OnceCell;

/// One value of a type that its users know, or none.
#[derive(Default)]
pub(crate) struct Cache {
    value: OnceCell<Box<dyn Any>>,
    /// Disables the cache.
    off: bool,
}

impl Cache {
    /// Clears the cache, when later values differ.
    pub fn clear(&mut self) {
        self.value.take();
    }

    /// Disables the cache from here on.
    pub fn end(&mut self) {
        self.off = true;
        self.clear();
    }

    /// True if the cache is enabled.
    pub fn is_on(&self) -> bool {
        !self.off
    }

    /// The value, which begins as its default.
    ///
    /// # Panics
    /// If it was asked for as another type before.
    #[track_caller]
    pub fn get<T: Default + 'static>(&self) -> &T {
        let value = self.value.get_or_init(|| Box::<T>::default());
        value.downcast_ref().unwrap_or_else(|| panic!("derived: a cache has one type"))
    }
}
