//! Messages between ranks, and the inboxes in which they wait.
//!
//! Ranks of one process put messages directly into each other's inboxes; those of different processes use a socket,
//! with one thread that writes and one that reads for each, so that nothing here ever waits for a peer to read.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::types::Header;

/// Purpose of a connection; each is made on first use, by both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Way {
    /// Its creator sends.
    Send = 0,
    /// Its creator receives.
    Receive = 1,
    /// Used by collectives.
    Together = 2,
}

/// Identifies a message: the connection as seen by the rank that sends the bytes, and the message's index.
pub type Place = (u8, u64);

/// A message.
#[derive(Clone, Debug)]
pub enum Frame {
    /// First use of a connection.
    Connect(Way),
    /// The receiver's kernel has started.
    Want(Place, Header),
    /// The sender's kernel has started; with its bytes.
    Data(Place, Header, Arc<[u8]>),
    /// No more messages follow.
    Bye,
}

/// Messages from one peer.
#[derive(Default)]
pub struct Mail {
    /// Connections requested, by purpose.
    pub connected: [bool; 3],
    /// Receivers that have started.
    pub wants: HashMap<Place, Header>,
    /// Received bytes.
    pub data: HashMap<Place, (Header, Arc<[u8]>)>,
    /// Start of the peer's wait for this rank, if it is waiting.
    pub since: Option<Instant>,
    /// True once the peer has finished.
    pub bye: bool,
    /// True if the peer is gone without having finished.
    pub broken: bool,
}

/// Messages received by a rank.
pub struct Inbox {
    mail: Mutex<Vec<Mail>>,
    moved: Condvar,
    /// True once the communicator is aborted, after which no thread waits.
    pub aborted: AtomicBool,
}

impl Inbox {
    /// An empty inbox for a number of ranks.
    pub fn new(ranks: usize) -> Inbox {
        let mail = (0..ranks).map(|_| Mail::default()).collect();
        Inbox { mail: Mutex::new(mail), moved: Condvar::new(), aborted: AtomicBool::new(false) }
    }

    /// Messages by peer. No call to the device may be made while the guard lives.
    pub fn mail(&self) -> MutexGuard<'_, Vec<Mail>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the communicator is aborted.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Adds a message.
    pub fn put(&self, from: usize, frame: Frame) {
        let mut all = self.mail();
        let mail = &mut all[from];
        match frame {
            Frame::Connect(way) => mail.connected[way as usize] = true,
            Frame::Want(place, header) => {
                mail.wants.insert(place, header);
                mail.since.get_or_insert_with(Instant::now);
            }
            Frame::Data(place, header, bytes) => {
                mail.data.insert(place, (header, bytes));
                mail.since.get_or_insert_with(Instant::now);
            }
            Frame::Bye => mail.bye = true,
        }
        self.moved.notify_all();
    }

    /// Records that a peer is gone.
    pub fn lose(&self, peer: usize) {
        let mut all = self.mail();
        all[peer].broken |= !all[peer].bye;
        self.moved.notify_all();
    }

    /// Aborts all waiting.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        drop(self.mail());
        self.moved.notify_all();
    }

    /// Waits until `answer` returns a value; `None` if the communicator is aborted.
    pub fn until<T>(&self, mut answer: impl FnMut(&[Mail]) -> Option<T>) -> Option<T> {
        let mut all = self.mail();
        while !self.is_aborted() {
            if let Some(found) = answer(&all) {
                return Some(found);
            }
            all = self.moved.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// Connection to a peer.
pub enum Link {
    /// A rank of this process.
    Near(Arc<Inbox>),
    /// A rank of another process, and the number of messages not written yet.
    Far(Sender<Frame>, UnixStream, Arc<AtomicUsize>),
}

impl Link {
    /// Sends a message from this rank.
    pub fn post(&self, own: usize, frame: Frame) {
        match self {
            Link::Near(inbox) => inbox.put(own, frame),
            // The reading side notices that a peer is gone.
            Link::Far(writer, _, queued) => {
                queued.fetch_add(1, Ordering::SeqCst);
                _ = writer.send(frame);
            }
        }
    }

    /// True if messages are still to be written.
    pub fn is_sending(&self) -> bool {
        matches!(self, Link::Far(_, _, queued) if queued.load(Ordering::SeqCst) > 0)
    }

    /// Breaks the connection.
    pub fn cut(&self, own: usize) {
        match self {
            Link::Near(inbox) => inbox.lose(own),
            Link::Far(_, socket, _) => _ = socket.shutdown(Shutdown::Both),
        }
    }

    /// A link over a socket to a peer, whose messages go into an inbox.
    ///
    /// # Errors
    /// If the socket cannot be used by two threads.
    pub fn through(socket: UnixStream, peer: usize, inbox: Arc<Inbox>) -> io::Result<Link> {
        let (writer, queue) = channel();
        let (mut reader, sender) = (socket.try_clone()?, socket.try_clone()?);
        let queued = Arc::new(AtomicUsize::new(0));
        let rest = queued.clone();
        std::thread::spawn(move || write_all(sender, queue, &rest));
        std::thread::spawn(move || {
            while let Ok(frame) = read(&mut reader) {
                inbox.put(peer, frame);
            }
            inbox.lose(peer);
        });
        Ok(Link::Far(writer, socket, queued))
    }
}

/// Writes messages until no sender is left.
fn write_all(mut socket: UnixStream, queue: Receiver<Frame>, rest: &AtomicUsize) {
    let mut whole = true;
    for frame in queue {
        whole = whole && write(&mut socket, &frame).is_ok();
        rest.fetch_sub(1, Ordering::SeqCst);
    }
    _ = socket.shutdown(Shutdown::Write);
}

/// Bytes before a message's data: its type, connection, header, place, and number of bytes that follow.
const HEAD: usize = 40;

fn write(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    let mut head = [0u8; HEAD];
    let mut body: &[u8] = &[];
    let fill = |head: &mut [u8; HEAD], place: &Place, header: &Header| {
        head[1..5].copy_from_slice(&[place.0, header.kind, header.dtype, header.op]);
        head[8..12].copy_from_slice(&header.root.to_le_bytes());
        head[16..24].copy_from_slice(&header.count.to_le_bytes());
        head[24..32].copy_from_slice(&place.1.to_le_bytes());
    };
    match frame {
        Frame::Connect(way) => head[..2].copy_from_slice(&[0, *way as u8]),
        Frame::Want(place, header) => {
            head[0] = 1;
            fill(&mut head, place, header);
        }
        Frame::Data(place, header, bytes) => {
            head[0] = 2;
            fill(&mut head, place, header);
            body = bytes;
        }
        Frame::Bye => head[0] = 3,
    }
    head[32..].copy_from_slice(&(body.len() as u64).to_le_bytes());
    to.write_all(&head)?;
    to.write_all(body)
}

fn number(head: &[u8; HEAD], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0u8; HEAD];
    from.read_exact(&mut head)?;
    let mut body = vec![0; number(&head, 32) as usize];
    from.read_exact(&mut body)?;
    let place = (head[1], number(&head, 24));
    let root = number(&head, 8) as u32;
    let header = Header { kind: head[2], dtype: head[3], op: head[4], root, count: number(&head, 16) };
    Ok(match (head[0], head[1]) {
        (0, 0) => Frame::Connect(Way::Send),
        (0, 1) => Frame::Connect(Way::Receive),
        (0, 2) => Frame::Connect(Way::Together),
        (1, _) => Frame::Want(place, header),
        (2, _) => Frame::Data(place, header, body.into()),
        (3, _) => Frame::Bye,
        _ => return Err(io::Error::other("no message")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let header = Header { kind: 4, dtype: 9, op: 3, root: 77, count: 1 << 40 };
        let mut bytes = Vec::new();
        for frame in [
            Frame::Connect(Way::Together),
            Frame::Want((2, 5), header),
            Frame::Data((0, 6), header, vec![1, 2, 3].into()),
            Frame::Bye,
        ] {
            bytes.clear();
            write(&mut bytes, &frame).unwrap();
            assert_eq!(format!("{:?}", read(&mut bytes.as_slice()).unwrap()), format!("{frame:?}"));
        }
        assert!(read(&mut &bytes[1..]).is_err());
    }
}
