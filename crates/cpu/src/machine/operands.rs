//! Conversion of tensors to operands of raw kernels; the only place where an address becomes a pointer.
#![allow(unsafe_code)]

use fathom_tensor::moments::BLOCK;
use fathom_tensor::{
    AdamW, Attention, BlockFormat, DType, Extent, Mask, NormBackward, PAGE_ROWS, PackPages, Packing, Slice,
    Tensor,
};

use crate::mat::{Elem, Mat, MatMut};
use crate::{attention, blocks, elementwise, packed};

/// # Panics
/// If kernels do not support the type.
#[track_caller]
pub fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::F32 => Elem::F32,
        DType::Bf16 => Elem::Bf16,
        other => panic!("the CPU has no kernels for {other:?}"),
    }
}

pub fn start(tensor: &Tensor) -> *const u8 {
    tensor.address() as usize as *const u8
}

/// # Panics
/// If another thread is reading the tensor.
#[track_caller]
pub fn start_mut(tensor: &Tensor) -> *mut u8 {
    assert!(
        !tensor.is_shared(),
        "{tensor:?} would be written while another thread reads it; end its share first"
    );
    tensor.address() as usize as *mut u8
}

#[track_caller]
pub fn mat(tensor: &Tensor) -> Mat {
    Mat { ptr: start(tensor), elem: elem(tensor.dtype()), stride: tensor.stride() }
}

#[track_caller]
pub fn mat_mut(tensor: &Tensor) -> MatMut {
    MatMut { ptr: start_mut(tensor), elem: elem(tensor.dtype()), stride: tensor.stride() }
}

/// Rows of bytes, whose element type the caller knows.
///
/// # Panics
/// If the tensor's type is not u8.
#[track_caller]
pub fn byte_rows(tensor: &Tensor) -> Mat {
    assert_eq!(tensor.dtype(), DType::U8, "{tensor:?} has no bytes");
    Mat { ptr: start(tensor), elem: Elem::F32, stride: tensor.stride() }
}

pub fn scratch(ws: &Tensor) -> *mut u8 {
    start_mut(ws)
}

pub fn rows(tensor: &Tensor) -> attention::Rows {
    attention::Rows { data: start(tensor), stride: tensor.stride() }
}

pub fn rows_mut(tensor: &Tensor) -> attention::RowsMut {
    attention::RowsMut { data: start_mut(tensor), stride: tensor.stride(), elem: elem(tensor.dtype()) }
}

#[track_caller]
fn plain(tensor: &Tensor, dtype: DType) {
    assert!(tensor.dtype() == dtype && tensor.is_contiguous(), "{tensor:?} is not plain {dtype:?}");
}

/// The elements of a contiguous f32 tensor.
#[track_caller]
pub fn f32s(tensor: &Tensor) -> &[f32] {
    plain(tensor, DType::F32);
    // SAFETY: the storage is charged while the tensor is borrowed and holds `len` f32s, aligned to a granule or to
    // whole elements of a view; the issuing thread writes nothing while the slice is in use.
    unsafe { std::slice::from_raw_parts(start(tensor).cast(), tensor.len()) }
}

/// Address of a contiguous f32 tensor, to write.
#[track_caller]
pub fn f32s_mut(tensor: &Tensor) -> *mut f32 {
    plain(tensor, DType::F32);
    start_mut(tensor).cast()
}

/// The elements of a contiguous i32 tensor.
#[track_caller]
pub fn i32s(tensor: &Tensor) -> &[i32] {
    plain(tensor, DType::I32);
    // SAFETY: as in `f32s`.
    unsafe { std::slice::from_raw_parts(start(tensor).cast(), tensor.len()) }
}

/// The element of a tensor with a single f32.
#[track_caller]
pub fn scalar(tensor: &Tensor) -> f32 {
    f32s(tensor)[0]
}

/// Sets the element of a tensor with a single f32.
#[track_caller]
pub fn set_scalar(tensor: &Tensor, value: f32) {
    assert_eq!(tensor.len(), 1, "a scalar is [1, 1]");
    // SAFETY: the storage is at least one f32, and nothing else is using it: work is issued from one thread.
    unsafe { *f32s_mut(tensor) = value }
}

/// Sets the element of a tensor with a single i32.
#[track_caller]
pub fn set_count(tensor: &Tensor, value: i32) {
    plain(tensor, DType::I32);
    assert_eq!(tensor.len(), 1, "a scalar is [1, 1]");
    // SAFETY: as in `set_scalar`.
    unsafe { *start_mut(tensor).cast::<i32>() = value }
}

/// A tensor of any type as f32 words, or as bf16 if its rows are not whole f32 words.
pub struct Words {
    pub rows: usize,
    pub cols: usize,
    pub mat: MatMut,
}

/// # Panics
/// If the type has no two-byte words.
#[track_caller]
pub fn words(tensor: &Tensor) -> Words {
    let bytes = tensor.dtype().bytes();
    assert!(bytes >= 2, "zero of {tensor:?}");
    let (per, elem) = if bytes == 2 { (1, Elem::Bf16) } else { (bytes / 4, Elem::F32) };
    let mat = MatMut { ptr: start_mut(tensor), elem, stride: tensor.stride() * per };
    Words { rows: tensor.rows(), cols: tensor.cols() * per, mat }
}

/// Zeroes a tensor of one-byte elements.
pub fn zero_bytes(dst: &Tensor) {
    let (row, stride) = row_bytes(dst);
    for index in 0..dst.rows() {
        // SAFETY: row `index` of the tensor is `row` bytes at `index * stride`, inside its charged storage.
        unsafe { std::ptr::write_bytes(start_mut(dst).add(index * stride), 0, row) }
    }
}

/// Copies one-byte elements.
pub fn copy_bytes(src: &Tensor, dst: &Tensor) {
    let ((row, from), (_, to)) = (row_bytes(src), row_bytes(dst));
    for index in 0..src.rows() {
        // SAFETY: row `index` of each is `row` bytes inside its charged storage; the caller has checked that the shapes
        // are equal. `copy` allows the two to be the same.
        unsafe { std::ptr::copy(start(src).add(index * from), start_mut(dst).add(index * to), row) }
    }
}

/// Rows of a matrix, with their packed form at `packed`.
pub fn packed_rows(format: BlockFormat, packed: *mut u8, plain: &Tensor, at: *const u8) -> blocks::Rows {
    let [rows, cols] = plain.shape();
    blocks::Rows { format, rows, cols, packed, plain: at.cast_mut(), elem: elem(plain.dtype()) }
}

/// The runs of a packed weight.
pub fn runs(weight: &Tensor, packing: &Packing) -> Vec<packed::Run> {
    let mut bytes = start(weight);
    let run = |(format, rows): &(BlockFormat, usize)| {
        let run = packed::Run { format: *format, rows: *rows, bytes };
        bytes = bytes.wrapping_add(rows * format.row_bytes(packing.cols));
        run
    };
    packing.runs.iter().map(run).collect()
}

/// The scales of an update's moments, if those are e4m3 codes.
///
/// # Panics
/// If scales are missing or too few.
#[track_caller]
pub fn codes(op: &AdamW<'_>) -> Option<elementwise::MomentScales> {
    let narrow = op.m.dtype() == DType::F8E4M3;
    assert_eq!(narrow, op.scales.is_some(), "adamw: moments {:?} with scales {:?}", op.m, op.scales);
    let scales = op.scales?;
    let wanted = [1, op.m.len().div_ceil(BLOCK)];
    expect("adamw", "scales of m", scales.m, wanted);
    scales.v.iter().for_each(|v| expect("adamw", "scales of v", v, wanted));
    assert!(op.v.is_some() == scales.v.is_some(), "adamw: v {:?} with scales {:?}", op.v, scales.v);
    let v = scales.v.map_or(std::ptr::null_mut(), f32s_mut);
    Some(elementwise::MomentScales { m: f32s_mut(scales.m), v })
}

/// The words of an i32 tensor, to read; others may be reading it too.
pub fn i32_words(tensor: &Tensor) -> Mat {
    Mat { ptr: start(tensor), elem: Elem::F32, stride: tensor.stride() }
}

fn row_bytes(tensor: &Tensor) -> (usize, usize) {
    let size = tensor.dtype().bytes();
    (tensor.cols() * size, tensor.stride() * size)
}

/// # Panics
/// If the bytes are not exactly the tensor's elements.
#[track_caller]
pub fn write(dst: &Tensor, bytes: &[u8]) {
    assert_eq!(bytes.len() as u64, dst.bytes(), "write to {dst:?}");
    let (row, stride) = row_bytes(dst);
    for (index, from) in bytes.chunks_exact(row.max(1)).enumerate() {
        // SAFETY: row `index` of the tensor is `row` bytes at `index * stride`, inside its charged storage.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start_mut(dst).add(index * stride), row) }
    }
}

/// Copies the elements row by row.
pub fn read(src: &Tensor) -> Vec<u8> {
    let (row, stride) = row_bytes(src);
    let mut bytes = Vec::with_capacity(src.bytes() as usize);
    for index in 0..src.rows() {
        // SAFETY: as in `write`.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start(src).add(index * stride), row) });
    }
    bytes
}

pub fn norm_backward(op: &NormBackward<'_>) -> elementwise::NormBackward {
    assert_eq!(op.dy.shape(), op.x.shape(), "norm backward: {op:?}");
    elementwise::NormBackward {
        kind: op.kind,
        rows: op.x.rows(),
        groups: op.x.cols() / op.weight.cols(),
        width: op.weight.cols(),
        x: mat(op.x),
        weight: mat(op.weight),
        stats: mat(op.stats),
        dy: mat(op.dy),
    }
}

/// Splits x into gate and up halves if gated, else returns x alone.
///
/// # Panics
/// If x does not have the columns.
#[track_caller]
pub fn halves(op: &str, x: &Tensor, gated: bool, [rows, cols]: [usize; 2]) -> (Mat, Option<Mat>) {
    match split(op, x, gated, [rows, cols]) {
        None => (mat(x), None),
        Some([gate, up]) => (mat(&gate), Some(mat(&up))),
    }
}

/// The two halves of a gated x.
#[track_caller]
fn split(op: &str, x: &Tensor, gated: bool, [rows, cols]: [usize; 2]) -> Option<[Tensor; 2]> {
    let width = if gated { 2 * cols } else { cols };
    assert_eq!(x.shape(), [rows, width], "{op}: gated {gated}, {cols} columns of result");
    gated.then(|| [x.view_cols(0..cols), x.view_cols(cols..2 * cols)])
}

/// Like [`halves`], to write.
#[track_caller]
pub fn halves_mut(op: &str, x: &Tensor, gated: bool, [rows, cols]: [usize; 2]) -> (MatMut, Option<MatMut>) {
    match split(op, x, gated, [rows, cols]) {
        None => (mat_mut(x), None),
        Some([gate, up]) => (mat_mut(&gate), Some(mat_mut(&up))),
    }
}

/// The slices and positions of a mask.
pub fn masking(mask: &Mask) -> attention::MaskOperands<'_> {
    let count = match &mask.slices {
        Extent::Fixed(count) => *count,
        Extent::UpTo { cap, count } => (i32s(count)[0].max(0) as usize).min(*cap),
    };
    assert!(
        mask.table.dtype() == DType::I64 && mask.table.cols() == 6 && count <= mask.table.rows(),
        "mask: {mask:?}"
    );
    // SAFETY: the table holds `rows` x 6 i64s without gaps, `Slice` is six i64s in C layout, and `count <= rows`.
    let slices = unsafe { std::slice::from_raw_parts(start(&mask.table).cast::<Slice>(), count) };
    let pages = mask
        .pages
        .as_ref()
        .map(|table| attention::PageTable { pages: i32s(&table.pages), format: table.format });
    attention::MaskOperands { slices, pos_q: i32s(&mask.pos_q), pos_k: i32s(&mask.pos_k), pages }
}

/// Rows to be packed into pages.
pub fn pages<'a>(op: &PackPages<'a>) -> attention::pages::PackRows<'a> {
    attention::pages::PackRows {
        x: mat(op.x),
        rows: op.x.rows(),
        heads: op.x.cols() / op.head_dim,
        head_dim: op.head_dim,
        format: op.format,
        out: start_mut(op.out),
        out_bytes: op.out.stride(),
        life: std::marker::PhantomData,
    }
}

/// # Panics
/// If the page table refers to pages that the tensors do not have.
#[track_caller]
pub fn check_pages(op: &Attention<'_>) {
    let Some(pages) = &op.mask.pages else { return };
    let (pages, keys) = (i32s(&pages.pages), op.mask.keys());
    let held = op.k.rows().min(op.v.rows()) / PAGE_ROWS;
    assert!(pages.len() >= keys.div_ceil(PAGE_ROWS), "attention: {} pages for {keys} keys", pages.len());
    if let Some(page) = pages.iter().find(|page| usize::try_from(**page).map_or(true, |page| page >= held)) {
        panic!("attention: page {page} of {held}");
    }
}

/// # Panics
/// If a tensor is not `shape`.
#[track_caller]
pub(super) fn expect(op: &str, what: &str, tensor: &Tensor, shape: [usize; 2]) {
    assert!(tensor.shape() == shape, "{op}: {what} is {tensor:?}, expected {shape:?}");
}
