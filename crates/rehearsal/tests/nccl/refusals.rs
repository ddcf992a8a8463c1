//! Refused calls.

use super::*;

#[test]
fn arguments_that_cannot_be() {
    let _turn = turn();
    ranks(2, |rank| {
        let (buffer, null) = (rank.buffer(&[0.0; 4]), Buffer(0, 4));
        assert_eq!(rank.send(buffer, 2), ARGUMENT);
        assert_eq!(rank.send(null, 1), ARGUMENT);
        assert_eq!(rank.receive(Buffer(buffer.0, 5), 1), ARGUMENT);
        assert_eq!(rank.receive(Buffer(buffer.0 + 2, 1), 1), ARGUMENT);
        assert_eq!(rank.send(Buffer::of(7, &[0.0]), 1), ARGUMENT);
        // SAFETY: no memory is accessed.
        unsafe {
            assert_eq!(ncclSend(buffer.at(), 1, 12, 1, rank.comm, rank.stream), ARGUMENT);
            let into = buffer.at().byte_add(4);
            assert_eq!(ncclAllReduce(buffer.at(), into, 2, FLOAT, 0, rank.comm, rank.stream), ARGUMENT);
            assert_eq!(
                ncclAllReduce(buffer.at(), buffer.at(), 2, FLOAT, 9, rank.comm, rank.stream),
                ARGUMENT
            );
            assert_eq!(ncclCommGetAsyncError(rank.comm, std::ptr::null_mut()), ARGUMENT);
        }
        assert_eq!(ncclGroupEnd(), USAGE);
        assert_eq!(ncclCommDestroy(std::ptr::null_mut()), ARGUMENT);
        assert_eq!(rank.asked(), SUCCESS);
        let comm = rank.comm;
        rank.destroy();
        assert_eq!(ncclCommDestroy(comm), ARGUMENT);
    });
}

#[test]
fn ranks_that_do_not_fit_together() {
    let _turn = turn();
    for (own, theirs) in [((0, 2, 0), (1, 2, 0)), ((0, 2, 0), (0, 2, 1)), ((0, 2, 0), (1, 3, 1))] {
        let id = id();
        std::thread::scope(|scope| {
            for (rank, ranks, on) in [own, theirs] {
                scope.spawn(move || {
                    device(on);
                    let mut comm = std::ptr::null_mut();
                    // SAFETY: an address that lives.
                    assert_eq!(unsafe { ncclCommInitRank(&mut comm, ranks, id, rank) }, USAGE);
                    assert_eq!(ncclCommAbort(comm), SUCCESS);
                });
            }
        });
    }
}

#[test]
fn an_id_is_used_once_and_has_to_be_one() {
    let _turn = turn();
    device(0);
    let id = id();
    Rank::join(id, 0, 1).destroy();
    let mut comm = std::ptr::null_mut();
    // SAFETY: an address that lives.
    unsafe {
        assert_eq!(ncclCommInitRank(&mut comm, 1, id, 0), 2);
        assert_eq!(ncclCommAbort(comm), SUCCESS);
        assert_eq!(ncclCommInitRank(&mut comm, 1, UniqueId([1; 128]), 0), ARGUMENT);
        assert_eq!(ncclCommInitRank(&mut comm, 1, id, 1), ARGUMENT);
        let mut config = nonblocking();
        config.0[0] = 80;
        let config = (&raw mut config).cast();
        assert_eq!(ncclCommInitRankConfig(&mut comm, 1, id, 0, config), ARGUMENT);
    }
}

#[test]
fn one_thread_at_a_time_and_none_in_a_group_of_another() {
    let _turn = turn();
    ranks(2, |rank| {
        let (out, into) = (rank.buffer(&[1.0]), rank.buffer(&[0.0]));
        let other = 1 - rank.rank;
        assert_eq!(ncclGroupStart(), SUCCESS);
        assert_eq!((rank.send(out, other), rank.receive(into, other)), (SUCCESS, SUCCESS));
        // Destroying twice is undefined behaviour.
        let again = ncclCommDestroy(rank.comm);
        let handle = Sent(rank.comm.addr());
        let elsewhere = move || {
            let mut result = 0;
            // SAFETY: an address that lives.
            unsafe { ncclCommGetAsyncError(std::ptr::without_provenance_mut({ handle }.0), &mut result) }
        };
        assert_eq!((again, std::thread::spawn(elsewhere).join().unwrap()), (USAGE, USAGE));
        assert_eq!(ncclGroupEnd(), SUCCESS);
        rank.wait();
        assert_eq!(into.values(), [1.0]);
        assert_eq!(ncclGroupStart(), SUCCESS);
        assert_eq!((rank.send(into, other), rank.receive(into, other)), (SUCCESS, USAGE));
        assert_eq!(ncclGroupEnd(), USAGE);
        rank.destroy();
    });
}
