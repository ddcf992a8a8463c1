//! Manifests for Kubernetes. A pod is a machine. On one pod, ranks are threads of its process, or with a GPU each,
//! processes of mpirun; on several, the first pod runs mpirun, which starts the others' ranks over ssh.

mod job;
mod needs;
mod script;
mod trainjob;

use anyhow::{Result, bail};

use super::text::{indent, one_line, scalar, string};
use super::work::{RankLayout, Work, hand_over};
use crate::args::{Kubernetes, Manifest};
use crate::console;
use crate::exit::{ExitCode, RESUME};

/// Mount paths in a pod.
const SHARED: &str = "/work";
const RECIPE: &str = "/etc/fathom/recipe";

/// Prints or submits the manifests.
pub fn run(args: &Kubernetes) -> Result<ExitCode> {
    let one =
        |flag: &str, value: Option<&String>| value.map_or(Ok(""), |value| one_line(flag, value)).map(drop);
    one("--image", Some(&args.image))?;
    one("--namespace", args.namespace.as_ref())?;
    one("--volume", args.volume.as_ref())?;
    one("--memory", args.memory.as_ref())?;
    let work = Work::of(&args.job)?;
    work.warn_of_paths(match args.volume {
        Some(_) => "the volume, at /work",
        None => "the folder that the image starts in",
    });
    if args.volume.is_some() {
        for (key, path) in work.read().filter(|(_, path)| path.is_absolute() && !path.starts_with(SHARED)) {
            console::warn(&format!(
                "{key}: `{}` is outside the volume, which pods have at {SHARED}; copy it there and name that path, unless the image has it",
                path.display()
            ));
        }
    }
    let spread = work.spread(&args.machines)?;
    let needs = if args.memory.is_some() { None } else { needs::of_pod(&work, spread.per_node) };
    let pods = Pods { args, spread, work: &work, needs };
    pods.see_the_run()?;
    let objects = match args.manifest {
        Manifest::Job => pods.job(),
        Manifest::Trainjob => pods.trainjob(),
    };
    hand_over(&args.job, &objects.join("---\n"), &["kubectl", "apply", "-f", "-"])
}

struct Pods<'a> {
    args: &'a Kubernetes,
    work: &'a Work<'a>,
    spread: RankLayout,
    /// Memory that a pod needs by the plan, if none is given.
    needs: Option<u64>,
}

impl Pods<'_> {
    /// Refuses several pods without a shared folder.
    fn see_the_run(&self) -> Result<()> {
        let (nodes, out) = (self.spread.nodes, &self.work.loaded.value.run.out);
        if nodes == 1 {
            return Ok(());
        }
        if self.args.volume.is_none() {
            bail!(
                "--nodes {nodes} without --volume: every pod has to see the run's folder; name a claim for a volume that all pods share"
            );
        }
        if out.is_absolute() && !out.starts_with(SHARED) {
            bail!(
                "run.out={}: every pod has to see the run's folder, and they share {SHARED} alone; give a path in it, or a relative one",
                out.display()
            );
        }
        Ok(())
    }

    fn metadata(&self, name: &str) -> String {
        let namespace = self.args.namespace.as_ref().map(|space| format!("\n  namespace: {}", scalar(space)));
        format!("metadata:\n  name: {name}{}", namespace.unwrap_or_default())
    }

    /// A ConfigMap with the resolved recipe, if it is a file.
    fn recipe(&self) -> Option<String> {
        self.work.is_file().then(|| {
            let text = indent(self.work.loaded.text(), 4);
            let metadata = self.metadata(&format!("{}-recipe", self.work.name));
            format!("apiVersion: v1\nkind: ConfigMap\n{metadata}\ndata:\n  recipe.toml: |\n{text}\n")
        })
    }

    /// Volumes and their mounts, by name and path; `more` is a name, a path and a source.
    fn volumes(&self, more: Option<(&'static str, &'static str, String)>) -> (String, String) {
        let name = &self.work.name;
        // Containers have only 64 MiB here, which Open MPI and NCCL use for messages.
        let mut found = vec![("shm", "/dev/shm", "emptyDir: {medium: Memory}".to_string())];
        if let Some(claim) = &self.args.volume {
            let claim = scalar(claim);
            found.push(("work", SHARED, format!("persistentVolumeClaim: {{claimName: {claim}}}")));
        }
        if self.work.is_file() {
            found.push(("recipe", RECIPE, format!("configMap: {{name: {name}-recipe}}")));
        }
        found.extend(more);
        let mounts = found.iter().map(|(name, path, _)| format!("\n  - {{name: {name}, mountPath: {path}}}"));
        let volumes = found.iter().map(|(name, _, source)| format!("\n  - name: {name}\n    {source}"));
        (
            format!("volumeMounts:{}\n", mounts.collect::<String>()),
            format!("volumes:{}\n", volumes.collect::<String>()),
        )
    }

    fn resources(&self) -> String {
        let machines = &self.args.machines;
        let cores = machines.cpus_per_rank.map(|cores| ("cpu", (cores * self.spread.per_node).to_string()));
        let memory = self.args.memory.clone().map(|memory| ("memory", memory));
        let accelerators = machines.gpus_per_node.map(|gpus| ("nvidia.com/gpu", gpus.to_string()));
        let rows: Vec<String> = [cores, memory, accelerators]
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("\n    {name}: {}", string(&value)))
            .collect();
        // A request without a limit: exceeding the plan kills nothing.
        let needs = self.needs.map_or(String::new(), |bytes| {
            format!("\n  requests:\n    memory: {}", string(&format!("{}Gi", bytes.div_ceil(1 << 30))))
        });
        let limits = if rows.is_empty() { String::new() } else { format!("\n  limits:{}", rows.concat()) };
        if limits.is_empty() && needs.is_empty() {
            return String::new();
        }
        format!("resources:{needs}{limits}\n")
    }

    /// A pod with one container that runs `command`, and optionally another volume.
    fn pod(&self, command: &str, more: Option<(&'static str, &'static str, String)>) -> String {
        let (mounts, volumes) = self.volumes(more);
        let folder = self.args.volume.as_ref().map(|_| format!("workingDir: {SHARED}\n")).unwrap_or_default();
        let container = format!(
            "- name: node\n  image: {}\n{}",
            scalar(&self.args.image),
            indent(&format!("{command}{folder}{}{mounts}", self.resources()), 2)
        );
        format!(
            "restartPolicy: Never\nterminationGracePeriodSeconds: {}\ncontainers:\n{container}\n{}",
            self.args.machines.grace,
            volumes.trim_end()
        )
        .trim_end()
        .to_string()
    }
}

/// Rules for pod failures that do not count against a job.
fn failures() -> String {
    format!(
        "backoffLimit: 3\n# Saved and stopped, or evicted: a new pod goes on.\npodFailurePolicy:\n  rules:\n  - action: Ignore\n    onExitCodes: {{operator: In, values: [{RESUME}]}}\n  - action: Ignore\n    onPodConditions:\n    - {{type: DisruptionTarget, status: \"True\"}}\n"
    )
}
