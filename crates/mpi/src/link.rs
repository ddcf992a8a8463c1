//! A rank's end of the link between processes.
//!
//! A tensor is sent as a first message that describes it, including the elements if they are few, and otherwise
//! followed by the elements. Both sides copy through host memory, so tensors may be anywhere and may have gaps.

use std::rc::Rc;
use std::time::Duration;

use fathom_tensor::mesh::{Flight, Link, LinkError, Traffic, What};
use fathom_tensor::{Device, LoanedTensor, Share, Tensor};

use crate::end::End;
use crate::transfer::Transfer;

/// Largest size in bytes of a tensor that travels within the first message.
const SMALL_BYTES: usize = 64 << 10;
/// Largest size in bytes of the description in a first message.
const LABEL_BYTES: usize = 512;
/// Bytes of the label's length.
const LENGTH_BYTES: usize = 2;
/// Tags of a link's messages; first messages and elements arrive in sending order each.
const FIRST: i32 = 1;
const ELEMENTS: i32 = 2;

/// The link. See [`crate::Mpi::link`].
pub(crate) struct Processes(pub Rc<End>);

fn label(what: &What) -> String {
    what.to_string().chars().take(LABEL_BYTES / 4).collect()
}

/// Splits a first message into its description and its elements.
fn open(message: &[u8]) -> (String, &[u8]) {
    let Some((length, rest)) = message.split_first_chunk::<LENGTH_BYTES>() else { return Default::default() };
    let (label, elements) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    (String::from_utf8_lossy(label).into_owned(), elements)
}

/// A send in flight.
struct PendingSend {
    end: Rc<End>,
    to: usize,
    what: What,
    messages: Vec<Transfer>,
    /// Keeps the tensor from being written until the retire point, as on every link.
    _share: Share,
}

impl Flight for PendingSend {
    fn wait(self: Box<Self>) {
        let PendingSend { end, to, what, mut messages, _share } = *self;
        let gone = end.wait(|| messages.iter_mut().all(Transfer::is_over).then_some(()));
        if let Err(seconds) = gone {
            end.late(to, &what, seconds);
        }
        messages.into_iter().for_each(|message| end.give_back(message.take().0));
    }
}

/// A pending receive. MPI matches messages with receives in the order in which both begin, so receives begin when the
/// tensor is requested, in whatever order the flights are waited for.
struct PendingReceive {
    end: Rc<End>,
    device: Device,
    from: usize,
    dst: LoanedTensor,
    what: What,
    /// The first message, until it is waited for.
    first: Option<Transfer>,
    /// The elements, if they are not in the first message.
    many: Option<Transfer>,
}

impl PendingReceive {
    /// Waits for a message: its bytes, and the number received.
    fn message(&self, mut message: Transfer) -> (Vec<u8>, usize) {
        let PendingReceive { end, from, what, .. } = self;
        if let Err(seconds) = end.wait(|| message.is_over().then_some(())) {
            end.late(*from, what, seconds);
        }
        message.take()
    }
}

impl Flight for PendingReceive {
    fn wait(mut self: Box<Self>) {
        let Some(first) = self.first.take() else { return };
        let (first, length) = self.message(first);
        let (found, few) = open(&first[..length]);
        let expected = label(&self.what);
        if found != expected {
            let (rank, peer) = (self.end.rank, self.from);
            self.end.fail(&LinkError::Mismatch { rank, peer, expected, found });
        }
        let many = self.many.take().map(|many| self.message(many).0);
        let elements = many.as_deref().unwrap_or(few);
        let PendingReceive { end, device, dst, .. } = *self;
        let (tensor, bytes) = (dst.tensor().clone(), dst.tensor().bytes());
        drop(dst);
        device.machine.fill(&[vec![tensor]], &|_, to| to[0].copy_from_slice(elements));
        end.count(|traffic| traffic.received_bytes += bytes);
        [Some(first), many].into_iter().flatten().for_each(|buffer| end.give_back(buffer));
    }
}

impl Link for Processes {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn ranks(&self) -> usize {
        self.0.ranks
    }

    fn send(&self, device: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight> {
        let end = self.0.clone();
        let (share, reader) = device.machine.share(src);
        let mut elements = end.buffer(0);
        // A tensor in memory can always be read.
        let _ = reader.read(0..src.rows(), 0..src.cols(), &mut elements);
        drop(reader);
        let label = label(&what);
        let mut first = end.buffer(0);
        first.extend((label.len() as u16).to_le_bytes());
        first.extend(label.as_bytes());
        let process = end.process(to);
        let mut messages = Vec::new();
        if elements.len() <= SMALL_BYTES {
            first.extend(&elements);
            end.give_back(elements);
        } else {
            messages.push(Transfer::send(&process, ELEMENTS, elements));
        }
        messages.push(Transfer::send(&process, FIRST, first));
        end.count(|traffic| traffic.sent_bytes += src.bytes());
        Box::new(PendingSend { end, to, what, messages, _share: share })
    }

    fn receive(&self, device: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight> {
        let (end, device, dst) = (self.0.clone(), device.clone(), LoanedTensor::new(dst.clone()));
        let bytes = dst.tensor().bytes() as usize;
        let begin = |tag: i32, bytes: usize| {
            Transfer::receive(&end.process(from), tag, end.buffer(bytes), tag == FIRST)
        };
        let first = Some(begin(FIRST, LENGTH_BYTES + LABEL_BYTES + SMALL_BYTES));
        let many = (bytes > SMALL_BYTES).then(|| begin(ELEMENTS, bytes));
        Box::new(PendingReceive { end, device, from, dst, what, first, many })
    }

    /// A failure aborts the whole job, so there is never one to report.
    fn check(&self) -> Result<(), LinkError> {
        Ok(())
    }

    fn abort(&self, reason: &str) {
        self.0.fail(&LinkError::Aborted { rank: self.0.rank, reason: reason.to_string() });
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }

    fn section(&self, name: &'static str, deadline: Option<Duration>) {
        self.0.section.set((name, deadline));
    }
}
