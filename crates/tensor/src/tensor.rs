//! A tensor: rows x columns of one element type over a charged buffer.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use crate::pool::{Buf, Pool};
use crate::span::Span;
use crate::usage::Category;
use crate::{DType, Packing};

/// Rows x columns at a row stride. Cloning shares the storage, which is released on the issuing thread when the last
/// clone or view is dropped. Not `Send`: the ledger belongs to one thread.
#[derive(Clone)]
pub struct Tensor {
    buf: Rc<Buf>,
    offset_bytes: u64,
    rows: usize,
    cols: usize,
    stride: usize,
    dtype: DType,
    packing: Option<Rc<Packing>>,
}

impl Tensor {
    pub(crate) fn over(buf: Rc<Buf>, rows: usize, cols: usize, dtype: DType) -> Tensor {
        Tensor { buf, offset_bytes: 0, rows, cols, stride: cols, dtype, packing: None }
    }

    /// Number of rows (tokens, for activations).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows x columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the elements, without gaps between rows.
    pub fn bytes(&self) -> u64 {
        self.len() as u64 * self.dtype.bytes() as u64
    }

    /// True if rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// Address of the first element, in the machine's own terms; only a machine may interpret it.
    ///
    /// # Panics
    /// If a transfer that has not retired is using some of the elements (see [`crate::spill`]).
    #[track_caller]
    pub fn address(&self) -> u64 {
        let address = self.buf.address() + self.offset_bytes;
        let span = Span::of(self, address);
        let in_flight = self.loans().borrow().iter().any(|lent| lent.overlaps(&span));
        assert!(!in_flight, "{self:?} is in flight: retire its transfer before it is used");
        address
    }

    /// Spans of the storage that transfers are using.
    pub(crate) fn loans(&self) -> &RefCell<Vec<Span>> {
        &self.buf.loans
    }

    /// The category that its storage is charged to.
    pub fn category(&self) -> Category {
        self.buf.category()
    }

    /// Number of handles (clones and views) to the storage, including this one.
    pub fn handles(&self) -> usize {
        Rc::strong_count(&self.buf)
    }

    /// True if another thread is reading the storage ([`crate::Share`]); a machine must not write to it then.
    pub fn is_shared(&self) -> bool {
        self.buf.readers.get() > 0
    }

    pub(crate) fn readers(&self) -> &Cell<u32> {
        &self.buf.readers
    }

    /// A view of a range of rows.
    ///
    /// # Panics
    /// If the range leaves the tensor.
    #[track_caller]
    pub fn view_rows(&self, range: Range<usize>) -> Tensor {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {self:?}");
        let mut view = Tensor { packing: None, ..self.clone() };
        view.offset_bytes += (range.start * self.stride) as u64 * self.dtype.bytes() as u64;
        view.rows = range.len();
        view
    }

    /// A view of a range of columns.
    ///
    /// # Panics
    /// If the range leaves the tensor.
    #[track_caller]
    pub fn view_cols(&self, range: Range<usize>) -> Tensor {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {self:?}");
        let mut view = Tensor { packing: None, ..self.clone() };
        view.offset_bytes += range.start as u64 * self.dtype.bytes() as u64;
        view.cols = range.len();
        view
    }

    /// A range of scratch bytes as a separate tensor, without gaps.
    ///
    /// # Panics
    /// If this is not a row of bytes, or is too short.
    #[track_caller]
    pub fn part(&self, from: u64, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let bytes = (rows * cols * dtype.bytes()) as u64;
        let fits = self.dtype == DType::U8 && self.rows <= 1 && from + bytes <= self.bytes();
        assert!(fits, "{bytes} bytes at {from} of {self:?}");
        Tensor {
            buf: self.buf.clone(),
            offset_bytes: self.offset_bytes + from,
            rows,
            cols,
            stride: cols,
            dtype,
            packing: None,
        }
    }

    /// The bytes of the elements, as one row.
    ///
    /// # Panics
    /// If the tensor has gaps.
    #[track_caller]
    pub fn as_bytes(&self) -> Tensor {
        assert!(self.is_contiguous(), "bytes of {self:?}");
        let cols = self.bytes() as usize;
        Tensor { rows: 1, cols, stride: cols, dtype: DType::U8, packing: None, ..self.clone() }
    }

    /// The same elements in another shape.
    ///
    /// # Panics
    /// If the tensor has gaps or the counts differ.
    #[track_caller]
    pub fn reshape(&self, rows: usize, cols: usize) -> Tensor {
        assert!(self.is_contiguous() && rows * cols == self.len(), "reshape {self:?} to {rows} x {cols}");
        Tensor { rows, cols, stride: cols, packing: None, ..self.clone() }
    }

    /// A row of bytes as the packed matrix in them. Views of the result are views of the bytes.
    ///
    /// # Panics
    /// If the number of bytes does not fit.
    #[track_caller]
    pub fn packed(&self, packing: Rc<Packing>) -> Tensor {
        let fits = self.dtype == DType::U8 && self.shape() == [1, packing.bytes()];
        assert!(fits, "{self:?} packed as {packing:?}");
        Tensor { packing: Some(packing), ..self.clone() }
    }

    /// The packing of the matrix in these bytes; `None` for plain elements.
    pub fn packing(&self) -> Option<&Packing> {
        self.packing.as_deref()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(packing) = &self.packing {
            return write!(f, "packed[{}, {}]", packing.rows(), packing.cols);
        }
        write!(f, "{:?}[{}, {}]", self.dtype, self.rows, self.cols)?;
        if self.is_contiguous() { Ok(()) } else { write!(f, "/{}", self.stride) }
    }
}

/// Converts bytes that were read to f32.
#[track_caller]
pub(crate) fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::Bf16 => {
            let wide = |b: &[u8; 2]| f32::from_bits(u32::from_le_bytes([0, 0, b[0], b[1]]));
            bytes.as_chunks::<2>().0.iter().map(wide).collect()
        }
        other => panic!("to_f32 of {other:?}"),
    }
}

impl Pool {
    /// Allocates an uninitialised rows x cols tensor.
    ///
    /// # Panics
    /// With [`crate::OutOfMemory`] if the budget or the machine's memory is exceeded; the message has the categories. A
    /// plan on `meta` shows this beforehand. Unwinds with [`crate::GivenUp`] if the current work is cancelled
    /// ([`Pool::revocable`]).
    pub fn alloc(&self, rows: usize, cols: usize, dtype: DType, category: Category) -> Tensor {
        let bytes = rows as u64 * cols as u64 * dtype.bytes() as u64;
        Tensor::over(Rc::new(self.buffer(bytes, category)), rows, cols, dtype)
    }
}

impl Span {
    /// The bytes of a tensor; rows without gaps between them are merged into one.
    pub fn of(tensor: &Tensor, start: u64) -> Span {
        let size = tensor.dtype().bytes() as u64;
        if tensor.is_contiguous() {
            Span { start, rows: 1, row: tensor.bytes(), stride: tensor.bytes() }
        } else {
            Span {
                start,
                rows: tensor.rows() as u64,
                row: tensor.cols() as u64 * size,
                stride: tensor.stride() as u64 * size,
            }
        }
    }
}
