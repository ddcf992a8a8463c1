//! The kernels that collectives and parts of attention need, on the simulated device: copies, sums, means of f32 and
//! bf16.
#![allow(unsafe_code)]

use half::bf16;

/// A matrix argument of a kernel: address, stride, type code.
struct Mat([u64; 3]);

impl Mat {
    fn of(words: &[u64]) -> Mat {
        Mat([words[0], words[1], words[2]])
    }

    fn place(&self, row: u64, col: u64, check: &mut impl FnMut(u64, usize)) -> *mut u8 {
        let [address, stride, code] = self.0;
        let bytes = if code == 0 { 4 } else { 2 };
        let at = address + (row * stride + col) * bytes;
        check(at, bytes as usize);
        std::ptr::with_exposed_provenance_mut(at as usize)
    }

    fn get(&self, row: u64, col: u64, check: &mut impl FnMut(u64, usize)) -> f32 {
        let at = self.place(row, col, check);
        // SAFETY: checked to be live memory of the device; elements are aligned to their size.
        unsafe {
            match self.0[2] {
                0 => at.cast::<f32>().read(),
                1 => bf16::from_bits(at.cast::<u16>().read()).to_f32(),
                other => panic!("the pretended device computes nothing with type {other}"),
            }
        }
    }

    fn set(&self, row: u64, col: u64, value: f32, check: &mut impl FnMut(u64, usize)) {
        let at = self.place(row, col, check);
        // SAFETY: as above.
        unsafe {
            match self.0[2] {
                0 => at.cast::<f32>().write(value),
                1 => at.cast::<u16>().write(bf16::from_f32(value).to_bits()),
                other => panic!("the pretended device computes nothing with type {other}"),
            }
        }
    }
}

/// Runs a kernel if it is one of these; `check` is called for every memory access.
pub fn run(name: &str, words: &[u64], check: &mut impl FnMut(u64, usize)) {
    match name {
        "copy" => {
            let (from, to) = (Mat::of(words), Mat::of(&words[3..]));
            each(words[6], words[7], |row, col| {
                let value = from.get(row, col, check);
                to.set(row, col, value, check);
            });
        }
        "copy_bytes" => {
            let [from, from_stride, to, to_stride, rows, cols] = *words.first_chunk().unwrap();
            for row in 0..rows {
                let (from, to) = (from + row * from_stride, to + row * to_stride);
                check(from, cols as usize);
                check(to, cols as usize);
                copy(from, to, cols as usize);
            }
        }
        "add" => {
            let (a, b, out) = (Mat::of(words), Mat::of(&words[3..]), Mat::of(&words[6..]));
            each(words[9], words[10], |row, col| {
                let value = a.get(row, col, check) + b.get(row, col, check);
                out.set(row, col, value, check);
            });
        }
        "transpose" => {
            let (from, to) = (Mat::of(words), Mat::of(&words[3..]));
            each(words[6], words[7], |row, col| {
                let value = from.get(row, col, check);
                to.set(col, row, value, check);
            });
        }
        "attention_join" => join(words, check),
        _ => {}
    }
}

/// Merges a part of attention into out and lse.
fn join(words: &[u64], check: &mut impl FnMut(u64, usize)) {
    let (part, out, lse) = (Mat::of(words), Mat::of(&words[6..]), Mat::of(&words[9..]));
    let [of_part, row_step, head_step] = [words[3], words[4], words[5]];
    let [rows, heads, dim, _, fresh] = *words[12..].first_chunk().unwrap();
    each(rows, heads, |row, head| {
        let old = if fresh == 1 { f32::NEG_INFINITY } else { lse.get(row, head, check) };
        let new = Mat([of_part + 4 * (row * row_step + head * head_step), 0, 0]).get(0, 0, check);
        let total = old.max(new) + (-(old - new).abs()).exp().ln_1p();
        lse.set(row, head, total, check);
        for col in head * dim..(head + 1) * dim {
            let before = if fresh == 1 { 0.0 } else { (old - total).exp() * out.get(row, col, check) };
            let value = before + (new - total).exp() * part.get(row, col, check);
            out.set(row, col, value, check);
        }
    });
}

fn each(rows: u64, cols: u64, mut call: impl FnMut(u64, u64)) {
    (0..rows).for_each(|row| (0..cols).for_each(|col| call(row, col)));
}

pub(super) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

pub(super) fn copy(from: u64, to: u64, bytes: usize) {
    // SAFETY: the device's side was checked; the host's is the caller's promise.
    unsafe { std::ptr::copy(pointer(from), pointer(to), bytes) }
}
