//! Quantization by calibration text, for several families.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_app::export::Target;
use fathom_app::{Machine, Silent, quantize, train};
use fathom_cpu::Cpu;
use fathom_model::{
    FolderOptions, GenerationConfig, Init, Model, SaveOptions, initialise, open_config, save_hf,
};
use fathom_tensor::{DType, Device};
use fathom_train::recipe::MachineKind;
use serde_json::Value;

/// Models in which attention and MLP read the same norm are calibrated by it.
#[test]
fn models_with_one_norm_are_rounded_by_text() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = crate::small(folder, &["eval.enabled=false"]);
    train(&run, &train::Order::default(), &Silent).unwrap();
    let text = fs::read_dir(folder.join("text")).unwrap().next().unwrap().unwrap().path();
    let machine = Machine::of_kind(MachineKind::Cpu, 2, &Silent);
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    for family in ["phi", "cohere2", "falcon_7b"] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(family);
        let mut config: Value =
            serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
        config["vocab_size"] = 384.into();
        // Whole groups of 32 columns.
        for key in ["intermediate_size", "ffn_hidden_size"] {
            if !config[key].is_null() {
                config[key] = 64.into();
            }
        }
        let own = folder.join(format!("{family} config"));
        fs::create_dir(&own).unwrap();
        fs::write(own.join("config.json"), config.to_string()).unwrap();
        let (spec, _) = open_config(&own).unwrap();
        let (model, mut params) = Model::declare(&device, &spec, DType::F32);
        initialise(&device, &model, &mut params, Init { deviation: 0.05, seed: 4 });
        let (from, generation) = (folder.join(family), GenerationConfig::default());
        let tokenizer = [folder.join("run/model/tokenizer.json")];
        let options = FolderOptions {
            weights: SaveOptions::new(DType::F32),
            generation: &generation,
            copy: &tokenizer,
        };
        save_hf(&device, &model, &params, &from, options).unwrap();
        let request = quantize::Request {
            model: from,
            to: folder.join(format!("{family} gptq")),
            format: Target::Gptq,
            data: Some(text.clone()),
            samples: 4,
            sample_tokens: 64,
        };
        let done =
            quantize::run(&request, &machine, &Silent).unwrap_or_else(|error| panic!("{family}: {error}"));
        let [before, after] = done.losses.unwrap();
        assert!((before - after).abs() < 0.1, "{family}: {before} {after}");
    }
}
