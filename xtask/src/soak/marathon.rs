//! A server under `fathom supervise` that is repeatedly killed and stopped while a canary request is sent continually.
//! The criteria are those of TensorRT-LLM for a run of thirty minutes: fewer than one in a hundred canaries fails, the
//! server answers again within thirty seconds, and the last five canary answers equal the first.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::client::Client;
use super::{ChildGuard, free_port, ready, serve, token_ids};
use crate::kill_test::build;
use crate::random::Random;

/// Number of faults: kills and stops, alternating.
const FAULTS: u32 = 5;
/// Maximum seconds until the server answers again.
const RECOVERY: f64 = 30.0;

/// Runs the test; returns complaints about what did not hold.
pub fn run(model: &str, minutes: f64) -> Result<Vec<String>, String> {
    let (binary, client) = (build()?, Client { port: free_port()? });
    let server = serve(&binary, model, client.port);
    let mut command = Command::new(&binary);
    command.args(["supervise", "--ready", &format!("http://127.0.0.1:{}/health/ready", client.port), "--"]);
    command.arg(server.get_program()).args(server.get_args()).stdout(Stdio::null());
    let supervisor = ChildGuard(command.spawn().map_err(|error| error.to_string())?);
    ready(client, Duration::from_secs(120))?;
    let first = token_ids(client).ok_or("the server does not answer")?;

    let (mut random, started) = (Random(1), Instant::now());
    let seconds = 60.0 * minutes;
    // One fault in each of `FAULTS` equal parts of the time, at a random moment; the last part has none.
    let part = seconds / f64::from(FAULTS + 1);
    let mut faults: Vec<f64> =
        (0..FAULTS).map(|at| part * (f64::from(at) + 0.2 + 0.6 * random.unit())).collect();
    faults.reverse();
    let (mut asked, mut failed, mut longest, mut down) = (0u32, 0u32, 0.0f64, None);
    let mut last = Vec::new();
    while started.elapsed().as_secs_f64() < seconds {
        let now = started.elapsed().as_secs_f64();
        if faults.last().is_some_and(|at| *at < now) {
            faults.pop();
            let kill = faults.len().is_multiple_of(2);
            signal(supervisor.0.id(), if kill { "KILL" } else { "STOP" })?;
            println!("{now:.0} s: {}", if kill { "killed" } else { "stopped" });
            down = Some(Instant::now());
        }
        let ids = token_ids(client);
        asked += 1;
        if ids.is_none() {
            failed += 1;
        } else if let Some(since) = down.take() {
            let took = since.elapsed().as_secs_f64();
            println!("{:.0} s: answers again after {took:.1} s", started.elapsed().as_secs_f64());
            longest = longest.max(took);
        }
        last.push(ids);
        sleep(Duration::from_secs(1));
    }
    drop(supervisor);
    println!(
        "{asked} canaries, {failed} failed ({:.2} %); longest recovery {longest:.1} s",
        100.0 * f64::from(failed) / f64::from(asked.max(1))
    );
    let mut complaints = Vec::new();
    if failed * 100 >= asked {
        complaints.push(format!("{failed} of {asked} canaries failed"));
    }
    if longest >= RECOVERY || down.is_some() {
        complaints.push(format!("it took {longest:.0} s to answer again"));
    }
    if last.iter().rev().take(5).any(|ids| ids.as_ref() != Some(&first)) {
        complaints.push("the last five answers are not the first one's".to_string());
    }
    Ok(complaints)
}

/// Sends a signal to the server process below the supervisor.
fn signal(supervisor: u32, name: &str) -> Result<(), String> {
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let child = children.split_whitespace().next().ok_or("the supervisor has no server")?;
    let status = Command::new("kill").args(["-s", name, child]).status();
    status.map(|_| ()).map_err(|error| error.to_string())
}
