//! Models with quantized folders: weights stay quantized, answers match those of the dequantized elements, and memory
//! matches the plan.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_model::{
    Area, Coder, FolderOptions, Fp8Save, GenerationConfig, GroupedSave, GroupedTensor, HfFolder, Model,
    Packing4, Result, RoundTo, SaveOptions, Source, Stream, Zero, load, open, save_hf_coded, save_hf_rounded,
};
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta};

use crate::batch::{Bed, WAYS, steady};
use crate::packed::{BUDGET, bed, cpu, folder, held, text};

/// A folder's quantized tensors as f32, not rounded to the type of their scales.
struct Exact<'a>(&'a dyn Source);

impl Exact<'_> {
    /// Elements of experts in one tensor are exact in bf16.
    fn format(&self, name: &str) -> Option<BlockFormat> {
        self.0.blocks(name).filter(|_| self.0.shape(name).is_some_and(|shape| shape.len() == 2))
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Option<Vec<u8>> {
        let (format, shape) = (self.format(name)?, self.0.shape(name)?);
        let (wide, mut row) = (format.row_bytes(shape[1]), vec![0.0f32; shape[1]]);
        let mut packed = vec![0; rows.len() * wide];
        self.0.read_blocks(name, rows, &mut packed).unwrap();
        let mut out = Vec::new();
        for packed in packed.chunks(wide) {
            format.unpack_row(packed, &mut row);
            out.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        }
        Some(out)
    }
}

impl Source for Exact<'_> {
    fn names(&self) -> Vec<&str> {
        self.0.names()
    }
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.shape(name)
    }
    fn dtype(&self, name: &str) -> Option<DType> {
        if self.format(name).is_some() { Some(DType::F32) } else { self.0.dtype(name) }
    }
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        match self.rows(name, rows.clone()) {
            Some(bytes) => {
                *out = bytes;
                Ok(())
            }
            None => self.0.read_rows(name, rows, out),
        }
    }
    fn stream(&self) -> Box<dyn Stream + '_> {
        Box::new(ExactStream(self, self.0.stream()))
    }
    fn place(&self, name: &str) -> &Path {
        self.0.place(name)
    }
}

struct ExactStream<'a>(&'a Exact<'a>, Box<dyn Stream + 'a>);

impl Stream for ExactStream<'_> {
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        let rows = self.0.shape(name).unwrap()[0];
        let Some(all) = self.0.rows(name, 0..rows) else { return self.1.read(name, start, out) };
        out.copy_from_slice(&all[start as usize..][..out.len()]);
        Ok(())
    }
    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()> {
        let Some(all) = self.0.rows(name, area.rows.clone()) else {
            return self.1.read_area(name, area, out);
        };
        let (wide, cols) = (4 * self.0.shape(name).unwrap()[1], area.cols.clone());
        for (row, out) in all.chunks(wide).zip(out.chunks_mut(4 * cols.len())) {
            out.copy_from_slice(&row[4 * cols.start..4 * cols.end]);
        }
        Ok(())
    }
}

/// Writes a quantized folder from a plain one.
pub type Write<'a> = &'a dyn Fn(&HfFolder, &Path);

fn options(generation: &GenerationConfig) -> FolderOptions<'_> {
    FolderOptions { weights: SaveOptions::new(DType::Bf16), generation, copy: &[] }
}

pub fn rounded(plain: &HfFolder, to: &Path, how: RoundTo) {
    let generation = GenerationConfig::default();
    let sources: [&dyn Source; 2] = [&plain.source, &plain.source];
    save_hf_rounded((&plain.spec, sources), to, (how, options(&generation))).unwrap();
}

pub fn coded(plain: &HfFolder, to: &Path, coder: &dyn Coder) {
    let generation = GenerationConfig::default();
    let sources: [&dyn Source; 2] = [&plain.source, &plain.source];
    save_hf_coded((&plain.spec, sources), to, (coder, options(&generation))).unwrap();
}

pub fn grouped(plain: &HfFolder, to: &Path, (packing, zero): (Packing4, Zero)) {
    let code = |_: &str, shape, values: Vec<f32>| Ok(GroupedTensor::round(&values, shape, 64, zero));
    coded(plain, to, &GroupedSave::new((packing, 64), code, |_: &str, _: &mut [f32]| ()));
}

/// Formats of folders, with what writes them.
pub const FORMATS: [(&str, Write<'static>); 6] = [
    ("gptq", &|plain, to| grouped(plain, to, (Packing4::Gptq, Zero::Middle))),
    ("awq", &|plain, to| grouped(plain, to, (Packing4::Awq, Zero::Lowest))),
    ("int4", &|plain, to| rounded(plain, to, RoundTo::Int4)),
    ("mxfp4", &|plain, to| rounded(plain, to, RoundTo::Mxfp4)),
    ("nvfp4", &|plain, to| rounded(plain, to, RoundTo::Nvfp4)),
    ("fp8", &|plain, to| coded(plain, to, &Fp8Save)),
];

#[test]
fn folders_in_few_bits_answer_as_their_elements_do() {
    let at = tempfile::tempdir().unwrap();
    folder(at.path(), false);
    let plain = open(at.path()).unwrap();
    for (name, write) in FORMATS {
        let to = at.path().join(name);
        write(&plain, &to);
        answers(name, &open(&to).unwrap(), (4 * 3, 96));
    }
}

/// Checks that a model with `few` quantized weights has the losses of their elements, the same for any batch and chunk,
/// and that a plan charges the same memory as a run.
pub fn answers(name: &str, opened: &HfFolder, (few, vocab): (usize, u32)) {
    let of = |seed: usize| text(seed, 5 + 9 * seed).into_iter().map(|id| id % vocab).collect();
    let documents: Vec<Vec<u32>> = (1..7).map(of).collect();
    let losses = |bed: &Bed| bed.engine(64).losses_of(&documents).unwrap().concat();
    let [elements, by_bf16] = [DType::F32, DType::Bf16].map(|dtype| {
        let device = cpu();
        let (model, mut params) = Model::declare(&device, &opened.spec, dtype);
        load(&device, &model, &mut params, &Exact(&opened.source)).unwrap();
        losses(&bed(device, model, params))
    });
    // The median is compared: in bf16 a router may choose another expert for one token, whose error is a hundred times
    // all others.
    let off = |x: &[f32]| {
        let mut errors: Vec<f32> = x.iter().zip(&elements).map(|(x, y)| (x - y).abs()).collect();
        errors.sort_unstable_by(f32::total_cmp);
        errors[errors.len() / 2]
    };
    let by_bf16 = off(&by_bf16);
    // The same as with blocks of GGUF; in bf16 both sides round their intermediate results.
    for (dtype, share) in [(DType::F32, 0.125), (DType::Bf16, 1.25)] {
        let packed = held(opened, dtype, true);
        let in_few = |value: &fathom_grad::Value| {
            value.as_blocked().and_then(|bytes| bytes.packing()).is_some_and(|packing| !packing.is_numbers())
        };
        let found = packed.params.iter().filter(|(_, param)| in_few(&param.value)).count();
        assert_eq!(found, few, "{name}: weights in few bits");
        let most = off(&losses(&packed));
        println!("{name}, {dtype:?}: losses are off by {most}, unpacked in bf16 by {by_bf16}");
        assert!(most < share * by_bf16, "{name}, {dtype:?}: losses are off by {most}, in bf16 by {by_bf16}");
        if name.starts_with("awq") && dtype == DType::F32 {
            steady(&packed, name, &WAYS[1..2]);
        }
    }
    // A plan charges the same memory as a run.
    let live = |stored: bool| held(opened, DType::Bf16, stored).device.pool.usage().live;
    let (packed, unpacked) = (live(true), live(false));
    assert!(packed < unpacked, "{name}: {packed} bytes packed, {unpacked} unpacked");
    let meta = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), BUDGET);
    let declared = Model::declare_stored(&meta, &opened.spec, DType::Bf16, &opened.source);
    assert_eq!(meta.pool.usage().live, packed, "{name}");
    drop(declared);
}
