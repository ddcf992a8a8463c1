//! Finds tensors stored as several, by names and shapes.

use std::collections::BTreeMap;

use fathom_tensor::DType;

use super::super::bitsandbytes::{ReadAll, codes_name};
use super::super::header::TensorEntry;
use super::{FourScales, JoinedPart, Layout, PackedTensor};

/// Side of an FP8 block, and default number of inputs per scale where only counts tell.
const SIDE: usize = 128;
/// Values per scale in NVFP4 and in MXFP4.
const GROUPS: [usize; 2] = [16, 32];
/// Suffixes of scales for activations and caches, which are not needed.
const LEFT_OUT: [&str; 6] =
    [".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale"];

/// Tensors found in files.
#[derive(Debug, Default)]
pub(in super::super) struct PackedTensors {
    /// By name.
    pub joined: BTreeMap<String, PackedTensor>,
    /// Codes stored under the name of the tensor itself.
    pub moved: Vec<String>,
    /// Tensors that are not read.
    pub left_out: Vec<String>,
}

/// The tensors of some files.
struct Files<'a> {
    all: &'a BTreeMap<&'a str, &'a TensorEntry>,
    read: ReadAll<'a>,
    /// Offset by which GPTQ zeros are stored too low.
    less: u32,
}

/// Finds all tensors stored as several. `less` is the offset by which GPTQ zeros are stored too low.
///
/// # Errors
/// Inconsistent parts: the tensor's name, and the reason.
pub(in super::super) fn find(
    all: &BTreeMap<&str, &TensorEntry>,
    less: u32,
    read: ReadAll<'_>,
) -> Result<PackedTensors, (String, String)> {
    let (files, mut found) = (Files { all, read, less }, PackedTensors::default());
    for name in all.keys() {
        let (tensor, joined) = if let Some(tensor) = name.strip_suffix("_blocks") {
            (tensor.to_string(), files.experts(name, tensor))
        } else if let Some(base) = name.strip_suffix(".qweight") {
            (format!("{base}.weight"), Some(files.grouped(base)))
        } else if let Some(base) = name.strip_suffix(".weight_packed") {
            (format!("{base}.weight"), Some(files.packed(base)))
        } else if name.ends_with(".weight") {
            (name.to_string(), files.scaled(name))
        } else {
            continue;
        };
        match joined {
            Some(Ok(joined)) => {
                found.moved.extend((tensor == **name).then(|| tensor.clone()));
                found.joined.insert(tensor, joined);
            }
            Some(Err(what)) => return Err((name.to_string(), what)),
            None => {}
        }
    }
    if !found.joined.is_empty() {
        let unused = |name: &&&str| LEFT_OUT.iter().any(|end| name.ends_with(end));
        found.left_out = all.keys().filter(unused).map(|name| name.to_string()).collect();
        let shapes = all.keys().filter(|name| name.ends_with(".weight_shape"));
        found.left_out.extend(shapes.map(|name| name.to_string()));
    }
    Ok(found)
}

fn product(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Elements per scale along a side with `count` scales.
fn side(size: usize, count: usize) -> Option<usize> {
    match count {
        _ if size.div_ceil(SIDE) == count => Some(SIDE),
        0 => None,
        _ => size.is_multiple_of(count).then(|| size / count),
    }
}

impl Files<'_> {
    fn part(&self, name: &str, dtypes: &[DType]) -> Option<(JoinedPart, &[usize])> {
        let stored = self.all.get(name)?;
        let dtype = stored.dtype().filter(|dtype| dtypes.contains(dtype))?;
        let fits = product(&stored.shape) > 0 || stored.shape.is_empty();
        fits.then(|| {
            (JoinedPart { name: name.to_string(), dtype, bytes: stored.bytes }, stored.shape.as_slice())
        })
    }

    fn need(&self, name: &str, dtypes: &[DType]) -> Result<(JoinedPart, &[usize]), String> {
        self.part(name, dtypes).ok_or_else(|| {
            let kinds: Vec<String> = dtypes.iter().map(|dtype| format!("{dtype:?}")).collect();
            format!("is in few bits, and {name} is missing, empty or not of {}", kinds.join(", "))
        })
    }

    /// The type to decode to: that of the scales, but bf16 if they are f32.
    fn read_as(scales: &JoinedPart) -> DType {
        if scales.dtype == DType::F32 { DType::Bf16 } else { scales.dtype }
    }

    fn experts(&self, blocks: &str, tensor: &str) -> Option<Result<PackedTensor, String>> {
        let (blocks, shape) = self.part(blocks, &[DType::U8])?;
        let (scales, of_scales) = self.part(&format!("{tensor}_scales"), &[DType::U8])?;
        let [experts, out, groups, half] = *shape else { return None };
        let fits = 2 * half == GROUPS[1] && of_scales == [experts, out, groups];
        let shape = vec![experts, groups * GROUPS[1], out];
        let joined =
            PackedTensor { parts: vec![blocks, scales], shape, dtype: DType::Bf16, layout: Layout::Experts };
        fits.then_some(Ok(joined))
    }

    /// GPTQ and AWQ, distinguished by shape.
    fn grouped(&self, base: &str) -> Result<PackedTensor, String> {
        let (codes, shape) = self.need(&format!("{base}.qweight"), &[DType::I32])?;
        let (zeros, of_zeros) = self.need(&format!("{base}.qzeros"), &[DType::I32])?;
        let (scales, of_scales) = self.need(&format!("{base}.scales"), &FLOATS)?;
        let ([tall, wide], [groups, out]) = (shape, of_scales) else {
            return Err(format!("is of shape {shape:?} with scales of {of_scales:?}"));
        };
        let dtype = Files::read_as(&scales);
        let wrong =
            || format!("is of shape {shape:?}, with zeros of {of_zeros:?} and scales of {of_scales:?}");
        let bits = of_zeros.get(1).map_or(0, |words| 32 * words / out);
        let even = |inputs: usize| inputs.is_multiple_of(*groups);
        let zeros_fit = *of_zeros == [*groups, out * bits / 32];
        if wide == out && zeros_fit && [2, 4, 8].contains(&bits) && (out * bits).is_multiple_of(32) {
            let inputs = tall * 32 / bits;
            let order = self.part(&format!("{base}.g_idx"), &[DType::I32]);
            let order = order.filter(|(_, shape)| **shape == [inputs]).map(|(part, _)| part);
            if order.is_none() && !even(inputs) {
                return Err(wrong());
            }
            let ordered = self.ordered(order.as_ref(), (inputs, *groups))?;
            let parts = [codes, zeros, scales].into_iter().chain(order).collect();
            let layout = Layout::Gptq { bits, less: self.less, ordered };
            return Ok(PackedTensor { parts, shape: vec![*out, inputs], dtype, layout });
        }
        if 8 * wide == *out && zeros_fit && bits == 4 && even(*tall) {
            let parts = vec![codes, zeros, scales];
            return Ok(PackedTensor { parts, shape: vec![*out, *tall], dtype, layout: Layout::Awq });
        }
        Err(format!("{}; GPTQ in 2, 4 and 8 bits and AWQ's `gemm` in 4 can be read", wrong()))
    }

    /// Returns whether groups consist of other than neighbouring inputs. Refuses unknown groups.
    fn ordered(&self, order: Option<&JoinedPart>, (inputs, groups): (usize, usize)) -> Result<bool, String> {
        let Some(order) = order else { return Ok(false) };
        let bytes = (self.read)(&order.name).map_err(|error| error.to_string())?;
        let all = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word) as usize);
        if let Some(group) = all.clone().find(|group| *group >= groups) {
            return Err(format!("has an input in group {group} of {groups}"));
        }
        if 4 * all.len() as u64 != order.bytes {
            return Err(format!("has {} inputs, too many", order.bytes / 4));
        }
        let size = inputs.div_ceil(groups);
        Ok(all.enumerate().any(|(input, group)| group != input / size))
    }

    /// compressed-tensors' codes of less than a byte.
    fn packed(&self, base: &str) -> Result<PackedTensor, String> {
        let (codes, shape) = self.need(&format!("{base}.weight_packed"), &[DType::I32, DType::U8])?;
        let scale = format!("{base}.weight_scale");
        let [out, words] = *shape else { return Err(format!("is of shape {shape:?}")) };
        if codes.dtype == DType::U8 {
            let all = format!("{base}.weight_global_scale");
            return self.fours(codes, [out, 2 * words], &scale, (&all, FourScales::Over));
        }
        let name = format!("{base}.weight_shape");
        self.need(&name, &[DType::I64, DType::I32])?;
        let bytes = (self.read)(&name).map_err(|error| error.to_string())?;
        let width = self.all[name.as_str()].element_bytes;
        let sizes: Vec<usize> = bytes.chunks_exact(width).map(low_word).collect();
        let [rows, inputs] = sizes[..] else { return Err(format!("has {} sizes", sizes.len())) };
        let fits = |bits: &usize| rows == out && inputs.div_ceil(32 / bits) == words;
        let Some(bits) = [4, 8, 2].into_iter().find(fits) else {
            return Err(format!("of {sizes:?} is stored as {shape:?}; 2, 4 and 8 bits can be read"));
        };
        let (scales, of_scales) = self.need(&scale, &FLOATS)?;
        let groups = match of_scales {
            [rows, groups] if *rows == out && inputs.is_multiple_of(*groups) => *groups,
            _ => return Err(format!("has scales of shape {of_scales:?}")),
        };
        let zeros = self.part(&format!("{base}.weight_zero_point"), &[DType::I32]);
        if let Some((_, shape)) = &zeros
            && **shape != [out.div_ceil(32 / bits), groups]
        {
            return Err(format!("has zeros of shape {shape:?}"));
        }
        let order = self.part(&format!("{base}.weight_g_idx"), &[DType::I32]).map(|(part, _)| part);
        let order = order.filter(|order| order.bytes == 4 * inputs as u64);
        let ordered = self.ordered(order.as_ref(), (inputs, groups))?;
        let layout = Layout::Integers { bits, zeros: zeros.is_some(), ordered };
        let dtype = Files::read_as(&scales);
        let parts = [codes, scales].into_iter().chain(zeros.map(|(part, _)| part)).chain(order).collect();
        Ok(PackedTensor { parts, shape: vec![out, inputs], dtype, layout })
    }

    fn fours(
        &self,
        codes: JoinedPart,
        [out, inputs]: [usize; 2],
        scale: &str,
        (one, how): (&str, FourScales),
    ) -> Result<PackedTensor, String> {
        let (scales, of_scales) = self.need(scale, &[DType::F8E4M3, DType::U8])?;
        let nvfp4 = scales.dtype == DType::F8E4M3;
        let group = GROUPS[usize::from(!nvfp4)];
        if *of_scales != [out, inputs / group] || !inputs.is_multiple_of(group) {
            return Err(format!("of [{out}, {inputs}] in 4 bits has scales of shape {of_scales:?}"));
        }
        let mut parts = vec![codes, scales];
        if nvfp4 {
            parts.push(self.need(one, &[DType::F32])?.0);
        }
        let scales = if nvfp4 { how } else { FourScales::PowersOfTwo };
        let layout = Layout::Fours { group, scales };
        Ok(PackedTensor { parts, shape: vec![out, inputs], dtype: DType::Bf16, layout })
    }

    /// Codes of a byte, or half a byte, per element, under the weight's own name.
    fn scaled(&self, name: &str) -> Option<Result<PackedTensor, String>> {
        let (codes, shape) = self.part(name, &[DType::F8E4M3, DType::I8, DType::U8])?;
        let stem = name.strip_suffix("weight")?;
        let scale = [format!("{stem}weight_scale_inv"), format!("{stem}weight_scale")]
            .into_iter()
            .find(|name| self.all.contains_key(name.as_str()))?;
        let [out, inputs] = *shape else { return Some(Err(format!("is of shape {shape:?}"))) };
        let float = codes.dtype == DType::F8E4M3;
        let moved = JoinedPart { name: codes_name(name), ..codes };
        if moved.dtype == DType::U8 {
            let all = format!("{stem}weight_scale_2");
            return Some(self.fours(moved, [out, 2 * inputs], &scale, (&all, FourScales::Times)));
        }
        Some(self.bytes(moved, ([out, inputs], float), &scale, &format!("{stem}weight_zero_point")))
    }

    fn bytes(
        &self,
        codes: JoinedPart,
        ([out, inputs], float): ([usize; 2], bool),
        scale: &str,
        zero: &str,
    ) -> Result<PackedTensor, String> {
        let (scales, of_scales) = self.need(scale, &FLOATS)?;
        let block = match *of_scales {
            _ if product(of_scales) == 1 => Some([out, inputs]),
            [rows] | [rows, 1] if rows == out => Some([1, inputs]),
            [rows, cols] => side(out, rows).zip(side(inputs, cols)).map(|(tall, wide)| [tall, wide]),
            _ => None,
        };
        let block = block.ok_or_else(|| format!("of [{out}, {inputs}] has scales of shape {of_scales:?}"))?;
        let zeros = self.part(zero, &[DType::I8]).filter(|_| !float);
        if let Some((_, shape)) = &zeros
            && product(shape) != product(of_scales)
        {
            return Err(format!("has zeros of shape {shape:?} and scales of {of_scales:?}"));
        }
        let layout = Layout::Bytes { float, block, zeros: zeros.is_some() };
        let dtype = Files::read_as(&scales);
        let parts = [codes, scales].into_iter().chain(zeros.map(|(part, _)| part)).collect();
        Ok(PackedTensor { parts, shape: vec![out, inputs], dtype, layout })
    }
}

/// Types that scales may have.
const FLOATS: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

fn low_word(bytes: &[u8]) -> usize {
    bytes.first_chunk::<4>().map_or(0, |word| u32::from_le_bytes(*word) as usize)
}
