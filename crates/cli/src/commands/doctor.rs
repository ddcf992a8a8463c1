//! `fathom doctor`: this machine's capabilities, and whether Fathom computes correctly on it.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anstyle::Style;
use anyhow::{Context, Result, bail};
use fathom_app::{machine, output, resources, selftest};
use fathom_base::human;
use fathom_base::machine_facts::MachineFacts;
use fathom_base::memory::Memory;
use fathom_base::ranks::Claim;
use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_cuda::libs::{Library, LibraryStatus};
use fathom_tensor::Device;

use super::bench::{self, Measurement, Rate};
use crate::{args, console};

/// Memory below which the quickstart's long stage does not fit.
const ENOUGH_MEMORY: u64 = 4 << 30;
/// Disk space below which a quickstart does not fit.
const ENOUGH_DISK: u64 = 2 << 30;
/// Memory of the self-test.
const TEST_BYTES: u64 = 256 << 20;

/// Factor between planned and measured rates above which plans are reported as off.
const OFF: f64 = 1.5;

/// Verdict of a line.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Ok,
    /// Absent, but not needed.
    None,
    Warn,
    Fail,
}

/// The findings so far.
struct Findings {
    failed: usize,
    json: bool,
}

impl Findings {
    fn say(&mut self, verdict: Verdict, what: &str, found: impl Display) {
        let (word, style) = match verdict {
            Verdict::Ok => ("OK", console::GOOD),
            Verdict::None => ("-", Style::new()),
            Verdict::Warn => ("WARN", console::DOUBT),
            Verdict::Fail => ("FAIL", console::BAD),
        };
        self.failed += usize::from(verdict == Verdict::Fail);
        if self.json {
            let found = found.to_string();
            outln!("{}", serde_json::json!({ "verdict": word, "what": what, "found": found }));
        } else {
            outln!("{}  {what:<22} {found}", console::painted(style, &format!("{word:<4}")));
        }
    }
}

/// Runs the verb.
pub fn run(args: &args::Doctor) -> Result<()> {
    if args.rank.claim() != Claim::default() {
        bail!(
            "--rank, --world-size, --local-rank and --rendezvous are for `fathom doctor --dist`; add --dist, or leave them out"
        );
    }
    args.out.as_deref().map_or(Ok(()), output::regular)?;
    let mut findings = Findings { failed: 0, json: args.json };
    processor(&mut findings)?;
    memory(&mut findings);
    disk(&mut findings);
    cuda(&mut findings);
    text(&mut findings);
    for isa in Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect()) {
        self_test(&mut findings, isa);
    }
    speed(&mut findings, args.out.as_deref())?;
    if findings.failed > 0 {
        bail!("failed checks: {}; see the lines with FAIL", findings.failed);
    }
    Ok(())
}

fn processor(findings: &mut Findings) -> Result<()> {
    let facts = MachineFacts::read();
    let name = if facts.cpu.is_empty() { facts.architecture } else { facts.cpu };
    findings.say(Verdict::Ok, "processor", name);
    findings.say(Verdict::Ok, "hardware threads", facts.cores);
    let (best, mask) = (Isa::detect(), resources::isa_mask()?);
    let levels: Vec<String> = Isa::ALL
        .into_iter()
        .map(|isa| match (isa <= best, mask.is_some_and(|mask| isa > mask)) {
            (false, _) => format!("{} absent", isa.name()),
            (true, true) => format!("{} masked", isa.name()),
            (true, false) => isa.name().to_string(),
        })
        .collect();
    let fast = if best >= Isa::Avx2 || !cfg!(target_arch = "x86_64") { Verdict::Ok } else { Verdict::Warn };
    findings.say(fast, "instruction sets", levels.join(", "));
    if let Some(mask) = mask {
        findings.say(
            Verdict::Warn,
            "FATHOM_ISA",
            format!("{} keeps the kernels below what the processor has", mask.name()),
        );
    }
    Ok(())
}

fn memory(findings: &mut Findings) {
    match Memory::read() {
        None => findings.say(Verdict::Warn, "memory", "unknown on this system"),
        Some(memory) => {
            let verdict = if memory.available_bytes >= ENOUGH_MEMORY { Verdict::Ok } else { Verdict::Warn };
            let [free, all, installed] =
                [memory.available_bytes, memory.total_bytes, memory.installed_bytes].map(human::bytes);
            let limit = memory.limited_by.map_or_else(String::new, |file| {
                format!(", the limit of {}; {installed} are installed", file.display())
            });
            findings.say(verdict, "memory", format!("{free} available of {all}{limit}"));
        }
    }
    findings.say(
        Verdict::Ok,
        "memory budget",
        format!("{} (machine.memory_bytes changes it)", human::bytes(resources::default_budget())),
    );
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    match std::fs::read_to_string(path) {
        Ok(text) if text.contains("[never]") => findings.say(
            Verdict::Warn,
            "huge pages",
            format!("never; `madvise` in {path} makes first touch faster"),
        ),
        Ok(text) => findings.say(Verdict::Ok, "huge pages", chosen(&text)),
        Err(_) => findings.say(Verdict::Warn, "huge pages", "unknown on this system"),
    }
}

/// The bracketed word.
fn chosen(text: &str) -> &str {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text.trim(), |(word, _)| word)
}

fn disk(findings: &mut Findings) {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    match rustix::fs::statvfs(&here) {
        Ok(space) => {
            let free = space.f_bavail * space.f_frsize;
            let verdict = if free >= ENOUGH_DISK { Verdict::Ok } else { Verdict::Warn };
            findings.say(verdict, "disk", format!("{} free in {}", human::bytes(free), here.display()));
        }
        Err(error) => findings.say(Verdict::Warn, "disk", format!("{}: {error}", here.display())),
    }
    let probe = here.join(format!(".fathom-doctor-{}", std::process::id()));
    match write_probe(&probe) {
        Ok(true) => findings.say(Verdict::Ok, "direct IO", "yes"),
        Ok(false) => {
            findings.say(Verdict::Warn, "direct IO", "no; spilled data would pass through the page cache")
        }
        Err(error) => findings.say(Verdict::Fail, "writing here", format!("{}: {error}", here.display())),
    }
    let _ = std::fs::remove_file(&probe);
}

/// Writes a page; returns whether the file system supports direct I/O.
fn write_probe(path: &Path) -> std::io::Result<bool> {
    std::fs::File::create(path)?.write_all(&[0; 4096])?;
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    options.custom_flags(libc::O_DIRECT);
    Ok(options.open(path).is_ok())
}

/// CUDA's libraries and devices. Without a driver, the rest is not required.
fn cuda(findings: &mut Findings) {
    let probe = machine::cuda();
    let (driver, device) = (probe.has(Library::Driver), !probe.devices.is_empty());
    for LibraryStatus { library, path, version, problem, remedy } in &probe.libraries {
        let what = format!("CUDA {}", library.name());
        let missed = match (driver, device || *library == Library::Driver) {
            (true, true) => Verdict::Warn,
            _ => Verdict::None,
        };
        match problem {
            None => {
                let path = path.as_ref().map_or_else(String::new, |path| format!(" at {}", path.display()));
                findings.say(Verdict::Ok, &what, format!("{}{path}", version.as_deref().unwrap_or("found")));
            }
            Some(problem) => {
                let remedy = remedy.as_deref().unwrap_or_default();
                findings.say(missed, &what, format!("{problem}; {remedy}"));
            }
        }
    }
    match &probe.why_not {
        None => {
            let outside = machine::outside_pool_bytes()
                .map(|bytes| format!("; libraries take {}", human::bytes(bytes)));
            let devices = probe.devices.join(", ");
            findings.say(Verdict::Ok, "GPU", format!("{devices}{}", outside.unwrap_or_default()));
        }
        Some(why) => findings.say(Verdict::None, "GPU", format!("the processor computes: {why}")),
    }
}

/// Text that a quickstart would read.
fn text(findings: &mut Findings) {
    let roots = fathom_app::text::gathered_roots();
    let crates: usize =
        roots.iter().filter_map(|root| std::fs::read_dir(root).ok()).map(Iterator::count).sum();
    match crates {
        0 => findings.say(
            Verdict::Warn,
            "text for quickstart",
            "no sources in cargo's registry folder; the folder you stand in is read, or name text with --data",
        ),
        many => findings.say(Verdict::Ok, "text for quickstart", format!("sources of {many} crates in cargo's registry folder")),
    }
}

/// Measured kernel rates next to planned ones; writes a profile with the measured rates to `out`.
fn speed(findings: &mut Findings, out: Option<&Path>) -> Result<()> {
    let Measurement { rates, loaded, profile } = bench::rates()?;
    let busy = if loaded { "; other processes computed meanwhile" } else { "" };
    for rate in &rates {
        let (verdict, found) = compared(rate);
        findings.say(verdict, rate.kernel, format!("{found}{busy}"));
    }
    match out {
        Some(path) => {
            let sheet = serde_json::to_value(profile.sheet())?;
            std::fs::write(path, format!("{sheet:#}\n"))
                .with_context(|| format!("cannot write {}", path.display()))?;
            findings.say(
                Verdict::Ok,
                "profile",
                format!("{} (machine.profile={0} has plans expect what was measured)", path.display()),
            );
        }
        None if rates.iter().any(|rate| compared(rate).0 == Verdict::Warn) => findings.say(
            Verdict::Warn,
            "times of plans",
            "are off as these rates are; fathom doctor --out machine.json writes what was measured, and machine.profile=machine.json \
             predicts by it",
        ),
        None => {}
    }
    Ok(())
}

/// A rate, and whether plans that expect another are significantly off.
fn compared(rate: &Rate) -> (Verdict, String) {
    let Rate { unit, per_s, planned_per_s, .. } = *rate;
    let factor = (planned_per_s / per_s).max(per_s / planned_per_s);
    let [measured, planned] = [per_s, planned_per_s].map(|rate| format!("{}{unit}/s", human::si(rate)));
    let found = format!("{measured} measured in bf16, {planned} expected by plans");
    if factor <= OFF {
        return (Verdict::Ok, found);
    }
    let how = if per_s < planned_per_s { "slower" } else { "faster" };
    (Verdict::Warn, format!("{found}: {factor:.1} x {how}"))
}

/// Compares a matrix product and an attention with sums in f64.
fn self_test(findings: &mut Findings, isa: Isa) {
    let started = Instant::now();
    let device = Device::new(Arc::new(Cpu::new(0, Some(isa))), TEST_BYTES);
    let title = format!("self test {}", isa.name());
    let errors = selftest::errors(&device);
    let text: Vec<String> = errors.iter().map(|(name, error, _)| format!("{name} {error:.1e}")).collect();
    let within = errors.iter().all(|(_, error, bound)| error <= bound);
    let verdict = if within { Verdict::Ok } else { Verdict::Fail };
    let took = human::seconds(started.elapsed().as_secs_f64());
    findings.say(verdict, &title, format!("largest errors: {} ({took})", text.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_are_far_from_what_plans_expect_are_not_ok() {
        let said = |per_s: f64| {
            let (verdict, said) = compared(&Rate { kernel: "copy", unit: "B", per_s, planned_per_s: 8e9 });
            (verdict == Verdict::Ok, said)
        };
        for (per_s, ok, words) in [(8e9, true, "8.00 GB/s"), (6e9, true, "6.00 GB/s")] {
            assert!(said(per_s).0 == ok && said(per_s).1.contains(words), "{}", said(per_s).1);
        }
        for (per_s, words) in [(1e9, "8.0 x slower"), (64e9, "8.0 x faster"), (4e9, "2.0 x slower")] {
            assert!(!said(per_s).0 && said(per_s).1.ends_with(words), "{}", said(per_s).1);
        }
    }
}
