//! Transfers in flight: a buffer and the requests that read or fill it, kept together until they are over.
#![allow(unsafe_code)]

use std::mem::{ManuallyDrop, forget};

use mpi::request::{Request, StaticScope};
use mpi::topology::Process;
use mpi::traits::{Destination, Equivalence, Source};

/// Largest message in bytes: MPI counts in 32 bits, and messages of some MiB reach full speed.
const PIECE_BYTES: usize = 16 << 20;

/// A buffer that messages are sent from or received into. If dropped while messages are in flight it is leaked, since
/// MPI may still use it.
pub(crate) struct Transfer {
    requests: Vec<Request<'static, [u8], StaticScope>>,
    bytes: ManuallyDrop<Vec<u8>>,
    /// Bytes of messages received.
    received: usize,
}

impl Transfer {
    /// Starts sending bytes.
    pub fn send(to: &Process<'_>, tag: i32, bytes: Vec<u8>) -> Transfer {
        let mut transfer = Transfer { requests: Vec::new(), bytes: ManuallyDrop::new(bytes), received: 0 };
        for piece in transfer.bytes.chunks(PIECE_BYTES) {
            // SAFETY: the bytes stay in place and unchanged as long as a request lives: the vector is private and is
            // only returned by `take`, after all requests ended; a dropped transfer with a request leaks it.
            let piece: &'static [u8] = unsafe { std::slice::from_raw_parts(piece.as_ptr(), piece.len()) };
            transfer.requests.push(to.immediate_send_with_tag(StaticScope, piece, tag));
        }
        // Tested from the end, so that the first request is the last in the list.
        transfer.requests.reverse();
        transfer
    }

    /// Starts receiving into a buffer: all of it, or with `short` one message of at most that many bytes.
    pub fn receive(from: &Process<'_>, tag: i32, bytes: Vec<u8>, short: bool) -> Transfer {
        let mut transfer = Transfer { requests: Vec::new(), bytes: ManuallyDrop::new(bytes), received: 0 };
        let piece_bytes = if short { transfer.bytes.len().max(1) } else { PIECE_BYTES };
        for piece in transfer.bytes.chunks_mut(piece_bytes) {
            // SAFETY: as in `send`; and the pieces do not overlap, so each is written by only one request.
            let piece: &'static mut [u8] =
                unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr(), piece.len()) };
            transfer.requests.push(from.immediate_receive_into_with_tag(StaticScope, piece, tag));
        }
        transfer.requests.reverse();
        transfer
    }

    /// Makes progress; returns whether everything is sent or received.
    pub fn is_over(&mut self) -> bool {
        while let Some(request) = self.requests.pop() {
            match request.test() {
                Ok(status) => {
                    self.received += usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0)
                }
                Err(request) => {
                    self.requests.push(request);
                    return false;
                }
            }
        }
        true
    }

    /// The buffer of a completed transfer, and the number of bytes received into it.
    pub fn take(mut self) -> (Vec<u8>, usize) {
        assert!(self.is_over(), "a buffer that MPI still uses was asked for");
        (std::mem::take(&mut *self.bytes), self.received)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let over = self.requests.is_empty();
        // Dropping a request panics; forgetting it lets it continue.
        self.requests.drain(..).for_each(forget);
        if over {
            // SAFETY: no request is left, and the field is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.bytes) }
        }
    }
}
