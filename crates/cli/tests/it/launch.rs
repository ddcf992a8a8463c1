//! `fathom launch`: its output is kept in `tests/golden/launch`; FATHOM_BLESS=1 rewrites it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::{arg, fathom, good, refused, text};

#[track_caller]
fn check(file: &str, args: &[&str]) {
    let found = good(["launch"].iter().chain(args).chain(&["--print", "--program", "fathom"]));
    // A processor's need depends on its number of cores.
    let asks = |line: &str| line.trim_start().starts_with("memory: \"") && !args.contains(&"--memory");
    let planned = |line: &str| match line.split_once("memory: ") {
        Some((before, _)) if asks(line) => format!("{before}memory: \"PLAN\"\n"),
        _ => line.to_string(),
    };
    let found: String = found.split_inclusive('\n').map(planned).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/launch").join(file);
    if std::env::var_os("FATHOM_BLESS").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{file} differs; FATHOM_BLESS=1 rewrites it:\n{found}");
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
        "--grace",
        "600",
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
        "--volume",
        "runs",
    ];
    check("job.yaml", &pods);
    let more = [
        "--grace",
        "600",
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
    let pod = ["kubernetes", "llama3-8b", "mesh.tp=4", "--image", "registry.example/fathom:1"];
    check("pod.yaml", &pod);
    check("pod-gpus.yaml", &[&pod[..], &["--gpus-per-node", "4", "--as", "trainjob"]].concat());
    check("local.sh", &["local", "llama3-8b", EIGHT[0], EIGHT[1], "--threads"]);
}

/// A pod requests the plan's host memory of a step, plus that of the program.
#[test]
fn pods_ask_for_the_memory_of_the_plan() {
    let recipe = [
        "llama3-8b",
        "machine.profile=h100",
        "mesh.tp=2",
        "activations.offload_modules=all",
        "activations.offload_place=host",
    ];
    let rows = crate::rows(&good(["plan", "--json"].iter().chain(&recipe)));
    let host = rows.iter().map(|row| row["host_peak_bytes"].as_u64().unwrap()).max().unwrap();
    let wanted = (2 * host + (2 << 30)).div_ceil(1 << 30);
    let pods = ["--image", "x", "--gpus-per-node", "2", "--print", "--program", "fathom"];
    let of = |more: &[&str]| good(["launch", "kubernetes"].iter().chain(&recipe).chain(&pods).chain(more));
    let manifest = of(&[]);
    assert!(host > 1 << 30 && manifest.contains("requests:\n"), "{host}: {manifest}");
    assert!(manifest.contains(&format!("memory: \"{wanted}Gi\"\n")), "{wanted}: {manifest}");
    let given = of(&["--memory", "64Gi"]);
    assert!(!given.contains("requests:") && given.contains("memory: \"64Gi\""), "{given}");
}

const PODS: [&str; 6] = ["--image", "x", "--nodes", "2", "--volume", "runs"];

#[test]
fn a_recipe_of_ones_own_travels_with_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Mine.toml");
    fs::write(&file, "extends = \"llama3-1b\"\n[mesh]\ntp = 2\n").unwrap();
    let run = ["launch", "kubernetes", arg(&file), "optimizer.lr=1e-4"];
    let out = good(run.iter().chain(&["--print"]).chain(&PODS));
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
    for (time, grace) in [("2", "120"), ("1:30", "90"), ("0:01:40", "100"), ("0-0:1", "60"), ("1-0", "90000")]
    {
        let job = ["launch", "slurm", "llama3-8b", "--print", "--time", time, "--grace", grace];
        if time == "1-0" {
            // Above the limit of --grace.
            refused(job, &["--grace"]);
        } else {
            refused(job, &["--grace", "--time", "less"]);
        }
    }
    for time in ["3", "2:01", "1-0", "0", "UNLIMITED"] {
        good([
            "launch",
            "slurm",
            "llama3-8b",
            "--print",
            "--program",
            "fathom",
            "--time",
            time,
            "--grace",
            "120",
        ]);
    }
    refused(["launch", "kubernetes", "llama3-8b", "--print"], &["--image"]);
    let words = ["launch", "local", "llama3-8b", "mesh.tp=3", "--print"];
    refused(words, &["tp"]);
    for words in
        ["--nodes 0", "--ranks-per-node 0", "--gpus-per-node 4000000000", "--cpus-per-rank 0", "--grace 0"]
    {
        let words: Vec<&str> = words.split(' ').collect();
        let job = ["launch", "slurm", "llama3-8b", "--print"];
        refused(job.iter().chain(&words).copied(), &[words[0], words[1], "1..="]);
    }
    let pods = ["launch", "kubernetes", "llama3-8b", "mesh.tp=2", "--image", "x", "--nodes", "2", "--print"];
    for kind in ["job", "trainjob"] {
        refused(pods.iter().chain(&["--as", kind]).copied(), &["--nodes 2 without --volume", "run's folder"]);
    }
    let apart = ["--volume", "runs", "run.out=/tmp/run"];
    refused(pods.iter().chain(&apart).copied(), &["run.out=/tmp/run", "/work"]);
}

/// A flag's value is kept whole, whatever it contains, or refused.
#[test]
fn values_stay_on_their_lines() {
    let slurm = ["launch", "slurm", "llama3-8b", "--print", "--program", "fathom"];
    let broken = "gpu\n#SBATCH --wrap=id";
    for flag in ["--partition", "--account", "--time"] {
        refused(slurm.iter().chain(&[flag, broken]).copied(), &[flag, "line break"]);
    }
    let script = good(slurm.iter().chain(&["--partition", "a b#c'd"]).copied());
    assert!(script.contains("#SBATCH --partition='a b#c'\\''d'\n"), "{script}");
    let pods = ["launch", "kubernetes", "llama3-8b", "--print", "--program", "fathom"];
    let image = ["--image", "x"];
    for flag in ["--namespace", "--volume", "--memory"] {
        refused(pods.iter().chain(&image).chain(&[flag, "a\nb: c"]).copied(), &[flag, "line break"]);
    }
    refused(pods.iter().chain(&["--image", "x\n  command: [id]"]).copied(), &["--image", "line break"]);
    let odd = ["--image", "x # y", "--namespace", "12", "--volume", "a}, b: {c"];
    let manifest = good(pods.iter().chain(&odd).copied());
    for line in ["image: \"x # y\"\n", "namespace: \"12\"\n", "{claimName: \"a}, b: {c\"}"] {
        assert!(manifest.contains(line), "`{line}` is not in:\n{manifest}");
    }
    let manifest = good(pods.iter().chain(&image).chain(&["run.out=out/$(HOME)"]).copied());
    assert!(manifest.contains("\"out/$$(HOME)\"") && !manifest.contains("/$(HOME)"), "{manifest}");
}

#[test]
fn relative_data_of_a_job_is_warned_of() {
    for (kind, more, place) in [
        ("slurm", &[][..], "sbatch"),
        ("kubernetes", &["--image", "x"], "the image"),
        ("kubernetes", &["--image", "x", "--volume", "runs"], "/work"),
    ] {
        let [paths, tokenizer] = ["data.paths=[\"texts/a\", \"/srv/b\"]", "data.tokenizer=/srv/tokenizer"];
        let output = fathom(["launch", kind, "llama3-8b", "--print", paths, tokenizer].iter().chain(more));
        let err = text(&output.stderr);
        assert!(output.status.success(), "{err}");
        assert!(err.contains("warning: data.paths: `texts/a` is relative") && err.contains(place), "{err}");
        // Pods see nothing of the machine except their volume.
        for (key, path) in [("data.paths", "/srv/b"), ("data.tokenizer", "/srv/tokenizer")] {
            let outside = err.contains(&format!("warning: {key}: `{path}` is outside the volume"));
            assert_eq!(outside, more.contains(&"--volume"), "{err}");
        }
    }
}

/// The images contain the programs that manifests call, and the compiler that the crates require.
#[test]
fn the_images_have_what_manifests_call() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = fs::read_to_string(root.join("Dockerfile")).unwrap();
    let stages: Vec<&str> = file.split("\nFROM ").collect();
    let stage = |name: &str| {
        let head = format!(" AS {name}");
        let found = stages.iter().find(|stage| stage.lines().next().unwrap_or_default().ends_with(&head));
        found.copied().unwrap_or_else(|| panic!("no stage {name}"))
    };
    let asked = concat!("rust:", env!("CARGO_PKG_RUST_VERSION"), "-");
    assert!(stage("sources").contains(asked), "{asked}");
    for (name, words) in [
        ("fathom", &["--from=build ", "/usr/local/bin/fathom", "USER 65532"][..]),
        (
            "cluster",
            &[
                "--from=build-mpi ",
                "/usr/local/bin/fathom",
                "openmpi-bin",
                "openssh-client",
                "openssh-server",
            ],
        ),
        ("build-mpi", &["--locked", "--features mpi", "libopenmpi-dev", "libclang-dev"]),
        ("build", &["--locked"]),
    ] {
        words.iter().for_each(|word| assert!(stage(name).contains(word), "{name}: {word}"));
    }
}

/// An evicted pod asks its ranks to save, and does not end as if its work were done.
#[test]
fn an_evicted_pod_lets_its_ranks_save() {
    let run = ["launch", "kubernetes", "llama3-8b", "mesh.tp=2", "--program", "/opt/fathom-pod", "--print"];
    let manifest = good(run.iter().chain(&PODS));
    let script: Vec<&str> = manifest
        .lines()
        .skip_while(|line| !line.contains("if [ \"$JOB_COMPLETION_INDEX\""))
        .take_while(|line| !line.trim().is_empty() && !line.contains("ssh='"))
        .collect();
    // Stand-ins for sshd and for a rank.
    let folder = tempfile::tempdir().unwrap();
    fs::copy("/bin/sh", folder.path().join("fathom-pod")).unwrap();
    let rank = "trap 'echo saved > saved; exit 75' USR1; echo > started; while :; do sleep 0.02; done";
    fs::write(folder.path().join("sshd"), format!("./fathom-pod -c \"{rank}\"")).unwrap();
    // The script that the kubelet passes on.
    let script = script
        .join("\n")
        .replace("$$", "$")
        .replace("mkdir -p /run/sshd", "")
        .replace("/usr/sbin/sshd", "sh ./sshd");
    let mut pod = Command::new("sh");
    pod.args(["-euc", &script]).env("JOB_COMPLETION_INDEX", "1").current_dir(folder.path());
    let mut pod = pod.spawn().unwrap();
    while !folder.path().join("started").exists() {
        sleep(Duration::from_millis(5));
    }
    let evict = format!("kill -TERM {}", pod.id());
    assert!(Command::new("sh").args(["-c", &evict]).status().unwrap().success());
    assert_eq!(pod.wait().unwrap().code(), Some(75));
    assert_eq!(fs::read_to_string(folder.path().join("saved")).unwrap(), "saved\n");
}
