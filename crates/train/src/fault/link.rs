//! Faults between a rank's gradients and its update, where the step asks the link for failures: a crash, and an endless
//! wait.

use std::sync::Arc;
use std::time::Duration;

use fathom_tensor::mesh::{Among, Flight, Link, LinkError, Mesh, Traffic, What};
use fathom_tensor::{Device, Tensor};

use super::faults::Kind;
use super::injector::Injector;

/// A link around that of a mesh, or around none for a single rank.
pub(super) fn around(mesh: Mesh, injector: &Arc<Injector>) -> Box<dyn Link> {
    Box::new(FaultyLink { mesh, injector: injector.clone() })
}

struct FaultyLink {
    mesh: Mesh,
    injector: Arc<Injector>,
}

impl FaultyLink {
    fn inner(&self) -> &dyn Link {
        self.mesh.link().unwrap_or_else(|| panic!("a rank alone has no rank to send to or to receive from"))
    }
}

impl Link for FaultyLink {
    fn rank(&self) -> usize {
        self.mesh.rank()
    }

    fn ranks(&self) -> usize {
        self.mesh.grid().ranks()
    }

    fn among(&self, device: &Device, among: Among<'_>) {
        if let Some(link) = self.mesh.link() {
            link.among(device, among);
        }
    }

    fn send(&self, device: &Device, to: usize, src: &Tensor, what: What) -> Box<dyn Flight> {
        self.inner().send(device, to, src, what)
    }

    fn receive(&self, device: &Device, from: usize, dst: &Tensor, what: What) -> Box<dyn Flight> {
        self.inner().receive(device, from, dst, what)
    }

    fn check(&self) -> Result<(), LinkError> {
        let step = self.injector.take_step();
        self.mesh.check()?;
        if step == 0 {
            return Ok(());
        }
        let rank = self.rank();
        assert!(!self.injector.strikes(Kind::Kill, step), "the fault plan kills rank {rank} at step {step}");
        if self.injector.strikes(Kind::Hang, step) {
            loop {
                self.mesh.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn abort(&self, reason: &str) {
        if let Some(link) = self.mesh.link() {
            link.abort(reason);
        }
    }

    fn traffic(&self) -> Traffic {
        self.mesh.traffic()
    }

    fn section(&self, name: &'static str, deadline: Option<Duration>) {
        if let Some(link) = self.mesh.link() {
            link.section(name, deadline);
        }
    }

    fn rejoin(&self) -> Result<(), LinkError> {
        self.mesh.link().map_or(Ok(()), Link::rejoin)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use fathom_tensor::mesh::Grid;

    use super::*;

    #[test]
    fn a_rank_alone_dies_once_before_its_update() {
        let faults = "kill rank 0 at step 2, kill rank 1 at step 3".parse().unwrap();
        let injector = Arc::new(Injector::new(faults, 0, Arc::default()));
        let mesh = Mesh::new(Grid::default(), around(Mesh::alone(), &injector));
        let ends = |step: u64| {
            injector.set_step(step);
            let ended = catch_unwind(AssertUnwindSafe(|| mesh.check()));
            assert_eq!(mesh.check(), Ok(()), "not outside of a step");
            ended.err().and_then(|panic| panic.downcast_ref::<String>().cloned())
        };
        assert_eq!(ends(1), None);
        assert_eq!(ends(2).unwrap(), "the fault plan kills rank 0 at step 2");
        assert_eq!([ends(2), ends(3)], [None, None]);
        mesh.link().unwrap().abort("no rank hears it");
        assert_eq!(mesh.link().unwrap().rejoin(), Ok(()));
    }
}
