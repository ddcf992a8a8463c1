//! Placement of the library's results: outputs are merged with those of other keys by their logarithms, gradients are
//! added to existing ones.

use fathom_tensor::{DType, Machine, Tensor};

use super::call::{Call, Round};
use super::row_set::RowSet;
use crate::kernels;
use crate::machine::Cuda;

/// Rows of queries and of keys that already have results.
pub(super) struct Progress {
    queries: RowSet,
    keys: RowSet,
}

impl Progress {
    /// State before the first round: rows that the call accumulates on.
    pub fn of(call: &Call<'_>) -> Progress {
        let all = call.goes_on.then_some(0..call.op.q.rows());
        Progress { queries: RowSet::of(all), keys: RowSet::default() }
    }

    /// Records that a round was issued.
    pub fn made(&mut self, round: &Round) {
        let [queries, keys] = rows(round);
        self.queries = self.queries.and(&queries);
        self.keys = self.keys.and(&keys);
    }

    /// True if every row has a result after these rounds; missing gradients are cleared separately.
    pub fn fills(&self, call: &Call<'_>, rounds: &[Round]) -> bool {
        let made = rounds.iter().fold(self.queries.clone(), |made, round| made.and(&rows(round)[0]));
        call.gradients.is_some() || made.gaps(call.op.q.rows()).next().is_none()
    }
}

/// Rows of a round's queries and keys.
fn rows(round: &Round) -> [RowSet; 2] {
    let sequences = &round.layer.sequences;
    [
        RowSet::of(sequences.iter().map(|sequence| sequence.q.clone())),
        RowSet::of(sequences.iter().map(|sequence| sequence.k.clone())),
    ]
}

impl Cuda {
    /// Moves a round's results for a group of heads to their destination.
    pub(super) fn place(&self, call: &Call<'_>, round: &Round, group: usize, progress: &Progress) {
        match call.gradients {
            Some(gradients) => self.place_gradients(call, round, (group, gradients), progress),
            None if call.op.mask.partial => self.join_results(call, round, group, progress),
            None if !round.case.packed => {
                let [theirs, ours] = call.logarithms(round, group);
                self.run(&kernels::transpose(&ours, &theirs));
            }
            None => {}
        }
    }

    fn join_results(&self, call: &Call<'_>, round: &Round, group: usize, progress: &Progress) {
        let (op, packed, parts) = (call.op, round.case.packed, call.scratch.parts());
        let (heads, [first, _]) = (call.heads()[0], round.first_rows());
        let tokens = if packed { op.q.rows() } else { round.case.q_tokens as usize };
        let part = call.ws.part(parts.gradients[0], tokens, heads * op.head_dim, op.q.dtype());
        let shape = if packed { [tokens, heads] } else { [heads, tokens] };
        let of_part = call.ws.part(parts.lse, shape[0], shape[1], DType::F32);
        let out = op.out.view_cols(call.columns(group, heads));
        let lse = op.lse.view_cols(group * heads..(group + 1) * heads);
        for run in rows(round)[0].runs() {
            for (rows, held) in progress.queries.cut(run) {
                let own = rows.start - first..rows.end - first;
                let of_part =
                    if packed { of_part.view_rows(own.clone()) } else { of_part.view_cols(own.clone()) };
                let results = [&out.view_rows(rows.clone()), &lse.view_rows(rows)];
                let part = (&part.view_rows(own), &of_part, !packed);
                self.run(&kernels::attention_join(part, results, op.head_dim, !held));
            }
        }
    }

    /// Moves gradients out of scratch: the first of a row is copied, later ones are added.
    fn place_gradients(
        &self,
        call: &Call<'_>,
        round: &Round,
        (group, [dq, dk, dv]): (usize, [&Tensor; 3]),
        progress: &Progress,
    ) {
        let packed = round.case.packed;
        if !packed && !call.op.mask.partial {
            return;
        }
        let ([heads, kv_heads], [q_first, k_first]) = (call.heads(), round.first_rows());
        let [queries, keys] = rows(round);
        let of_keys = (kv_heads, k_first, &keys, &progress.keys);
        let kinds = [(dq, (heads, q_first, &queries, &progress.queries)), (dk, of_keys), (dv, of_keys)];
        for ((to, (heads, first, made, held)), at) in kinds.into_iter().zip(call.scratch.parts().gradients) {
            let to = to.view_cols(call.columns(group, heads));
            for (rows, held) in made.runs().iter().flat_map(|run| held.cut(run)) {
                let from = at + ((rows.start - first) * to.cols() * call.op.q.dtype().bytes()) as u64;
                let part = call.ws.part(from, rows.len(), to.cols(), call.op.q.dtype());
                let to = to.view_rows(rows);
                self.run(&if held { kernels::add(&to, &part, &to) } else { kernels::copy(&part, &to) });
            }
        }
    }

    /// Zeroes the gradients of rows that attend to nothing, or to which no row attends.
    pub(super) fn clear_gradients(&self, call: &Call<'_>, progress: &Progress) {
        let Some([dq, dk, dv]) = call.gradients else { return };
        for (gradient, held) in [(dq, &progress.queries), (dk, &progress.keys), (dv, &progress.keys)] {
            held.gaps(gradient.rows()).for_each(|gap| self.zero(&gradient.view_rows(gap)));
        }
    }
}
