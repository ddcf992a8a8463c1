//! Sinks of a run, each on by a key: files of TensorBoard, W&B and trackio, and servers of MLflow and OpenTelemetry.
//!
//! A server gets its scalars from a thread of its own. A run never waits for one, nor fails because of one: what a
//! server does not take in time is dropped, with one warning.

mod delivery;
mod mlflow;
mod otlp;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use fathom_report::sinks::wandb::{Identity, OfflineRun};
use fathom_report::sinks::{Lines, Sink, Sinks};
use fathom_report::tensorboard::EventFile;

use delivery::{Sample, Server};

use crate::error::Result;
use crate::job::Job;
use crate::report::unix_s;

/// Scalars that wait for a server.
const QUEUE: usize = 4096;
/// Scalars of a batch, and the time that one is collected for.
const BATCH: usize = 200;
const PACE: Duration = Duration::from_secs(2);
/// Time that a server has for the last batch when the run ends.
const LAST: Duration = Duration::from_secs(5);

/// Opens the sinks that a recipe asks for, after `step` completed updates.
///
/// # Errors
/// Files that cannot be written; an address that is not HTTP.
pub(super) fn open(job: &Job, step: u64) -> Result<Sinks> {
    let (run, folder, mut sinks) = (&job.recipe().run, &job.folder, Sinks::default());
    let now = unix_s() as u64;
    if run.tensorboard {
        sinks.add(EventFile::resume(&folder.join("tensorboard"), now, step)?);
    }
    if run.wandb {
        let of = Identity { name: &run.name, project: "fathom", start_unix_s: now, step };
        sinks.add(OfflineRun::create(&folder.join("wandb"), &of, job.loaded.rows())?);
    }
    if run.trackio {
        sinks.add(Lines::open(&folder.join("trackio.jsonl"))?);
    }
    if let Some(address) = &run.mlflow {
        sinks.add(Remote::start("MLflow", mlflow::Server::new(job, address)?));
    }
    if let Some(address) = &run.otlp {
        sinks.add(Remote::start("OpenTelemetry", otlp::Collector::new(job, address)?));
    }
    Ok(sinks)
}

enum Message {
    Sample(Sample),
    Finished,
}

/// A sink that passes scalars to the thread of a server.
struct Remote {
    name: &'static str,
    send: Option<SyncSender<Message>>,
    over: Receiver<()>,
    warned: bool,
}

impl Remote {
    fn start(name: &'static str, server: impl Server + 'static) -> Remote {
        let (send, receive) = sync_channel(QUEUE);
        let (done, over) = sync_channel(1);
        thread::spawn(move || {
            work(name, server, &receive);
            _ = done.send(());
        });
        Remote { name, send: Some(send), over, warned: false }
    }

    fn pass(&mut self, message: Message) {
        let sent = self.send.as_ref().map(|send| send.try_send(message));
        if let Some(Err(TrySendError::Full(_))) = sent
            && !self.warned
        {
            self.warned = true;
            log::warn!("{}: the server is too slow; figures of some steps are dropped", self.name);
        }
    }
}

impl Sink for Remote {
    fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> fathom_report::Result<()> {
        let scalars = scalars.iter().map(|(name, value)| ((*name).to_string(), *value)).collect();
        self.pass(Message::Sample(Sample { step, wall_s, scalars }));
        Ok(())
    }

    fn end(&mut self) -> fathom_report::Result<()> {
        self.pass(Message::Finished);
        Ok(())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Without a sender the thread delivers what is left, and ends.
        self.send = None;
        if self.over.recv_timeout(LAST) == Err(RecvTimeoutError::Timeout) {
            log::warn!("{}: the last figures were not delivered within {} s", self.name, LAST.as_secs());
        }
    }
}

fn work(name: &str, mut server: impl Server, receive: &Receiver<Message>) {
    let mut warned = false;
    let mut tell = |delivered: std::result::Result<(), String>| {
        if let Err(why) = delivered
            && !warned
        {
            warned = true;
            log::warn!("{name}: {why}; the run goes on without it");
        }
    };
    let (mut batch, mut finished, mut over) = (Vec::new(), false, false);
    while !over {
        let until = Instant::now() + PACE;
        while batch.len() < BATCH && !finished {
            match receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::Sample(sample)) => batch.push(sample),
                Ok(Message::Finished) => finished = true,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    over = true;
                    break;
                }
            }
        }
        over |= finished;
        if !batch.is_empty() {
            tell(server.deliver(&batch));
            batch.clear();
        }
    }
    if finished {
        tell(server.finish());
    }
}

#[cfg(test)]
mod tests;
