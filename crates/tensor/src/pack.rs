//! Operands of packing weights into blocks, and of unpacking them.

use crate::blocks::BlockFormat;
use crate::{DType, Tensor};

/// Packs rows of elements.
#[derive(Clone, Copy, Debug)]
pub struct Pack<'a> {
    /// Format of the packed rows.
    pub format: BlockFormat,
    /// f32 [rows, cols], without gaps; each row is packed by itself.
    pub x: &'a Tensor,
    /// Bytes [rows, [`BlockFormat::row_bytes`]], without gaps.
    pub out: &'a Tensor,
}

/// Unpacks rows to elements.
#[derive(Clone, Copy, Debug)]
pub struct Unpack<'a> {
    /// Format of the packed rows.
    pub format: BlockFormat,
    /// Bytes [rows, [`BlockFormat::row_bytes`]], without gaps.
    pub packed: &'a Tensor,
    /// f32 or bf16 [rows, cols], without gaps: rounded once, to nearest even.
    pub out: &'a Tensor,
}

#[track_caller]
pub(crate) fn check(op: &str, format: BlockFormat, packed: &Tensor, plain: &Tensor) {
    let shape = [plain.rows(), format.row_bytes(plain.cols())];
    let fits = packed.shape() == shape && packed.dtype() == DType::U8;
    assert!(
        fits && packed.is_contiguous() && plain.is_contiguous(),
        "{op}: {packed:?} and {plain:?}, expected {shape:?} bytes without gaps"
    );
}

impl Pack<'_> {
    /// # Panics
    /// If shapes or types do not fit.
    #[track_caller]
    pub fn check(&self) {
        check("pack", self.format, self.out, self.x);
        assert!(self.x.dtype() == DType::F32, "pack: {:?} is not f32", self.x);
    }
}

impl Unpack<'_> {
    /// # Panics
    /// If shapes or types do not fit.
    #[track_caller]
    pub fn check(&self) {
        check("unpack", self.format, self.packed, self.out);
        let wanted = matches!(self.out.dtype(), DType::F32 | DType::Bf16 | DType::F16);
        assert!(wanted, "unpack: {:?} is no float", self.out);
    }
}
