//! Carves one buffer into the pieces that a kernel needs; computing the size and carving are the same code.

/// Alignment of every piece: a cache line and a tile row.
const LINE: usize = 64;

/// Assigns consecutive offsets.
#[derive(Default)]
pub struct Carve {
    at: usize,
}

impl Carve {
    /// Reserves room for `count` values of `T` and returns its offset.
    pub fn take<T>(&mut self, count: usize) -> usize {
        let start = self.at;
        self.at = (start + count * size_of::<T>()).next_multiple_of(LINE);
        start
    }

    /// Bytes assigned so far.
    pub fn bytes(&self) -> usize {
        self.at
    }
}

/// Bytes that a caller must provide so that an aligned piece of `bytes` fits.
pub fn padded(bytes: usize) -> usize {
    bytes + LINE
}

/// The first aligned address of a workspace.
pub fn aligned(workspace: *mut u8) -> *mut u8 {
    workspace.wrapping_add(workspace.align_offset(LINE))
}

/// Shares pointers with the workers of one job.
pub struct Shared<T>(T);

// SAFETY: used only for the operands of one kernel call, whose tasks write disjoint rows and thread slots, or order
// their writes by atomics.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Wraps the operands of one job.
    pub fn new(value: T) -> Shared<T> {
        Shared(value)
    }

    /// The operands.
    pub fn get(&self) -> &T {
        &self.0
    }
}
