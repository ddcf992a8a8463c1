//! The order in which a pipeline's rank runs the parts of a step, as a list that machines run, the planner counts and
//! the Gantt chart shows.

/// One part of a step on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Forward pass of a micro-batch through one of the rank's stages.
    Forward {
        /// Micro batch.
        micro: usize,
        /// Index among the rank's stages.
        chunk: usize,
    },
    /// Its backward pass; in a zero-bubble schedule without the weight gradients.
    Backward {
        /// Micro batch.
        micro: usize,
        /// Index among the rank's stages.
        chunk: usize,
    },
    /// The weight gradients deferred by a backward pass.
    Weights {
        /// Micro batch.
        micro: usize,
        /// Index among the rank's stages.
        chunk: usize,
    },
}

/// Order in which micro-batches pass through a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// One forward, one backward (PipeDream-flush), interleaved if a rank has several stages.
    #[default]
    OneByOne,
    /// The same with weight gradients deferred to when a rank would wait (ZB-H1).
    ZeroBubble,
}

impl Order {
    /// The acts of one rank.
    ///
    /// # Errors
    /// If the number of micro-batches does not fit this order.
    pub fn acts(
        self,
        rank: usize,
        ranks: usize,
        chunks: usize,
        micro_batches: usize,
    ) -> Result<Vec<Act>, String> {
        match self {
            Order::OneByOne => acts(rank, ranks, chunks, micro_batches),
            Order::ZeroBubble if chunks > 1 => {
                Err("a zero-bubble schedule has one stage on each rank: mesh.virtual_stages must be 1".into())
            }
            Order::ZeroBubble => Ok(zero_bubble(rank, ranks, micro_batches)),
        }
    }
}

/// ZB-H1 (Qi et al., 2024): 1F1B with the weight gradients of a rank `rank` micro-batches behind its backward passes.
/// No rank holds more micro-batches than the first does under 1F1B; if forward, backward and weight gradients take
/// equally long, the bubble is a third.
fn zero_bubble(rank: usize, ranks: usize, micro_batches: usize) -> Vec<Act> {
    let warm = (ranks - rank - 1).min(micro_batches);
    let mut acts: Vec<Act> = (0..warm).map(|micro| Act::Forward { micro, chunk: 0 }).collect();
    for micro in 0..micro_batches {
        if warm + micro < micro_batches {
            acts.push(Act::Forward { micro: warm + micro, chunk: 0 });
        }
        acts.push(Act::Backward { micro, chunk: 0 });
        if micro >= rank {
            acts.push(Act::Weights { micro: micro - rank, chunk: 0 });
        }
    }
    let late = micro_batches.saturating_sub(rank);
    acts.extend((late..micro_batches).map(|micro| Act::Weights { micro, chunk: 0 }));
    acts
}

/// The acts of one rank: 1F1B with one stage on each rank (PipeDream-flush), and with `chunks` stages on each the
/// interleaved order of Narayanan et al. (2021), in which micro-batches advance in groups of `ranks`.
///
/// # Errors
/// With several stages on a rank: if the micro-batches are not whole groups.
fn acts(rank: usize, ranks: usize, chunks: usize, micro_batches: usize) -> Result<Vec<Act>, String> {
    if chunks > 1 && !micro_batches.is_multiple_of(ranks) {
        return Err(format!(
            "{micro_batches} micro batches do not go through interleaved stages in groups of mesh.pp={ranks}; take a multiple of {ranks}"
        ));
    }
    let total = micro_batches * chunks;
    let forward = |index: usize| {
        let (micro, chunk) = place(index, ranks, chunks);
        Act::Forward { micro, chunk }
    };
    let backward = |index: usize| {
        let (micro, chunk) = place(index, ranks, chunks);
        Act::Backward { micro, chunk: chunks - 1 - chunk }
    };
    let warm = match chunks {
        1 => ranks - rank - 1,
        _ => 2 * (ranks - rank - 1) + (chunks - 1) * ranks,
    };
    let warm = warm.min(total);
    let mut acts: Vec<Act> = (0..warm).map(forward).collect();
    for index in 0..total - warm {
        acts.push(forward(warm + index));
        acts.push(backward(index));
    }
    acts.extend((total - warm..total).map(backward));
    Ok(acts)
}

/// Micro-batch and stage of the index-th pass in one direction.
fn place(index: usize, ranks: usize, chunks: usize) -> (usize, usize) {
    if chunks == 1 {
        return (index, 0);
    }
    let (group, at) = (index / (ranks * chunks), index % (ranks * chunks));
    (group * ranks + at % ranks, at / ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs all ranks' acts until each is blocked; returns whether all finish, and the maximum number of forward passes
    /// that each rank holds.
    fn run(ranks: usize, chunks: usize, micro_batches: usize, order: Order) -> (bool, Vec<usize>) {
        let all: Vec<Vec<Act>> =
            (0..ranks).map(|rank| order.acts(rank, ranks, chunks, micro_batches).unwrap()).collect();
        let mut done = std::collections::BTreeSet::new();
        let (mut at, mut held, mut most) = (vec![0; ranks], vec![0; ranks], vec![0; ranks]);
        loop {
            let mut moved = false;
            for rank in 0..ranks {
                while let Some(act) = all[rank].get(at[rank]) {
                    let (stage, micro, back) = match *act {
                        Act::Forward { micro, chunk } => (chunk * ranks + rank, micro, false),
                        Act::Backward { micro, chunk } => (chunk * ranks + rank, micro, true),
                        Act::Weights { micro, chunk } => {
                            assert!(done.contains(&(chunk * ranks + rank, micro, true)));
                            (at[rank], moved) = (at[rank] + 1, true);
                            continue;
                        }
                    };
                    let last = stage + 1 == ranks * chunks;
                    let ready = if !back {
                        stage == 0 || done.contains(&(stage - 1, micro, false))
                    } else if last {
                        done.contains(&(stage, micro, false))
                    } else {
                        done.contains(&(stage + 1, micro, true)) && done.contains(&(stage, micro, false))
                    };
                    if !ready {
                        break;
                    }
                    done.insert((stage, micro, back));
                    if back {
                        held[rank] -= 1
                    } else {
                        held[rank] += 1
                    }
                    most[rank] = most[rank].max(held[rank]);
                    at[rank] += 1;
                    moved = true;
                }
            }
            if !moved {
                return (all.iter().zip(&at).all(|(acts, at)| acts.len() == *at), most);
            }
        }
    }

    #[test]
    fn every_order_ends_and_holds_few() {
        for ranks in 1..5 {
            for micro_batches in [1, 2, 3, 4, 8, 12] {
                let (ended, most) = run(ranks, 1, micro_batches, Order::OneByOne);
                let bound: Vec<usize> = (0..ranks).map(|rank| (ranks - rank).min(micro_batches)).collect();
                assert!(ended && most == bound, "{ranks} {micro_batches}: {most:?}");
                for chunks in 2..4 {
                    if micro_batches % ranks == 0 {
                        assert!(
                            run(ranks, chunks, micro_batches, Order::OneByOne).0,
                            "{ranks} x {chunks}, {micro_batches}"
                        );
                    }
                }
            }
        }
        assert!(acts(0, 4, 2, 6).unwrap_err().contains("multiple of 4"));
        assert!(Order::ZeroBubble.acts(0, 4, 2, 8).unwrap_err().contains("virtual_stages"));
    }

    /// The time at which the last rank is done, if forward, backward and weight gradients take one unit each (a
    /// backward pass with weight gradients two); and the maximum number of micro-batches with deferred weight gradients
    /// on any rank.
    fn time(ranks: usize, micro_batches: usize, order: Order) -> (usize, usize) {
        let all: Vec<Vec<Act>> =
            (0..ranks).map(|rank| order.acts(rank, ranks, 1, micro_batches).unwrap()).collect();
        let (mut at, mut now) = (vec![0; ranks], vec![0; ranks]);
        let (mut done, mut most) = (std::collections::BTreeMap::new(), 0);
        while at.iter().zip(&all).any(|(at, acts)| *at < acts.len()) {
            for rank in 0..ranks {
                let Some(act) = all[rank].get(at[rank]) else { continue };
                let (before, lasts) = match *act {
                    Act::Forward { micro, .. } => (rank.checked_sub(1).map(|rank| (rank, micro, false)), 1),
                    Act::Backward { micro, .. } => {
                        let next = (rank + 1 < ranks).then_some((rank + 1, micro, true));
                        (next, if order == Order::ZeroBubble { 1 } else { 2 })
                    }
                    Act::Weights { .. } => (None, 1),
                };
                let ready = match before {
                    None => 0,
                    Some(before) => match done.get(&before) {
                        Some(ready) => *ready,
                        None => continue,
                    },
                };
                now[rank] = ready.max(now[rank]) + lasts;
                match *act {
                    Act::Forward { micro, .. } => done.insert((rank, micro, false), now[rank]),
                    Act::Backward { micro, .. } => done.insert((rank, micro, true), now[rank]),
                    Act::Weights { .. } => None,
                };
                at[rank] += 1;
                let count =
                    |wanted: fn(&Act) -> bool| all[rank][..at[rank]].iter().filter(|act| wanted(act)).count();
                let made = count(|act| matches!(act, Act::Weights { .. }));
                let started = count(|act| matches!(act, Act::Forward { .. }));
                most = most.max(if order == Order::ZeroBubble { started - made } else { 0 });
            }
        }
        (now.into_iter().max().unwrap(), most)
    }

    #[test]
    fn zero_bubble_waits_a_third() {
        for ranks in 1..7 {
            for micro_batches in [ranks, ranks + 1, 3 * ranks] {
                assert!(run(ranks, 1, micro_batches, Order::ZeroBubble).0);
                let (split, most) = time(ranks, micro_batches, Order::ZeroBubble);
                let whole = time(ranks, micro_batches, Order::OneByOne).0;
                assert_eq!(whole, 3 * micro_batches + 3 * (ranks - 1));
                assert_eq!(split, 3 * micro_batches + (ranks - 1), "{ranks} {micro_batches}");
                assert!(most <= ranks, "{ranks} {micro_batches}: {most}");
            }
        }
        assert!(run(4, 1, 2, Order::ZeroBubble).0);
    }
}
