//! `fathom launch`: what it prints is kept in `tests/golden/launch`; FATHOM_BLESS=1 writes it anew.

use std::fs;
use std::path::Path;

use crate::{arg, good, refused};

#[track_caller]
fn check(file: &str, args: &[&str]) {
    let found = good(["launch"].iter().chain(args).chain(&["--print", "--program", "fathom"]));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/launch").join(file);
    if std::env::var_os("FATHOM_BLESS").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{file} differs; FATHOM_BLESS=1 writes it anew:\n{found}");
}

const EIGHT: [&str; 2] = ["mesh.tp=4", "mesh.pp=2"];

#[test]
fn jobs_are_those_of_the_golden_files() {
    let slurm = ["slurm", "llama3-8b", EIGHT[0], EIGHT[1], "--nodes", "2"];
    check("slurm.sbatch", &slurm);
    let more = [
        "--gpus-per-node",
        "4",
        "--cpus-per-rank",
        "8",
        "--time",
        "4:00:00",
        "--partition",
        "gpu",
        "--account",
        "lab",
    ];
    check("slurm-gpus.sbatch", &[&slurm[..], &more].concat());
    let pods = [
        "kubernetes",
        "llama3-8b",
        EIGHT[0],
        EIGHT[1],
        "--nodes",
        "2",
        "--image",
        "registry.example/fathom:1",
    ];
    check("job.yaml", &pods);
    let more = [
        "--volume",
        "runs",
        "--namespace",
        "lab",
        "--memory",
        "64Gi",
        "--cpus-per-rank",
        "8",
        "--gpus-per-node",
        "4",
    ];
    check("job-gpus.yaml", &[&pods[..], &more].concat());
    check("trainjob.yaml", &[&pods[..], &more, &["--as", "trainjob"]].concat());
    check("pod.yaml", &["kubernetes", "quickstart", "--image", "registry.example/fathom:1"]);
    check("local.sh", &["local", "llama3-8b", EIGHT[0], EIGHT[1], "--threads"]);
}

#[test]
fn a_recipe_of_ones_own_travels_with_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Mine.toml");
    fs::write(&file, "extends = \"llama3-1b\"\n[mesh]\ntp = 2\n").unwrap();
    let out = good([
        "launch",
        "kubernetes",
        arg(&file),
        "optimizer.lr=1e-4",
        "--image",
        "x",
        "--nodes",
        "2",
        "--print",
    ]);
    for line in [
        "kind: ConfigMap",
        "  recipe.toml: |",
        "name: recipe",
        "fathom train /etc/fathom/recipe/recipe.toml\n",
    ] {
        assert!(out.contains(line), "`{line}` is not in:\n{out}");
    }
    assert!(
        out.contains("lr = 0.0001") && !out.contains("train /etc/fathom/recipe/recipe.toml optimizer"),
        "{out}"
    );
}

#[test]
fn jobs_that_cannot_be() {
    let one = ["launch", "slurm", "llama3-8b", "--nodes", "2", "--print"];
    refused(one, &["--nodes 2 with 1 ranks each are 2", "mesh has 1", "mesh.dp"]);
    refused(["launch", "slurm", "llama3-8b"], &["--print"]);
    refused(["launch", "kubernetes", "llama3-8b", "--print"], &["--image"]);
    let words = ["launch", "local", "llama3-8b", "mesh.tp=3", "--print"];
    refused(words, &["tp"]);
}
