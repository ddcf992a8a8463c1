//! Rendezvous of ranks: the creator of an id listens under the name in the id; each rank introduces itself there and
//! gets the list of all ranks. Then each rank is connected to every other.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::comm::Comm;
use super::types::{Status, refuse};
use super::wire::{Inbox, Link};

/// Bytes of `ncclUniqueId`.
pub const BYTES: usize = 128;

/// `ncclUniqueId`: a marker and the name of a socket, zero-padded.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; BYTES]);

const MARK: &str = "fathom-rehearsal-nccl";

/// A socket name that is unique on this machine.
fn fresh() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let moment = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!("{MARK}-{}-{:x}-{number}", std::process::id(), moment.as_nanos())
}

fn listen() -> io::Result<(String, UnixListener)> {
    let name = fresh();
    Ok((name.clone(), UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?))
}

fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

impl UniqueId {
    /// Creates an id for one rendezvous.
    ///
    /// # Errors
    /// If the system has no sockets.
    pub fn make() -> io::Result<UniqueId> {
        let (name, listener) = listen()?;
        std::thread::spawn(move || {
            // A rank that is gone does not read the answer; its peers notice on the link to it.
            _ = introduce(listener);
        });
        let mut id = UniqueId([0; BYTES]);
        id.0[..name.len()].copy_from_slice(name.as_bytes());
        Ok(id)
    }

    /// The socket name, if this is a valid id.
    pub fn name(&self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&self.0[..end]).ok()?;
        name.starts_with(MARK).then(|| name.to_string())
    }
}

/// A rank's introduction, in one line.
#[derive(Clone)]
struct Card {
    ranks: usize,
    rank: usize,
    /// Identifies the device among those of the machine.
    device: String,
    host: String,
    process: String,
    /// Name of the socket it listens on.
    name: String,
}

impl Card {
    fn line(&self) -> String {
        let Card { ranks, rank, device, host, process, name } = self;
        format!("{ranks} {rank} {device} {host} {process} {name}\n")
    }

    fn read(line: &str) -> Option<Card> {
        let mut words = line.split_whitespace().map(str::to_string);
        let mut next = || words.next();
        let (ranks, rank) = (next()?.parse().ok()?, next()?.parse().ok()?);
        Some(Card { ranks, rank, device: next()?, host: next()?, process: next()?, name: next()? })
    }
}

/// Accepts all ranks of one communicator and sends each the list of all, or an error.
fn introduce(listener: UnixListener) -> io::Result<()> {
    let mut cards: Vec<Card> = Vec::new();
    let mut sockets = Vec::new();
    let mut wrong = None;
    while wrong.is_none() && cards.first().is_none_or(|card| cards.len() < card.ranks) {
        let (socket, _) = listener.accept()?;
        let mut line = String::new();
        let read = BufReader::new(&socket).read_line(&mut line);
        // A client that leaves without an introduction was not a rank.
        let Some(card) = read.ok().and_then(|_| Card::read(&line)) else { continue };
        wrong = cards.iter().find_map(|other| conflict(other, &card));
        cards.push(card);
        sockets.push(socket);
    }
    // An id is for one communicator: later clients find no listener.
    drop(listener);
    cards.sort_by_key(|card| card.rank);
    let answer = match wrong {
        Some(words) => format!("wrong {words}\n"),
        None => cards.iter().fold("all\n".to_string(), |text, card| text + &card.line()),
    };
    for mut socket in sockets {
        _ = socket.write_all(answer.as_bytes());
    }
    Ok(())
}

/// The reason that two ranks cannot be in one communicator.
fn conflict(one: &Card, two: &Card) -> Option<String> {
    let (a, b) = (one.rank, two.rank);
    if one.ranks != two.ranks {
        return Some(format!("rank {a} says {} ranks, rank {b} says {}", one.ranks, two.ranks));
    }
    if a == b {
        return Some(format!("two are rank {a}"));
    }
    (one.host == two.host && one.device == two.device)
        .then(|| format!("Duplicate GPU detected : rank {a} and rank {b} both on CUDA device {}", one.device))
}

/// Inboxes of this process's ranks, by the communicator's name and rank.
static NEAR: LazyLock<Mutex<Boxes>> = LazyLock::new(Mutex::default);
type Boxes = HashMap<(String, usize), Weak<Inbox>>;

/// Identifies this process, even if its process id is reused.
static PROCESS: LazyLock<String> = LazyLock::new(fresh);

/// Machine-wide identifier of a device.
fn physical(device: usize) -> String {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let listed = visible.split(',').nth(device).map(str::trim).filter(|word| !word.is_empty());
    listed.map_or_else(|| device.to_string(), |word| word.replace(char::is_whitespace, "_"))
}

/// Meets the other ranks and connects to them.
///
/// # Errors
/// If the ranks are inconsistent, or one is gone.
pub fn meet(comm: &Comm, id: &str) -> Result<Vec<Link>, Status> {
    let call = "ncclCommInitRank";
    let lost = |error: io::Error| {
        if comm.inbox.is_aborted() {
            return Status::Internal;
        }
        let refused = refuse::<()>(call, format!("rank {}: {error}", comm.rank), Status::Remote);
        refused.err().unwrap_or(Status::Remote)
    };
    let gone = |error: io::Error| {
        let why = format!("{error}: the id's maker is gone, or it was used for a communicator before");
        refuse::<()>(call, why, Status::System).err().unwrap_or(Status::System)
    };
    NEAR.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert((id.to_string(), comm.rank), Arc::downgrade(&comm.inbox));
    let (name, listener) = listen().map_err(lost)?;
    let host = std::env::var("NCCL_HOSTID").unwrap_or_else(|_| "here".to_string());
    let host = format!("host-{}", host.replace(char::is_whitespace, "_"));
    let (ranks, rank, process) = (comm.ranks, comm.rank, PROCESS.clone());
    let card = Card { ranks, rank, device: physical(comm.device), host, process, name };
    let mut socket = connect(id).map_err(gone)?;
    comm.watch(&socket).map_err(lost)?;
    socket.write_all(card.line().as_bytes()).map_err(lost)?;
    let mut lines = BufReader::new(socket).lines();
    let mut next = || lines.next().unwrap_or_else(|| Err(io::Error::other("the id's maker is gone")));
    let first = next().map_err(lost)?;
    if let Some(words) = first.strip_prefix("wrong ") {
        return refuse(call, words, Status::Usage);
    }
    let mut cards = Vec::new();
    for _ in 0..ranks {
        let card = Card::read(&next().map_err(lost)?);
        cards.push(card.ok_or_else(|| lost(io::Error::other("no list of ranks")))?);
    }
    link(comm, id, &cards, &listener).map_err(lost)
}

/// Links to all ranks, by rank.
fn link(comm: &Comm, id: &str, cards: &[Card], listener: &UnixListener) -> io::Result<Vec<Link>> {
    let mut links: Vec<Option<Link>> = cards.iter().map(|_| None).collect();
    let own = comm.rank;
    let far = |rank: usize| cards[rank].process != cards[own].process;
    for rank in 0..cards.len() {
        if !far(rank) {
            let near = NEAR.lock().unwrap_or_else(PoisonError::into_inner);
            let found = near.get(&(id.to_string(), rank)).and_then(Weak::upgrade);
            let inbox = found.ok_or_else(|| io::Error::other(format!("rank {rank} is gone")))?;
            links[rank] = Some(Link::Near(inbox));
        } else if rank < own {
            let mut socket = connect(&cards[rank].name)?;
            socket.write_all(&(own as u32).to_le_bytes())?;
            links[rank] = Some(comm.through(socket, rank)?);
        }
    }
    listener.set_nonblocking(true)?;
    while links.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((mut socket, _)) => {
                socket.set_nonblocking(false)?;
                let mut rank = [0; 4];
                io::Read::read_exact(&mut socket, &mut rank)?;
                let rank = u32::from_le_bytes(rank) as usize;
                let place = links.get_mut(rank).filter(|link| link.is_none());
                *place.ok_or_else(|| io::Error::other("no such rank"))? = Some(comm.through(socket, rank)?);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !comm.inbox.is_aborted() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(links.into_iter().flatten().collect())
}
