//! Agreement between ranks outside of a step: whether all of them succeeded, and if not, why.

use std::time::Duration;

use fathom_tensor::{Category, DType, Device, Tensor};

use crate::error::{Error, Result};

/// Bytes of one message between ranks.
const TEXT_BYTES: usize = 512;
/// First and longest pause between two polls of the other ranks.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Gathers `N` numbers from every rank, in rank order. All ranks call this together.
pub(crate) fn gather<const N: usize>(device: &Device, mine: [i32; N]) -> Result<Vec<[i32; N]>> {
    if device.mesh.grid().ranks() == 1 {
        return Ok(vec![mine]);
    }
    device.pool.enter("agree", -1);
    let bytes = all(device, &mine)?;
    let number = |bytes: &[u8; 4]| i32::from_le_bytes(*bytes);
    let numbers: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(number).collect();
    Ok(numbers.as_chunks::<N>().0.to_vec())
}

/// Gathers a byte count from every rank, in rank order. All ranks call this together.
pub(crate) fn gather_bytes(device: &Device, mine: u64) -> Result<Vec<u64>> {
    let halves = gather(device, [(mine >> 32) as i32, mine as i32])?;
    Ok(halves.iter().map(|[high, low]| u64::from(*high as u32) << 32 | u64::from(*low as u32)).collect())
}

/// Waits, without a limit, until `is_so` holds on every rank. The ranks keep signalling each other, so no deadline
/// passes while one of them waits for a slow disk. With a single rank this returns at once: the caller's next operation
/// waits instead. All ranks call this together.
pub(crate) fn until(device: &Device, is_so: &dyn Fn() -> bool) -> Result<()> {
    if device.mesh.grid().ranks() == 1 {
        return Ok(());
    }
    let mut pause = FIRST_PAUSE;
    while gather(device, [i32::from(is_so())])?.contains(&[0]) {
        std::thread::sleep(pause);
        pause = (2 * pause).min(LAST_PAUSE);
    }
    Ok(())
}

/// Gathers a text from every rank, in rank order. All ranks call this together.
pub(crate) fn gather_texts(device: &Device, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
    let lengths = gather_bytes(device, mine.len() as u64)?;
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    if longest == 0 {
        return Ok(vec![Vec::new(); lengths.len()]);
    }
    let mut text = mine.to_vec();
    text.resize(longest.next_multiple_of(4), 0);
    let words: Vec<i32> = text.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    device.pool.enter("agree", -1);
    let all = all(device, &words)?;
    Ok(all.chunks(text.len()).zip(lengths).map(|(text, length)| text[..length as usize].to_vec()).collect())
}

/// Every rank's numbers, concatenated.
fn all(device: &Device, mine: &[i32]) -> Result<Vec<u8>> {
    let everybody = device.mesh.everybody();
    let (rank, ranks) = (everybody.index(), everybody.size());
    let sent = device.from_i32(mine, Category::Comm);
    let whole = device.empty(ranks, mine.len(), DType::I32, Category::Comm);
    let parts: Vec<Tensor> = (0..ranks).map(|rank| whole.view_rows(rank..rank + 1)).collect();
    let bytes: Vec<u8> = mine.iter().flat_map(|number| number.to_le_bytes()).collect();
    device.machine.write(&parts[rank], &bytes);
    let others = || (1..ranks).map(|step| (rank + step) % ranks);
    let sends: Vec<(usize, &Tensor)> = others().map(|to| (to, &sent)).collect();
    let receives: Vec<(usize, &Tensor)> = others().map(|from| (from, &parts[from])).collect();
    everybody.exchange(device, "agree", &sends, &receives).wait();
    device.mesh.check()?;
    Ok(device.machine.read(&whole).wait())
}

/// The outcome of something that every rank tried: `mine` if all succeeded; otherwise a failure on every rank, its own
/// or that of the first rank that failed. All ranks call this together.
///
/// # Errors
/// A failure on some rank; a rank that is gone.
pub(crate) fn outcome<T>(device: &Device, mine: Result<T>) -> Result<T> {
    if device.mesh.grid().ranks() == 1 {
        return mine;
    }
    let failed = gather(device, [i32::from(mine.is_err())])?;
    let Some(first) = failed.iter().position(|[failed]| *failed != 0) else { return mine };
    let mut text = mine.as_ref().err().map(ToString::to_string).unwrap_or_default().into_bytes();
    text.resize(TEXT_BYTES, 0);
    let words: Vec<i32> = text.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let all = all(device, &words)?;
    mine.and_then(|_| {
        let said = all.chunks(TEXT_BYTES).nth(first).unwrap_or_default();
        let end = said.iter().position(|byte| *byte == 0).unwrap_or(said.len());
        let message = String::from_utf8_lossy(&said[..end]).into_owned();
        Err(Error::Rank { rank: first, message })
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use fathom_cpu::Cpu;
    use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};

    use super::*;

    /// No rank continues before the last one is ready; ranks that are ready keep answering.
    #[test]
    fn ranks_wait_for_the_last_one_together() {
        let one = |seat: Seat| {
            let mesh = Mesh::new(Grid { dp: 3, ..Grid::default() }, Box::new(seat.take()));
            let asked = Cell::new(0);
            let ready_after = 4 * mesh.rank();
            let device = Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 20, mesh);
            until(&device, &|| asked.replace(asked.get() + 1) >= ready_after).unwrap();
            asked.get()
        };
        let asked: Vec<usize> = std::thread::scope(|scope| {
            let (seats, one) = (threads(3, ThreadsOptions::default()), &one);
            let ranks: Vec<_> = seats.into_iter().map(|seat| scope.spawn(move || one(seat))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(asked, [9; 3]);
    }
}
