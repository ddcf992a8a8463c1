//! Control messages between ranks over sockets: communicator ids, message labels, numbers, the end of the run. Never
//! tensors.
//!
//! The first rank listens at the rendezvous; the others connect and announce their own listening ports, and then each
//! pair has a connection. A frame is its length (u32, little-endian), one byte for its kind, and the payload. Only
//! [`meet`] blocks; other waits are polled.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Interval between polls.
pub(super) const NAP: Duration = Duration::from_micros(50);
/// Interval between attempts to reach a rank that may not be listening yet.
const RETRY: Duration = Duration::from_millis(100);
/// Longest frame: data from a socket is not trusted.
const MOST_BYTES: usize = 64 << 10;
/// First bytes of a connection, including the version of the frames.
const MAGIC: [u8; 8] = *b"fathom\x00\x01";

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Topic {
    /// Id of a communicator.
    Id = 1,
    /// Description of the next message.
    Label = 2,
    /// A number for all ranks.
    Number = 3,
    /// The sender ends the run; with the reason.
    End = 4,
    /// The sender has nothing in flight and sends nothing more over its link.
    Leave = 5,
}

/// Reason that nothing was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// A rank is gone.
    Gone(usize),
    /// A rank ended the run.
    Ended(usize, String),
}

/// A connection with one rank.
struct Peer {
    stream: TcpStream,
    arrived: Vec<u8>,
    frames: VecDeque<(u8, Vec<u8>)>,
    gone: bool,
}

impl Peer {
    fn new(stream: TcpStream) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Peer { stream, arrived: Vec::new(), frames: VecDeque::new(), gone: false })
    }

    /// Reads available data.
    fn look(&mut self) {
        let mut piece = [0; 4096];
        while !self.gone {
            match self.stream.read(&mut piece) {
                Ok(0) => self.gone = true,
                Ok(bytes) => self.arrived.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone = true,
            }
        }
        while let Some((length, rest)) = self.arrived.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length == 0 || length > MOST_BYTES {
                self.gone = true;
                return;
            }
            let Some((frame, _)) = rest.split_at_checked(length) else { return };
            self.frames.push_back((frame[0], frame[1..].to_vec()));
            self.arrived.drain(..4 + length);
        }
    }

    /// Writes all bytes; the other side reads whenever it polls.
    fn write(&mut self, bytes: &[u8], until: Instant) {
        let mut left = bytes;
        while !left.is_empty() && !self.gone {
            match self.stream.write(left) {
                Ok(0) => self.gone = true,
                Ok(bytes) => left = &left[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Both sides may be writing.
                    self.look();
                    self.gone |= Instant::now() > until;
                    std::thread::sleep(NAP);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone = true,
            }
        }
    }
}

/// Connections with all other ranks.
pub(super) struct Control {
    pub rank: usize,
    peers: Vec<Option<Peer>>,
    deadline: Duration,
}

impl Control {
    /// Number of ranks, including this one.
    pub fn ranks(&self) -> usize {
        self.peers.len()
    }

    /// Sends a frame to a rank. A rank that is gone is noticed where it is waited for.
    pub fn say(&mut self, to: usize, topic: Topic, words: &[u8]) {
        let until = Instant::now() + self.deadline;
        let Some(peer) = self.peers.get_mut(to).and_then(Option::as_mut) else { return };
        let words = &words[..words.len().min(MOST_BYTES - 1)];
        let mut frame = (words.len() as u32 + 1).to_le_bytes().to_vec();
        frame.push(topic as u8);
        frame.extend_from_slice(words);
        peer.write(&frame, until);
    }

    /// The next frame of a topic from a rank, if it has arrived.
    ///
    /// # Errors
    /// If nothing more will arrive, or any rank has ended the run.
    pub fn heard(&mut self, from: usize, topic: Topic) -> Result<Option<Vec<u8>>, Lost> {
        self.ended()?;
        let Some(peer) = self.peers.get_mut(from).and_then(Option::as_mut) else { return Ok(None) };
        match peer.frames.iter().position(|(found, _)| *found == topic as u8) {
            Some(at) => Ok(peer.frames.remove(at).map(|(_, words)| words)),
            None if peer.gone => Err(Lost::Gone(from)),
            None => Ok(None),
        }
    }

    /// Polls all connections.
    ///
    /// # Errors
    /// If a rank has ended the run.
    pub fn ended(&mut self) -> Result<(), Lost> {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            peer.look();
            if let Some((_, words)) = peer.frames.iter().find(|(topic, _)| *topic == Topic::End as u8) {
                return Err(Lost::Ended(rank, String::from_utf8_lossy(words).into_owned()));
            }
        }
        Ok(())
    }

    /// True if a rank has closed its connection.
    pub fn is_gone(&self, rank: usize) -> bool {
        self.peers[rank].as_ref().is_some_and(|peer| peer.gone)
    }
}

/// Connects to all other ranks at `host:port`, where the first one listens.
///
/// # Errors
/// The network's error, or the ranks that did not arrive within the deadline.
pub(super) fn meet(at: &str, rank: usize, ranks: usize, deadline: Duration) -> io::Result<Control> {
    let until = Instant::now() + deadline;
    let mut control = Control { rank, peers: (0..ranks).map(|_| None).collect(), deadline };
    if ranks == 1 {
        return Ok(control);
    }
    let late = |what: String| io::Error::new(ErrorKind::TimedOut, what);
    if rank == 0 {
        let port = at.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let port =
            port.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, format!("{at}: not host:port")))?;
        let listener = TcpListener::bind(("0.0.0.0", port))?;
        let mut places = vec![String::new(); ranks];
        for count in 1..ranks {
            let (mut stream, from) = accept(&listener, until)
                .map_err(|_| late(format!("{count} of {ranks} ranks came to {at} within {deadline:?}")))?;
            let Ok((who, port)) = greeted(&mut stream, until) else { continue };
            if who == 0 || who >= ranks || control.peers[who].is_some() {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("two processes say that they are rank {who}"),
                ));
            }
            places[who] = SocketAddr::new(from.ip(), port).to_string();
            control.peers[who] = Some(Peer::new(stream)?);
        }
        let list = places.join(" ");
        for other in 1..ranks {
            control.say(other, Topic::Number, list.as_bytes());
        }
        return Ok(control);
    }
    let listener = TcpListener::bind(("0.0.0.0", 0))?;
    let port = listener.local_addr()?.port();
    let first = reach(at, until).map_err(|error| late(format!("the first rank at {at}: {error}")))?;
    control.peers[0] = Some(Peer::new(greet(first, rank, port)?)?);
    let places = loop {
        match control.heard(0, Topic::Number) {
            Ok(Some(words)) => break String::from_utf8_lossy(&words).into_owned(),
            Ok(None) if Instant::now() < until => std::thread::sleep(NAP),
            _ => return Err(late(format!("not all of {ranks} ranks came to {at} within {deadline:?}"))),
        }
    };
    let places: Vec<&str> = places.split(' ').collect();
    // Each rank connects to those before it and accepts those after it.
    for other in 1..rank {
        let place = places.get(other).copied().unwrap_or_default();
        let stream =
            reach(place, until).map_err(|error| late(format!("rank {other} at {place}: {error}")))?;
        control.peers[other] = Some(Peer::new(greet(stream, rank, port)?)?);
    }
    while (rank + 1..ranks).any(|other| control.peers[other].is_none()) {
        let (mut stream, _) =
            accept(&listener, until).map_err(|_| late("a later rank did not come".into()))?;
        if let Ok((who, _)) = greeted(&mut stream, until)
            && who > rank
            && who < ranks
        {
            control.peers[who] = Some(Peer::new(stream)?);
        }
    }
    Ok(control)
}

fn greet(mut stream: TcpStream, rank: usize, port: u16) -> io::Result<TcpStream> {
    let mut words = MAGIC.to_vec();
    words.extend((rank as u32).to_le_bytes());
    words.extend(port.to_le_bytes());
    stream.write_all(&words)?;
    Ok(stream)
}

/// Rank of an accepted connection, and its listening port. Any other client is an error.
fn greeted(stream: &mut TcpStream, until: Instant) -> io::Result<(usize, u16)> {
    let left = until
        .saturating_duration_since(Instant::now())
        .clamp(Duration::from_millis(1), Duration::from_secs(5));
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(left))?;
    let mut words = [0; 14];
    stream.read_exact(&mut words)?;
    let [magic, rest] = [&words[..8], &words[8..]];
    if magic != MAGIC {
        return Err(io::Error::new(ErrorKind::InvalidData, "not a rank of this program"));
    }
    let rank = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
    Ok((rank, u16::from_le_bytes([rest[4], rest[5]])))
}

fn accept(listener: &TcpListener, until: Instant) -> io::Result<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(NAP);
            }
            other => return other,
        }
    }
}

/// Connects, retrying until the deadline: the other side may not be listening yet.
fn reach(place: &str, until: Instant) -> io::Result<TcpStream> {
    loop {
        match once(place) {
            Err(_) if Instant::now() < until => std::thread::sleep(RETRY),
            other => return other,
        }
    }
}

fn once(place: &str) -> io::Result<TcpStream> {
    let mut places: Vec<SocketAddr> = place.to_socket_addrs()?.collect();
    // The listener uses IPv4.
    places.sort_by_key(|place| matches!(place.ip(), IpAddr::V6(_)));
    let mut failed = io::Error::new(ErrorKind::AddrNotAvailable, "no such host");
    for place in &places {
        match TcpStream::connect_timeout(place, Duration::from_secs(5)) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
