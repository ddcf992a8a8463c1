//! Whole runs on the emulated GPU, which computes on the processor: the program with its calls to CUDA's libraries
//! has the losses and norms of a processor's run, in whatever order the device works.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{TINY, write_text};
use crate::{arg, rows, text};

/// Largest relative differences of losses and of norms: from another order of sums, and its effect on the next step.
const F32: [f64; 2] = [1e-5, 1e-4];
const BF16: [f64; 2] = [2e-3, 2e-2];

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// `None` without a compiler for kernels.
    fn new() -> Option<Bench> {
        if !fathom_rehearsal::is_possible() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fathom_rehearsal::install(&folder.path().join("libs")).unwrap();
        write_text(&folder.path().join("text"));
        Some(Bench { folder })
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The program with the emulated libraries.
    fn fathom(&self) -> Command {
        let mut command = crate::program();
        // Kernels are compiled once for all tests.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rehearsal");
        command.env("FATHOM_CUDA_LIBS", self.at("libs")).env("FATHOM_CACHE", cache);
        for other in [
            "FATHOM_REHEARSAL",
            "FATHOM_REHEARSAL_CUBLAS",
            "FATHOM_CUDA_ATTENTION",
            "FATHOM_CUDA_EXPERTS",
            "CUDA_VISIBLE_DEVICES",
            "NCCL_HOSTID",
        ] {
            command.env_remove(other);
        }
        command
    }

    /// Two steps of each of three stages, as short as kernels' blocks allow: the emulation's time grows with blocks.
    fn run(&self, name: &str, schedule: &str, keys: &[&str]) -> Command {
        let (out, data) = (self.at(name), self.at("text"));
        let mut command = self.fathom();
        command.env("FATHOM_REHEARSAL_SCHEDULE", schedule);
        command.args(["quickstart", "--steps", "2", "--data", arg(&data), "--out", arg(&out)]);
        command.args(TINY).args(["eval.enabled=false", "stage.1.seq_tokens=64", "stage.2.seq_tokens=128"]);
        command.args(keys);
        command
    }

    /// Losses and norms of a run's steps.
    fn steps(&self, name: &str) -> Vec<[f64; 2]> {
        let log = std::fs::read_to_string(self.at(name).join("metrics.jsonl")).unwrap();
        let steps = rows(&log).into_iter().filter(|row| row["event"] == "step");
        steps.map(|row| ["loss", "grad_norm"].map(|key| row[key].as_f64().unwrap())).collect()
    }

    /// Runs to the end and returns the log's steps.
    #[track_caller]
    fn train(&self, name: &str, schedule: &str, keys: &[&str]) -> Vec<[f64; 2]> {
        let output = self.run(name, schedule, keys).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        // Complaints of the emulated libraries.
        assert!(!said.contains("rehearsal:"), "{name}: {said}");
        self.steps(name)
    }

    /// Compares runs on both machines, with the GPU in every order of its work.
    #[track_caller]
    fn check(&self, name: &str, bounds: [f64; 2], schedules: &[&str], keys: &[&str]) {
        let of = |machine: &str, schedule: &str| {
            let machine_key = format!("machine.kind={machine}");
            let keys = [keys, &[machine_key.as_str()]].concat();
            self.train(&format!("{name}-{machine}-{schedule}"), schedule, &keys)
        };
        let expected = of("cpu", "late");
        assert_eq!(expected.len(), 6);
        let found: Vec<_> = schedules.iter().map(|schedule| of("cuda", schedule)).collect();
        near(name, &found[0], &expected, bounds);
        // The order of execution does not change a single bit.
        assert!(found.iter().all(|other| *other == found[0]), "{name}: {found:?}");
    }
}

#[track_caller]
fn near(name: &str, found: &[[f64; 2]], expected: &[[f64; 2]], bounds: [f64; 2]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (ours, theirs) in found.iter().zip(expected) {
        let apart = |at: usize| (ours[at] / theirs[at] - 1.0).abs();
        assert!((0..2).all(|at| apart(at) <= bounds[at]), "{name}: {found:?} {expected:?}");
    }
}

#[test]
fn training_on_the_pretended_gpu_is_training() {
    let Some(bench) = Bench::new() else { return };
    let packed = "stage.1.samples_per_micro_batch=2";
    // Deferred work against immediate work, by launches and by graphs.
    for (name, bounds, schedules, keys) in [
        ("f32", F32, &["early"][..], &["model.precision=f32"][..]),
        ("bf16", BF16, &["early", "7"], &["model.precision=bf16", packed]),
        (
            "graphs",
            BF16,
            &["early", "late", "7"],
            &[
                "model.precision=bf16",
                "machine.graphs=true",
                "stage.0.steps=4",
                "stage.1.steps=1",
                "stage.2.steps=1",
            ],
        ),
        ("fp8", [1e-2, 1e-1], &["7"], &["model.precision=bf16", "precision.gemm=fp8_block"]),
        (
            "experts",
            BF16,
            &["late", "7"],
            &["model.precision=bf16", "model.family=mixtral", "model.init=normal", "moe.experts=4"],
        ),
        (
            "states",
            F32,
            &["7"],
            &[
                "model.precision=f32",
                "model.family=granitemoehybrid",
                "model.init=normal",
                "model.attention_interval=2",
                packed,
                "model.ssm_head_dim=16",
                "model.ssm_state=8",
            ],
        ),
    ] {
        bench.check(name, bounds, schedules, keys);
    }
}

/// cuBLASLt's grouped products, kernels where it is too old, and kernels by setting.
#[test]
fn experts_learn_the_same_whoever_multiplies() {
    let Some(bench) = Bench::new() else { return };
    let keys = [
        "machine.kind=cuda",
        "machine.graphs=true",
        "model.precision=bf16",
        "model.family=mixtral",
        "model.init=normal",
        "moe.experts=4",
        "stage.0.micro_batches=2",
    ];
    let line = "products by expert are those of kernels of our own: cuBLAS is 13.6";
    let mut found = Vec::new();
    for (name, variable, says) in [
        ("groups", ("FATHOM_REHEARSAL_CUBLAS", "131000"), false),
        ("old", ("FATHOM_REHEARSAL_CUBLAS", "130600"), true),
        ("kernels", ("FATHOM_CUDA_EXPERTS", "kernels"), false),
    ] {
        let output = bench.run(name, "late", &keys).env(variable.0, variable.1).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success() && !said.contains("rehearsal:"), "{name}: {said}");
        assert_eq!(said.contains(line), says, "{name}: {said}");
        found.push(bench.steps(name));
    }
    near("experts", &found[1], &found[0], BF16);
    assert_eq!(found[1], found[2]);
}

#[test]
fn memory_that_leaves_the_pretended_gpu_comes_back() {
    let Some(bench) = Bench::new() else { return };
    let offloaded = ["machine.offload_optimizer=true", "machine.offload_weights=true"];
    for (name, schedules, keys) in [
        ("disk", &["late", "3"][..], &offloaded[..]),
        ("host", &["early", "3"], &[offloaded[0], offloaded[1], "machine.offload_to=host"]),
        ("moments", &["late"], &["optimizer.moments=bf16"]),
    ] {
        let keys = [keys, &["model.precision=bf16"]].concat();
        bench.check(name, BF16, schedules, &keys);
    }
}

/// Conditions of a sandbox whose driver claims memory for reserved addresses.
#[test]
fn a_pool_takes_its_budget_at_once_where_the_driver_refuses_parts() {
    let Some(bench) = Bench::new() else { return };
    let keys = [
        "model.precision=bf16",
        "machine.kind=cuda",
        "stage.0.steps=1",
        "stage.1.steps=1",
        "stage.2.steps=1",
    ];
    let expected = bench.train("parts", "late", &keys);
    for refused in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        let mut command = bench.run(refused, "late", &keys);
        command.env("FATHOM_REHEARSAL_REFUSED", refused).env("FATHOM_REHEARSAL_MEMORY", "1000000000");
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{refused}: {said}");
        assert_eq!(said.matches("takes its whole budget at once").count(), 1, "{refused}: {said}");
        assert!(!said.lines().any(|line| line.starts_with("rehearsal:")), "{refused}: {said}");
        assert_eq!(bench.steps(refused), expected, "{refused}");
    }
}

/// Ranks as streams of one device.
#[test]
fn meshes_on_the_pretended_gpu_are_meshes() {
    let Some(bench) = Bench::new() else { return };
    let twice = ["stage.0.micro_batches=2", "stage.1.micro_batches=2", "stage.2.micro_batches=2"];
    for (name, schedules, keys) in [
        ("tp", &["late", "5"][..], &["mesh.tp=2", "model.kv_heads=2"][..]),
        ("cp", &["late", "5"], &["mesh.cp=2"]),
        ("a2a", &["5"], &["mesh.cp=2", "mesh.cp_comm_type=a2a", "model.kv_heads=2"]),
        ("pp", &["late", "5"], &["mesh.pp=2"]),
        (
            "ep",
            &["5"],
            &["mesh.dp=2", "mesh.ep=2", "model.family=mixtral", "model.init=normal", "moe.experts=4"],
        ),
        (
            "passed",
            &["late", "5"],
            &[
                "mesh.cp=2",
                "mesh.cp_scan_comm_type=states",
                "model.family=granitemoehybrid",
                "model.init=normal",
                "model.attention_interval=2",
                "model.ssm_head_dim=16",
                "model.ssm_state=8",
            ],
        ),
    ] {
        let keys = [keys, &["model.precision=bf16"], &twice].concat();
        bench.check(name, BF16, schedules, &keys);
    }
}

/// Two ranks started as by torchrun, with these local ranks on a machine of two devices: whether each succeeded, and
/// its output.
fn processes(bench: &Bench, keys: &[&str], local: [&str; 2]) -> [(bool, String); 2] {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = bench.run("cuda", "late", &[keys, &["machine.kind=cuda"]].concat());
        command.env("FATHOM_REHEARSAL_DEVICES", "2").env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
        command.env("LOCAL_RANK", local[rank]).env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        let errors = std::fs::File::create(bench.at(&format!("rank-{rank}"))).unwrap();
        command.stdout(Stdio::null()).stderr(errors).spawn().unwrap()
    };
    // Both are awaited first: one that fails ends the other.
    let ended = [0, 1].map(start).map(|mut rank| rank.wait().unwrap().success());
    [0, 1].map(|rank| (ended[rank], std::fs::read_to_string(bench.at(&format!("rank-{rank}"))).unwrap()))
}

/// Ranks as processes with a device each, over NCCL.
#[test]
fn processes_with_a_pretended_gpu_each_train_as_one() {
    let Some(bench) = Bench::new() else { return };
    let keys = ["model.precision=bf16", "model.kv_heads=2", "mesh.tp=2"];
    let expected = bench.train("cpu", "late", &[&keys[..], &["machine.kind=cpu"]].concat());
    for (is_well, said) in processes(&bench, &keys, ["1", "0"]) {
        assert!(is_well, "{said}");
        // Several concurrent pairs of communicators cause warnings, as the handbook says.
        let complaints = said.lines().filter(|line| line.starts_with("rehearsal:"));
        let others: Vec<&str> = complaints.filter(|line| !line.contains("of two communicators")).collect();
        assert!(others.is_empty(), "{others:?}");
    }
    near("nccl", &bench.steps("cuda"), &expected, BF16);
}

/// A rank uses the device of its local rank; NCCL refuses two ranks on one device.
#[test]
fn processes_take_the_devices_of_their_machine_in_turn() {
    let Some(bench) = Bench::new() else { return };
    let keys = ["model.precision=bf16", "model.kv_heads=2", "mesh.tp=2"];
    if !cfg!(feature = "mpi") {
        let [(is_well, said), _] = processes(&bench, &keys, ["1", "1"]);
        assert!(
            !is_well && said.contains("NCCL wants a GPU for each rank") && said.contains("--features mpi"),
            "{said}"
        );
    }
    let doctor = |variables: &[(&str, &str)]| {
        let mut command = bench.fathom();
        command.args(["doctor", "--dist"]).env("FATHOM_REHEARSAL_DEVICES", "4");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    // Distributed round robin over two machines: the fourth rank is its machine's second.
    let rank = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")];
    let local = [("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let said = doctor(&[rank, local].concat());
    for line in ["its device: 1 of 4", "nccl", "mpirun -x MASTER_ADDR=HOST"] {
        assert!(said.contains(line), "`{line}` is not in: {said}");
    }
    let said = doctor(&[&[rank, local].concat()[..], &[("MASTER_ADDR", "one")]].concat());
    assert!(said.contains("connected by NCCL and meet at one:29500"), "{said}");
}

/// At full size, without computing: the plan of a step of 128K tokens equals the device's allocations, up to
/// granularity.
#[test]
fn a_plan_is_what_the_pretended_device_gives() {
    let Some(bench) = Bench::new() else { return };
    let shape = "model.hidden=2048 model.layers=2 model.heads=32 model.kv_heads=8 model.head_dim=64 model.ffn=8192 model.vocab=1024";
    let mut command = bench.fathom();
    command.env("FATHOM_REHEARSAL", "dry").args(["bench", "step", "machine.kind=cuda", "stages=128k"]);
    command.args(shape.split(' ')).args([
        "activations.recompute_granularity=linear",
        "activations.tile_rows=8192",
        "--once",
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let row = rows(&out).into_iter().find(|row| row["bench"] == "step").unwrap();
    let bytes = |key: &str| row[key].as_u64().unwrap();
    assert_eq!(bytes("peak_pool_bytes"), bytes("planned_peak_bytes"));
    assert_eq!(bytes("peak_reserved_bytes"), bytes("planned_reserved_bytes"));
    let outside = bytes("device_used_bytes") - bytes("planned_reserved_bytes");
    assert!(outside < 64 << 20, "{outside} bytes outside the plan");
}
