//! Scripts that pods run.

use super::{Pods, RECIPE};
use crate::commands::launch::local::mpirun;
use crate::commands::launch::text::{as_it_is, command, indent, list, quote};
use crate::commands::launch::work::RankLayout;
use crate::exit::RESUME;

/// Rendezvous port of several pods' ranks.
const PORT: u16 = 29_500;

/// Flags of ssh between pods.
pub(super) struct Ssh {
    /// Flags of the server.
    pub server: String,
    /// Flags of the client, with a trailing space.
    pub client: String,
}

/// A script as a container's command.
pub(super) fn argument(script: &str) -> String {
    format!("command: [\"sh\", \"-euc\"]\nargs:\n- |\n{}\n", indent(&as_it_is(script), 2))
}

impl Pods<'_> {
    /// `fathom supervise ... --` and `fathom train ...`.
    fn train(&self) -> (Vec<String>, Vec<String>) {
        let program = self.program();
        let file = format!("{RECIPE}/recipe.toml");
        let train = self.work.train(&program, self.work.is_file().then_some(file.as_str()));
        (self.work.supervise(&program), train)
    }

    fn program(&self) -> String {
        self.work.program(|| "fathom".into())
    }

    /// mpirun in a container, and the settings that it passes on to ranks.
    fn mpirun(&self) -> Vec<String> {
        let mut words = mpirun(self.work.ranks);
        words.push("--allow-run-as-root".into());
        if self.args.machines.gpus_per_node.is_some() {
            // Messages that wait for each other get separate queues on a GPU.
            words.extend(["-x", "CUDA_DEVICE_MAX_CONNECTIONS=32"].map(String::from));
        }
        words
    }

    /// Command of a single pod: ranks are threads, or with a GPU each, processes connected by NCCL.
    pub(super) fn alone(&self) -> String {
        let (mut words, train) = self.train();
        if self.work.ranks > 1 && self.args.machines.gpus_per_node.is_some() {
            words.extend(self.mpirun());
        }
        words.extend(train);
        let words: Vec<String> = words.iter().map(|word| as_it_is(word)).collect();
        format!("command: {}\n", list(&words))
    }

    /// Script of a pod on which ranks are only started. On eviction its ranks ask all to save and stop, and a new pod
    /// takes its place: sshd alone would exit with 0, as if the pod's work were done.
    pub(super) fn other(&self, ssh: &Ssh) -> String {
        let program = self.program();
        let name = quote(program.rsplit('/').next().unwrap_or(&program));
        let evicted = quote(&format!(
            "kill -USR1 $(pidof {name}) || true; while pidof {name} >/dev/null; do sleep 1; done; exit {RESUME}"
        ));
        format!(
            r#"# Evicted: the ranks here ask all to save and stop, and a new pod takes its place.
trap {evicted} TERM
mkdir -p /run/sshd
{} &
wait $!
exit 1
"#,
            format!("/usr/sbin/sshd -De {}", ssh.server).trim_end()
        )
    }

    /// Script of the pod that starts all ranks. A restart also waits for the other pods, as one may be new.
    pub(super) fn first(&self, ssh: &Ssh, hosts: &[String]) -> String {
        let RankLayout { per_node, .. } = self.spread;
        let slots: Vec<String> = hosts.iter().map(|host| format!("{host}:{per_node}")).collect();
        let mut mpirun = self.mpirun();
        mpirun.extend(["--host".into(), slots.join(",")]);
        for variable in [format!("MASTER_ADDR={}", hosts[0]), format!("MASTER_PORT={PORT}")] {
            mpirun.extend(["-x".into(), variable]);
        }
        let (supervise, train) = self.train();
        format!(
            r#"ssh='{}-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR'
# Of Open MPI 4, which would cut the names of pods at their dots, and of Open MPI 5.
export OMPI_MCA_plm_rsh_args="$ssh" OMPI_MCA_orte_keep_fqdn_hostnames=true PRTE_MCA_plm_ssh_args="$ssh"
ready='
    trap "exit {RESUME}" USR1
    for host in {}; do
        until ssh -n $OMPI_MCA_plm_rsh_args "$host" true; do sleep 2; done
    done
    exec "$@"'
exec {} \
    sh -euc "$ready" ranks \
    {} \
    {}
"#,
            ssh.client,
            hosts[1..].join(" "),
            command(&supervise),
            command(&mpirun),
            command(&train),
        )
    }
}
