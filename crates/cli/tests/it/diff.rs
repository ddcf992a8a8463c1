//! `fathom diff` names the first step and tensor at which two runs differ.

use std::fs;
use std::path::Path;

use fathom_model::SafeTensors;

use crate::run::{TINY, write_text};
use crate::{arg, good};

/// Two steps per stage, with further settings.
fn train(text: &Path, out: &Path, settings: &[&str]) {
    let fixed = ["quickstart", "--steps", "2", "--data", arg(text), "--out", arg(out)];
    let all = fixed.into_iter().chain(TINY).chain(["eval.enabled=false"]).chain(settings.iter().copied());
    good(all.map(String::from));
}

fn compared(left: &Path, right: &Path) -> serde_json::Value {
    serde_json::from_str(&good(["diff", "--json", arg(left), arg(right)])).unwrap()
}

#[test]
fn the_first_step_and_the_first_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    train(&at("text"), &at("a"), &[]);
    train(&at("text"), &at("b"), &[]);
    let same = compared(&at("a"), &at("b"));
    assert_eq!(
        (&same["checkpoint"]["step"], &same["checkpoint"]["differing"]),
        (&6.into(), &0.into()),
        "{same}"
    );
    let shown = good(["diff", arg(&at("a")), arg(&at("b"))]);
    assert!(shown.contains("checkpoint of step 6: the same bits in all"), "{shown}");

    // One element of one tensor of the newest checkpoint.
    let name = "model.layers.1.mlp.down_proj.weight";
    let file = at("b/checkpoints/step-00000006/moment2/model.safetensors");
    let stored = SafeTensors::open_file(&file).unwrap().stored(name).unwrap().clone();
    let place = stored.start as usize + 4 * (3 * stored.shape[1] + 5);
    let mut bytes = fs::read(&file).unwrap();
    let before = f32::from_le_bytes(*bytes[place..].first_chunk().unwrap());
    bytes[place..place + 4].copy_from_slice(&(before + 2.0).to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let one = compared(&at("a"), &at("b"));
    let (first, elements) = (&one["checkpoint"]["first"], &one["checkpoint"]["first"]["elements"]);
    assert_eq!((first["part"].as_str(), first["name"].as_str()), (Some("moment2"), Some(name)), "{one}");
    assert_eq!((&elements["index"], &elements["count"]), (&serde_json::json!([3, 5]), &1.into()));
    let number = |key: &str| elements[key].as_f64().unwrap() as f32;
    assert_eq!((number("left"), number("right")), (before, before + 2.0));
    assert_eq!(number("max_abs_difference"), (before - (before + 2.0)).abs());
    assert_eq!(one["checkpoint"]["differing"], 1);
    let shown = good(["diff", arg(&at("a")), arg(&at("b"))]);
    assert!(shown.contains(&format!("first moment2/{name} {:?} at [3, 5]", stored.shape)), "{shown}");

    // With another learning rate the first update differs, in the first tensor of the file.
    train(&at("text"), &at("c"), &["optimizer.lr=0.002"]);
    let other = compared(&at("a"), &at("c"));
    let keys: Vec<_> = other["recipe"].as_array().unwrap().iter().map(|change| &change["path"]).collect();
    assert_eq!(keys, ["run.out", "optimizer.lr"], "{other}");
    assert_eq!(other["parting"]["step"], 2, "the first loss is that of the first weights");
    let first = &other["checkpoint"]["first"];
    assert_eq!(first["name"].as_str(), Some("model.embed_tokens.weight"), "{other}");
    let figures: Vec<&str> =
        other["figures"].as_array().unwrap().iter().map(|pair| pair["name"].as_str().unwrap()).collect();
    for figure in ["planned peak, live", "pool peak", "loss at step 6", "planned optimizer at the peak"] {
        assert!(figures.contains(&figure), "{figure}: {figures:?}");
    }
}
