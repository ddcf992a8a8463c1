//! Quantized linear layers as GPTQ, AWQ, compressed-tensors, DeepSeek and ModelOpt store them, against their values
//! (`oracle/few_bits.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_model::{
    Area, FolderOptions, GenerationConfig, GroupedSave, GroupedTensor, Init, LlamaSizes, Model, Packing4,
    QuantisedSave, RoundTo, SafeTensors, SaveOptions, Source, Spec, Zero, initialise, open, open_config,
    read_f32, save_hf, save_hf_coded, save_hf_quantised, save_hf_rounded,
};
use fathom_tensor::{BlockFormat, DType, Device, FourBits};

use crate::golden_files::root;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_few_bits")
}

fn bytes(source: &SafeTensors, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    source.read_rows(name, 0..source.shape(name).unwrap()[0], &mut bytes).unwrap();
    bytes
}

#[test]
fn codes_become_what_their_makers_read() {
    let source = SafeTensors::open_folder(&golden()).unwrap();
    let expected = SafeTensors::open_file(&golden().join("expected.safetensors")).unwrap();
    assert_eq!(expected.names().len(), 17);
    let sorted = |mut names: Vec<&str>| -> Vec<String> {
        names.sort_unstable();
        names.into_iter().map(str::to_string).collect()
    };
    assert_eq!(sorted(source.names()), sorted(expected.names()));
    for name in expected.names() {
        assert_eq!(source.shape(name), expected.shape(name), "{name}");
        assert_eq!(source.dtype(name), expected.dtype(name), "{name}");
        let (found, wanted) = (bytes(&source, name), bytes(&expected, name));
        let wrong = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
        assert_eq!(wrong, 0, "{name}: {wrong} of {} bytes", wanted.len());
    }
}

#[test]
fn parts_are_read_as_threads_and_ranks_ask_for_them() {
    let source = SafeTensors::open_folder(&golden()).unwrap();
    for name in
        ["gptq4_ordered.weight", "awq.weight", "int4_zeros.weight", "fp8_blocks.weight", "nvfp4.weight"]
    {
        let (whole, shape) = (bytes(&source, name), source.shape(name).unwrap().to_vec());
        let width = 2 * shape[1];
        let mut stream = source.stream();
        for (start, len) in [(0, 3), (7, 1000), (whole.len() / 3 - 5, 77), (whole.len() - 9, 9)] {
            let mut out = vec![0; len];
            stream.read(name, start as u64, &mut out).unwrap();
            assert!(out == whole[start..start + len], "{name} from {start}");
        }
        let mut out = vec![0; 2 * 5 * 10];
        stream.read_area(name, &Area { rows: 20..25, cols: 30..40 }, &mut out).unwrap();
        for (row, found) in (20..25).zip(out.chunks(20)) {
            assert!(found == &whole[row * width + 60..row * width + 80], "{name}, row {row}");
        }
        assert!(stream.read(name, whole.len() as u64 - 1, &mut [0; 2]).is_err());
    }
}

/// Rows for products have the same values, before rounding.
#[test]
fn rows_for_products_mean_what_is_read() {
    let source = SafeTensors::open_folder(&golden()).unwrap();
    let expected = SafeTensors::open_file(&golden().join("expected.safetensors")).unwrap();
    for name in expected.names() {
        let Some(format) = source.blocks(name) else {
            assert_eq!(name, "gptq4_ordered.weight");
            continue;
        };
        let (rows, cols) = (source.shape(name).unwrap()[0], source.shape(name).unwrap()[1]);
        let (wide, float) = (format.row_bytes(cols), source.dtype(name).unwrap());
        let mut packed = vec![0; rows * wide];
        let (first, later) = packed.split_at_mut(7 * wide);
        source.read_blocks(name, 0..7, first).unwrap();
        source.read_blocks(name, 7..rows, later).unwrap();
        let (mut found, mut row) = (Vec::new(), vec![0.0; cols]);
        for packed in packed.chunks(wide) {
            format.unpack_row(packed, &mut row);
            found.extend(row.iter().flat_map(|x| match float {
                DType::F16 => half::f16::from_f32(*x).to_le_bytes(),
                _ => half::bf16::from_f32(*x).to_le_bytes(),
            }));
        }
        assert!(found == bytes(&expected, name), "{name}: {format:?}");
    }
}

/// A folder with the golden file's tensors and this configuration.
fn with_config(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(golden().join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

#[test]
fn zeros_of_the_second_format_are_stored_as_they_are() {
    let first = SafeTensors::open_folder(&golden()).unwrap();
    let folder =
        with_config(r#"{"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}}"#);
    let second = SafeTensors::open_folder(folder.path()).unwrap();
    let read = |source: &SafeTensors| -> Vec<f32> {
        assert_eq!(source.dtype("gptq8.weight"), Some(DType::F16));
        fathom_model::read_f32(source, "gptq8.weight", 0..64).unwrap()
    };
    let (first, second) = (read(&first), read(&second));
    // A zero lower by one raises a weight by its scale.
    let scales: Vec<f32> = first.iter().zip(&second).map(|(first, second)| second - first).collect();
    assert!(scales.iter().all(|scale| *scale > 0.0));
    assert!(scales[..96].iter().all(|scale| (scale - scales[0]).abs() < 0.02));
}

#[test]
fn what_would_be_read_wrong_is_refused_by_name() {
    let refused = |said: &str, key: &str| {
        let config = format!(r#"{{"model_type": "llama", "quantization_config": {said}}}"#);
        let folder = with_config(&config);
        let error = open_config(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("quantization_config.{key}")), "{error}");
    };
    refused(r#"{"quant_method": "awq", "version": "gemv"}"#, "version");
    refused(r#"{"quant_method": "gptq", "checkpoint_format": "marlin"}"#, "checkpoint_format");
    refused(
        r#"{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}"#,
        "sparsity_config.format",
    );
    refused(
        r#"{"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}"#,
        "transform_config",
    );
}

/// A dense model of two layers, and one with experts.
fn specs() -> [Spec; 2] {
    let dense = Spec::llama(LlamaSizes { max_positions: 64, tied: false, ..LlamaSizes::TINY });
    let mut mixture = open(&root().join("mixtral")).unwrap().spec;
    (mixture.hidden, mixture.ffn) = (64, 96);
    mixture.moe.iter_mut().for_each(|moe| moe.ffn = 96);
    [dense, mixture]
}

/// Modules that a projection shares its factor with; empty for unquantized ones.
fn fused(module: &str) -> &'static [&'static str] {
    match module {
        "q_proj" | "k_proj" | "v_proj" => &["q_proj", "k_proj", "v_proj"],
        "gate_proj" | "up_proj" => &["gate_proj", "up_proj"],
        "o_proj" => &["o_proj"],
        "down_proj" => &["down_proj"],
        "w1" | "w3" => &["w1", "w3"],
        "w2" => &["w2"],
        _ => &[],
    }
}

fn whole(source: &SafeTensors, name: &str) -> Vec<f32> {
    read_f32(source, name, 0..source.shape(name).unwrap()[0]).unwrap()
}

/// The `quantization_config` of a folder.
fn said(folder: &Path) -> serde_json::Value {
    let config = std::fs::read(folder.join("config.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&config).unwrap()["quantization_config"].clone()
}

/// Folders written in four bits are read as their format's values of the weights; NVFP4 has one factor per weight in
/// memory, or per expert.
#[test]
fn folders_in_four_bits_come_back_as_their_numbers() {
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    for spec in specs() {
        let (model, mut params) = Model::declare(&device, &spec, DType::Bf16);
        initialise(&device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
        let [plain, none] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let generation = GenerationConfig::default();
        let options =
            FolderOptions { weights: SaveOptions::new(DType::Bf16), generation: &generation, copy: &[] };
        save_hf(&device, &model, &params, plain.path(), options).unwrap();
        let source = open(plain.path()).unwrap().source;
        let most = |names: &[String]| {
            let all = names.iter().flat_map(|name| whole(&source, name));
            all.fold(0f32, |most, x| most.max(x.abs()))
        };
        for (to, format) in [
            (RoundTo::Mxfp4, FourBits::Mxfp4),
            (RoundTo::Nvfp4, FourBits::Nvfp4),
            (RoundTo::Int4, FourBits::Int4(32)),
        ] {
            let folder = none.path().join(format!("{to:?}"));
            assert_eq!(save_hf_rounded((&spec, [&source, &source]), &folder, (to, options)).unwrap(), format);
            let found = open(&folder).unwrap();
            assert_eq!(found.spec.hidden, spec.hidden);
            let mut rounded = 0;
            for name in source.names() {
                let values = whole(&source, name);
                let (base, module) = name.trim_end_matches(".weight").rsplit_once('.').unwrap_or_default();
                let names: Vec<String> =
                    fused(module).iter().map(|module| format!("{base}.{module}.weight")).collect();
                rounded += usize::from(!names.is_empty());
                let expected = if names.is_empty() {
                    values
                } else {
                    format.round(&values, format.factor(most(&names)))
                };
                let expected = expected.into_iter().map(|x| half::bf16::from_f32(x).to_bits());
                let now = whole(&found.source, name).into_iter().map(|x| half::bf16::from_f32(x).to_bits());
                assert!(now.eq(expected), "{to:?}: {name}");
                assert_eq!(found.source.dtype(name), Some(DType::Bf16), "{to:?}: {name}");
            }
            let (experts, gate) = (spec.moe.as_ref().map_or(1, |moe| moe.experts), "block_sparse_moe.gate");
            assert_eq!(rounded, 2 * (4 + 3 * experts));
            let mut ignored = vec!["lm_head".to_string()];
            if spec.moe.is_some() {
                ignored.extend([0, 1].map(|layer| format!("model.layers.{layer}.{gate}")));
            }
            assert_eq!(said(&folder)["ignore"], serde_json::json!(ignored));
        }
    }
}

/// Stacked experts are not quantized, and the folder says so; bitsandbytes leaves all experts unquantized.
#[test]
fn experts_without_a_layout_stay_as_they_are() {
    let opened = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mxfp4")).unwrap();
    let generation = GenerationConfig::default();
    let options =
        FolderOptions { weights: SaveOptions::new(DType::Bf16), generation: &generation, copy: &[] };
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("int4");
    let both: [&dyn Source; 2] = [&opened.source, &opened.source];
    save_hf_rounded((&opened.spec, both), &to, (RoundTo::Int4, options)).unwrap();
    let found = open(&to).unwrap().source;
    for name in ["gate_up_proj", "down_proj"].map(|part| format!("model.layers.0.mlp.experts.{part}")) {
        assert_eq!(bytes(&found, &name), bytes(&opened.source, &name), "{name}");
    }
    assert!(found.blocks("model.layers.0.self_attn.o_proj.weight").is_some());
    let modules = ["lm_head", "model.layers.0.mlp.router", "model.layers.0.mlp.experts"];
    assert_eq!(said(&to)["ignore"], serde_json::json!(modules));

    let opened = open(&root().join("mixtral")).unwrap();
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let to = folder.path().join("nf4");
    let how = QuantisedSave { format: BlockFormat::Nf4, double: true };
    save_hf_quantised(&device, (&opened.spec, &opened.source), &to, (how, options)).unwrap();
    let found = open(&to).unwrap().source;
    for name in found.names() {
        assert_eq!(found.quantised(name).is_some(), name.contains("self_attn"), "{name}");
    }
    let skipped = said(&to)["llm_int8_skip_modules"].to_string();
    assert!(skipped.contains("\"model.layers.1.block_sparse_moe.experts\""), "{skipped}");
}

/// Transformers 5 has another name for a head: it is excluded under both.
#[test]
fn a_head_stays_by_both_of_its_names() {
    let opened = open(&root().join("gpt_neox")).unwrap();
    let generation = GenerationConfig::default();
    let options =
        FolderOptions { weights: SaveOptions::new(DType::Bf16), generation: &generation, copy: &[] };
    let folder = tempfile::tempdir().unwrap();
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    for format in [BlockFormat::Nf4, BlockFormat::Int8] {
        let to = folder.path().join(format!("{format:?}"));
        let how = QuantisedSave { format, double: true };
        save_hf_quantised(&device, (&opened.spec, &opened.source), &to, (how, options)).unwrap();
        assert_eq!(said(&to)["llm_int8_skip_modules"], serde_json::json!(["embed_out", "lm_head"]));
    }
}

/// Folders of GPTQ and AWQ name the unquantized modules of a mixture, as their readers expect.
#[test]
fn routers_are_left_out_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let [_, spec] = specs();
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    initialise(&device, &model, &mut params, Init { deviation: 0.05, seed: 4 });
    let generation = GenerationConfig::default();
    let options = FolderOptions { weights: SaveOptions::new(DType::F32), generation: &generation, copy: &[] };
    save_hf(&device, &model, &params, &folder.path().join("plain"), options).unwrap();
    let source = open(&folder.path().join("plain")).unwrap().source;
    let write = |packing: Packing4, zero: Zero| {
        let to = folder.path().join(format!("{packing:?}"));
        let code = |_: &str, shape, values: Vec<f32>| Ok(GroupedTensor::round(&values, shape, 32, zero));
        // Gates are adjusted like vectors.
        let adjust = |name: &str, values: &mut [f32]| {
            if name.ends_with("gate.weight") {
                values.iter_mut().for_each(|x| *x *= 2.0);
            }
        };
        let coder = GroupedSave::new((packing, 32), code, adjust);
        let sources: [&dyn Source; 2] = [&source, &source];
        save_hf_coded((&spec, sources), &to, (&coder, options)).unwrap();
        let found = open(&to).unwrap().source;
        let expert = "model.layers.1.block_sparse_moe.experts.3.w2.weight";
        let [values, now] = [&source, &found].map(|source| whole(source, expert));
        let rounded = GroupedTensor::round(&values, [64, 96], 32, zero).values();
        // Read in the type of its scales.
        let off = now.iter().zip(&rounded).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
        assert!(off < 1e-3 * 0.2, "{packing:?}: {off}");
        let gate = "model.layers.0.block_sparse_moe.gate.weight";
        let twice: Vec<f32> = whole(&source, gate).iter().map(|x| 2.0 * x).collect();
        assert_eq!(whole(&found, gate), twice);
        said(&to)
    };
    let gates = [0, 1].map(|layer| format!("model.layers.{layer}.block_sparse_moe.gate"));
    assert_eq!(write(Packing4::Awq, Zero::Lowest)["modules_to_not_convert"], serde_json::json!(gates));
    let patterns = gates.map(|gate| format!("-:^{}$", gate.replace('.', "\\.")));
    let said = write(Packing4::Gptq, Zero::Middle);
    let found: Vec<&String> = said["dynamic"].as_object().unwrap().keys().collect();
    assert_eq!(found, patterns.iter().collect::<Vec<_>>());
}
