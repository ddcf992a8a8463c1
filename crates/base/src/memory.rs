//! Memory available to this process: system memory, limits of its control groups (set by Kubernetes, Slurm, Docker
//! and systemd), and its own resource limits (set by a shell with `ulimit -v`, `ulimit -d`). Linux only; unknown
//! elsewhere.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::rss::kib_field;

/// Memory available to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory installed in the machine.
    pub installed_bytes: u64,
    /// Usable memory: the installed memory, or the lowest limit of a control group or of the process.
    pub total_bytes: u64,
    /// Memory usable now without swapping or reaching a limit.
    pub available_bytes: u64,
    /// File with the lowest limit, if it is below the installed memory.
    pub limited_by: Option<PathBuf>,
}

impl Memory {
    /// Reads the current values; `None` if the system does not provide them.
    pub fn read() -> Option<Memory> {
        Memory::under(Path::new("/"))
    }

    /// Like [`Memory::read`], for the files under `root`.
    fn under(root: &Path) -> Option<Memory> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let bytes = |name| kib_field(&meminfo, name).map(|kib| kib * 1024);
        let installed_bytes = bytes("MemTotal:")?;
        let mut memory = Memory {
            installed_bytes,
            total_bytes: installed_bytes,
            available_bytes: bytes("MemAvailable:")?,
            limited_by: None,
        };
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
            if controllers.is_empty() {
                memory.limit(&root.join("sys/fs/cgroup"), group, &VERSION_2);
            } else if controllers.split(',').any(|controller| controller == "memory") {
                memory.limit(&root.join("sys/fs/cgroup/memory"), group, &VERSION_1);
            }
        }
        memory.limit_process(&root.join("proc/self"));
        Some(memory)
    }

    /// Lowers the values to the process's own limits. These limit address space rather than memory, and threads, code
    /// and the allocator use address space too: half of it is reserved for them.
    fn limit_process(&mut self, process: &Path) {
        let path = process.join("limits");
        let limits = fs::read_to_string(&path).unwrap_or_default();
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        for (name, used) in [("Max address space", "VmSize:"), ("Max data size", "VmData:")] {
            let line = limits.lines().find_map(|line| line.strip_prefix(name));
            let Some(most) = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()) else {
                continue;
            };
            let used = kib_field(&status, used).unwrap_or(0) * 1024;
            self.available_bytes = self.available_bytes.min(most.saturating_sub(used) / 2);
            if most / 2 < self.total_bytes {
                (self.total_bytes, self.limited_by) = (most / 2, Some(path.clone()));
            }
        }
    }

    /// Lowers the values to the limits of `group` and of all its ancestors. In a container the mounted folder may be
    /// the group itself while its path is that on the host; nonexistent folders impose no limits.
    fn limit(&mut self, mount: &Path, group: &str, files: &Files) {
        let names = Path::new(group).components().filter(|part| matches!(part, Component::Normal(_)));
        let group: PathBuf = names.collect();
        for folder in group.ancestors().map(|part| mount.join(part)) {
            let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
            let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            // Cached file pages count as used, but are reclaimed when memory runs out.
            let files_bytes: u64 = files.cached.iter().filter_map(|name| kib_field(&stat, name)).sum();
            let used = number(files.usage).unwrap_or(0).saturating_sub(files_bytes);
            for name in files.limits {
                let Some(most) = number(name) else { continue };
                self.available_bytes = self.available_bytes.min(most.saturating_sub(used));
                if most < self.total_bytes {
                    (self.total_bytes, self.limited_by) = (most, Some(folder.join(name)));
                }
            }
        }
    }
}

/// File names of a control group version.
struct Files {
    /// Limits that no process may exceed, or above which it is throttled.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` with cached file pages, in bytes, including subgroups.
    cached: [&'static str; 2],
}

const VERSION_2: Files = Files {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cached: ["inactive_file ", "active_file "],
};

const VERSION_1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads memory of a machine of 1000 MiB with 800 free, in `groups`, with `files` below its root.
    fn read(groups: &str, files: &[(&str, &str)]) -> Memory {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:    1024000 kB\nMemFree:  1 kB\nMemAvailable:     819200 kB\n");
        write("proc/self/cgroup", groups);
        files.iter().for_each(|(path, text)| write(&format!("sys/fs/cgroup/{path}"), text));
        let mut memory = Memory::under(root.path()).unwrap();
        memory.limited_by = memory
            .limited_by
            .map(|path| path.strip_prefix(root.path().join("sys/fs/cgroup")).unwrap().to_path_buf());
        memory
    }

    #[track_caller]
    fn check(groups: &str, files: &[(&str, &str)], [total, available]: [u64; 2], by: Option<&str>) {
        let expected = Memory {
            installed_bytes: 1000 * MIB,
            total_bytes: total * MIB,
            available_bytes: available * MIB,
            limited_by: by.map(PathBuf::from),
        };
        assert_eq!(read(groups, files), expected);
    }

    #[test]
    fn groups_without_a_limit_limit_nothing() {
        check("", &[], [1000, 800], None);
        check("0::/\n", &[], [1000, 800], None);
        check("0::/a\n", &[("a/memory.max", "max\n"), ("a/memory.current", "5\n")], [1000, 800], None);
        let none = "9223372036854771712\n";
        check("4:memory:/\n0::/\n", &[("memory/memory.limit_in_bytes", none)], [1000, 800], None);
        // A limit above the installed memory.
        check("0::/a\n", &[("a/memory.max", "2097152000\n")], [1000, 800], None);
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let files = [
            ("pod/node/memory.max", "max\n"),
            ("pod/node/memory.current", "20971520\n"),
            ("pod/memory.max", "209715200\n"),
            ("pod/memory.current", "52428800\n"),
            ("pod/memory.stat", "anon 3\ninactive_file 10485760\nactive_file 10485760\nfile 41943040\n"),
        ];
        check("0::/pod/node\n", &files, [200, 170], Some("pod/memory.max"));
        let high = [("pod/memory.max", "209715200"), ("pod/memory.high", "104857600")];
        check("0::/pod\n", &high, [100, 100], Some("pod/memory.high"));
        // Limits of other groups do not apply.
        check("0::/other\n", &files, [1000, 800], None);
    }

    #[test]
    fn groups_of_version_1_say_it_in_their_own_words() {
        let files = [
            ("memory/job/step/memory.limit_in_bytes", "314572800\n"),
            ("memory/job/step/memory.usage_in_bytes", "104857600\n"),
            ("memory/job/step/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n"),
            ("memory/job/memory.limit_in_bytes", "419430400\n"),
        ];
        let groups = "5:cpuset:/job\n4:cpu,memory:/job/step\n0::/\n";
        check(groups, &files, [300, 250], Some("memory/job/step/memory.limit_in_bytes"));
    }

    #[test]
    fn limits_of_the_process_count() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("proc/self");
        fs::create_dir_all(&process).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\n")
            .unwrap();
        fs::write(process.join("status"), "VmSize:   204800 kB\nVmData:   102400 kB\n").unwrap();
        let limits = |address: &str, data: &str| {
            let text = format!(
                "Limit           Soft Limit   Hard Limit   Units\nMax data size       {data}   unlimited   bytes\n\
                 Max address space         {address}            unlimited            bytes\n"
            );
            fs::write(process.join("limits"), text).unwrap();
            let memory = Memory::under(root.path()).unwrap();
            (memory.total_bytes / MIB, memory.available_bytes / MIB, memory.limited_by.is_some())
        };
        assert_eq!(limits("unlimited", "unlimited"), (1000, 800, false));
        assert_eq!(limits("629145600", "unlimited"), (300, 200, true));
        assert_eq!(limits("unlimited", "419430400"), (200, 150, true));
        assert_eq!(limits("104857600", "unlimited"), (50, 0, true));
    }

    /// Docker without a cgroup namespace: the path is the host's, and the mounted folder is the container's own
    /// group.
    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let files = [("memory.max", "104857600\n"), ("memory.current", "209715200\n")];
        check("0::/system.slice/docker-abc.scope\n", &files, [100, 0], Some("memory.max"));
        check("0::/../../docker-abc.scope\n", &files, [100, 0], Some("memory.max"));
    }
}
