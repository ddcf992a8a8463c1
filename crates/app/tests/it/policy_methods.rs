//! All methods of training on rewards.

use std::fs;

use fathom_app::export::{Conversion, Target, export};
use fathom_app::train::Order;
use fathom_app::{Silent, train};

use crate::policy::{events, job, prepare};

/// Every recipe makes steps; rejection trains on the best of each group.
#[test]
fn every_method_makes_steps() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    for (name, more) in [
        ("dapo", &["rl.dynamic_sampling=true", "rl.dynamic_rounds=2", "rl.overlong_tokens=4"][..]),
        ("gspo", &["rl.loss=gspo", "rl.beta=0.1", "rl.kl_corrected=true"]),
        (
            "rloo",
            &["rl.loss=rloo", "rl.advantage=leave_one_out", "rl.beta=0.1", "rl.kl=k1", "rl.kl_in=reward"],
        ),
        ("reinforce", &["rl.loss=reinforce", "rl.advantage=reinforce_pp", "rl.mask_truncated=true"]),
        (
            "ppo",
            &["rl.loss=ppo", "rl.advantage=gae", "rl.epochs=2", "rl.beta=0.1", "rl.kl=k1", "rl.kl_in=reward"],
        ),
        ("rejection", &["rl.loss=rejection", "rl.keep=2", "rl.top_p=0.9"]),
        ("nucleus", &["rl.top_p=0.9", "rl.top_k=40", "rl.min_p=0.01", "rl.beta=0.1", "rl.epochs=2"]),
    ] {
        let job = job(folder, name, &[&["stage.0.steps=2"], more].concat());
        train(&job, &Order::default(), &Silent).unwrap();
        let steps = events(&folder.join(name), "step");
        assert_eq!(steps.len(), 2, "{name}");
        assert!(steps.iter().all(|step| step["loss"].is_number() && step["grad_norm"].is_number()), "{name}");
    }
    // A checkpoint has the value head, which only training uses; the exported model is the one that the run wrote.
    let saved = fs::read_dir(folder.join("ppo/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let saved = saved.filter(|path| path.join("state.json").is_file()).max().unwrap();
    let to = folder.join("exported");
    let what = Target::Q8_0.conversion(saved, to.clone());
    export(&Conversion { gguf: None, ..what }, &Silent).unwrap();
    let files = ["model.safetensors", "config.json"];
    let [found, want] =
        [to, folder.join("ppo/model")].map(|at| files.map(|file| fs::read(at.join(file)).unwrap()));
    assert!(found == want);
}
