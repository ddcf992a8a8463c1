//! Collectives over a group: exchanges of whole tensors, and sums in ascending order of the ranks.

use std::ops::Range;
use std::sync::Arc;

use super::link::{Among, Flight, What};
use super::{Group, Mesh, Wire};
use crate::tick::Tick;
use crate::{Category, DType, Device, Machine, Tensor};

/// Largest size in bytes at which every rank sums all parts itself: one message instead of two.
const SMALL_BYTES: u64 = 8 << 10;

/// Transfers in flight; their tensors may not be used before [`Transfers::wait`].
#[must_use = "transfers end where they are waited for"]
#[derive(Default)]
pub struct Transfers {
    receives: Vec<Box<dyn Flight>>,
    sends: Vec<Box<dyn Flight>>,
    /// Account of predicted waiting.
    account: Option<Account>,
}

/// A mesh that counts the waits of a collective by the clock of a machine without data.
struct Account {
    mesh: Mesh,
    /// Number of the group's collective.
    key: usize,
    machine: Arc<dyn Machine>,
}

impl Account {
    fn now(&self, tick: Tick) -> f64 {
        self.machine.clock().map_or(0.0, |clock| {
            clock.lines.log(|| tick);
            clock.now()
        })
    }
}

impl Transfers {
    /// The retire point: everything has arrived, and sent tensors may be written again.
    pub fn wait(self) {
        let started = self.account.as_ref().map(|account| account.now(Tick::Wait));
        // Receives first: the other side may be waiting for its sends to be taken.
        self.receives.into_iter().chain(self.sends).for_each(Flight::wait);
        if let (Some(account), Some(started)) = (self.account, started) {
            let seconds = account.now(Tick::Waited(account.key)) - started;
            account.mesh.count_wait(account.key, seconds);
        }
    }
}

/// Sums in flight, started by [`Group::begin_reduce_scatter`].
#[must_use = "sums are made where they are finished"]
pub struct PendingSums {
    flying: Transfers,
    sums: Vec<ReduceParts>,
    index: usize,
}

/// This member's part of a tensor and those of the other members, in their order.
struct ReduceParts {
    mine: Tensor,
    theirs: Vec<Tensor>,
}

impl PendingSums {
    /// Waits for the parts and calls `take(index of the tensor, its sum)` for every tensor of which this member has
    /// some elements. The sum may occupy the storage of the member's own part.
    pub fn finish(self, device: &Device, take: &mut dyn FnMut(usize, &Tensor)) {
        let PendingSums { flying, sums, index } = self;
        flying.wait();
        for (which, ReduceParts { mine, theirs }) in sums.into_iter().enumerate() {
            if mine.is_empty() {
                continue;
            }
            let (before, after) = theirs.split_at(index);
            let mut parts = before.iter().chain([&mine]).chain(after);
            let Some(sum) = parts.next() else { continue };
            parts.for_each(|part| device.machine.add(sum, part, sum));
            take(which, sum);
        }
    }
}

impl Group {
    /// Starts summing tensors over all members, each cut into one part per member; member i receives the sum of
    /// `tensors[n][i]`. f32, parts without gaps, not written before [`PendingSums::finish`]. Every member needs room for
    /// what it receives: its part of each tensor once for every other member.
    ///
    /// # Panics
    /// If the number of parts is not the number of members.
    #[track_caller]
    pub fn begin_reduce_scatter(&self, device: &Device, tensors: &[Vec<Tensor>]) -> PendingSums {
        let (size, index) = (self.size(), self.index());
        let sum = |parts: &Vec<Tensor>| {
            assert_eq!(parts.len(), size, "begin_reduce_scatter: {parts:?}");
            let mine = parts[index].clone();
            assert_eq!(mine.dtype(), DType::F32, "begin_reduce_scatter: {mine:?}");
            let len = mine.len();
            let room = device.empty(size - 1, len, DType::F32, Category::Comm);
            let theirs = (0..size - 1).map(|row| room.view_rows(row..row + 1)).collect();
            ReduceParts { mine: mine.reshape(1, len), theirs }
        };
        let sums: Vec<ReduceParts> = tensors.iter().map(sum).collect();
        let sends: Vec<(usize, &Tensor)> =
            tensors.iter().flat_map(|parts| self.others().map(move |to| (to, &parts[to]))).collect();
        // A member's place among the other members.
        let place = |member: usize| if member < index { member } else { member - 1 };
        let receives: Vec<(usize, &Tensor)> = sums
            .iter()
            .flat_map(|sum| self.others().map(move |from| (from, &sum.theirs[place(from)])))
            .collect();
        let flying = self.exchange(device, "reduce_scatter", &sends, &receives);
        PendingSums { flying, sums, index }
    }

    /// Sends tensors to members and receives others, by index. Tensors received into have no gaps; empty ones are
    /// skipped on both sides.
    pub fn exchange(
        &self,
        device: &Device,
        collective: &'static str,
        sends: &[(usize, &Tensor)],
        receives: &[(usize, &Tensor)],
    ) -> Transfers {
        let Some(link) = self.mesh.link() else { return Transfers::default() };
        let (op, layer) = device.pool.at();
        let what = |tensor: &Tensor| What { op, layer, collective, len: tensor.len(), dtype: tensor.dtype() };
        let some = |list: &[(usize, &Tensor)]| -> Vec<(usize, Tensor)> {
            let some = list.iter().filter(|(_, tensor)| !tensor.is_empty());
            some.map(|(index, tensor)| (self.ranks[*index], (*tensor).clone())).collect()
        };
        let (sends, receives) = (some(sends), some(receives));
        let key = self.mesh.0.accounts.borrow_mut().key(&self.name, collective);
        let bytes = sends.iter().map(|(_, tensor)| tensor.bytes()).sum::<u64>();
        self.mesh.count(key, Wire { calls: 1, bytes });
        let account = device.machine.clock().map(|_| Account {
            mesh: self.mesh.clone(),
            key,
            machine: device.machine.clone(),
        });
        let sending = !sends.is_empty();
        link.among(device, Among { group: &self.name, ranks: &self.ranks, collective, sends: sending });
        Transfers {
            account,
            sends: sends.iter().map(|(to, src)| link.send(device, *to, src, what(src))).collect(),
            receives: receives
                .iter()
                .map(|(from, dst)| link.receive(device, *from, dst, what(dst)))
                .collect(),
        }
    }

    /// The other members, starting with the next, so that not all ranks turn to the same one first.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (size, index) = (self.size(), self.index());
        (1..size).map(move |step| (index + step) % size)
    }

    /// Starts collecting every member's `mine` into `parts`, by index; all have one shape, and the parts have no gaps.
    ///
    /// # Panics
    /// If the number of parts is not the number of members, or their shapes differ.
    #[track_caller]
    pub fn all_gather(&self, device: &Device, mine: &Tensor, parts: &[Tensor]) -> Transfers {
        let fits = parts.len() == self.size() && parts.iter().all(|part| part.len() == mine.len());
        assert!(fits, "all_gather: {mine:?} of {} members into {parts:?}", self.size());
        let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, mine)).collect();
        let receives: Vec<(usize, &Tensor)> = self.others().map(|from| (from, &parts[from])).collect();
        let flying = self.exchange(device, "all_gather", &sends, &receives);
        let own = parts[self.index()].reshape(mine.rows(), mine.cols());
        if !own.is_empty() && own.address() != mine.address() {
            device.machine.copy(mine, &own);
        }
        flying
    }

    /// Starts collecting tensors of which every member has a part of any length: `parts[n][i]` is member i's part of
    /// tensor n and has no gaps; `mine[n]` is the part that this member sends. Its own part of the result is not
    /// written.
    ///
    /// # Panics
    /// If the number of parts is not the number of members.
    #[track_caller]
    pub fn begin_gather(
        &self,
        device: &Device,
        collective: &'static str,
        mine: &[Tensor],
        parts: &[Vec<Tensor>],
    ) -> Transfers {
        let fits = parts.iter().all(|parts| parts.len() == self.size());
        assert!(fits, "{collective}: {mine:?} of {} members into {parts:?}", self.size());
        let sends: Vec<(usize, &Tensor)> =
            mine.iter().flat_map(|mine| self.others().map(move |to| (to, mine))).collect();
        let receives: Vec<(usize, &Tensor)> =
            parts.iter().flat_map(|parts| self.others().map(move |from| (from, &parts[from]))).collect();
        self.exchange(device, collective, &sends, &receives)
    }

    /// Starts sending `give[i]` to member i and receiving `take[i]` from it. Tensors received into have no gaps; shapes
    /// may differ from member to member.
    ///
    /// # Panics
    /// If the number of tensors is not the number of members.
    #[track_caller]
    pub fn all_to_all(&self, device: &Device, give: &[Tensor], take: &[Tensor]) -> Transfers {
        let fits = give.len() == self.size() && take.len() == self.size();
        assert!(fits, "all_to_all: {} members, {give:?}, {take:?}", self.size());
        let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, &give[to])).collect();
        let receives: Vec<(usize, &Tensor)> = self.others().map(|from| (from, &take[from])).collect();
        let flying = self.exchange(device, "all_to_all", &sends, &receives);
        let (mine, own) = (&give[self.index()], &take[self.index()]);
        if !own.is_empty() {
            device.machine.copy(mine, &own.reshape(mine.rows(), mine.cols()));
        }
        flying
    }

    /// Sums every member's `parts[i]` for member i: `out` is this member's sum, in the type of the parts, which are not
    /// changed.
    ///
    /// # Panics
    /// If the number of parts is not the number of members.
    #[track_caller]
    pub fn reduce_scatter(&self, device: &Device, parts: &[Tensor], out: &Tensor) {
        assert_eq!(parts.len(), self.size(), "reduce_scatter: {parts:?} into {out:?}");
        let mine = &parts[self.index()];
        if self.size() == 1 {
            return device.machine.copy(mine, out);
        }
        let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, &parts[to])).collect();
        let sending = self.exchange(device, "reduce_scatter", &sends, &[]);
        self.sum_received(device, mine, out, "reduce_scatter");
        sending.wait();
    }

    /// Like [`Group::reduce_scatter`], with parts that are made one after the other: `make(i)` writes part i, which is
    /// sent while the next is made. The parts are separate tensors.
    ///
    /// # Panics
    /// If the number of parts is not the number of members.
    #[track_caller]
    pub fn reduce_scatter_made(
        &self,
        device: &Device,
        parts: &[Tensor],
        out: &Tensor,
        make: &mut dyn FnMut(usize),
    ) {
        assert_eq!(parts.len(), self.size(), "reduce_scatter: {parts:?} into {out:?}");
        let send = |to: usize| {
            make(to);
            self.exchange(device, "reduce_scatter", &[(to, &parts[to])], &[])
        };
        let sending: Vec<Transfers> = self.others().map(send).collect();
        make(self.index());
        let mine = &parts[self.index()];
        match self.size() {
            1 => device.machine.copy(mine, out),
            _ => self.sum_received(device, mine, out, "reduce_scatter"),
        }
        sending.into_iter().for_each(Transfers::wait);
    }

    /// Calls `work(i, member i's tensor)` for every member, all of one shape: with this member's own while the others'
    /// are in flight, then with each of those once it arrives.
    pub fn each_gathered(&self, device: &Device, mine: &Tensor, work: &mut dyn FnMut(usize, &Tensor)) {
        let [rows, cols] = mine.shape();
        let room = device.empty(rows * (self.size() - 1), cols, mine.dtype(), Category::Comm);
        let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, mine)).collect();
        let sending = self.exchange(device, "all_gather", &sends, &[]);
        let receive = |(at, from): (usize, usize)| {
            let part = room.view_rows(at * rows..(at + 1) * rows);
            let flying = self.exchange(device, "all_gather", &[], &[(from, &part)]);
            (from, part, flying)
        };
        let coming: Vec<(usize, Tensor, Transfers)> = self.others().enumerate().map(receive).collect();
        work(self.index(), mine);
        for (from, part, flying) in coming {
            flying.wait();
            work(from, &part);
        }
        sending.wait();
    }

    /// `out` = the sum of `mine` and the other members' tensors, in ascending order of the ranks.
    fn sum_received(&self, device: &Device, mine: &Tensor, out: &Tensor, collective: &'static str) {
        if mine.is_empty() {
            return;
        }
        let [rows, cols] = mine.shape();
        let comm = |dtype| device.empty(rows, cols, dtype, Category::Comm);
        let staging = comm(mine.dtype());
        let wide = (mine.dtype() != DType::F32).then(|| comm(DType::F32));
        let sum = if out.dtype() == DType::F32 { out.clone() } else { comm(DType::F32) };
        for index in 0..self.size() {
            let part = if index == self.index() {
                mine
            } else {
                self.exchange(device, collective, &[], &[(index, &staging)]).wait();
                &staging
            };
            match (index, &wide) {
                (0, _) => device.machine.copy(part, &sum),
                (_, None) => device.machine.add(&sum, part, &sum),
                (_, Some(wide)) => {
                    device.machine.copy(part, wide);
                    device.machine.add(&sum, wide, &sum);
                }
            }
        }
        if out.dtype() != DType::F32 {
            device.machine.copy(&sum, out);
        }
    }

    /// Sums a tensor without gaps over all members, in place.
    ///
    /// # Panics
    /// If the tensor has gaps.
    #[track_caller]
    pub fn all_reduce(&self, device: &Device, x: &Tensor) {
        if self.size() == 1 || x.is_empty() {
            return;
        }
        let flat = x.reshape(1, x.len());
        if x.bytes() <= SMALL_BYTES {
            return self.all_reduce_small(device, &flat);
        }
        let part = |index: usize| flat.view_cols(share(x.len(), self.size(), index));
        let parts: Vec<Tensor> = (0..self.size()).map(part).collect();
        let mine = &parts[self.index()];
        let [rows, cols] = mine.shape();
        let sum = device.empty(rows, cols, x.dtype(), Category::Comm);
        self.reduce_scatter(device, &parts, &sum);
        device.machine.copy(&sum, mine);
        let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, &sum)).collect();
        let receives: Vec<(usize, &Tensor)> = self.others().map(|from| (from, &parts[from])).collect();
        self.exchange(device, "all_gather", &sends, &receives).wait();
    }

    fn all_reduce_small(&self, device: &Device, flat: &Tensor) {
        let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, flat)).collect();
        let sum = device.empty(1, flat.len(), flat.dtype(), Category::Comm);
        let sending = self.exchange(device, "all_reduce", &sends, &[]);
        self.sum_received(device, flat, &sum, "all_reduce");
        sending.wait();
        device.machine.copy(&sum, flat);
    }

    /// Copies member `from`'s elements to every member; the tensor has no gaps.
    pub fn broadcast(&self, device: &Device, from: usize, x: &Tensor) {
        if self.index() == from {
            let sends: Vec<(usize, &Tensor)> = self.others().map(|to| (to, x)).collect();
            self.exchange(device, "broadcast", &sends, &[]).wait();
        } else {
            self.exchange(device, "broadcast", &[], &[(from, x)]).wait()
        }
    }
}

/// Member `index`'s share of `len` elements; shares differ by at most one.
pub fn share(len: usize, members: usize, index: usize) -> Range<usize> {
    len * index / members..len * (index + 1) / members
}
