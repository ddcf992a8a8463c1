//! Reward by unit tests: the code in an answer is written next to the tests of its prompt's row, and a command runs
//! them in a jail ([`super::jail`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fathom_train::policy::apart::Apart;
use fathom_train::policy::reward::{Reward, RewardInput};
use fathom_train::policy::rules::{Code, RewardTable};

use super::jail::{Jail, ProgramOutput};

/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;

/// Command that runs the tests, with its limits.
pub struct UnitTests {
    command: Vec<String>,
    jail: Jail,
    code: Code,
    /// File names of the answer and of the tests.
    files: [String; 2],
    /// Key of the row that holds the tests.
    key: String,
}

impl UnitTests {
    /// Prepares the tests of a reward's table.
    ///
    /// # Errors
    /// Processes are not allowed; invalid limits; a system that cannot make a jail.
    pub fn boxed(table: &RewardTable, file: &Path, allowed: bool) -> fathom_train::Result<Box<dyn Reward>> {
        let refuse = |message: String| fathom_train::Error::Recipe {
            key: "rl.reward".into(),
            message: format!("reward `{}`: {message}", table.name),
        };
        let tests = UnitTests::new(table, file, allowed).map_err(refuse)?;
        tests.jail.check().map_err(refuse)?;
        Ok(Box::new(Apart::new(tests)))
    }

    fn new(table: &RewardTable, file: &Path, allowed: bool) -> Result<UnitTests, String> {
        let RewardTable { command, timeout_s, key, answer_file, tests_file, .. } = table;
        if command.is_empty() {
            return Err("needs a `command` that runs the tests, the program and its arguments".into());
        }
        if !allowed {
            return Err(format!(
                "starts a process for each answer ({}), in a jail, and nothing does unless it is allowed; look at what it is, then give \
                 --allow-processes",
                command.join(" ")
            ));
        }
        let files = [answer_file.clone(), tests_file.clone()];
        let plain = |name: &String| !name.is_empty() && !name.starts_with('.') && !name.contains('/');
        if !files.iter().all(plain) || files[0] == files[1] {
            return Err(format!("{files:?} are no two names of files; give answer_file and tests_file"));
        }
        if [table.memory_mib, table.disk_mib, table.cpu_s, table.processes].contains(&0) {
            return Err("has a limit of 0, with which nothing runs".into());
        }
        let timeout =
            Duration::try_from_secs_f64(*timeout_s).map_err(|error| format!("timeout_s: {error}"))?;
        let folder = file.parent().unwrap_or(Path::new("")).canonicalize();
        let folder = folder.map_err(|error| format!("{}: {error}", file.display()))?;
        let shown: Vec<PathBuf> = table.shown.iter().map(|shown| folder.join(shown)).collect();
        if let Some(none) = shown.iter().find(|shown| !shown.is_dir()) {
            return Err(format!("`shown` names {}, which is no folder", none.display()));
        }
        let jail = Jail {
            shown,
            memory_bytes: table.memory_mib.saturating_mul(MIB),
            disk_bytes: table.disk_mib.saturating_mul(MIB),
            cpu_s: table.cpu_s,
            processes: table.processes,
            timeout,
        };
        let code = Code::of(table)?;
        Ok(UnitTests { command: command.clone(), jail, code, files, key: key.clone() })
    }

    /// Returns 1 if the tests of an answer pass, else 0.
    fn of(&self, answer: &RewardInput<'_>) -> Result<f64, String> {
        let Some(tests) = answer.row.get(&self.key).and_then(|tests| tests.as_str()) else {
            return Err(format!("a prompt's row has no text `{}` with its tests", self.key));
        };
        let Some(code) = self.code.read(answer.text) else { return Ok(0.0) };
        let files = [(self.files[0].as_str(), code), (self.files[1].as_str(), tests)];
        let ProgramOutput { well, out } = self.jail.run(&files, &self.command)?;
        Ok(if well && self.code.says_so(&out) { 1.0 } else { 0.0 })
    }
}

impl Reward for UnitTests {
    /// Runs as many tests concurrently as there are processors.
    fn score(&self, answers: &[RewardInput<'_>]) -> Result<Vec<Option<f64>>, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(answers.len());
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(answer) = answers.get(at) else { return found };
                found.push((at, self.of(answer)));
            }
        };
        let mut found: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            all.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
        });
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, of)| of.map(Some)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::Command;

    use serde_json::{Map, Value, json};

    use super::*;

    /// Tests in the shell, which every system has.
    fn table() -> RewardTable {
        RewardTable {
            name: "t".into(),
            key: "tests".into(),
            command: ["sh", "tests.sh"].map(String::from).to_vec(),
            answer_file: "answer.sh".into(),
            tests_file: "tests.sh".into(),
            processes: 16,
            ..RewardTable::default()
        }
    }

    /// Returns the scores of answers; `None`, with a printed reason, if the system has no jail.
    fn scores(table: &RewardTable, tests: &str, texts: &[&str]) -> Option<Vec<f64>> {
        let folder = tempfile::tempdir().unwrap();
        let tests_of = UnitTests::new(table, &folder.path().join("reward.toml"), true).unwrap();
        if let Err(why) = tests_of.jail.check() {
            eprintln!("skipped: {why}");
            return None;
        }
        let row: Map<String, Value> = json!({"tests": tests}).as_object().unwrap().clone();
        let answer = |text| RewardInput {
            row: &row,
            prompt: "",
            text,
            messages: &[],
            earned: None,
            tokens: 1,
            ended: true,
        };
        let answers: Vec<RewardInput<'_>> = texts.iter().map(|text| answer(*text)).collect();
        Some(tests_of.score(&answers).unwrap().into_iter().map(Option::unwrap).collect())
    }

    #[track_caller]
    fn check(table: &RewardTable, tests: &str, answers: &[(&str, f64)]) {
        let texts: Vec<&str> = answers.iter().map(|(text, _)| *text).collect();
        let want: Vec<f64> = answers.iter().map(|(_, want)| *want).collect();
        assert!(scores(table, tests, &texts).is_none_or(|found| found == want), "{answers:?}");
    }

    const DOUBLES: &str = ". ./answer.sh; [ \"$(double 4)\" = 8 ] && [ \"$(double 0)\" = 0 ] && echo passed";

    #[test]
    fn answers_pass_or_fail() {
        let good = "So:\n```sh\ndouble() { echo $((2 * $1)); }\n```\n";
        let early = "```sh\nexit 0\n```";
        check(
            &table(),
            DOUBLES,
            &[(good, 1.0), ("```sh\ndouble() { echo 8; }\n```", 0.0), ("", 0.0), (early, 1.0)],
        );
        let by_pattern = RewardTable { pattern: Some("(?m)^passed$".into()), ..table() };
        check(&by_pattern, DOUBLES, &[(good, 1.0), (early, 0.0)]);
    }

    /// Each of these answers would harm the system or never end.
    #[test]
    fn answers_are_held() {
        let quick = RewardTable { timeout_s: 2.0, memory_mib: 64, disk_mib: 1, ..table() };
        let runs = ". ./answer.sh";
        check(&quick, runs, &[("while :; do :; done", 0.0), ("sleep 60", 0.0), ("true", 1.0)]);
        check(&quick, runs, &[("f() { f | f & f; }; f", 0.0)]);
        let slow = RewardTable { timeout_s: 30.0, ..quick };
        let large = "head -c 2000000 /dev/zero > file && exit 0; exit 1";
        check(&slow, runs, &[(large, 0.0), ("head -c 200000000 /dev/zero | tail > /dev/null", 0.0)]);
        let bounded = RewardTable { cpu_s: 1, timeout_s: 120.0, ..table() };
        check(&bounded, runs, &[("while :; do :; done", 0.0)]);
    }

    #[test]
    fn nothing_outside_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        let touches = format!(
            "for at in /usr/x /etc/x /x /dev/x {} /proc/sys/kernel/hostname; do (: > $at) 2> /dev/null && exit 1; done; \
             mount -o remount,rw / && exit 2; mount -t tmpfs none /usr && exit 3; unshare --user true && exit 4; exit 0",
            outside.display()
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connects = format!("exec 3<>/dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
        let out_there = Command::new("bash").args(["-c", &connects]).status();
        assert!(out_there.is_ok_and(|status| status.success()), "it can be reached from outside of the jail");
        let connects = format!("bash -c '{connects}' && exit 1; exit 0");
        check(
            &table(),
            "exec sh answer.sh",
            &[(&touches, 1.0), (&connects, 1.0), (": > here && [ -e here ]", 1.0)],
        );
        assert!(!outside.exists());
        // A program in a shown folder.
        std::fs::write(folder.path().join("tool"), "echo tool").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let at = folder.path().display();
        let (sees, writes) = (format!("[ $(sh {at}/tool) = tool ]"), format!("! (: > {at}/more)"));
        let shown = RewardTable { shown: vec![folder.path().into()], ..table() };
        check(&shown, "exec sh answer.sh", &[(&sees, 1.0), (&writes, 1.0)]);
        check(&table(), "exec sh answer.sh", &[(&sees, 0.0)]);
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reward.toml");
        let refused =
            |table: &RewardTable, allowed| UnitTests::boxed(table, &file, allowed).err().unwrap().to_string();
        let error = refused(&table(), false);
        assert!(error.contains("--allow-processes") && error.contains("sh tests.sh"), "{error}");
        for (table, said) in [
            (RewardTable { command: Vec::new(), ..table() }, "needs a `command`"),
            (RewardTable { answer_file: "../x".into(), ..table() }, "answer_file"),
            (RewardTable { cpu_s: 0, ..table() }, "limit of 0"),
            (RewardTable { shown: vec!["nowhere".into()], ..table() }, "no folder"),
            (RewardTable { pattern: Some("(".into()), ..table() }, "no regular expression"),
        ] {
            assert!(refused(&table, true).contains(said), "{said}");
        }
    }
}
