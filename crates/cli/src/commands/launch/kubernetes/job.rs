//! An Indexed Job, which needs only Kubernetes itself.

use super::script::{Ssh, argument};
use super::{Pods, failures};
use crate::commands::launch::text::indent;
use crate::commands::launch::work::RankLayout;

/// Mount path of the pods' key.
const KEYS: &str = "/etc/fathom/ssh";

impl Pods<'_> {
    /// The Job with its supporting objects.
    pub(super) fn job(&self) -> Vec<String> {
        let (name, RankLayout { nodes, .. }) = (&self.work.name, self.spread);
        let service = format!(
            "apiVersion: v1\nkind: Service\n{}\nspec:\n  clusterIP: None\n  publishNotReadyAddresses: true\n  selector: {{job-name: {name}}}\n",
            self.metadata(name)
        );
        let pod = match nodes {
            1 => self.pod(&self.alone(), None),
            _ => {
                let keys = format!("secret: {{secretName: {name}-ssh, defaultMode: 0400}}");
                let pod = self.pod(&argument(&self.first_and_others()), Some(("ssh", KEYS, keys)));
                format!("subdomain: {name}\n{pod}")
            }
        };
        let success = match nodes {
            1 => "",
            // The other pods serve the first one and end with it.
            _ => "successPolicy:\n  rules:\n  - succeededIndexes: \"0\"\n",
        };
        let job = format!(
            "apiVersion: batch/v1\nkind: Job\n{}\nspec:\n  completionMode: Indexed\n  completions: {nodes}\n  parallelism: {nodes}\n{}\n  template:\n    spec:\n{}\n",
            self.metadata(name),
            indent(&format!("{}{success}", failures()), 2),
            indent(&pod, 6)
        );
        let service = (nodes > 1).then_some(service);
        self.recipe().into_iter().chain(service).chain([job]).collect()
    }

    /// Script of each of several pods, which all have one command.
    fn first_and_others(&self) -> String {
        let name = &self.work.name;
        let hosts: Vec<String> =
            (0..self.spread.nodes).map(|index| format!("{name}-{index}.{name}")).collect();
        let ssh = Ssh {
            server: format!("-h {KEYS}/id -o AuthorizedKeysFile={KEYS}/authorized_keys -o StrictModes=no"),
            client: format!("-i {KEYS}/id "),
        };
        format!(
            r#"# Once, for the key of all pods:
#   ssh-keygen -t ed25519 -N '' -f id && kubectl create secret generic {name}-ssh --from-file=id --from-file=authorized_keys=id.pub
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
{}
fi
{}"#,
            indent(&self.other(&ssh), 4),
            self.first(&ssh, &hosts),
        )
    }
}
