//! Tensors that another thread reads while the issuing thread continues: a checkpoint streams them during the next
//! step.
//!
//! A [`Share`] stays with the issuing thread. While it lives, the tensor may be read by any thread and written by none:
//! a machine's methods panic for an output that [`Tensor::is_shared`]. A [`Reader`] goes to the other thread. Dropping
//! the share waits for its readers, so a reader never sees a later value, and the storage stays charged until then. A
//! program that forgets a share leaves the tensor permanently read-only and loses nothing else.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::spill::Result;
use crate::{DType, Tensor};

/// Counts the readers of a share.
#[derive(Default)]
struct Gate {
    readers: Mutex<usize>,
    left: Condvar,
}

impl Gate {
    fn readers(&self) -> MutexGuard<'_, usize> {
        self.readers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The issuing thread's end: the tensor is not written while it lives.
///
/// Dropping it waits until its readers are gone, so on the same thread they must be dropped before it.
pub struct Share {
    gate: Arc<Gate>,
    /// Allows writing again.
    end: Box<dyn Fn()>,
}

impl Share {
    /// For machines: forbids writing, and returns the pass that a reader needs.
    pub fn begin(tensor: &Tensor) -> (Share, Pass) {
        Share::begin_until(tensor, || {})
    }

    /// Like [`Share::begin`]; `last` is called on the issuing thread once the readers are gone, before the tensor may
    /// be written: for machines whose copies are still in flight then.
    pub fn begin_until(tensor: &Tensor, last: impl Fn() + 'static) -> (Share, Pass) {
        tensor.readers().set(tensor.readers().get() + 1);
        let tensor = tensor.clone();
        Share::over(move || {
            last();
            tensor.readers().set(tensor.readers().get() - 1);
        })
    }

    /// A share of anything that must not be written before `end` is called.
    pub(crate) fn over(end: impl Fn() + 'static) -> (Share, Pass) {
        let gate = Arc::new(Gate::default());
        *gate.readers() = 1;
        (Share { gate: gate.clone(), end: Box::new(end) }, Pass(gate))
    }

    /// True if a reader is still alive.
    pub fn is_read(&self) -> bool {
        *self.gate.readers() > 0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut readers = self.gate.readers();
        while *readers > 0 {
            readers = self.gate.left.wait(readers).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        drop(readers);
        (self.end)();
    }
}

/// Keeps a share open for a reader.
pub struct Pass(Arc<Gate>);

impl Drop for Pass {
    fn drop(&mut self) {
        *self.0.readers() -= 1;
        self.0.left.notify_all();
    }
}

/// Appends the elements of some rows and columns to a vector.
type Fetch = Box<dyn Fn(Range<usize>, Range<usize>, &mut Vec<u8>) -> Result<()> + Send + Sync>;

/// The other thread's end: the tensor's elements as they were when the share began.
pub struct Reader {
    // Before the pass, so that it is dropped first, while the share still holds.
    fetch: Fetch,
    shape: [usize; 2],
    dtype: DType,
    origin: Option<Arc<dyn Any + Send + Sync>>,
    _pass: Pass,
}

impl Reader {
    /// For machines: `fetch` may follow the tensor's address as long as it lives.
    pub fn new(
        tensor: &Tensor,
        pass: Pass,
        fetch: impl Fn(Range<usize>, Range<usize>, &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Reader {
        Reader::of(tensor.shape(), tensor.dtype(), pass, move |rows, cols, out| {
            fetch(rows, cols, out);
            Ok(())
        })
    }

    /// A reader of a value that need not be in memory.
    pub(crate) fn of(
        shape: [usize; 2],
        dtype: DType,
        pass: Pass,
        fetch: impl Fn(Range<usize>, Range<usize>, &mut Vec<u8>) -> Result<()> + Send + Sync + 'static,
    ) -> Reader {
        Reader { fetch: Box::new(fetch), shape, dtype, origin: None, _pass: pass }
    }

    /// For machines: attaches what they need to copy without the host ([`crate::Machine::take`]).
    pub fn with_origin(self, origin: Arc<dyn Any + Send + Sync>) -> Reader {
        Reader { origin: Some(origin), ..self }
    }

    /// The value attached with [`Reader::with_origin`].
    pub fn origin(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.origin.as_deref()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows x columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Replaces the contents of `out` with some rows and columns, row by row, little-endian. Empty from a machine
    /// without data.
    ///
    /// # Errors
    /// If the tensor is on disk and reading fails.
    ///
    /// # Panics
    /// If a range leaves the tensor.
    #[track_caller]
    pub fn read(&self, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        for (range, size) in [(&rows, self.shape[0]), (&cols, self.shape[1])] {
            assert!(range.start <= range.end && range.end <= size, "{range:?} of {:?}", self.shape);
        }
        out.clear();
        (self.fetch)(rows, cols, out)
    }
}
