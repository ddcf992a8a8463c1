//! Fuzzer entry: any bytes as a `config.json`, and a plan of the model that they describe.

use std::path::Path;

use fathom_grad::Places;
use fathom_model::{Caps, Family};
use fathom_tensor::{DType, Profile};
use serde_json::{Map, Value};

use super::plan;
use crate::in_step::InStep;

/// Tokens of the step.
const TOKENS: usize = 256;
/// Number of layers that are planned; all have the same sizes.
const LAYERS: usize = 2;

/// Parses a configuration and plans a step of the model's first layers, with everything kept and with nothing kept.
/// Input may be refused; nothing may panic.
pub fn fuzz_config(data: &[u8]) {
    let Ok(map) = serde_json::from_slice::<Map<String, Value>>(data) else { return };
    let Ok(mut spec) = Family::read(Path::new("config.json"), &map) else { return };
    // An accepted configuration is written, or refused by name.
    let _ = Family::write(Path::new("config.json"), &spec);
    spec.layers.truncate(LAYERS);
    for places in [Places::none(), Places::full().with_tiles(Some(128))] {
        let how = InStep::plain(places, Caps { docs: 2, seq_tokens: TOKENS });
        let _ = plan(&Profile::portable(1), &spec, DType::Bf16, &how, 1, TOKENS);
    }
}
