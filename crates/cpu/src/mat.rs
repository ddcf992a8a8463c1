//! Raw matrices for kernels: an address, a storage type and a row stride, without a lifetime.
#![allow(unsafe_code)]

/// Storage type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// 4-byte IEEE floats.
    F32,
    /// bfloat16, the upper half of an f32, as `u16`.
    Bf16,
}

impl Elem {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Elem::F32 => 4,
            Elem::Bf16 => 2,
        }
    }
}

/// A matrix to read: rows `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Mat {
    /// The first element.
    pub ptr: *const u8,
    /// Storage of the elements.
    pub elem: Elem,
    /// Elements between the starts of two rows; at least the columns.
    pub stride: usize,
}

/// A matrix to write; see [`Mat`].
#[derive(Clone, Copy, Debug)]
pub struct MatMut {
    /// The first element.
    pub ptr: *mut u8,
    /// Storage of the elements.
    pub elem: Elem,
    /// Elements between the starts of two rows; at least the columns.
    pub stride: usize,
}

// SAFETY: these are addresses; every function that dereferences one is unsafe and states its requirements.
unsafe impl Send for Mat {}
// SAFETY: as above.
unsafe impl Sync for Mat {}
// SAFETY: as above.
unsafe impl Send for MatMut {}
// SAFETY: as above.
unsafe impl Sync for MatMut {}

impl Mat {
    /// The first `cols` elements of a row.
    ///
    /// # Safety
    /// The row exists, is readable, is stored as `T`, and nothing writes it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn row<T>(&self, row: usize, cols: usize) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>().add(row * self.stride), cols) }
    }
}

impl MatMut {
    /// The same matrix, to read.
    pub fn as_mat(&self) -> Mat {
        Mat { ptr: self.ptr, elem: self.elem, stride: self.stride }
    }

    /// The first `cols` elements of a row.
    ///
    /// # Safety
    /// The row exists, is writable, is stored as `T`, and nothing else uses it meanwhile.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row<T>(&self, row: usize, cols: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>().add(row * self.stride), cols) }
    }
}
