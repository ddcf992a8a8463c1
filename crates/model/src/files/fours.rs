//! Folders in compressed-tensors' layout with projections rounded to four bits: MXFP4, NVFP4 and int4, with the
//! numbers of [`FourBits`].

use std::collections::BTreeMap;
use std::path::Path;

use fathom_tensor::{DType, FourBits};
use serde_json::{Value, json};

use super::coder::{Coder, compressed_config};
use super::folder::FolderOptions;
use super::joined::{to_eight, to_four};
use super::save_quantised::{BlockTensor, block_tensors, outs, save_hf_coded};
use super::source::Source;
use super::values::read_f32;
use super::writer::TensorInfo;
use crate::error::{Error, Result};
use crate::grouped::{GroupedSave, GroupedTensor, Packing4, Zero};
use crate::spec::{RoundTo, Spec};

impl RoundTo {
    /// The format for a model's projections.
    ///
    /// # Errors
    /// Projections whose columns are not whole blocks.
    pub fn of(self, spec: &Spec) -> std::result::Result<FourBits, String> {
        let tensors = block_tensors(spec);
        let format = match self {
            RoundTo::Mxfp4 => FourBits::Mxfp4,
            RoundTo::Nvfp4 => FourBits::Nvfp4,
            RoundTo::Int4 => FourBits::Int4(group_of(&tensors)?),
        };
        let block = format.block();
        let astray = |shape: &[usize]| shape.len() == 2 && !shape[1].is_multiple_of(block);
        match tensors.iter().find(|tensor| astray(&tensor.shape)) {
            None => Ok(format),
            Some(tensor) => Err(format!(
                "{} has {} columns, not whole blocks of {block}; take another format",
                tensor.name, tensor.shape[1]
            )),
        }
    }
}

/// int4's group sizes; the first that fits all projections is used.
const GROUPS: [usize; 3] = [128, 64, 32];

/// The first group size that fits all projections.
///
/// # Errors
/// A width that no group size fits.
pub fn group_of(tensors: &[BlockTensor]) -> std::result::Result<usize, String> {
    let widths = || tensors.iter().filter(|tensor| tensor.shape.len() == 2).map(|tensor| tensor.shape[1]);
    let found = GROUPS.into_iter().find(|group| widths().all(|width| width.is_multiple_of(*group)));
    found.ok_or_else(|| {
        let width = widths().find(|width| !width.is_multiple_of(GROUPS[2])).unwrap_or_default();
        format!("a projection has {width} columns, not whole groups of {}", GROUPS[2])
    })
}

/// Writes a folder with projections rounded to nearest, and the other weights from the first source. Projections come
/// from the second, which may be the same, or f32 masters if there are any. Reading the folder gives the values that
/// quantization-aware training used.
///
/// # Errors
/// Those of [`save_hf_coded`].
pub fn save_hf_rounded(
    (spec, [source, projections]): (&Spec, [&dyn Source; 2]),
    folder: &Path,
    (how, options): (RoundTo, FolderOptions<'_>),
) -> Result<FourBits> {
    let place = source.place("").to_path_buf();
    let format = how.of(spec).map_err(|what| Error::file(&place, what))?;
    let save = |coder: &dyn Coder| save_hf_coded((spec, [source, projections]), folder, (coder, options));
    match format {
        FourBits::Int4(group) => {
            let code = |_: &str, shape, values: Vec<f32>| {
                Ok(GroupedTensor::round(&values, shape, group, Zero::Middle))
            };
            save(&GroupedSave::new((Packing4::Compressed, group), code, |_, _| ()))?;
        }
        FourBits::Mxfp4 => save(&FourSave { format, factors: BTreeMap::new() })?,
        FourBits::Nvfp4 => {
            let dtype = options.weights.dtype;
            save(&FourSave { format, factors: factors(spec, [source, projections], (format, dtype))? })?;
        }
    }
    Ok(format)
}

/// Factor per projection, by name. Projections fused into one weight in memory, or in one expert, share a factor as
/// servers fuse them too: that of the largest of their values.
fn factors(
    spec: &Spec,
    [source, projections]: [&dyn Source; 2],
    (format, dtype): (FourBits, DType),
) -> Result<BTreeMap<String, f32>> {
    let (all, _) = outs(spec, source, dtype)?;
    let mut largest = BTreeMap::new();
    for out in all.iter().filter(|out| out.quantised) {
        let most = largest.entry(out.weight).or_insert(0f32);
        let values = read_f32(projections, &out.from, 0..out.shape[0])?;
        *most = values.iter().fold(*most, |most, x| most.max(x.abs()));
    }
    let named = |name: &str, weight| Some((name.to_string(), format.factor(*largest.get(&weight)?)));
    Ok(all.iter().filter_map(|out| named(&out.name, out.weight)).collect())
}

/// Writes projections as MXFP4 or NVFP4, weights only.
struct FourSave {
    format: FourBits,
    /// By name; 1 if absent.
    factors: BTreeMap<String, f32>,
}

impl Coder for FourSave {
    fn config(&self, skipped: &[String]) -> Value {
        let block = self.format.block();
        let (format, strategy, scales) = match self.format {
            FourBits::Nvfp4 => ("nvfp4-pack-quantized", "tensor_group", "torch.float8_e4m3fn"),
            _ => ("mxfp4-pack-quantized", "group", "torch.uint8"),
        };
        let weights = json!({
            "num_bits": 4, "type": "float", "symmetric": true, "strategy": strategy, "group_size": block, "dynamic": false,
            "scale_dtype": scales,
        });
        compressed_config(format, skipped, (weights, Value::Null))
    }

    fn tensors(&self, name: &str, [rows, cols]: [usize; 2], _dtype: DType) -> Vec<TensorInfo> {
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let info =
            |end: &str, dtype, shape: Vec<usize>| TensorInfo { name: format!("{base}.{end}"), dtype, shape };
        let scales = if self.format.has_factor() { DType::F8E4M3 } else { DType::U8 };
        let mut all = vec![
            info("weight_packed", DType::U8, vec![rows, cols / 2]),
            info("weight_scale", scales, vec![rows, cols / self.format.block()]),
        ];
        if self.format.has_factor() {
            all.push(info("weight_global_scale", DType::F32, vec![1]));
        }
        all
    }

    fn encode(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
        values: Vec<f32>,
    ) -> Result<Vec<(DType, Vec<u8>)>> {
        let (format, block) = (self.format, self.format.block());
        if !cols.is_multiple_of(block) {
            let what = format!("of shape [{rows}, {cols}] has no whole blocks of {block} columns");
            return Err(Error::tensor(Path::new("the new folder"), name, what));
        }
        let factor = self.factors.get(name).copied().unwrap_or(1.0);
        let (mut codes, mut scales) = (Vec::with_capacity(values.len() / 2), Vec::new());
        for x in values.chunks_exact(block) {
            let scale = format.scale(x, factor);
            let code = |x: f32| to_four(format.number(x, scale.times));
            codes.extend(x.as_chunks::<2>().0.iter().map(|[low, high]| code(*low) | code(*high) << 4));
            // A power of two is stored as its exponent.
            let exponent = (scale.stored.to_bits() >> 23) as u8;
            scales.push(if format.has_factor() { to_eight(scale.stored) } else { exponent });
        }
        let mut all = vec![(DType::U8, codes)];
        if format.has_factor() {
            all.extend([(DType::F8E4M3, scales), (DType::F32, factor.to_le_bytes().to_vec())]);
        } else {
            all.push((DType::U8, scales));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::SafeTensors;
    use super::*;

    fn tensor(shape: &[usize]) -> BlockTensor {
        BlockTensor { name: "x".into(), layer: 0, role: "up", expert: None, shape: shape.to_vec() }
    }

    #[test]
    fn groups_are_those_that_fit_all() {
        let of =
            |widths: &[usize]| group_of(&widths.iter().map(|width| tensor(&[8, *width])).collect::<Vec<_>>());
        assert_eq!([of(&[256, 128]).unwrap(), of(&[256, 192]).unwrap(), of(&[96]).unwrap()], [128, 64, 32]);
        assert!(of(&[128, 80]).unwrap_err().contains("80 columns"));
    }

    /// Reference from `oracle/few_bits.py`: codes and scales are compressed-tensors' own. The scale of an all-zero
    /// block is arbitrary.
    #[test]
    fn weights_become_what_the_library_makes_of_them() {
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_few_bits/rounded.safetensors");
        let golden = SafeTensors::open_file(&golden).unwrap();
        // Renamed, to be read as stored.
        let stored = |info: &TensorInfo| info.name.replace('.', ":");
        let bytes = |name: &str| {
            let mut bytes = Vec::new();
            golden.read_rows(name, 0..golden.shape(name).unwrap()[0], &mut bytes).unwrap();
            bytes
        };
        let x = read_f32(&golden, "x", 0..64).unwrap();
        let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        let factor = FourBits::Nvfp4.factor(largest);
        let nvfp4 = [("nvfp4.weight".to_string(), factor)].into_iter().collect();
        let code =
            |_: &str, shape, values: Vec<f32>| Ok(GroupedTensor::round(&values, shape, 32, Zero::Middle));
        let int4 = GroupedSave::new((Packing4::Compressed, 32), code, |_: &str, _: &mut [f32]| ());
        let cases: [(&str, usize, &dyn Coder); 3] = [
            ("mxfp4", 32, &FourSave { format: FourBits::Mxfp4, factors: BTreeMap::new() }),
            ("nvfp4", 16, &FourSave { format: FourBits::Nvfp4, factors: nvfp4 }),
            ("int4", 32, &int4),
        ];
        for (name, block, coder) in cases {
            let name = format!("{name}.weight");
            let infos = coder.tensors(&name, [64, 96], DType::F32);
            let found = coder.encode(&name, [64, 96], x.clone()).unwrap();
            assert_eq!(infos.len(), found.len());
            for (info, (dtype, found)) in infos.iter().zip(found) {
                let expected = bytes(&stored(info));
                assert_eq!((found.len(), dtype), (expected.len(), info.dtype), "{}", info.name);
                assert_eq!(golden.shape(&stored(info)), Some(info.shape.as_slice()), "{}", info.name);
                let scales = info.name.ends_with("weight_scale");
                let each = if scales { found.len() / (x.len() / block) } else { found.len() };
                for (at, (found, expected)) in found.chunks(each).zip(expected.chunks(each)).enumerate() {
                    let zeros = scales && x[at * block..][..block].iter().all(|x| *x == 0.0);
                    assert!(zeros || found == expected, "{}, {at}: {found:?} {expected:?}", info.name);
                }
            }
        }
    }

    #[test]
    fn int4_has_the_numbers_of_training() {
        let x: Vec<f32> = (0..256).map(|at| (at as f32 * 0.37).sin() * 0.1 + 0.03).collect();
        let coded = GroupedTensor::round(&x, [4, 64], 32, Zero::Middle).values();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&coded), bits(&FourBits::Int4(32).round(&x, 1.0)));
    }
}
