//! What a GPU is asked before anything is claimed of it, in one command of less than eight minutes: its libraries and rates,
//! every operation against the CPU machine, ranks on one device, NCCL, graphs, training steps on both machines, and the
//! figures that have bars, beside PyTorch's. Each stage has a time limit, and the failure of one does not stop the others.
//! What it found is printed as a dated table, for `LOG.md`. Each stage can also be run alone.

mod fp8;
mod stage;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stage::Ran;
use table::{LARGE, Results};

/// Steps of each of the three stages of a small run.
const STEPS: &str = "3";
/// Largest difference of two losses, as a share: f32 sums in another order, and bf16 products.
const BOUNDS: [(&str, f64); 2] = [("f32", 1e-4), ("bf16", 2e-2)];
/// All stages together.
const ALL_S: u64 = 470;
/// The Llama-3.2-1B shape, for `fathom bench step`.
const SHAPE: &str = "--hidden 2048 --layers 16 --heads 32 --kv-heads 8 --head-dim 64 --ffn 8192 --vocab 128256 --tile-rows 8192";
/// Tokens, places, repeats and the limit of each step.
type Step = (&'static str, &'static str, &'static str, u64);
const LENGTHS: [Step; 3] =
    [("8192", "none", "5", 40), ("32768", "linear", "3", 45), ("131072", "linear", "2", 75)];
/// The longest of the eight minutes.
const LONG: Step = ("262144", "auto", "1", 120);
/// The bar for the longest step; it alone takes longer than all of the above.
const LONGEST: Step = ("1048576", "auto", "1", 1500);
/// The larger shape, whose optimizer's state is with the host; its length and limit.
const LARGE_SHAPE: &str = "--hidden 4096 --layers 32 --heads 32 --kv-heads 8 --head-dim 128 --ffn 14336 --vocab 128256 --tile-rows 8192 --offload-optimizer";
const LARGE_STEP: Step = ("262144", "auto", "1", 900);

/// What can be run alone, in the order in which all are run; those after `step-262144` take longer than all before.
const STAGES: [&str; 9] =
    ["rates", "ranks", "parity", "losses", "steps", "rival", "fp8", "step-262144", "large"];
/// The step with the bar for length, the last of `--long`.
const LAST: &str = "longest";
/// How many of them are run in the eight minutes.
const SHORT: usize = 8;
/// PyTorch's part: three lengths, each compiled and warmed up.
const RIVAL_S: u64 = 150;

/// Where the two programs are: a folder that was brought here, or what cargo builds.
struct Programs {
    gpu: PathBuf,
    fathom: PathBuf,
}

impl Programs {
    fn find(folder: Option<&Path>) -> Result<Programs, String> {
        if let Some(folder) = folder {
            let [gpu, fathom] = ["gpu", "fathom"].map(|name| folder.join(name));
            let absent = [&gpu, &fathom].into_iter().find(|path| !path.is_file());
            if let Some(path) = absent {
                return Err(format!("{}: no such program", path.display()));
            }
            return Ok(Programs { gpu, fathom });
        }
        for build in [&["--bin", "fathom"][..], &["-p", "fathom-cuda", "--example", "gpu"]] {
            let status = Command::new("cargo").args(["build", "--release"]).args(build).status();
            if !status.map_err(|error| error.to_string())?.success() {
                return Err(format!("cargo build {} fails", build.join(" ")));
            }
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let release = target.join("release");
        Ok(Programs { gpu: release.join("examples/gpu"), fathom: release.join("fathom") })
    }
}

/// The stages so far.
struct Session {
    programs: Programs,
    begun: Instant,
    limit: Duration,
    results: Results,
    complaints: Vec<String>,
}

impl Session {
    /// Runs a program within its limit and what is left of all.
    fn stage(&mut self, name: &str, limit_s: u64, command: &mut Command) -> Ran {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        if left.is_zero() {
            self.complaints.push(format!("{name}: not run, the time is up"));
            return Ran { lines: Vec::new(), failed: Some("not run".into()), ended: false, seconds: 0.0 };
        }
        println!("== {name}");
        let ran = stage::run(command, left.min(Duration::from_secs(limit_s)));
        println!("== {name}: {:.0} s, {:.0} s in all", ran.seconds, self.begun.elapsed().as_secs_f64());
        if let Some(failed) = &ran.failed {
            self.complaints.push(format!("{name}: {failed}"));
        }
        if ran.ended {
            // What it held of the device is not there for the next one at once.
            stage::run(Command::new(&self.programs.gpu).arg("free"), Duration::from_secs(30));
        }
        ran
    }

    fn gpu(&mut self, what: &str, limit_s: u64) -> bool {
        let mut command = Command::new(&self.programs.gpu);
        let ran = self.stage(&format!("gpu {what}"), limit_s, command.arg(what));
        self.results.add(&ran.lines, None);
        ran.failed.is_none()
    }

    fn check(&mut self, what: &str, limit_s: u64) {
        // What failed is among the complaints.
        let _ = self.gpu(what, limit_s);
    }

    /// The losses of small runs on both machines.
    fn steps(&mut self) {
        let out = std::env::temp_dir().join(format!("fathom-gpu-{}", std::process::id()));
        for (precision, bound) in BOUNDS {
            let mut losses = Vec::new();
            for machine in ["cpu", "cuda"] {
                let run = out.join(format!("{precision}-{machine}"));
                let mut command = quickstart(&self.programs.fathom, &run, precision, machine);
                self.stage(
                    &format!("three steps of three stages, {precision} on {machine}"),
                    60,
                    &mut command,
                );
                losses.push(read(&run).unwrap_or_default());
            }
            self.complaints.extend(compare(precision, &losses[0], &losses[1], bound));
        }
        // A folder of the system's that it clears itself.
        let _ = std::fs::remove_dir_all(&out);
    }

    /// A step of a length, with places, so often; of the larger shape if it has a name.
    fn bench(&mut self, (tokens, places, repeat, limit_s): Step, name: Option<&str>) {
        let shape = if name.is_some() { LARGE_SHAPE } else { SHAPE };
        let mut command = Command::new(&self.programs.fathom);
        command
            .args(["bench", "step", "--json", "--machine", "cuda", "--dtype", "bf16"])
            .args(shape.split(' '));
        command.args(["--tokens", tokens, "--places", places, "--repeat", repeat]);
        if repeat == "1" {
            command.arg("--once");
        }
        let what = format!("step of {tokens} tokens, {}", name.unwrap_or("Llama-3.2-1B shape"));
        let ran = self.stage(&what, limit_s, &mut command);
        self.results.add(&ran.lines, name);
    }

    /// PyTorch on the same device, if it is there.
    fn rival(&mut self) {
        let Some(script) = script() else {
            println!("== PyTorch skipped: {SCRIPT} is neither here nor where this was built");
            return;
        };
        // The script says itself when there is no PyTorch: asking first would import it twice.
        let mut command = Command::new("python3");
        command.arg(script).args(["--tokens", "8192,32768,131072"]);
        command.args(["--seconds", &(RIVAL_S - 10).to_string()]);
        let ran = self.stage("PyTorch", RIVAL_S, &mut command);
        self.results.add(&ran.lines, None);
    }
}

/// The rival's script.
const SCRIPT: &str = "oracle/bench/gpu_step.py";

/// The script in the working directory, else where this was built.
fn script() -> Option<PathBuf> {
    [PathBuf::from(SCRIPT), crate::gpu_check::root().join(SCRIPT)].into_iter().find(|path| path.is_file())
}

impl Session {
    /// One of [`STAGES`], or the last.
    fn named(&mut self, name: &str) {
        match name {
            "rates" => self.check("rates", 75),
            "ranks" => self.check("ranks", 45),
            "parity" => self.check("parity", 75),
            "losses" => self.steps(),
            "steps" => LENGTHS.into_iter().for_each(|step| self.bench(step, None)),
            "rival" => self.rival(),
            "fp8" => self.fp8(),
            "step-262144" => self.bench(LONG, None),
            "large" => self.bench(LARGE_STEP, Some(LARGE)),
            _ => self.bench(LONGEST, None),
        }
    }
}

/// What is asked for.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Has `gpu` and `fathom`, if nothing is to be built.
    pub folder: Option<PathBuf>,
    /// Also what takes longer than the eight minutes.
    pub long: bool,
    /// These stages alone, in this order.
    pub stages: Vec<String>,
}

impl Asked {
    /// Of the words after `gpu-run`.
    ///
    /// # Errors
    /// If one of them is neither an option nor a folder, or names no stage.
    pub fn parse(words: &[&str]) -> Result<Asked, String> {
        let (mut asked, mut words) = (Asked::default(), words.iter());
        while let Some(word) = words.next() {
            match *word {
                "--long" => asked.long = true,
                "--stage" => {
                    let list = words.next().ok_or_else(|| format!("--stage NAME: one of {}", names()))?;
                    for name in list.split(',') {
                        if !STAGES.contains(&name) && name != LAST {
                            return Err(format!(
                                "--stage {name}: there is no such stage; they are {}",
                                names()
                            ));
                        }
                        asked.stages.push(name.to_string());
                    }
                }
                option if option.starts_with('-') => {
                    return Err(format!("{option}: gpu-run has no such option"));
                }
                folder if asked.folder.is_none() => asked.folder = Some(folder.into()),
                other => return Err(format!("{other}: one folder has the programs already")),
            }
        }
        Ok(asked)
    }
}

fn names() -> String {
    STAGES.iter().chain([&LAST]).copied().collect::<Vec<_>>().join(", ")
}

/// Runs everything that is asked for; complaints name what differs.
///
/// # Errors
/// If a program cannot be built, or there is no device: then in one line.
pub fn run(asked: &Asked) -> Result<Vec<String>, String> {
    let programs = Programs::find(asked.folder.as_deref())?;
    let mut limit = Duration::from_secs(ALL_S);
    let mut stages: Vec<&str> = asked.stages.iter().map(String::as_str).collect();
    let alone = !stages.is_empty();
    if !alone {
        stages.extend(&STAGES[..SHORT]);
    }
    if asked.long {
        stages.extend(STAGES[SHORT..].iter().chain([&LAST]));
    }
    if alone || asked.long {
        // Each has its own limit.
        limit += Duration::from_secs(LONGEST.3 + LARGE_STEP.3);
    }
    let begun = Instant::now();
    let mut session = Session { programs, begun, limit, results: Results::default(), complaints: Vec::new() };
    if !session.gpu("device", 30) {
        return Err("gpu-run: no GPU to run on; the lines above say why".to_string());
    }
    stages.into_iter().for_each(|name| session.named(name));
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    let (table, missed) = session.results.table(&date.unwrap_or_default());
    println!("== for LOG.md\n\n{table}\n");
    session.complaints.extend(missed);
    Ok(session.complaints)
}

/// A small run of all stages over the handbook.
fn quickstart(binary: &Path, out: &Path, precision: &str, machine: &str) -> Command {
    let mut command = Command::new(binary);
    command.args(["quickstart", "--steps", STEPS, "--out"]).arg(out);
    command.arg(format!("model.precision={precision}")).arg(format!("machine.kind={machine}"));
    command.args(["model.layers=2", "model.hidden=128", "model.vocab=1024", "eval.enabled=false"]);
    command.args([
        "stage.0.samples_per_micro_batch=4",
        "stage.2.seq_tokens=4096",
        "stage.2.min_doc_tokens=0",
    ]);
    // What follows --data are paths.
    command.args(["--data", "docs"]).stderr(Stdio::inherit());
    command
}

/// The loss of each step of a run.
fn read(folder: &Path) -> Result<Vec<f64>, String> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    Ok(events.filter(|event| event["event"] == "step").filter_map(|event| event["loss"].as_f64()).collect())
}

fn compare(precision: &str, cpu: &[f64], cuda: &[f64], bound: f64) -> Vec<String> {
    println!("cpu  {cpu:?}\ncuda {cuda:?}");
    if cpu.is_empty() || cpu.len() != cuda.len() {
        return vec![format!("{precision}: {} steps on cpu, {} on cuda", cpu.len(), cuda.len())];
    }
    let apart = |(step, (a, b)): (usize, (&f64, &f64))| {
        let share = (a - b).abs() / a.abs().max(1e-9);
        let far = share.is_nan() || share > bound;
        far.then(|| format!("{precision}: step {step} is {a} on cpu, {b} on cuda"))
    };
    cpu.iter().zip(cuda).enumerate().filter_map(apart).collect()
}

/// By stage of so many steps, the mean of the last losses against that of the reference; `None` if steps are missing.
fn compare_means(reference: &[f64], losses: &[f64], (steps, last): (usize, usize)) -> Option<Vec<f64>> {
    let whole = !losses.is_empty() && losses.len() == reference.len() && losses.len().is_multiple_of(steps);
    let ends = |all: &[f64]| -> Vec<f64> {
        all.chunks(steps).map(|stage| stage.iter().rev().take(last).sum::<f64>()).collect()
    };
    whole.then(|| ends(losses).iter().zip(ends(reference)).map(|(ours, theirs)| ours / theirs).collect())
}

#[cfg(test)]
mod tests {
    use super::{Asked, compare};

    #[test]
    fn stages_can_be_run_alone() {
        let asked = Asked::parse(&["--stage", "rates,longest", "brought"]).unwrap();
        assert_eq!((asked.stages.len(), asked.folder), (2, Some("brought".into())));
        assert!(Asked::parse(&["--long"]).unwrap().long);
        for (words, named) in [
            (&["--stage", "rate"][..], "rates"),
            (&["--stage"], "longest"),
            (&["--fast"], "--fast"),
            (&["a", "b"], "b"),
        ] {
            let message = Asked::parse(words).unwrap_err();
            assert!(message.contains(named), "{message}");
        }
    }

    #[test]
    fn losses_that_lie_apart_are_named() {
        assert!(compare("f32", &[2.0, 1.0], &[2.0001, 1.0], 1e-3).is_empty());
        assert!(compare("f32", &[2.0, 1.0], &[2.0, 1.1], 1e-3)[0].contains("step 1"));
        assert!(compare("f32", &[2.0], &[f64::NAN], 1e-3)[0].contains("step 0"));
        assert!(compare("f32", &[2.0], &[], 1e-3)[0].contains("0 on cuda"));
    }
}
