//! Linears in few bits as GPTQ, AWQ, compressed-tensors, DeepSeek and ModelOpt store them, against what they stand for
//! (`oracle/few_bits.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_model::{
    Area, FolderOptions, GenerationConfig, Init, LlamaSizes, Model, RoundTo, SafeTensors, SaveOptions,
    Source, Spec, initialise, open, open_config, read_f32, save_hf, save_hf_rounded,
};
use fathom_tensor::{DType, Device, FourBits};

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

/// Rows that products take as they are stand for the same, before it is rounded.
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

/// A folder with the golden file's tensors and a configuration of its own.
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
    // A zero that is lower by one is a weight that is higher by a scale.
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

/// Folders that are written in four bits are read as the numbers that their formats have for the weights: of NVFP4 with one factor for
/// what is one weight in memory.
#[test]
fn folders_in_four_bits_come_back_as_their_numbers() {
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let spec = Spec::llama(LlamaSizes {
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 131,
        rope_theta: 1e4,
        max_positions: 64,
        tied: false,
    });
    let (model, mut params) = Model::declare(&device, &spec, DType::Bf16);
    initialise(&device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
    let [plain, none] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let generation = GenerationConfig::default();
    let options =
        FolderOptions { weights: SaveOptions::new(DType::Bf16), generation: &generation, copy: &[] };
    save_hf(&device, &model, &params, plain.path(), options).unwrap();
    let source = open(plain.path()).unwrap().source;
    let whole =
        |source: &SafeTensors, name: &str| read_f32(source, name, 0..source.shape(name).unwrap()[0]).unwrap();
    let most = |names: &[&str]| {
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
        for name in source.names() {
            let values = whole(&source, name);
            let (base, module) = name.trim_end_matches(".weight").rsplit_once('.').unwrap_or_default();
            let fused: &[&str] = match module {
                "q_proj" | "k_proj" | "v_proj" => &["q_proj", "k_proj", "v_proj"],
                "gate_proj" | "up_proj" => &["gate_proj", "up_proj"],
                "o_proj" => &["o_proj"],
                "down_proj" => &["down_proj"],
                _ => &[],
            };
            let names: Vec<String> = fused.iter().map(|module| format!("{base}.{module}.weight")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let expected =
                if fused.is_empty() { values } else { format.round(&values, format.factor(most(&names))) };
            let expected = expected.into_iter().map(|x| half::bf16::from_f32(x).to_bits());
            let now = whole(&found.source, name).into_iter().map(|x| half::bf16::from_f32(x).to_bits());
            assert!(now.eq(expected), "{to:?}: {name}");
            assert_eq!(found.source.dtype(name), Some(DType::Bf16), "{to:?}: {name}");
        }
    }
}
