//! Manifests for Kubernetes. Pods are machines: on one, ranks are threads of its process; on several, the first pod runs
//! mpirun, which starts the ranks of the others through ssh.

use std::process::ExitCode;

use anyhow::Result;

use super::local::mpirun;
use super::text::{command, indent, list, quote};
use super::{Spread, Work, hand_over};
use crate::args::{Kubernetes, Manifest};
use crate::commands::train::RESUME;

/// Where a pod finds what is mounted.
const SHARED: &str = "/work";
const RECIPE: &str = "/etc/fathom/recipe";
const KEYS: &str = "/etc/fathom/ssh";
/// Seconds from a pod's SIGTERM to its end: time to save.
const GRACE_S: u32 = 120;

/// Prints or submits the manifests.
pub fn run(args: &Kubernetes) -> Result<ExitCode> {
    let work = Work::of(&args.job)?;
    let pods = Pods { args, spread: work.spread(&args.machines)?, work: &work };
    let objects = match args.manifest {
        Manifest::Job => pods.job(),
        Manifest::Trainjob => pods.trainjob(),
    };
    hand_over(&args.job, &objects.join("---\n"), &["kubectl", "apply", "-f", "-"])
}

struct Pods<'a> {
    args: &'a Kubernetes,
    work: &'a Work<'a>,
    spread: Spread,
}

impl Pods<'_> {
    fn metadata(&self, name: &str) -> String {
        let namespace = self.args.namespace.as_ref().map(|space| format!("\n  namespace: {space}"));
        format!("metadata:\n  name: {name}{}", namespace.unwrap_or_default())
    }

    /// The recipe's own file travels with the job, resolved.
    fn recipe(&self) -> Option<String> {
        self.work.is_file().then(|| {
            let text = indent(self.work.loaded.text(), 4);
            let metadata = self.metadata(&format!("{}-recipe", self.work.name));
            format!("apiVersion: v1\nkind: ConfigMap\n{metadata}\ndata:\n  recipe.toml: |\n{text}\n")
        })
    }

    fn train(&self) -> (Vec<String>, Vec<String>) {
        let program = self.work.program(|| "fathom".into());
        let file = format!("{RECIPE}/recipe.toml");
        let train = self.work.train(&program, self.work.is_file().then_some(file.as_str()));
        (self.work.supervise(&program), train)
    }

    /// mpirun over all pods.
    fn mpirun(&self, hosts: Option<&str>) -> Vec<String> {
        let mut words = mpirun(self.work.ranks);
        words.push("--allow-run-as-root".into());
        words.extend(hosts.iter().flat_map(|hosts| ["--host".to_string(), (*hosts).to_string()]));
        words
    }

    /// Volumes and their mounts, by name and path.
    fn volumes(&self, keys: bool) -> (String, String) {
        let name = &self.work.name;
        let mut found = Vec::new();
        if let Some(claim) = &self.args.volume {
            found.push(("work", SHARED, format!("persistentVolumeClaim: {{claimName: {claim}}}")));
        }
        if self.work.is_file() {
            found.push(("recipe", RECIPE, format!("configMap: {{name: {name}-recipe}}")));
        }
        if keys {
            found.push(("ssh", KEYS, format!("secret: {{secretName: {name}-ssh, defaultMode: 0400}}")));
        }
        if found.is_empty() {
            return Default::default();
        }
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
            .map(|(name, value)| format!("\n    {name}: {value:?}"))
            .collect();
        if rows.is_empty() { String::new() } else { format!("resources:\n  limits:{}\n", rows.concat()) }
    }

    /// A pod with one container that runs `command`.
    fn pod(&self, command: &str, keys: bool) -> String {
        let (mounts, volumes) = self.volumes(keys);
        let folder = self.args.volume.as_ref().map(|_| format!("workingDir: {SHARED}\n")).unwrap_or_default();
        let container = format!(
            "- name: node\n  image: {}\n{}",
            self.args.image,
            indent(&format!("{command}{folder}{}{mounts}", self.resources()), 2)
        );
        format!(
            "restartPolicy: Never\nterminationGracePeriodSeconds: {GRACE_S}\ncontainers:\n{container}\n{}",
            volumes.trim_end()
        )
        .trim_end()
        .to_string()
    }

    /// An Indexed Job with what it needs.
    fn job(&self) -> Vec<String> {
        let (name, Spread { nodes, .. }) = (&self.work.name, self.spread);
        let service = format!(
            "apiVersion: v1\nkind: Service\n{}\nspec:\n  clusterIP: None\n  publishNotReadyAddresses: true\n  selector: {{job-name: {name}}}\n",
            self.metadata(name)
        );
        let command = if nodes == 1 { self.alone() } else { self.script() };
        let success = match nodes {
            1 => "",
            // The other pods serve the first one and end with it.
            _ => "  successPolicy:\n    rules:\n    - succeededIndexes: \"0\"\n",
        };
        let subdomain = if nodes == 1 { String::new() } else { format!("subdomain: {name}\n") };
        let job = format!(
            "apiVersion: batch/v1\nkind: Job\n{}\nspec:\n  completionMode: Indexed\n  completions: {nodes}\n  parallelism: {nodes}\n  backoffLimit: 3\n  # Saved and stopped: a new pod goes on.\n  podFailurePolicy:\n    rules:\n    - action: Ignore\n      onExitCodes: {{operator: In, values: [{RESUME}]}}\n{success}  template:\n    spec:\n{}\n",
            self.metadata(name),
            indent(&format!("{subdomain}{}", self.pod(&command, nodes > 1)), 6)
        );
        let service = (nodes > 1).then_some(service);
        self.recipe().into_iter().chain(service).chain([job]).collect()
    }

    /// One pod: ranks are threads.
    fn alone(&self) -> String {
        let (supervise, train) = self.train();
        format!("command: {}\n", list(&[supervise, train].concat()))
    }

    /// Several pods: the first starts the ranks, the others listen.
    fn script(&self) -> String {
        let (name, Spread { nodes, per_node }) = (&self.work.name, self.spread);
        let host = |index: usize| format!("{name}-{index}.{name}");
        let hosts: Vec<String> = (0..nodes).map(|index| format!("{}:{per_node}", host(index))).collect();
        let others: Vec<String> = (1..nodes).map(host).collect();
        let (supervise, train) = self.train();
        let script = format!(
            r#"# Once, for the key of all pods:
#   ssh-keygen -t ed25519 -N '' -f id && kubectl create secret generic {name}-ssh --from-file=id --from-file=authorized_keys=id.pub
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
    mkdir -p /run/sshd
    exec /usr/sbin/sshd -De -h {KEYS}/id -o AuthorizedKeysFile={KEYS}/authorized_keys -o StrictModes=no
fi
export OMPI_MCA_plm_rsh_args='-i {KEYS}/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR'
for host in {}; do
    until ssh $OMPI_MCA_plm_rsh_args "$host" true; do sleep 2; done
done
exec {} \
    {} \
    {}
"#,
            others.join(" "),
            command(&supervise),
            command(&self.mpirun(Some(&hosts.join(",")))),
            command(&train),
        );
        format!("command: [\"sh\", \"-euc\"]\nargs:\n- |\n{}\n", indent(&script, 2))
    }

    /// A TrainJob and the runtime that it refers to. Kubeflow makes the keys and the list of hosts.
    fn trainjob(&self) -> Vec<String> {
        let (name, Spread { nodes, per_node }) = (&self.work.name, self.spread);
        let (supervise, train) = self.train();
        let command = [supervise, self.mpirun(None), train].concat();
        let launcher = format!("command: {}\n", list(&command));
        let server = "command: [\"/usr/sbin/sshd\", \"-De\"]\nreadinessProbe:\n  tcpSocket: {port: 22}\n";
        let runtime = format!(
            r#"apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
{}
spec:
  mlPolicy:
    numNodes: {nodes}
    mpi:
      numProcPerNode: {per_node}
      mpiImplementation: OpenMPI
      runLauncherAsNode: true
  template:
    spec:
      network:
        publishNotReadyAddresses: true
      successPolicy:
        operator: All
        targetReplicatedJobs: [launcher]
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              spec:
{}
      - name: launcher
        dependsOn:
        - {{name: node, status: Ready}}
        template:
          metadata:
            labels:
              trainer.kubeflow.org/trainjob-ancestor-step: trainer
          spec:
            template:
              spec:
{}
"#,
            self.metadata(name),
            indent(&self.pod(server, false), 16),
            indent(&self.pod(&launcher, false), 16),
        );
        let job = format!(
            "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n{}\nspec:\n  runtimeRef:\n    apiGroup: trainer.kubeflow.org\n    kind: TrainingRuntime\n    name: {}\n  trainer:\n    image: {}\n    numNodes: {nodes}\n",
            self.metadata(name),
            quote(name),
            self.args.image,
        );
        self.recipe().into_iter().chain([runtime, job]).collect()
    }
}
