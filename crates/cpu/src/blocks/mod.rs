//! Packing and unpacking of quantized weights ([`fathom_tensor::blocks`]), with the bits of the reference definition.
//!
//! Unpacking NF4 computes a block's sixteen values once, in the output type, and looks each element up with the
//! instruction set's permutation, at memory speed. Everything else is plain Rust, compiled for each instruction set.
#![allow(unsafe_code)]

mod nf4;
#[cfg(test)]
mod tests;

use std::ops::Range;

use fathom_tensor::blocks::{NF4_BLOCK, NF4_BOUNDS, NF4_LEAST, int8_code, int8_scale, int8_value};
use fathom_tensor::ggml::octets::{OCTET, dequantise_row};
use fathom_tensor::ggml::{Kind, dequantise, quantise};
use fathom_tensor::{BlockFormat, Grouped};
use half::bf16;

use crate::elementwise::Place;
use crate::isa::Isa;
use crate::mat::Elem;

/// Rows of a matrix with its packed form; neither has gaps.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Format of the packed rows.
    pub format: BlockFormat,
    /// Number of rows.
    pub rows: usize,
    /// Elements per row.
    pub cols: usize,
    /// Bytes of all packed rows.
    pub packed: *mut u8,
    /// All elements.
    pub plain: *mut u8,
    /// Type of the elements; for packing, f32.
    pub elem: Elem,
}

// SAFETY: each task dereferences the pointers only within its own blocks.
unsafe impl Sync for Rows {}

/// Number of elements from which waking another thread pays off.
const SERIAL: usize = if cfg!(test) { 64 } else { 1 << 15 };
/// Elements of ggml's largest block.
const MOST_BLOCK: usize = 256;
/// Tasks per thread, so that a disturbed thread does not hold up the others.
const TASKS: usize = 8;

/// Calls `work(row, columns)` in parallel for parts of rows that begin at blocks.
fn share(place: Place<'_>, op: &Rows, work: &(dyn Fn(usize, Range<usize>) + Sync)) {
    let block = op.format.block(op.cols);
    let across = op.cols.div_ceil(block);
    let count = op.rows * across;
    let least = SERIAL.div_ceil(block).max(1);
    let part = count.div_ceil(place.threads.count() * TASKS).max(least);
    place.threads.run(count.div_ceil(part), &|task, _| {
        let (mut at, end) = (task * part, count.min((task + 1) * part));
        while at < end {
            let (row, first) = (at / across, at % across);
            let blocks = (end - at).min(across - first);
            work(row, first * block..op.cols.min((first + blocks) * block));
            at += blocks;
        }
    });
}

/// The codes of some columns of a row, and their scales.
///
/// # Safety
/// The row exists, columns begin at a block, and nothing else uses them meanwhile.
#[inline(always)]
#[allow(clippy::mut_from_ref)]
unsafe fn codes(op: &Rows, row: usize, cols: Range<usize>) -> (&mut [u8], &mut [[u8; 4]]) {
    let (format, block) = (op.format, op.format.block(op.cols));
    let bytes = format.row_bytes(op.cols);
    // SAFETY: the caller's promise; a row is `row_bytes`, its scales begin where the format says.
    unsafe {
        let row = op.packed.add(row * bytes);
        let first = format.code_bytes(cols.start);
        let codes = std::slice::from_raw_parts_mut(row.add(first), format.code_bytes(cols.end) - first);
        let inside = format.scales(op.cols) == 0;
        let (first, count) = if inside { (0, 0) } else { (cols.start / block, cols.len().div_ceil(block)) };
        let scales = row.add(format.scales_at(op.cols)).cast::<[u8; 4]>().add(first);
        (codes, std::slice::from_raw_parts_mut(scales, count))
    }
}

/// Elements of a row.
///
/// # Safety
/// See [`codes`]; elements are stored as `T`.
#[inline(always)]
#[allow(clippy::mut_from_ref)]
unsafe fn plain<T>(op: &Rows, row: usize, cols: Range<usize>) -> &mut [T] {
    // SAFETY: the caller's promise.
    unsafe {
        std::slice::from_raw_parts_mut(op.plain.cast::<T>().add(row * op.cols + cols.start), cols.len())
    }
}

/// Packs rows of f32.
///
/// # Safety
/// Both sides are as [`Rows`] describes, the packed one writable; the processor has `place.isa`.
pub unsafe fn pack(place: Place<'_>, op: &Rows) {
    share(place, op, &|row, cols| {
        // SAFETY: the caller's promise; parts are disjoint.
        unsafe {
            let (codes, scales) = codes(op, row, cols.clone());
            let x = plain::<f32>(op, row, cols.clone());
            if cols.end == op.cols {
                let (end, filled) = (op.format.code_bytes(op.cols), op.format.scales_at(op.cols));
                let row = op.packed.add(row * op.format.row_bytes(op.cols));
                std::ptr::write_bytes(row.add(end), 0, filled - end);
            }
            match op.format {
                BlockFormat::Int8 => pack_int8(x, codes, &mut scales[0]),
                BlockFormat::Ggml(kind) => quantise(kind, x, codes),
                BlockFormat::Grouped(_) | BlockFormat::Octets(_) => {
                    panic!("pack: rows of {} are read and never made", op.format.name())
                }
                BlockFormat::Nf4 => match place.isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2_pack(x, codes, scales),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512_pack(x, codes, scales),
                    _ => pack_nf4(x, codes, scales),
                },
            }
        }
    });
}

/// Unpacks rows to f32 or bf16.
///
/// # Safety
/// See [`pack`], with the plain side writable.
pub unsafe fn unpack(place: Place<'_>, op: &Rows) {
    if let BlockFormat::Grouped(grouped) = op.format {
        return place.threads.run(op.rows, &|row, _| {
            // SAFETY: the caller's promise; rows are disjoint.
            unsafe {
                match op.elem {
                    Elem::F32 => unpack_grouped::<f32>(op, grouped, row),
                    Elem::Bf16 => unpack_grouped::<bf16>(op, grouped, row),
                }
            }
        });
    }
    if let BlockFormat::Octets(kind) = op.format {
        assert!(op.rows.is_multiple_of(OCTET), "unpack: {} interleaved rows", op.rows);
        return place.threads.run(op.rows, &|row, _| {
            // SAFETY: the caller's promise; rows are disjoint.
            unsafe {
                match op.elem {
                    Elem::F32 => unpack_interleaved::<f32>(op, kind, row),
                    Elem::Bf16 => unpack_interleaved::<bf16>(op, kind, row),
                }
            }
        });
    }
    share(place, op, &|row, cols| {
        // SAFETY: the caller's promise; parts are disjoint.
        unsafe {
            let (codes, scales) = codes(op, row, cols.clone());
            match op.elem {
                Elem::F32 => {
                    unpack_part::<f32>(place.isa, op.format, codes, scales, plain(op, row, cols.clone()))
                }
                Elem::Bf16 => {
                    unpack_part::<bf16>(place.isa, op.format, codes, scales, plain(op, row, cols.clone()))
                }
            }
        }
    });
}

/// Output types of unpacking.
trait Out: nf4::Table + Copy {
    fn of(x: f32) -> Self;
}

impl Out for f32 {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        x
    }
}

impl Out for bf16 {
    /// Branch-free; no value is NaN unless its scale is.
    #[inline(always)]
    fn of(x: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
}

/// # Safety
/// The processor has `isa`.
#[inline(always)]
unsafe fn unpack_part<T: Out>(
    isa: Isa,
    format: BlockFormat,
    codes: &[u8],
    scales: &[[u8; 4]],
    out: &mut [T],
) {
    // SAFETY: passed on.
    unsafe {
        match (format, isa) {
            #[cfg(target_arch = "x86_64")]
            (BlockFormat::Int8, Isa::Avx2) => avx2_int8(codes, scales, out),
            #[cfg(target_arch = "x86_64")]
            (BlockFormat::Int8, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx) => {
                avx512_int8(codes, scales, out);
            }
            (BlockFormat::Int8, _) => unpack_int8(codes, scales, out),
            #[cfg(target_arch = "x86_64")]
            (BlockFormat::Nf4, Isa::Avx2) => avx2_nf4(codes, scales, out),
            #[cfg(target_arch = "x86_64")]
            (BlockFormat::Nf4, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx) => {
                avx512_nf4(codes, scales, out);
            }
            (BlockFormat::Nf4, _) => unpack_nf4(codes, scales, out, T::look_up),
            (BlockFormat::Ggml(kind), _) => unpack_ggml(kind, codes, out),
            (BlockFormat::Grouped(_) | BlockFormat::Octets(_), _) => {}
        }
    }
}

#[inline(always)]
fn pack_nf4(x: &[f32], codes: &mut [u8], scales: &mut [[u8; 4]]) {
    for ((x, codes), out) in x.chunks(NF4_BLOCK).zip(codes.chunks_mut(NF4_BLOCK / 2)).zip(scales) {
        let mut block = [0.0; NF4_BLOCK];
        block[..x.len()].copy_from_slice(x);
        let mut lanes = [0.0f32; 16];
        for x in block.as_chunks::<16>().0 {
            for lane in 0..16 {
                lanes[lane] = lanes[lane].max(x[lane].abs());
            }
        }
        let most = lanes.iter().fold(0.0, |most: f32, lane| most.max(*lane));
        let (most, whole) = (if most < f32::MIN_POSITIVE { 0.0 } else { most }, x.len() == NF4_BLOCK);
        // Copied as bits: the least scale is denormal, and would be read as zero.
        let least = if whole { 0 } else { NF4_LEAST.to_bits() };
        *out = if most == 0.0 { least } else { most.to_bits() }.to_le_bytes();
        let scale = if most == 0.0 { 1.0 } else { most };
        let reciprocal = 1.0 / scale;
        let mut found = [0u8; NF4_BLOCK];
        for (code, x) in found.iter_mut().zip(&block) {
            let x = if whole { *x * reciprocal } else { *x / scale };
            let mut above = 0u32;
            for bound in NF4_BOUNDS {
                above += u32::from(x > bound);
            }
            *code = above as u8;
        }
        for (pair, codes) in codes.iter_mut().zip(found.as_chunks::<2>().0) {
            *pair = codes[0] << 4 | codes[1];
        }
    }
}

fn pack_int8(x: &[f32], codes: &mut [u8], out: &mut [u8; 4]) {
    let scale = int8_scale(x.iter().copied());
    *out = scale.to_le_bytes();
    for (code, x) in codes.iter_mut().zip(x) {
        *code = int8_code(*x, scale).cast_unsigned();
    }
}

#[inline(always)]
fn unpack_int8<T: Out>(codes: &[u8], scales: &[[u8; 4]], out: &mut [T]) {
    let scale = f32::from_le_bytes(scales[0]);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = T::of(int8_value(code.cast_signed(), scale));
    }
}

/// Unpacks by the reference definition: formats that are multiplied while packed are rarely unpacked.
fn unpack_ggml<T: Out>(kind: Kind, codes: &[u8], out: &mut [T]) {
    let mut block = [0.0; MOST_BLOCK];
    let block = &mut block[..kind.block()];
    for (codes, out) in codes.chunks(kind.block_bytes()).zip(out.chunks_mut(kind.block())) {
        dequantise(kind, codes, block);
        out.iter_mut().zip(&*block).for_each(|(out, x)| *out = T::of(*x));
    }
}

/// Unpacks a row, also by the reference definition.
///
/// # Safety
/// The row exists on both sides, and nothing else uses it.
unsafe fn unpack_grouped<T: Out>(op: &Rows, grouped: Grouped, row: usize) {
    let bytes = grouped.row_bytes(op.cols);
    // SAFETY: the caller's promise.
    let (packed, out) = unsafe {
        (std::slice::from_raw_parts(op.packed.add(row * bytes), bytes), plain::<T>(op, row, 0..op.cols))
    };
    let mut part = [0.0; MOST_BLOCK];
    for first in (0..op.cols).step_by(MOST_BLOCK) {
        let part = &mut part[..MOST_BLOCK.min(op.cols - first)];
        grouped.unpack(packed, (op.cols, first), part);
        out[first..].iter_mut().zip(&*part).for_each(|(out, x)| *out = T::of(*x));
    }
}

/// Unpacks one of eight interleaved rows.
///
/// # Safety
/// The eight exist on both sides, and nothing else uses the row's elements.
unsafe fn unpack_interleaved<T: Out>(op: &Rows, kind: Kind, row: usize) {
    let bytes = OCTET * op.format.row_bytes(op.cols);
    // SAFETY: the caller's promise.
    let (packed, out) = unsafe {
        let octet = op.packed.add(row / OCTET * bytes);
        (std::slice::from_raw_parts(octet, bytes), plain::<T>(op, row, 0..op.cols))
    };
    let mut part = [0.0; MOST_BLOCK];
    for first in (0..op.cols).step_by(MOST_BLOCK) {
        let part = &mut part[..MOST_BLOCK.min(op.cols - first)];
        dequantise_row(kind, packed, (row % OCTET, first), part);
        out[first..].iter_mut().zip(&*part).for_each(|(out, x)| *out = T::of(*x));
    }
}

/// Unpacks blocks by one table per block; the elements of a partial block are looked up one by one.
#[inline(always)]
fn unpack_nf4<T: Out>(
    codes: &[u8],
    scales: &[[u8; 4]],
    out: &mut [T],
    look_up: impl Fn(&[T; 16], &[u8; NF4_BLOCK / 2], &mut [T; NF4_BLOCK]),
) {
    let blocks = codes.chunks(NF4_BLOCK / 2).zip(out.chunks_mut(NF4_BLOCK));
    for ((codes, out), scale) in blocks.zip(scales) {
        let table = nf4::table(f32::from_le_bytes(*scale), T::of);
        match (codes.as_array(), out.as_mut_array()) {
            (Some(codes), Some(out)) => look_up(&table, codes, out),
            _ => {
                for (index, out) in out.iter_mut().enumerate() {
                    let pair = codes[index / 2];
                    *out = table[usize::from(if index % 2 == 0 { pair >> 4 } else { pair & 15 })];
                }
            }
        }
    }
}

/// Compiles the same loops for an instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! versions {
    ($features:literal, $pack:ident, $int8:ident, $nf4:ident, $look_up:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $pack(x: &[f32], codes: &mut [u8], scales: &mut [[u8; 4]]) {
            pack_nf4(x, codes, scales);
        }

        #[target_feature(enable = $features)]
        unsafe fn $int8<T: Out>(codes: &[u8], scales: &[[u8; 4]], out: &mut [T]) {
            unpack_int8(codes, scales, out);
        }

        #[target_feature(enable = $features)]
        unsafe fn $nf4<T: Out>(codes: &[u8], scales: &[[u8; 4]], out: &mut [T]) {
            unpack_nf4(codes, scales, out, |table, codes, out| {
                // SAFETY: the caller has these features.
                unsafe { T::$look_up(table, codes, out) }
            });
        }
    };
}

#[cfg(target_arch = "x86_64")]
versions!("avx2,fma", avx2_pack, avx2_int8, avx2_nf4, look_up_avx2);
#[cfg(target_arch = "x86_64")]
versions!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma",
    avx512_pack,
    avx512_int8,
    avx512_nf4,
    look_up_avx512
);
