//! Nonblocking initialisation, and endings.

use super::*;

/// Joins without blocking.
fn begin(id: UniqueId, rank: usize, ranks: usize) -> Rank {
    device(rank);
    let (mut comm, mut config) = (std::ptr::null_mut(), nonblocking());
    let config = (&raw mut config).cast();
    // SAFETY: addresses that live.
    let status = unsafe { ncclCommInitRankConfig(&mut comm, ranks as c_int, id, rank as c_int, config) };
    assert_eq!(status, PROGRESS);
    Rank { comm, stream: stream(), rank }
}

#[test]
fn without_blocking_the_state_says_when_something_may_be_asked() {
    let _turn = turn();
    let id = id();
    let run = |own: usize| {
        let rank = begin(id, own, 2);
        let buffer = rank.buffer(&[own as f32; 3]);
        rank.until(SUCCESS);
        for _ in 0..3 {
            let status = if own == 0 { rank.send(buffer, 1) } else { rank.receive(buffer, 0) };
            assert_eq!(status, PROGRESS);
            rank.until(SUCCESS);
        }
        rank.wait();
        assert_eq!(buffer.values(), [0.0; 3]);
        assert_eq!(ncclCommFinalize(rank.comm), PROGRESS);
        rank.until(SUCCESS);
        rank.destroy();
    };
    std::thread::scope(|scope| {
        scope.spawn(move || run(0));
        scope.spawn(move || run(1));
    });
}

#[test]
fn what_is_asked_for_too_early_is_refused() {
    let _turn = turn();
    let id = id();
    let rank = begin(id, 0, 2);
    let buffer = rank.buffer(&[0.0]);
    assert_eq!(rank.asked(), PROGRESS);
    assert_eq!(rank.send(buffer, 1), ARGUMENT);
    assert_eq!(ncclCommAbort(rank.comm), SUCCESS);
    let mut result = 0;
    // SAFETY: an address that lives.
    assert_eq!(unsafe { ncclCommGetAsyncError(rank.comm, &mut result) }, ARGUMENT);
    assert_eq!(ncclCommAbort(rank.comm), ARGUMENT);
}

#[test]
fn operations_are_dropped_when_a_communicator_is_aborted_and_peers_see_it() {
    let _turn = turn();
    ranks(2, |rank| {
        let buffer = rank.buffer(&[7.0; 3]);
        if rank.rank == 0 {
            assert_eq!(rank.send(buffer, 1), SUCCESS);
            rank.wait();
            assert_eq!(ncclCommAbort(rank.comm), SUCCESS);
        } else {
            let again = rank.buffer(&[1.0; 3]);
            assert_eq!((rank.receive(buffer, 0), rank.receive(again, 0)), (SUCCESS, SUCCESS));
            let handle = Sent(rank.stream.addr() as u64);
            let waiter = std::thread::spawn(move || drive({ handle }.0));
            rank.until(REMOTE);
            assert!(!waiter.is_finished());
            assert_eq!(rank.send(buffer, 0), REMOTE);
            assert_eq!(ncclCommDestroy(rank.comm), REMOTE);
            assert_eq!(ncclCommAbort(rank.comm), SUCCESS);
            waiter.join().unwrap();
            assert_eq!(again.values(), [1.0; 3]);
        }
    });
}

#[test]
fn ranks_of_one_thread_join_and_talk_in_groups() {
    let _turn = turn();
    let id = id();
    let mut comms = [std::ptr::null_mut(); 2];
    group(|| {
        for rank in 0..2 {
            device(rank);
            // SAFETY: addresses that live.
            assert_eq!(unsafe { ncclCommInitRank(&mut comms[rank], 2, id, rank as c_int) }, SUCCESS);
        }
    });
    let both = [0, 1].map(|rank| Rank { comm: comms[rank], stream: stream(), rank });
    let buffers = [0, 1].map(|rank| Buffer::of(rank, &[rank as f32 + 5.0]));
    group(|| {
        assert_eq!(both[0].send(buffers[0], 1), SUCCESS);
        assert_eq!(both[1].receive(buffers[1], 0), SUCCESS);
    });
    both.iter().for_each(Rank::wait);
    assert_eq!(buffers[1].values(), [5.0]);
    let [zero, one] = both.map(|rank| Sent(rank.comm.addr()));
    let other = std::thread::spawn(move || ncclCommDestroy(std::ptr::without_provenance_mut({ one }.0)));
    assert_eq!(ncclCommDestroy(std::ptr::without_provenance_mut({ zero }.0)), SUCCESS);
    assert_eq!(other.join().unwrap(), SUCCESS);
}

#[test]
fn many_communicators_at_once() {
    let _turn = turn();
    let ids: Vec<_> = (0..12).map(|_| id()).collect();
    std::thread::scope(|scope| {
        for id in &ids {
            for rank in 0..4 {
                scope.spawn(move || Rank::join(*id, rank, 4).destroy());
            }
        }
    });
}

#[test]
fn all_are_aborted_in_one_group() {
    let _turn = turn();
    ranks(2, |rank| {
        let (out, buffer, other) = (rank.buffer(&[1.0]), rank.buffer(&[0.0]), 1 - rank.rank);
        group(|| {
            assert_eq!((rank.send(out, other), rank.receive(buffer, other)), (SUCCESS, SUCCESS));
        });
        // No rank sends this message.
        assert_eq!(rank.receive(buffer, other), SUCCESS);
        let handle = Sent(rank.stream.addr() as u64);
        let waiter = std::thread::spawn(move || drive({ handle }.0));
        until(|| buffer.values() == [1.0]);
        group(|| assert_eq!(ncclCommAbort(rank.comm), SUCCESS));
        waiter.join().unwrap();
    });
}
