//! Number types in memory.

use std::sync::LazyLock;

use cudarc::cublaslt::sys::cudaDataType_t as Type;
use half::{bf16, f16};

/// A number type supported in products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    /// Four exponent bits, three mantissa bits, no infinity.
    E4m3,
    /// Five exponent bits, two mantissa bits.
    E5m2,
}

/// An eight-bit float: mantissa bits, exponent bias, largest number.
struct Small {
    mantissa: i32,
    bias: i32,
    max: f32,
}

const E4M3: Small = Small { mantissa: 3, bias: 7, max: 448.0 };
const E5M2: Small = Small { mantissa: 2, bias: 15, max: 57_344.0 };

impl Small {
    /// Rounds to nearest, ties to even, with saturation.
    fn encode(&self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return sign | 0x7f;
        }
        let least = 1 - self.bias;
        let exponent_of = |x: f32| ((x.to_bits() >> 23) as i32 - 127).max(least);
        let size = value.abs().min(self.max);
        let unit = 2f32.powi(exponent_of(size) - self.mantissa);
        let rounded = ((size / unit).round_ties_even() * unit).min(self.max);
        let exponent = exponent_of(rounded);
        // Mantissa in units of the final exponent, including the leading one of normal numbers.
        let units = (rounded / 2f32.powi(exponent - self.mantissa)) as i32;
        sign | (((exponent - least) << self.mantissa) + units) as u8
    }

    fn decode(&self, byte: u8) -> f32 {
        let bits = i32::from(byte & 0x7f);
        let (exponent, part) = (bits >> self.mantissa, bits & ((1 << self.mantissa) - 1));
        let one = 1 << self.mantissa;
        let size = if exponent == 0 {
            part as f32 * 2f32.powi(1 - self.bias - self.mantissa)
        } else {
            (one + part) as f32 * 2f32.powi(exponent - self.bias - self.mantissa)
        };
        let size = match (size > self.max, self.mantissa == 2 && part == 0) {
            (false, _) => size,
            (true, true) => f32::INFINITY,
            (true, false) => f32::NAN,
        };
        if byte & 0x80 == 0 { size } else { -size }
    }

    fn table(&self) -> [f32; 256] {
        std::array::from_fn(|byte| self.decode(byte as u8))
    }
}

static E4M3_VALUES: LazyLock<[f32; 256]> = LazyLock::new(|| E4M3.table());
static E5M2_VALUES: LazyLock<[f32; 256]> = LazyLock::new(|| E5M2.table());

impl Kind {
    /// The type of the header's number; `None` if the rehearsal does not support it.
    pub fn of(number: u32) -> Option<Kind> {
        let all = [
            (Type::CUDA_R_32F, Kind::F32),
            (Type::CUDA_R_16F, Kind::F16),
            (Type::CUDA_R_16BF, Kind::Bf16),
            (Type::CUDA_R_8F_E4M3, Kind::E4m3),
            (Type::CUDA_R_8F_E5M2, Kind::E5m2),
        ];
        all.into_iter().find(|(name, _)| *name as u32 == number).map(|(_, kind)| kind)
    }

    /// Bytes per element.
    pub fn size(self) -> u64 {
        match self {
            Kind::F32 => 4,
            Kind::F16 | Kind::Bf16 => 2,
            Kind::E4m3 | Kind::E5m2 => 1,
        }
    }

    /// True for eight-bit types, which products scale.
    pub fn is_narrow(self) -> bool {
        self.size() == 1
    }

    /// Reads as many elements as fit.
    ///
    /// # Safety
    /// The address is that of as many readable elements of this type.
    pub unsafe fn read(self, address: u64, to: &mut [f32]) {
        let from: *const u8 = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(from, to.len() * self.size() as usize) };
        let pairs = || bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        match self {
            Kind::F32 => {
                let values = bytes.chunks_exact(4).map(|four| [four[0], four[1], four[2], four[3]]);
                to.iter_mut().zip(values).for_each(|(to, four)| *to = f32::from_le_bytes(four));
            }
            Kind::F16 => {
                to.iter_mut().zip(pairs()).for_each(|(to, bits)| *to = f16::from_bits(bits).to_f32())
            }
            Kind::Bf16 => {
                to.iter_mut().zip(pairs()).for_each(|(to, bits)| *to = bf16::from_bits(bits).to_f32());
            }
            Kind::E4m3 | Kind::E5m2 => {
                let values = if self == Kind::E4m3 { &*E4M3_VALUES } else { &*E5M2_VALUES };
                to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = values[usize::from(*byte)]);
            }
        }
    }

    /// Writes all elements, rounded to nearest.
    ///
    /// # Safety
    /// The address is that of as many writable elements of this type.
    pub unsafe fn write(self, from: &[f32], address: u64) {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        let size = self.size() as usize;
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to, from.len() * size) };
        let all = from.iter().zip(bytes.chunks_exact_mut(size));
        match self {
            Kind::F32 => all.for_each(|(value, to)| to.copy_from_slice(&value.to_le_bytes())),
            Kind::F16 => all.for_each(|(value, to)| to.copy_from_slice(&f16::from_f32(*value).to_le_bytes())),
            Kind::Bf16 => {
                all.for_each(|(value, to)| to.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()))
            }
            Kind::E4m3 => all.for_each(|(value, to)| to[0] = E4M3.encode(*value)),
            Kind::E5m2 => all.for_each(|(value, to)| to[0] = E5M2.encode(*value)),
        }
    }
}

/// Rounds to the mantissa of a tensor core's TF32.
pub fn tf32(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    let bits = value.to_bits();
    let half = 0xfff + (bits >> 13 & 1);
    f32::from_bits((bits + half) & !0x1fff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_the_values_of_their_formats() {
        let check = |small: &Small, byte: u8, value: f32| assert_eq!(small.decode(byte), value, "{byte:#x}");
        check(&E4M3, 0x7e, 448.0);
        check(&E4M3, 0x38, 1.0);
        check(&E4M3, 0x01, 2f32.powi(-9));
        check(&E4M3, 0x08, 2f32.powi(-6));
        check(&E5M2, 0x7b, 57_344.0);
        check(&E5M2, 0x7c, f32::INFINITY);
        check(&E5M2, 0x3c, 1.0);
        check(&E5M2, 0x01, 2f32.powi(-16));
        assert!(E4M3.decode(0x7f).is_nan() && E5M2.decode(0x7d).is_nan());
    }

    #[test]
    fn what_is_decoded_is_encoded_as_it_was_and_what_is_between_goes_to_the_nearest() {
        for small in [E4M3, E5M2] {
            for byte in (0..=255u8).filter(|byte| small.decode(*byte).is_finite()) {
                assert_eq!(small.encode(small.decode(byte)), byte);
            }
            let top = (0..=0x7f).filter(|byte| small.decode(*byte).is_finite()).max().unwrap();
            for byte in 0..top {
                let (low, high) = (small.decode(byte), small.decode(byte + 1));
                let even = byte + (byte & 1);
                assert_eq!(small.encode(f32::midpoint(low, high)), even, "between {low} and {high}");
                assert_eq!(small.encode(0.51 * low + 0.49 * high), byte);
                assert_eq!(small.encode(0.49 * low + 0.51 * high), byte + 1);
            }
            assert_eq!(small.decode(small.encode(-1e9)), -small.max);
            assert!(small.decode(small.encode(f32::NAN)).is_nan());
        }
    }

    #[test]
    fn tf32_has_ten_bits() {
        assert_eq!(tf32(1.0 + 2f32.powi(-11)), 1.0);
        assert_eq!(tf32(1.0 + 3.0 * 2f32.powi(-11)), 1.0 + 2f32.powi(-9));
        assert_eq!(tf32(-1.0 - 2f32.powi(-10)), -1.0 - 2f32.powi(-10));
    }
}
