//! A Kubeflow TrainJob and its runtime.

use super::script::{Ssh, argument};
use super::{Pods, failures};
use crate::commands::launch::text::{indent, scalar};
use crate::commands::launch::work::RankLayout;

impl Pods<'_> {
    /// The TrainJob with its supporting objects. Kubeflow creates the keys.
    pub(super) fn trainjob(&self) -> Vec<String> {
        let (name, RankLayout { nodes, per_node }) = (&self.work.name, self.spread);
        let ssh = Ssh { server: String::new(), client: String::new() };
        let (node, launcher) = if nodes == 1 {
            (None, self.alone())
        } else {
            // Named as JobSet names pods, launcher first.
            let others = (0..nodes - 1).map(|index| format!("{name}-node-0-{index}.{name}"));
            let hosts: Vec<String> =
                [format!("{name}-launcher-0-0.{name}")].into_iter().chain(others).collect();
            let server = argument(&self.other(&ssh)) + "readinessProbe:\n  tcpSocket: {port: 22}\n";
            (Some(self.replicated("node", "", "", &server)), argument(&self.first(&ssh, &hosts)))
        };
        let after = if node.is_some() { "  dependsOn:\n  - {name: node, status: Ready}\n" } else { "" };
        let label =
            "    metadata:\n      labels:\n        trainer.kubeflow.org/trainjob-ancestor-step: trainer\n";
        let launcher = self.replicated("launcher", after, label, &launcher);
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
{}
"#,
            self.metadata(name),
            indent(&(node.unwrap_or_default() + &launcher), 6),
        );
        let job = format!(
            "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n{}\nspec:\n  runtimeRef:\n    apiGroup: trainer.kubeflow.org\n    kind: TrainingRuntime\n    name: {}\n  trainer:\n    image: {}\n    numNodes: {nodes}\n",
            self.metadata(name),
            scalar(name),
            scalar(&self.args.image),
        );
        self.recipe().into_iter().chain([runtime, job]).collect()
    }

    /// One of the runtime's jobs, whose pods run `command`.
    fn replicated(&self, name: &str, after: &str, label: &str, command: &str) -> String {
        format!(
            "- name: {name}\n{after}  template:\n{label}    spec:\n{}\n      template:\n        spec:\n{}\n",
            indent(&failures(), 6),
            indent(&self.pod(command, None), 10),
        )
    }
}
