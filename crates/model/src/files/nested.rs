//! Double quantization (Dettmers et al., 2023, section 3): NF4's scales are stored in eight bits, in blocks of 256,
//! with their mean subtracted.

/// Number of scales per block.
pub(crate) const NESTED_BLOCK: usize = 256;

/// Values of the codes, ascending: bitsandbytes' signed dynamic map of seven exponents (Dettmers et al., 2021),
/// computed in f32 like PyTorch.
pub(crate) fn dynamic_map() -> [f32; 256] {
    let mut values = vec![0.0, 1.0];
    for exponent in 0..7 {
        let steps = 1usize << exponent;
        let factor = 10f64.powi(exponent - 6) as f32;
        let bounds: Vec<f32> = (0..=steps).map(|at| between(at, steps)).collect();
        for pair in bounds.windows(2) {
            let mean = (pair[0] + pair[1]) / 2.0;
            values.extend([factor * mean, -factor * mean]);
        }
    }
    values.sort_by(f32::total_cmp);
    let mut map = [0.0; 256];
    map.iter_mut().zip(values).for_each(|(to, value)| *to = value);
    map
}

/// Element of `linspace(0.1, 1)` with `steps` steps: computed from the nearer end, rounded once.
fn between(at: usize, steps: usize) -> f32 {
    let (start, end) = (0.1f32, 1.0f32);
    let step = (end - start) / steps as f32;
    if at < steps.div_ceil(2) {
        step.mul_add(at as f32, start)
    } else {
        (-step).mul_add((steps - at) as f32, end)
    }
}

/// Scales quantized to eight bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NestedScales {
    /// One code per scale.
    pub codes: Vec<u8>,
    /// Largest magnitude of each block.
    pub scales: Vec<f32>,
    /// Mean of the scales, added to each.
    pub offset: f32,
}

impl NestedScales {
    /// Quantizes the scales of one tensor.
    pub fn of(scales: &[f32]) -> NestedScales {
        let mean = scales.iter().map(|scale| f64::from(*scale)).sum::<f64>() / scales.len().max(1) as f64;
        let offset = mean as f32;
        let bounds: Vec<f32> = dynamic_map().windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        let (mut codes, mut tops) = (Vec::with_capacity(scales.len()), Vec::new());
        for block in scales.chunks(NESTED_BLOCK) {
            let top = block.iter().fold(0.0, |most: f32, scale| most.max((scale - offset).abs()));
            let factor = 1.0 / top.max(f32::MIN_POSITIVE);
            codes.extend(block.iter().map(|scale| {
                let x = ((scale - offset) * factor).clamp(-1.0, 1.0);
                bounds.partition_point(|bound| *bound < x) as u8
            }));
            tops.push(top);
        }
        NestedScales { codes, scales: tops, offset }
    }

    /// Dequantizes the scales.
    pub fn decode(&self) -> Vec<f32> {
        let map = dynamic_map();
        let scale =
            |(at, code): (usize, &u8)| decode(&map, *code, self.scales[at / NESTED_BLOCK], self.offset);
        self.codes.iter().enumerate().map(scale).collect()
    }
}

pub(crate) fn decode(map: &[f32], code: u8, scale: f32, offset: f32) -> f32 {
    map[usize::from(code)] * scale + offset
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::files::values::read_f32;
    use crate::files::{SafeTensors, Source};

    /// The map is exact; codes may differ at the limits of bitsandbytes' approximate table (`oracle/nf4.py`).
    #[test]
    fn it_is_that_of_bitsandbytes() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_nf4/tensors.safetensors");
        let golden = SafeTensors::open_file(&file).unwrap();
        let floats = |name: &str| read_f32(&golden, name, 0..golden.shape(name).unwrap()[0]).unwrap();
        assert_eq!(floats("map"), dynamic_map());
        let nested = NestedScales::of(&floats("nested.plain"));
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs());
        assert!(
            near(&[nested.offset], &floats("nested.offset"))
                && near(&nested.scales, &floats("nested.absmax"))
        );
        let mut theirs = Vec::new();
        golden.read_rows("nested.codes", 0..nested.codes.len(), &mut theirs).unwrap();
        let off = |(a, b): (&u8, &u8)| a.abs_diff(*b);
        let all: Vec<u8> = nested.codes.iter().zip(&theirs).map(off).filter(|off| *off > 0).collect();
        assert!(
            all.iter().all(|off| *off == 1) && all.len() * 500 <= theirs.len(),
            "{} of {}",
            all.len(),
            theirs.len()
        );
        // bitsandbytes' decoding of the same codes.
        let same = NestedScales {
            codes: theirs,
            scales: floats("nested.absmax"),
            offset: floats("nested.offset")[0],
        };
        assert_eq!(same.decode(), floats("nested.out"));
    }
}
