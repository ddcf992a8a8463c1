//! Facts about the machine that a figure was measured on: processor, cores, memory, kernel. Read from `/proc` on
//! Linux, from the standard library elsewhere. Host and user names are excluded, so that reports can be shared.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::memory::Memory;

/// Facts about the machine, for reports and measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineFacts {
    /// Processor model, e.g. `Intel(R) Xeon(R) Platinum 8481C`; empty when unknown.
    pub cpu: String,
    /// Hardware threads available to this process.
    pub cores: u64,
    /// Vector and matrix instruction sets usable by kernels, in a fixed order.
    pub instructions: Vec<String>,
    /// Installed memory, 0 when unknown.
    pub memory_bytes: u64,
    /// Available memory at the time of the call, within the limits of control groups; 0 when unknown.
    pub memory_available_bytes: u64,
    /// Operating system and kernel release.
    pub kernel: String,
    /// Processor architecture, e.g. `x86_64`.
    pub architecture: String,
}

impl MachineFacts {
    /// Reads the facts of this machine. Never fails: unreadable facts stay empty.
    pub fn read() -> MachineFacts {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = Memory::read();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        MachineFacts {
            cpu: cpu_model(&cpuinfo),
            cores,
            instructions: instructions(&cpuinfo),
            memory_bytes: memory.as_ref().map_or(0, |memory| memory.installed_bytes),
            memory_available_bytes: memory.map_or(0, |memory| memory.available_bytes),
            kernel: format!("{} {}", std::env::consts::OS, release.trim()).trim().to_string(),
            architecture: std::env::consts::ARCH.to_string(),
        }
    }

    /// Name and value of every known fact, for a table.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let memory = |bytes: u64| if bytes == 0 { String::new() } else { crate::human::bytes(bytes) };
        let rows = [
            ("processor", self.cpu.clone()),
            ("hardware threads", self.cores.to_string()),
            ("instructions", self.instructions.join(", ")),
            ("memory", memory(self.memory_bytes)),
            ("memory free at start", memory(self.memory_available_bytes)),
            ("system", self.kernel.clone()),
            ("architecture", self.architecture.clone()),
        ];
        rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// Value of the first `model name` line (x86) or `Model` line (some ARM boards).
fn cpu_model(cpuinfo: &str) -> String {
    let value = |name: &str| {
        let (_, value) = cpuinfo.lines().find_map(|l| l.split_once(':').filter(|(k, _)| k.trim() == name))?;
        Some(value.trim().to_string())
    };
    value("model name").or_else(|| value("Model")).unwrap_or_default()
}

fn instructions(cpuinfo: &str) -> Vec<String> {
    const WANTED: [(&str, &str); 8] = [
        ("avx2", "AVX2"),
        ("fma", "FMA"),
        ("avx512f", "AVX-512"),
        ("avx512_bf16", "AVX-512 BF16"),
        ("amx_tile", "AMX"),
        ("amx_bf16", "AMX-BF16"),
        ("asimd", "NEON"),
        ("sve", "SVE"),
    ];
    let line = cpuinfo.lines().find(|l| l.starts_with("flags") || l.starts_with("Features")).unwrap_or("");
    let has = |flag: &str| line.split_whitespace().any(|f| f == flag);
    WANTED.iter().filter(|(flag, _)| has(flag)).map(|(_, name)| name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cpuinfo() {
        let text =
            "processor\t: 0\nmodel name\t: Fast CPU @ 3GHz\nflags\t\t: fpu avx2 fma amx_tile amx_bf16\n";
        assert_eq!(cpu_model(text), "Fast CPU @ 3GHz");
        assert_eq!(instructions(text), ["AVX2", "FMA", "AMX", "AMX-BF16"]);
        assert_eq!(cpu_model(""), "");
    }

    #[test]
    fn reads_this_machine() {
        let facts = MachineFacts::read();
        assert!(facts.cores >= 1 && !facts.architecture.is_empty());
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<MachineFacts>(&text).unwrap(), facts);
    }
}
