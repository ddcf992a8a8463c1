//! Four-bit layouts in files: compressed-tensors' `pack-quantized`, GPTQ's first format, AWQ's `gemm`.

use std::cell::RefCell;
use std::path::Path;

use fathom_tensor::DType;
use half::f16;
use serde_json::{Value, json};

use super::GroupedTensor;
use crate::error::{Error, Result};
use crate::files::{Coder, TensorInfo, compressed_config};

/// Columns of an AWQ word in bit order.
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Codes per word.
const WORD: usize = 8;

/// A four-bit layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing4 {
    /// compressed-tensors.
    Compressed,
    /// GPTQ.
    Gptq,
    /// AWQ.
    Awq,
}

/// Computes a projection's codes from its name, sizes and values.
pub type Code<'a> = dyn FnMut(&str, [usize; 2], Vec<f32>) -> Result<GroupedTensor> + 'a;
/// Adjusts the values of an unquantized tensor, by name.
pub type Adjust<'a> = dyn Fn(&str, &mut [f32]) + 'a;

/// Writes projections in four bits per group.
pub struct GroupedSave<'a> {
    packing: Packing4,
    group: usize,
    code: RefCell<Box<Code<'a>>>,
    adjust: Box<Adjust<'a>>,
}

impl<'a> GroupedSave<'a> {
    /// Uses the codes from `code`, and passes unquantized tensors through `adjust`.
    pub fn new(
        (packing, group): (Packing4, usize),
        code: impl FnMut(&str, [usize; 2], Vec<f32>) -> Result<GroupedTensor> + 'a,
        adjust: impl Fn(&str, &mut [f32]) + 'a,
    ) -> GroupedSave<'a> {
        GroupedSave { packing, group, code: RefCell::new(Box::new(code)), adjust: Box::new(adjust) }
    }

    fn check(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<()> {
        if cols.is_multiple_of(self.group) && rows.is_multiple_of(WORD) {
            return Ok(());
        }
        let what = format!(
            "of shape [{rows}, {cols}] has no whole groups of {} columns, or no whole words of {WORD} rows",
            self.group
        );
        Err(Error::tensor(Path::new("the new folder"), name, what))
    }
}

impl Coder for GroupedSave<'_> {
    fn config(&self, skipped: &[String]) -> Value {
        let group = self.group;
        // Both exclude the head by default.
        let gates = || skipped.iter().filter(|module| module.as_str() != "lm_head");
        match self.packing {
            Packing4::Compressed => {
                let weights = json!({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": group, "dynamic": false});
                compressed_config("pack-quantized", skipped, (weights, Value::Null))
            }
            Packing4::Gptq => {
                let mut said = json!({
                    "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": false, "sym": true, "checkpoint_format": "gptq",
                    "lm_head": false, "true_sequential": false, "static_groups": false, "damp_percent": 0.01,
                });
                // GPTQModel and vLLM exclude a module by a pattern after `-:`.
                let pattern = |module: &String| (format!("-:^{}$", module.replace('.', "\\.")), json!({}));
                let gates: serde_json::Map<String, Value> = gates().map(pattern).collect();
                if !gates.is_empty() {
                    said["dynamic"] = Value::Object(gates);
                }
                said
            }
            Packing4::Awq => {
                let gates: Vec<&String> = gates().collect();
                json!({
                    "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm",
                    "modules_to_not_convert": if gates.is_empty() { Value::Null } else { json!(gates) },
                })
            }
        }
    }

    fn tensors(&self, name: &str, [rows, cols]: [usize; 2], dtype: DType) -> Vec<TensorInfo> {
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let info = |end: &str, dtype, shape: &[usize]| TensorInfo {
            name: format!("{base}.{end}"),
            dtype,
            shape: shape.to_vec(),
        };
        let groups = cols / self.group;
        match self.packing {
            Packing4::Compressed => vec![
                info("weight_packed", DType::I32, &[rows, cols / WORD]),
                info("weight_scale", dtype, &[rows, groups]),
                info("weight_shape", DType::I64, &[2]),
            ],
            Packing4::Gptq => vec![
                info("qweight", DType::I32, &[cols / WORD, rows]),
                info("qzeros", DType::I32, &[groups, rows / WORD]),
                info("scales", DType::F16, &[groups, rows]),
                info("g_idx", DType::I32, &[cols]),
            ],
            Packing4::Awq => vec![
                info("qweight", DType::I32, &[cols, rows / WORD]),
                info("qzeros", DType::I32, &[groups, rows / WORD]),
                info("scales", DType::F16, &[groups, rows]),
            ],
        }
    }

    fn encode(&self, name: &str, shape: [usize; 2], values: Vec<f32>) -> Result<Vec<(DType, Vec<u8>)>> {
        self.check(name, shape)?;
        let coded = (self.code.borrow_mut())(name, shape, values)?;
        let ([rows, cols], groups) = (shape, shape[1] / self.group);
        let turned = |values: &[u8], wide: usize| -> Vec<u8> {
            (0..wide).flat_map(|col| values.iter().skip(col).step_by(wide).copied()).collect()
        };
        let scales: Vec<u8> = match self.packing {
            Packing4::Compressed => coded.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
            _ => {
                let turned = (0..groups).flat_map(|group| coded.scales.iter().skip(group).step_by(groups));
                turned.flat_map(|scale| f16::from_f32(*scale).to_le_bytes()).collect()
            }
        };
        let plain = [0, 1, 2, 3, 4, 5, 6, 7];
        Ok(match self.packing {
            Packing4::Compressed => {
                let sizes = [rows as u64, cols as u64].iter().flat_map(|size| size.to_le_bytes()).collect();
                vec![(DType::I32, words(&coded.codes, plain)), (DType::F32, scales), (DType::I64, sizes)]
            }
            Packing4::Gptq => {
                // Words have a column's codes of eight inputs: [cols / 8, rows].
                let by_column = words(&coded.codes, plain);
                let by_column: Vec<u8> = (0..cols / WORD)
                    .flat_map(|word| by_column.as_chunks::<4>().0.iter().skip(word).step_by(cols / WORD))
                    .flatten()
                    .copied()
                    .collect();
                let zeros: Vec<u8> =
                    turned(&coded.zeros, groups).iter().map(|zero| (zero + 15) % 16).collect();
                let order = (0..cols).flat_map(|col| ((col / self.group) as i32).to_le_bytes()).collect();
                vec![
                    (DType::I32, by_column),
                    (DType::I32, words(&zeros, plain)),
                    (DType::F16, scales),
                    (DType::I32, order),
                ]
            }
            Packing4::Awq => vec![
                (DType::I32, words(&turned(&coded.codes, cols), AWQ)),
                (DType::I32, words(&turned(&coded.zeros, groups), AWQ)),
                (DType::F16, scales),
            ],
        })
    }

    fn adjust(&self, name: &str, values: &mut [f32]) {
        (self.adjust)(name, values);
    }
}

/// Packs eight codes per word, in the bit order `order`.
fn words(codes: &[u8], order: [usize; 8]) -> Vec<u8> {
    let word = |codes: &[u8; 8]| {
        let bits = order.iter().enumerate().map(|(at, from)| u32::from(codes[*from]) << (4 * at));
        bits.fold(0, |word, bits| word | bits).to_le_bytes()
    };
    codes.as_chunks::<8>().0.iter().flat_map(word).collect()
}
