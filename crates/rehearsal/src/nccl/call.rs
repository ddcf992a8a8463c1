//! A call of a collective within a group.

use super::types::{Header, Kind, Type};
use super::wire::Way;

/// One operation as called.
#[derive(Clone, Debug)]
pub struct GroupedCall {
    /// Kind of operation.
    pub kind: Kind,
    /// For point-to-point messages, true if this rank sends.
    pub sends: bool,
    /// Name in messages.
    pub call: &'static str,
    /// Address of the bytes to send, or 0.
    pub send: u64,
    /// Address for received bytes, or 0.
    pub receive: u64,
    /// Number of elements, as counted by the call.
    pub count: u64,
    /// Element type.
    pub dtype: Type,
    /// `ncclRedOp_t`.
    pub op: u8,
    /// Rank of the peer, or of the root.
    pub peer: usize,
}

impl GroupedCall {
    /// Bytes of `count` elements.
    pub fn bytes(&self) -> u64 {
        self.count * self.dtype.bytes()
    }

    pub(super) fn header(&self) -> Header {
        let root = if self.kind == Kind::Broadcast { self.peer as u32 } else { 0 };
        Header { kind: self.kind as u8, dtype: self.dtype.0, op: self.op, root, count: self.count }
    }

    /// Memory that is read and written: address and size.
    pub fn ranges(&self, ranks: usize) -> [(u64, u64); 2] {
        let (one, all) = (self.bytes(), self.bytes() * ranks as u64);
        match self.kind {
            Kind::AllGather => [(self.send, one), (self.receive, all)],
            Kind::ReduceScatter => [(self.send, all), (self.receive, one)],
            _ => [(self.send, one), (self.receive, one)],
        }
    }

    /// Address and size of the bytes sent to a peer, if any.
    pub(super) fn to(&self, peer: usize, own: usize) -> Option<(u64, u64)> {
        let whole = (self.send, self.bytes());
        match self.kind {
            Kind::Point => (self.peer == peer && self.sends).then_some(whole),
            Kind::Broadcast => (self.peer == own && peer != own).then_some(whole),
            Kind::AllReduce | Kind::AllGather => (peer != own).then_some(whole),
            Kind::ReduceScatter => {
                (peer != own).then_some((self.send + peer as u64 * self.bytes(), self.bytes()))
            }
        }
    }

    /// True if bytes are received from a peer.
    pub(super) fn from(&self, peer: usize, own: usize) -> bool {
        match self.kind {
            Kind::Point => self.peer == peer && !self.sends,
            Kind::Broadcast => self.peer == peer && peer != own,
            _ => peer != own,
        }
    }

    /// Connections required: this end's purpose, and the peer.
    pub fn ways(&self, own: usize, ranks: usize) -> Vec<(Way, usize)> {
        match self.kind {
            Kind::Point if self.peer == own => Vec::new(),
            Kind::Point if self.sends => vec![(Way::Send, self.peer)],
            Kind::Point => vec![(Way::Receive, self.peer)],
            _ => (0..ranks).filter(|peer| *peer != own).map(|peer| (Way::Together, peer)).collect(),
        }
    }
}
