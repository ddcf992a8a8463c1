//! Runs that train an adapter: their output, its use, and refusals.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use crate::resume::losses;
use crate::sft::{args_of, base};
use crate::{arg, good, refused};

const MORE: [&str; 4] = ["eval.enabled=false", "data.held_out_share=0", "stage.0.epochs=2", "adapter.rank=4"];

fn logits(model: &Path, more: &[&str]) -> Vec<f32> {
    let file = model.join("logits.safetensors");
    let ids = ["inspect", "logits", arg(model), "--ids", "5,6,7,8", "--out", arg(&file)];
    good([&ids[..], more].concat());
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    // A single tensor after the header, whose length comes first.
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[8 + header..].as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

#[test]
fn a_run_leaves_an_adapter_that_merges_and_is_removed_again() {
    let folder = tempfile::tempdir().unwrap();
    let (at, base) = (|name: &str| folder.path().join(name), base(folder.path()));
    for (recipe, out, more) in [
        ("lora", "lora", vec!["adapter.targets=q_proj,down_proj", "optimizer.lr=1e-2"]),
        ("qlora", "qlora", vec!["optimizer.lr=1e-2"]),
        ("dora", "dora", vec!["optimizer.lr=1e-2", "adapter.lr_ratio=4"]),
        ("lora", "pissa", vec!["adapter.method=pissa", "optimizer.lr=1e-2"]),
    ] {
        good(args_of(recipe, folder.path(), out, &[&MORE[..], &more].concat()));
        assert!(at(out).join("adapter/adapter_config.json").is_file() && !at(out).join("model").exists());
        let saved: u64 = walk(&at(out).join("checkpoints"));
        let adapter = fs::metadata(at(out).join("adapter/adapter_model.safetensors")).unwrap().len();
        // Weights, masters and two moments, of a tiny adapter.
        assert!(
            saved < 2 * (8 * adapter + (64 << 10)),
            "{out}: {saved} bytes of checkpoints, adapter {adapter}"
        );
        let adapted = logits(&base, &["--adapter", arg(&at(out))]);
        assert!(apart(&adapted, &logits(&base, &[])) > 1e-3, "{out}: it learned something");
        let merged = at(&format!("{out}-merged"));
        good(["export", arg(&at(out)), arg(&merged), "--precision", "f32"]);
        // The base of a QLoRA run is read, and merged, as quantized.
        assert!(apart(&adapted, &logits(&merged, &[])) < 1e-4, "{out}: merged");
        let alone = at(&format!("{out}-alone"));
        good(["export", arg(&at(out)), arg(&alone), "--adapter"]);
        let file = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).unwrap();
        assert!(file(&alone) == file(&at(out).join("adapter")), "{out}: the adapter alone");
    }
    // Merged and removed again.
    let with = |weight: &str| format!("{}={weight}", arg(&at("lora")));
    let (once, back) = (at("once"), at("back"));
    good(["export", arg(&base), arg(&once), "--with", &with("1"), "--precision", "f32"]);
    assert!(apart(&logits(&once, &[]), &logits(&base, &["--adapter", arg(&at("lora"))])) < 1e-4);
    good([
        "export",
        arg(&base),
        arg(&back),
        "--with",
        &with("0.5"),
        "--with",
        &with("-0.5"),
        "--precision",
        "f32",
    ]);
    assert!(apart(&logits(&back, &[]), &logits(&base, &[])) < 1e-4);
    // Removed from a folder with it merged, which is no longer its base.
    let out = at("out");
    good(["export", arg(&once), arg(&out), "--with", &with("-1"), "--precision", "f32"]);
    assert!(apart(&logits(&out, &[]), &logits(&base, &[])) < 1e-4);
    refused(["score", arg(&at("lora")), "pairs.jsonl", "--out", "x"], &["is an adapter", "--adapter"]);
    refused(
        ["export", arg(&at("lora")), arg(&at("nf4")), "--quantization", "nf4"],
        &["few bits", "without --quantization"],
    );
    refused(
        ["inspect", "logits", arg(&once), "--ids", "1", "--adapter", arg(&at("lora"))],
        &["is an adapter of", "hash"],
    );
    refused(["export", arg(&base), arg(&at("x")), "--with", &with("a")], &["`a` is no number"]);
    refused(
        ["export", arg(&base), arg(&at("x")), "--with", &format!("{}=2", arg(&at("dora")))],
        &["low-rank"],
    );
}

/// Extended positions belong to the adapter; its base keeps its own.
#[test]
fn an_adapter_has_the_positions_that_it_was_trained_with() {
    let folder = tempfile::tempdir().unwrap();
    let (at, base) = (|name: &str| folder.path().join(name), base(folder.path()));
    let long = [
        "stage.0.seq_tokens=512",
        "stage.0.rope_type=linear",
        "stage.0.rope_factor=2",
        "stage.0.max_docs=32",
    ];
    good(args_of("lora", folder.path(), "long", &[&MORE[..], &long].concat()));
    good(["export", arg(&at("long")), arg(&at("merged")), "--precision", "f32"]);
    good([
        "export",
        arg(&base),
        arg(&at("with")),
        "--with",
        &format!("{}=1", arg(&at("long"))),
        "--precision",
        "f32",
    ]);
    let merged = logits(&at("merged"), &[]);
    assert!(apart(&merged, &logits(&base, &["--adapter", arg(&at("long"))])) < 1e-4);
    assert!(apart(&merged, &logits(&at("with"), &[])) < 1e-4);
    assert!(apart(&merged, &logits(&base, &[])) > 1e-2);
    refused(
        ["serve", arg(&base), "--adapter", &format!("long={}", arg(&at("long"))), "--port", "0"],
        &["longer rotary positions"],
    );
}

fn walk(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walk(&path) } else { fs::metadata(&path).unwrap().len() }).sum()
}

#[test]
fn a_killed_adapter_run_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    for (method, dropout) in [("lora", "none"), ("rslora", "0.2"), ("pissa", "none"), ("ia3", "none")] {
        let (method, dropout) = (format!("adapter.method={method}"), format!("adapter.dropout={dropout}"));
        let rank = if method.ends_with("ia3") { "adapter.rank=none" } else { "adapter.rank=4" };
        let alpha = if method.ends_with("ia3") { "adapter.alpha=none" } else { "adapter.alpha=4" };
        let more = [
            &method,
            &dropout,
            rank,
            alpha,
            "eval.enabled=false",
            "stage.0.packing=single",
            "stage.0.epochs=3",
            "checkpoint.every_steps=2",
            "checkpoint.every_s=none",
        ];
        let (alone, killed) = (format!("alone-{method}"), format!("killed-{method}"));
        good(args_of("lora", folder.path(), &alone, &more));
        let alone = losses(&folder.path().join(&alone));
        let args = args_of("lora", folder.path(), &killed, &more);
        let out = folder.path().join(&killed);
        let mut child =
            crate::program().args(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !out.join("checkpoints/LATEST").exists() && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        good(&args);
        assert_eq!(losses(&out), alone, "{method}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    for (more, said) in [
        (&["adapter.targets=q"][..], &["`adapter.targets`", "q_proj"][..]),
        (&["adapter.rank=100"], &["`adapter.rank`", "a rank of 100"]),
        (&["adapter.method=ia3", "adapter.rank=4"], &["`adapter.rank`", "no effect"]),
        (&["adapter.method=none", "adapter.rank=4"], &["`adapter.", "no effect"]),
        (&["adapter.method=lor"], &["lora"]),
    ] {
        refused(args_of("lora", folder.path(), "refused", more), said);
    }
}
