//! The shipped recipe `mesh-parity`: every axis and some combinations against one rank.

use std::fs;
use std::path::Path;

use crate::run::{TINY, write_text};
use crate::{arg, good, rows};

/// Losses and norms of a run's steps.
fn train(folder: &Path, name: &str, sets: &[&str]) -> Vec<[f64; 2]> {
    let (text, out) = (folder.join("text"), folder.join(name));
    let [data, out_key] = [format!("data.paths=[\"{}\"]", arg(&text)), format!("run.out={}", arg(&out))];
    let run = ["train", "mesh-parity", &data, &out_key];
    good(run.into_iter().chain(sets.iter().copied()));
    let log = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let steps = rows(&log).into_iter().filter(|row| row["event"] == "step");
    steps.map(|row| ["loss", "grad_norm"].map(|key| row[key].as_f64().unwrap())).collect()
}

#[test]
fn meshes_compute_what_one_rank_does() {
    let folder = tempfile::tempdir().unwrap();
    write_text(&folder.path().join("text"));
    let sgd = ["optimizer.kind=sgd", "optimizer.lr=0.1"];
    let ones =
        [&[][..], &sgd].map(|optimizer| train(folder.path(), &format!("one{}", optimizer.len()), optimizer));
    for one in &ones {
        assert!(one.len() == 20 && one[0][0] - one[19][0] >= 1.0, "{one:?}");
    }
    // The learning rate is constant, so a shorter run is the beginning of a longer one. For bitwise equality a few
    // steps suffice; with another order of sums, the last step's differences count. SGD runs on one mesh of each
    // kind: the arithmetic is the same.
    let short = "stage.0.steps=6";
    for (name, mesh, optimizer, exact) in [
        ("pp", &["mesh.pp=2", "mesh.layout=[1, 3]"][..], &[][..], true),
        ("zero-bubble", &["mesh.pp=2", "mesh.schedule=zero_bubble"], &[], true),
        ("virtual", &["mesh.pp=2", "mesh.virtual_stages=2"], &[], true),
        ("pp-sgd", &["mesh.pp=2", "mesh.layout=[1, 3]"], &sgd, true),
        ("dp", &["mesh.dp=2", "mesh.sharding=optim_grads"], &[], false),
        ("tp", &["mesh.tp=2"], &[], false),
        ("cp", &["mesh.cp=2"], &[], false),
        (
            "tp-pp-dp",
            &["mesh.tp=2", "mesh.pp=2", "mesh.dp=2", "mesh.sharding=optim_grads_params"],
            &[],
            false,
        ),
        (
            "tp-pp-dp-sgd",
            &["mesh.tp=2", "mesh.pp=2", "mesh.dp=2", "mesh.sharding=optim_grads_params"],
            &sgd,
            false,
        ),
        ("pp-dp-cp", &["mesh.pp=2", "mesh.dp=2", "mesh.cp=2"], &[], false),
    ] {
        let one = &ones[usize::from(!optimizer.is_empty())];
        let steps = if exact { &[short][..] } else { &[] };
        let found = train(folder.path(), name, &[mesh, optimizer, steps].concat());
        let apart = |step: usize, at: usize| (found[step][at] / one[step][at] - 1.0).abs();
        let within = |step: usize, bound: f64| (0..2).all(|at| apart(step, at) <= bound);
        if exact {
            assert_eq!(found, one[..6], "{name}")
        } else {
            assert!(within(0, 1e-6) && within(19, 1e-5), "{name}: {found:?} {one:?}")
        }
    }
}

/// A model too large for any rank during training is exported all the same, like one rank's.
#[test]
fn a_model_larger_than_a_rank_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    write_text(&folder.path().join("text"));
    let large = ["model.hidden=512", "model.ffn=4096", "model.precision=bf16", "stage.0.micro_batches=2"];
    let short = ["stage.0.seq_tokens=128", "stage.0.steps=1", "activations.offload_modules=all"];
    let offloaded = ["machine.offload_optimizer=true", "machine.offload_weights=true"];
    let tight = ["mesh.pp=2", "machine.memory_bytes=330MiB"];
    let keys = [&large[..], &short, &offloaded].concat();
    let one = train(folder.path(), "one", &keys);
    assert_eq!(train(folder.path(), "two", &[&keys[..], &tight].concat()), one);
    let file = |run: &str, name: &str| fs::read(folder.path().join(run).join("model").join(name)).unwrap();
    for name in ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json"] {
        assert!(file("one", name) == file("two", name), "{name}");
    }
}

/// No rank has a whole model during training, so saved models are measured at the end: the figures of one rank, in
/// the log and in TensorBoard.
#[test]
fn a_run_over_ranks_is_measured_before_and_after_its_extension() {
    let folder = tempfile::tempdir().unwrap();
    write_text(&folder.path().join("text"));
    fs::write(
        folder.path().join("two.toml"),
        "[[stage]]\nseq_tokens = 64\nsteps = 2\n[[stage]]\nseq_tokens = 128\nsteps = 2\nrope_type = \"yarn\"\n",
    )
    .unwrap();
    let sizes = TINY.iter().filter(|key| !key.starts_with("stage.")).copied();
    let sizes: Vec<&str> = sizes
        .chain(["eval.tokens=256", "run.tensorboard=true", "checkpoint.keep=1", "data.recall_share=0.1"])
        .collect();
    let data = format!("data.paths=[\"{}\"]", arg(&folder.path().join("text")));
    let recipe = folder.path().join("two.toml");
    let measured = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let key = format!("run.out={}", arg(&out));
        let run = ["train", arg(&recipe), &data, &key];
        good(run.into_iter().chain(sizes.iter().copied()).chain(more.iter().copied()));
        let log = rows(&fs::read_to_string(out.join("metrics.jsonl")).unwrap());
        let shown: Vec<u8> = fs::read_dir(out.join("tensorboard"))
            .unwrap()
            .flat_map(|file| fs::read(file.unwrap().path()).unwrap())
            .collect();
        let bits: Vec<_> = log.iter().filter(|row| row["event"] == "eval_bits").collect();
        for row in &bits {
            let tag = format!("val/bits_per_byte/{}", row["name"].as_str().unwrap());
            assert!(shown.windows(tag.len()).any(|part| part == tag.as_bytes()), "{name}: {tag}");
        }
        let by_position = log.iter().filter(|row| row["event"] == "eval_position");
        let moments: Vec<_> = by_position
            .map(|row| [&row["when"], &row["step"], &row["trained_tokens"]].map(ToString::to_string))
            .collect();
        let figures: Vec<f64> = bits.iter().map(|row| row["bits_per_byte"].as_f64().unwrap()).collect();
        (moments, figures)
    };
    let compare = |name: &str, more: &[&str]| {
        let (moments, figures) = measured(&format!("{name}-one"), more);
        let (moments_of_ranks, figures_of_ranks) =
            measured(&format!("{name}-two"), &[more, &["mesh.pp=2"]].concat());
        assert_eq!((moments.len(), figures.len()), (2, 2), "{moments:?}");
        assert_eq!((moments_of_ranks, figures_of_ranks), (moments, figures));
    };
    compare("new", &[]);
    let from = format!("model.from={}", arg(&folder.path().join("new-one")));
    compare("read", &[&from]);
}
