//! Converts elements between stored and in-memory types, chunk by chunk.

use fathom_tensor::DType;
use half::{bf16, f16};

/// Converts between f32, bf16 and f16, rounding to nearest even. `out` is overwritten.
///
/// # Panics
/// If a type is none of the three.
#[track_caller]
pub(super) fn convert(from: DType, bytes: &[u8], to: DType, out: &mut Vec<u8>) {
    out.resize(bytes.len() / from.bytes() * to.bytes(), 0);
    convert_into(from, bytes, to, out);
}

/// Like [`convert`], into a buffer of matching size.
///
/// # Panics
/// If a type is none of the three, or the counts differ.
#[track_caller]
pub(crate) fn convert_into(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) {
    use DType::{Bf16, F16, F32};
    assert_eq!(
        bytes.len() / from.bytes(),
        out.len() / to.bytes(),
        "convert: elements of {from:?} and {to:?}"
    );
    match (from, to) {
        _ if from == to => out.copy_from_slice(bytes),
        (F32, Bf16) => map(bytes, out, |x| round_bf16(f32::from_le_bytes(x))),
        (F32, F16) => map(bytes, out, |x| f16::from_f32(f32::from_le_bytes(x)).to_le_bytes()),
        (Bf16, F32) => map(bytes, out, |[low, high]: [u8; 2]| [0, 0, low, high]),
        (F16, F32) => map(bytes, out, |x| f16::from_le_bytes(x).to_f32().to_le_bytes()),
        (F16, Bf16) => map(bytes, out, |x| round_bf16(f16::from_le_bytes(x).to_f32())),
        (Bf16, F16) => map(bytes, out, |x| f16::from_f32(bf16::from_le_bytes(x).to_f32()).to_le_bytes()),
        _ => panic!("convert: {from:?} to {to:?}"),
    }
}

/// Maps elements of A bytes to elements of B bytes, in a form that the compiler vectorizes.
fn map<const A: usize, const B: usize>(bytes: &[u8], out: &mut [u8], element: impl Fn([u8; A]) -> [u8; B]) {
    for (from, to) in bytes.as_chunks::<A>().0.iter().zip(out.as_chunks_mut::<B>().0) {
        *to = element(*from);
    }
}

/// Rounds to nearest even without a branch; NaN stays NaN.
fn round_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded } as u16).to_le_bytes()
}

/// Returns whether [`convert`] supports the type.
pub(crate) fn is_convertible(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
}

/// Transposes [rows, cols] to [cols, rows], with elements of `element_bytes`. `out` is overwritten.
pub(crate) fn transpose(bytes: &[u8], [rows, cols]: [usize; 2], element_bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(bytes.len());
    for col in 0..cols {
        for row in 0..rows {
            let at = (row * cols + col) * element_bytes;
            out.extend_from_slice(&bytes[at..at + element_bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(b: &[u8]) -> f32 {
        f32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    #[test]
    fn conversions_agree_with_the_definition() {
        let values = [0.0_f32, -1.5, 3.140_625, 65504.0, 1e-8, f32::INFINITY, 1.003_906_3];
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (mut narrow, mut back, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for to in [DType::Bf16, DType::F16] {
            convert(DType::F32, &bytes, to, &mut narrow);
            convert(to, &narrow, DType::F32, &mut back);
            convert(DType::F32, &back, to, &mut other);
            assert_eq!((narrow.len(), &narrow), (14, &other));
            for (value, rounded) in values.iter().zip(back.chunks_exact(4)) {
                let rounded = single(rounded);
                assert!(*value == rounded || (value - rounded).abs() <= value.abs() / 256.0 + 1e-7);
            }
        }
        let every_256th = (0..=u32::MAX >> 8).map(|bits| f32::from_bits(bits << 8 | 0x7f & bits));
        for value in every_256th.chain([f32::NAN, -f32::NAN, f32::MAX, f32::MIN_POSITIVE]) {
            assert_eq!(round_bf16(value), bf16::from_f32(value).to_le_bytes(), "{value:e}");
        }
        transpose(&[1, 2, 3, 4, 5, 6], [2, 3], 1, &mut other);
        assert_eq!(other, [1, 4, 2, 5, 3, 6]);
    }
}
