//! A job to launch: its recipe, its ranks, and the commands that run and submit it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::Context;
use anyhow::{Result, bail};
use fathom_app::job;
use fathom_app::library::{LIBRARY, layers, load, placed};
use fathom_base::recipe::Loaded;
use fathom_train::recipe::Recipe;

use super::text;
use crate::args::{Job, Machines};
use crate::console;
use crate::exit::ExitCode;

/// The work of a job.
pub(super) struct Work<'a> {
    job: &'a Job,
    pub(crate) loaded: Loaded<Recipe>,
    /// Name of the job's objects: the run's name if set, otherwise the recipe's.
    pub(crate) name: String,
    /// Ranks of the mesh.
    pub(crate) ranks: usize,
}

/// Distribution of ranks over machines.
#[derive(Clone, Copy)]
pub(super) struct RankLayout {
    pub(crate) nodes: usize,
    pub(super) per_node: usize,
}

impl<'a> Work<'a> {
    pub(crate) fn of(job: &'a Job) -> Result<Work<'a>> {
        let loaded = load(layers(&job.recipe, &job.keys()))?;
        let ranks = job::world(&loaded.value).map_err(|error| placed(&loaded, error))?;
        let file = PathBuf::from(&job.recipe);
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let named = loaded.value.run.name.clone();
        let name = if named.is_empty() || named == "train" { stem } else { named };
        Ok(Work { job, loaded, name: text::label(&name), ranks })
    }

    /// Paths that a run reads, with their recipe keys.
    pub(super) fn read(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let Recipe { model, data, objective, rl, .. } = &self.loaded.value;
        let one = [
            ("model.from", &model.from),
            ("data.tokenizer", &data.tokenizer),
            ("objective.teacher", &objective.teacher),
            ("rl.reward", &rl.reward),
        ];
        let files = data.paths.iter().map(|path| ("data.paths", path));
        let held_out = data.held_out_paths.iter().map(|path| ("data.held_out_paths", path));
        let named = one.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?)));
        let is_path = |(_, path): &(&str, &PathBuf)| {
            let path = path.to_string_lossy();
            !path.is_empty() && !path.starts_with("cargo:") && !path.contains("://")
        };
        named.chain(files).chain(held_out).filter(is_path)
    }

    /// Warns of relative paths, which a job resolves elsewhere.
    pub(crate) fn warn_of_paths(&self, base: &str) {
        for (key, path) in self.read().filter(|(_, path)| path.is_relative()) {
            console::warn(&format!(
                "{key}: `{}` is relative, and the job looks for it in {base}; an absolute path is the same everywhere",
                path.display()
            ));
        }
    }

    /// Distributes the mesh's ranks evenly.
    pub(crate) fn spread(&self, machines: &Machines) -> Result<RankLayout> {
        let nodes = machines.nodes;
        let per_node =
            machines.ranks_per_node.or(machines.gpus_per_node).unwrap_or(self.ranks.div_ceil(nodes));
        if nodes * per_node != self.ranks {
            bail!(
                "--nodes {nodes} with {per_node} ranks each are {} ranks, and the recipe's mesh has {}; set mesh.dp and its like so that their product is {}, or other machines",
                nodes * per_node,
                self.ranks,
                nodes * per_node
            );
        }
        Ok(RankLayout { nodes, per_node })
    }

    /// The given program, otherwise `other`.
    pub(crate) fn program(&self, other: impl FnOnce() -> PathBuf) -> String {
        self.job.program.clone().unwrap_or_else(other).display().to_string()
    }

    /// `fathom train RECIPE ...`, optionally with another recipe file.
    pub(crate) fn train(&self, program: &str, recipe: Option<&str>) -> Vec<String> {
        let mut words = vec![program.to_string(), "train".to_string()];
        match recipe {
            Some(file) => words.push(file.to_string()),
            None => words.extend([self.job.recipe.clone()].into_iter().chain(self.job.keys())),
        }
        words
    }

    /// `fathom supervise ... --`.
    pub(crate) fn supervise(&self, program: &str) -> Vec<String> {
        let out = self.loaded.value.run.out.display().to_string();
        let restarts = self.job.max_restarts.to_string();
        let words = [program, "supervise", "--out", &out, "--max-restarts", &restarts, "--"];
        words.map(String::from).to_vec()
    }

    /// Returns whether the recipe is a file rather than a built-in name.
    pub(crate) fn is_file(&self) -> bool {
        // Loading succeeded, so anything that is not a name is a file.
        !matches!(LIBRARY.text(&self.job.recipe), Ok(Some(_)))
    }
}

/// This program.
pub(super) fn this_program() -> PathBuf {
    crate::program::path().to_path_buf()
}

/// Prints a text, or pipes it to the program that submits it.
pub(super) fn hand_over(job: &Job, text: &str, submit: &[&str]) -> Result<ExitCode> {
    if !job.submit {
        out!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let (program, args) = (submit[0], &submit[1..]);
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).spawn().with_context(|| {
        format!("cannot start {program}; is it installed here? --print writes what it would get")
    })?;
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(text.as_bytes())
            .with_context(|| format!("{program} does not read what it is to submit"))?;
    }
    Ok(code(child.wait().with_context(|| format!("cannot wait for {program}"))?))
}

/// Another program's exit code as our own.
pub(super) fn code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
