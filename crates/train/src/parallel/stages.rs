//! The order in which a pipeline's rank runs the parts of a step, as a list: what runs on a machine, what the planner counts
//! and what the Gantt chart shows.

/// One part of a step on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Forward of a micro batch through one of the rank's stages.
    Forward {
        /// Micro batch.
        micro: usize,
        /// Which of the rank's stages.
        chunk: usize,
    },
    /// Its backward pass.
    Backward {
        /// Micro batch.
        micro: usize,
        /// Which of the rank's stages.
        chunk: usize,
    },
}

/// The acts of one rank: 1F1B with one stage on each rank (PipeDream-flush), and with `chunks` stages on each the interleaved
/// order of Narayanan et al. (2021), which lets micro batches through in groups of `ranks`.
///
/// # Errors
/// With several stages on a rank: if the micro batches are not whole groups.
pub fn acts(rank: usize, ranks: usize, chunks: usize, micro_batches: usize) -> Result<Vec<Act>, String> {
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

/// The micro batch and stage of the index-th pass of one direction.
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

    /// Runs all ranks' acts as far as what they wait for has happened; says whether all end, and the most forward passes that
    /// any rank holds.
    fn run(ranks: usize, chunks: usize, micro_batches: usize) -> (bool, Vec<usize>) {
        let all: Vec<Vec<Act>> =
            (0..ranks).map(|rank| acts(rank, ranks, chunks, micro_batches).unwrap()).collect();
        let mut done = std::collections::BTreeSet::new();
        let (mut at, mut held, mut most) = (vec![0; ranks], vec![0; ranks], vec![0; ranks]);
        loop {
            let mut moved = false;
            for rank in 0..ranks {
                while let Some(act) = all[rank].get(at[rank]) {
                    let (stage, micro, back) = match *act {
                        Act::Forward { micro, chunk } => (chunk * ranks + rank, micro, false),
                        Act::Backward { micro, chunk } => (chunk * ranks + rank, micro, true),
                    };
                    let last = stage + 1 == ranks * chunks;
                    let ready = match back {
                        false => stage == 0 || done.contains(&(stage - 1, micro, false)),
                        true if last => done.contains(&(stage, micro, false)),
                        true => {
                            done.contains(&(stage + 1, micro, true)) && done.contains(&(stage, micro, false))
                        }
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
                let (ended, most) = run(ranks, 1, micro_batches);
                let bound: Vec<usize> = (0..ranks).map(|rank| (ranks - rank).min(micro_batches)).collect();
                assert!(ended && most == bound, "{ranks} {micro_batches}: {most:?}");
                for chunks in 2..4 {
                    if micro_batches % ranks == 0 {
                        assert!(run(ranks, chunks, micro_batches).0, "{ranks} x {chunks}, {micro_batches}");
                    }
                }
            }
        }
        assert!(acts(0, 4, 2, 6).unwrap_err().contains("multiple of 4"));
    }
}
