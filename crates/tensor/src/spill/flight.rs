//! Values between memory and file. A value's type determines what may be done with it: a tensor can be used, a
//! [`FileWrite`] or [`FileRead`] can only be retired, a [`FileValue`] value can be read back.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::engine::Engine;
use super::error::Result;
use super::layout::{Codec, Layout};
use super::space::Extent;
use super::stats::Kind;
use super::tag::Tag;
use super::worker::Transfer;
use crate::loan::LoanedTensor;
use crate::{DType, Tensor};

/// State that a transfer holds until it retires. Dropping it early waits first: workers never outlive what they use.
pub(super) struct Flight {
    pub engine: Rc<Engine>,
    pub kind: Kind,
    pub loan: LoanedTensor,
    pub extent: Rc<Extent>,
    pub layout: Layout,
    pub tag: Tag,
    /// None on a machine without data.
    pub transfer: Option<Arc<Transfer>>,
    /// End by the clock of a machine without data.
    pub ends_at: Option<f64>,
}

impl Flight {
    fn land(&self) -> Result<()> {
        if let Some(moment) = self.ends_at {
            self.engine.pass(moment);
        }
        let (Some(transfer), Some(live)) = (&self.transfer, self.engine.live()) else {
            return Ok(());
        };
        let began = Instant::now();
        let landed = live.wait(transfer);
        self.engine.stalled(self.tag, began);
        landed
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let (Some(transfer), Some(live)) = (&self.transfer, self.engine.live()) {
            // A failure is the engine's first error and is returned at the next retire point or call.
            let _ = live.wait(transfer);
        }
        self.extent.end(self.kind);
    }
}

/// A tensor being written to the file. It stays charged, and cannot be used, until it retires.
#[must_use = "a write ends at its retire point"]
pub struct FileWrite(pub(super) Flight);

impl FileWrite {
    /// The retire point: waits until the value is in the file, then releases the tensor.
    ///
    /// # Errors
    /// The engine's first failure; the tensor is released.
    pub fn retire(self) -> Result<FileValue> {
        Ok(self.retire_with()?.0)
    }

    /// The retire point of a tensor that is used again, for weights and optimizer state that stay in their buffers.
    ///
    /// # Errors
    /// The engine's first failure; the tensor is released.
    pub fn retire_with(self) -> Result<(FileValue, Tensor)> {
        let Flight { extent, layout, tag, loan, .. } = &self.0;
        self.0.land()?;
        let stored = FileValue { extent: extent.clone(), layout: *layout, tag: *tag };
        Ok((stored, loan.tensor().clone()))
    }

    /// Identifies the value.
    pub fn tag(&self) -> Tag {
        self.0.tag
    }
}

/// A tensor being read from the file. It cannot be used until it retires.
#[must_use = "a read ends at its retire point"]
pub struct FileRead(pub(super) Flight);

impl FileRead {
    /// The retire point: waits for the value.
    ///
    /// # Errors
    /// The engine's first failure; the tensor is released.
    pub fn retire(self) -> Result<Tensor> {
        self.0.land()?;
        Ok(self.0.loan.tensor().clone())
    }

    /// Identifies the value.
    pub fn tag(&self) -> Tag {
        self.0.tag
    }
}

/// A value in the file; dropping it frees its extent once no read of it is in flight.
pub struct FileValue {
    pub(super) extent: Rc<Extent>,
    pub(super) layout: Layout,
    pub(super) tag: Tag,
}

impl FileValue {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.layout.rows as usize
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.layout.cols as usize
    }

    /// Element type of the tensor that was written and will be read.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Codec of the stored value.
    pub fn codec(&self) -> Codec {
        self.layout.codec
    }

    /// Bytes charged in the file, in whole pages.
    pub fn charged_bytes(&self) -> u64 {
        self.extent.size
    }

    /// Identifies the value.
    pub fn tag(&self) -> Tag {
        self.tag
    }
}
