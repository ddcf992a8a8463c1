//! Data exchanged between ranks.

use super::*;

#[test]
fn two_ranks_send_both_ways_in_a_group() {
    let _turn = turn();
    ranks(2, |rank| {
        let other = 1 - rank.rank;
        let (out, into) = (rank.buffer(&[rank.rank as f32 + 1.0; 5]), rank.buffer(&[0.0; 5]));
        group(|| {
            assert_eq!(rank.send(out, other), SUCCESS);
            assert_eq!(rank.receive(into, other), SUCCESS);
        });
        rank.wait();
        assert_eq!(into.values(), [other as f32 + 1.0; 5]);
        rank.destroy();
    });
}

#[test]
fn three_ranks_exchange_with_all_and_with_themselves() {
    let _turn = turn();
    ranks(3, |rank| {
        let out: Vec<_> = (0..3).map(|to| rank.buffer(&[(10 * rank.rank + to) as f32; 3])).collect();
        let into: Vec<_> = (0..3).map(|_| rank.buffer(&[0.0; 3])).collect();
        for _ in 0..3 {
            group(|| {
                for peer in 0..3 {
                    assert_eq!(rank.receive(into[peer], peer), SUCCESS);
                    assert_eq!(rank.send(out[peer], peer), SUCCESS);
                }
            });
        }
        rank.wait();
        for peer in 0..3 {
            assert_eq!(into[peer].values(), [(10 * peer + rank.rank) as f32; 3]);
        }
        rank.destroy();
    });
}

#[test]
fn many_messages_come_in_order_round_a_ring() {
    let _turn = turn();
    ranks(3, |rank| {
        let (next, previous) = ((rank.rank + 1) % 3, (rank.rank + 2) % 3);
        let into: Vec<_> = (0..50).map(|_| rank.buffer(&[0.0; 7])).collect();
        for (index, into) in into.iter().enumerate() {
            let out = rank.buffer(&[(100 * rank.rank + index) as f32; 7]);
            // The first rank's send and receive are not one group: the ring would wait for itself.
            if rank.rank == 0 {
                assert_eq!((rank.send(out, next), rank.receive(*into, previous)), (SUCCESS, SUCCESS));
            } else {
                assert_eq!((rank.receive(*into, previous), rank.send(out, next)), (SUCCESS, SUCCESS));
            }
        }
        rank.wait();
        for (index, into) in into.iter().enumerate() {
            assert_eq!(into.values(), [(100 * previous + index) as f32; 7]);
        }
        rank.destroy();
    });
}

#[test]
fn a_send_ends_only_when_the_other_end_receives() {
    let _turn = turn();
    ranks(2, |rank| {
        let buffer = rank.buffer(&[4.0; 2]);
        if rank.rank == 1 {
            assert_eq!(rank.receive(buffer, 0), SUCCESS);
            std::thread::sleep(Duration::from_millis(100));
            let second = rank.buffer(&[0.0; 2]);
            assert_eq!(rank.receive(second, 0), SUCCESS);
            rank.wait();
            assert_eq!(second.values(), [4.0; 2]);
        } else {
            assert_eq!(rank.send(buffer, 1), SUCCESS);
            rank.wait();
            assert_eq!(rank.send(buffer, 1), SUCCESS);
            std::thread::sleep(Duration::from_millis(30));
            assert!(!rank.is_idle());
            rank.wait();
        }
        rank.destroy();
    });
}

#[test]
fn a_device_goes_on_while_its_program_waits_for_another() {
    let _turn = turn();
    let (say, hear) = std::sync::mpsc::channel();
    let hear = std::sync::Mutex::new(hear);
    ranks(2, |rank| {
        let buffer = rank.buffer(&[1.0]);
        if rank.rank == 0 {
            assert_eq!(rank.send(buffer, 1), SUCCESS);
            rank.wait();
            say.send(()).unwrap();
        } else {
            assert_eq!(rank.receive(buffer, 0), SUCCESS);
            hear.lock().unwrap().recv().unwrap();
        }
        rank.destroy();
    });
}

#[test]
fn exchanges_on_the_same_stream_without_a_group_wait_for_each_other() {
    let _turn = turn();
    ranks(2, |rank| {
        let other = 1 - rank.rank;
        let buffer = rank.buffer(&[1.0]);
        // Connections are made first, both ways.
        group(|| {
            assert_eq!(rank.send(buffer, other), SUCCESS);
            assert_eq!(rank.receive(rank.buffer(&[0.0]), other), SUCCESS);
        });
        rank.wait();
        let into = rank.buffer(&[0.0]);
        assert_eq!((rank.send(buffer, other), rank.receive(into, other)), (SUCCESS, SUCCESS));
        for _ in 0..100 {
            rank_step(&rank);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!rank.is_idle());
        assert_eq!(ncclCommAbort(rank.comm), SUCCESS);
        rank.wait();
        assert_eq!(into.values(), [0.0]);
    });
}

fn rank_step(rank: &Rank) {
    use fathom_rehearsal::device::{Mark, nudge};
    nudge(&Mark { stream: rank.stream.addr() as u64, over: std::sync::OnceLock::new() });
}

#[test]
fn collectives_of_three_ranks() {
    let _turn = turn();
    ranks(3, |rank| {
        let (own, comm, stream) = (rank.rank, rank.comm, rank.stream);
        let out = rank.buffer(&[own as f32 + 1.0, 2.0, -(own as f32)]);
        let wide = rank.buffer(&[0.0; 9]);
        let [sum, least, part, from] = [3, 3, 1, 3].map(|count| rank.buffer(&vec![0.0; count]));
        // SAFETY: memory of the device.
        unsafe {
            assert_eq!(ncclAllReduce(out.at(), sum.at(), 3, FLOAT, 0, comm, stream), SUCCESS);
            assert_eq!(ncclAllReduce(out.at(), least.at(), 3, FLOAT, 3, comm, stream), SUCCESS);
            assert_eq!(ncclAllGather(out.at(), wide.at(), 3, FLOAT, comm, stream), SUCCESS);
            assert_eq!(ncclReduceScatter(out.at(), part.at(), 1, FLOAT, 0, comm, stream), SUCCESS);
            let send = if own == 2 { out.at() } else { std::ptr::null_mut() };
            assert_eq!(ncclBroadcast(send, from.at(), 3, FLOAT, 2, comm, stream), SUCCESS);
        }
        rank.wait();
        assert_eq!(sum.values(), [6.0, 6.0, -3.0]);
        assert_eq!(least.values(), [1.0, 2.0, -2.0]);
        assert_eq!(wide.values(), [1.0, 2.0, 0.0, 2.0, 2.0, -1.0, 3.0, 2.0, -2.0]);
        assert_eq!(part.values(), [[6.0, 6.0, -3.0][own]]);
        assert_eq!(from.values(), [3.0, 2.0, -2.0]);
        rank.destroy();
    });
}

#[test]
fn sums_of_bf16_are_rounded_at_each_step() {
    let _turn = turn();
    ranks(2, |rank| {
        // 257 is not exact in bf16; a float holds two such numbers.
        let value = if rank.rank == 0 { 0x4380_4380 } else { 0x3f80_3f80 };
        let buffer = rank.buffer(&[f32::from_bits(value)]);
        // SAFETY: memory of the device.
        let status = unsafe { ncclAllReduce(buffer.at(), buffer.at(), 2, BF16, 0, rank.comm, rank.stream) };
        assert_eq!(status, SUCCESS);
        rank.wait();
        assert_eq!(buffer.values()[0].to_bits(), 0x4380_4380);
        rank.destroy();
    });
}

#[test]
fn streams_of_one_group_wait_for_each_other() {
    let _turn = turn();
    ranks(2, |rank| {
        let other = 1 - rank.rank;
        let second = Rank { comm: rank.comm, stream: stream(), rank: rank.rank };
        let (out, into) = (rank.buffer(&[3.0; 4]), rank.buffer(&[0.0; 4]));
        group(|| {
            assert_eq!(rank.send(out, other), SUCCESS);
            assert_eq!(second.receive(into, other), SUCCESS);
        });
        second.wait_with(&rank);
        assert_eq!(into.values(), [3.0; 4]);
        rank.destroy();
    });
}

impl Rank {
    /// Waits for both streams.
    fn wait_with(&self, other: &Rank) {
        until(|| {
            rank_step(self);
            rank_step(other);
            self.is_idle() && other.is_idle()
        });
    }
}

#[test]
fn a_graph_sends_again_each_time_it_runs() {
    let _turn = turn();
    use fathom_rehearsal::device::{Capture, Op};
    ranks(2, |rank| {
        let handle = rank.stream.addr() as u64;
        let buffer = rank.buffer(&[rank.rank as f32; 4]);
        let capture = Capture { ops: Vec::new(), owner: std::thread::current().id(), broken: false };
        state().streams.get_mut(&handle).unwrap().capture = Some(capture);
        let status = if rank.rank == 0 { rank.send(buffer, 1) } else { rank.receive(buffer, 0) };
        assert_eq!(status, SUCCESS);
        let ops: Vec<Op> = state().streams.get_mut(&handle).unwrap().capture.take().unwrap().ops;
        for time in 0..3 {
            if rank.rank == 0 {
                // SAFETY: its own memory, which nothing reads now.
                unsafe { *buffer.at().cast::<f32>() = time as f32 };
            }
            ops.iter().for_each(|op| state().push(handle, op.clone()).unwrap());
            rank.wait();
            assert_eq!(buffer.values(), [time as f32, 0.0, 0.0, 0.0]);
        }
        drop(ops);
        rank.destroy();
    });
}
