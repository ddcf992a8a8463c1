//! Random operands. Zeros would give better figures: processors clock higher on them.

use fathom_tensor::{DType, Device, Tensor};

/// Elements generated and written at a time.
const CHUNK: usize = 1 << 20;

/// A small generator (Marsaglia's xorshift64*); statistical quality does not matter here, varied bits do.
pub struct Random(u64);

impl Random {
    /// A separate stream for every seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// An integer below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 33) as usize % end
    }

    /// Roughly normal: the sum of four uniforms, with deviation one.
    fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: i32 = (0..4).map(|part| (bits >> (16 * part)) as u16 as i32 - 32_768).sum();
        sum as f32 * (1.732_050_8 / 65_536.0)
    }
}

/// Fills a plain f32 or bf16 tensor.
pub fn fill(device: &Device, tensor: &Tensor, seed: u64) {
    let mut random = Random::new(seed);
    let flat = tensor.reshape(1, tensor.len());
    let width = tensor.dtype().bytes();
    let mut bytes = Vec::with_capacity(CHUNK * width);
    for start in (0..flat.cols()).step_by(CHUNK) {
        let end = flat.cols().min(start + CHUNK);
        bytes.clear();
        for _ in start..end {
            let element = random.normal().to_le_bytes();
            // A bf16 is the upper half of an f32.
            bytes.extend_from_slice(&element[4 - width..]);
        }
        device.machine.write(&flat.view_cols(start..end), &bytes);
    }
    debug_assert!(matches!(tensor.dtype(), DType::F32 | DType::Bf16));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_deviation_one() {
        let mut random = Random::new(3);
        let values: Vec<f32> = (0..100_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f32>() / 1e5;
        let square = values.iter().map(|x| x * x).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.03, "{mean} {square}");
    }
}
