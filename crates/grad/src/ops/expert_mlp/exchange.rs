//! Transfer of rows to the owners of experts and back.

use fathom_tensor::mesh::{Axis, Group};
use fathom_tensor::{Category, DType, Dispatch, Embed, Tensor};

use crate::graph::Spread;
use crate::op::Exec;

/// Number of places that a rank has at each owner, in eighths of the number for evenly distributed slots.
const PLACES: usize = 9;

/// State of an operation's exchanges.
pub struct Exchange {
    /// Ranks that exchange rows: `etp` fastest.
    group: Group,
    spread: Spread,
    /// Number of experts per owner.
    own: usize,
    /// Number of places that a rank has at each owner in a round.
    pub cap: usize,
    /// Number of rounds until every slot of every rank was processed; one on a machine without data.
    pub rounds: usize,
    /// True on the first of the ranks that share an expert, which adds the bias of their sum.
    pub adds_bias: bool,
}

/// One round.
pub struct Round<'a> {
    exchange: &'a Exchange,
    round: usize,
    /// i32 [1, owners x cap]: token and slot in each place.
    tokens: Tensor,
    slots: Tensor,
    /// i32 [1, t x k].
    places: Tensor,
    /// i32 [ranks x cap, 1]: the experts of the received rows.
    pub index: Tensor,
}

impl Exchange {
    /// Agrees with all ranks on the number of rounds: the only operation whose host waits for data.
    pub fn new(x: &Exec<'_>, index: &Tensor, spread: Spread, own: usize) -> Exchange {
        let group = x.device.mesh.group(&[Axis::Etp, Axis::Ep]);
        let owners = spread.ep;
        // Messages have one size; if rows do not divide, some ranks have one more.
        let most = x.rows.len().div_ceil(spread.ranks).max(index.rows()) * index.cols();
        let cap = (most * PLACES).div_ceil(8 * owners).min(most).max(1);
        let adds_bias = x.device.mesh.index(Axis::Etp) == 0;
        let mut exchange = Exchange { group, spread, own, cap, rounds: 1, adds_bias };
        if owners > 1 {
            exchange.rounds = exchange.most_rounds(x, index);
        }
        exchange
    }

    fn most_rounds(&self, x: &Exec<'_>, index: &Tensor) -> usize {
        let (device, ranks) = (x.device, self.group.size());
        let experts = self.own * self.spread.ep;
        let load = device.zeros(1, experts, DType::F32, Category::Comm);
        device.machine.count_experts(index, &load);
        let all = device.empty(ranks, experts, DType::F32, Category::Comm);
        let parts: Vec<Tensor> = (0..ranks).map(|rank| all.view_rows(rank..rank + 1)).collect();
        self.group.all_gather(device, &load, &parts).wait();
        let bytes = device.machine.read(&all).wait();
        let loads: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        // Rows are ordered by rank, and within a rank by expert of an owner.
        let rounds = |of: &[f32]| (of.iter().sum::<f32>() as usize).div_ceil(self.cap);
        loads.chunks(self.own).map(rounds).max().unwrap_or(1).max(1)
    }

    /// Runs of `cap` rows, one for each rank.
    fn parts(&self, all: &Tensor) -> Vec<Tensor> {
        (0..self.group.size()).map(|rank| all.view_rows(rank * self.cap..(rank + 1) * self.cap)).collect()
    }

    /// For each rank the rows of its owner: ranks that share an expert receive the same.
    fn by_owner(&self, all: &Tensor, rows: usize) -> Vec<Tensor> {
        let owner = |rank: usize| rank / self.spread.etp;
        (0..self.group.size())
            .map(|rank| all.view_rows(owner(rank) * rows..(owner(rank) + 1) * rows))
            .collect()
    }
}

impl<'a> Round<'a> {
    /// Sorts the slots by owner and sends owners the experts that they are for.
    pub fn new(exchange: &'a Exchange, x: &Exec<'_>, index: &Tensor, round: usize) -> Round<'a> {
        let Exchange { group, spread, own, cap, .. } = exchange;
        let device = x.device;
        let list = |rows: usize| device.empty(rows, *cap, DType::I32, Category::Comm);
        let [slots, tokens, experts] = [(); 3].map(|()| list(spread.ep));
        let places = device.empty(index.rows(), index.cols(), DType::I32, Category::Comm);
        device.machine.dispatch(&Dispatch {
            index,
            own: *own,
            round,
            slots: &slots,
            tokens: &tokens,
            experts: &experts,
            places: &places,
        });
        let came = list(group.size());
        let take: Vec<Tensor> = (0..group.size()).map(|rank| came.view_rows(rank..rank + 1)).collect();
        group.all_to_all(device, &exchange.by_owner(&experts, 1), &take).wait();
        drop(take);
        Round {
            exchange,
            round,
            tokens: tokens.reshape(1, tokens.len()),
            slots: slots.reshape(1, slots.len()),
            places: places.reshape(1, places.len()),
            index: came.reshape(came.len(), 1),
        }
    }

    /// Sends rows to their owners and returns the received ones, by rank: rows of tokens (`by_token`), or of slots.
    /// Empty places are zero.
    pub fn send(&self, x: &Exec<'_>, table: &Tensor, by_token: bool) -> Tensor {
        let (device, Exchange { group, cap, .. }) = (x.device, self.exchange);
        let ids = if by_token { &self.tokens } else { &self.slots };
        let rows = |rows: usize| device.empty(rows, table.cols(), table.dtype(), Category::Comm);
        let (out, came) = (rows(ids.len()), rows(group.size() * cap));
        let first = Some(0);
        device.machine.embed(&Embed { ids, table, scale: 1.0, out: &out, accumulate: false, first });
        let (give, take) = (self.exchange.by_owner(&out, *cap), self.exchange.parts(&came));
        group.all_to_all(device, &give, &take).wait();
        came
    }

    /// Returns the processed rows and writes them to their slots in `out`, [t x k, d]; the ranks that share an expert
    /// contribute terms of a sum. Slots of other rounds are unchanged; in the first round they are set to zero.
    pub fn give_back(&self, x: &Exec<'_>, rows: Tensor, out: &Tensor) {
        let (device, Exchange { group, spread, cap, .. }) = (x.device, self.exchange);
        let back = device.empty(rows.rows(), rows.cols(), rows.dtype(), Category::Comm);
        let (give, take) = (self.exchange.parts(&rows), self.exchange.parts(&back));
        group.all_to_all(device, &give, &take).wait();
        drop((rows, give));
        let table = match spread.etp {
            1 => back.clone(),
            _ => {
                let sums = device.empty(spread.ep * cap, back.cols(), back.dtype(), Category::Comm);
                for (owner, terms) in take.chunks(spread.etp).enumerate() {
                    self.sum(x, terms, &sums.view_rows(owner * cap..(owner + 1) * cap));
                }
                sums
            }
        };
        device.machine.embed(&Embed {
            ids: &self.places,
            table: &table,
            scale: 1.0,
            out,
            accumulate: self.round > 0,
            first: Some(0),
        });
    }

    /// The sum of some terms in order, in f32, rounded once.
    fn sum(&self, x: &Exec<'_>, terms: &[Tensor], out: &Tensor) {
        let machine = &x.device.machine;
        let wide = x.device.empty(out.rows(), out.cols(), DType::F32, Category::Comm);
        machine.copy(&terms[0], &wide);
        let (last, between) = terms[1..].split_last().unwrap_or((&terms[0], &[]));
        between.iter().for_each(|term| machine.add(&wide, term, &wide));
        machine.add(&wide, last, out);
    }
}
