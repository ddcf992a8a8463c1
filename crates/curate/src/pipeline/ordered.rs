//! Parallel work on batches with results accepted in order, for whole-table stages with a single output.

use std::sync::{Mutex, PoisonError};

use super::barrier::{Batches, Job};
use super::batch::Batch;
use super::crew::{self, Lane};
use crate::error::Error;

impl Job<'_> {
    /// Calls `work` with (number of the first document, batch) for every batch, on all threads and in any order, and
    /// `accept` with each result, one at a time in table order. Reading and accepting overlap with work on other
    /// batches.
    ///
    /// # Errors
    /// A part cannot be read, or `work` or `accept` fails.
    pub fn in_order<T: Send>(
        &self,
        work: &(dyn Fn(u64, &Batch) -> Result<T, Error> + Sync),
        accept: &mut (dyn FnMut(T) -> Result<(), Error> + Send),
    ) -> Result<(), Error> {
        let accept = Mutex::new(Some(accept));
        let open = |_: usize| {
            let accept = accept.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(BatchLane { batches: self.batches(), accept })
        };
        let work = |(number, batch): (u64, Batch)| work(number, &batch);
        crew::run(self.env.limits(), 1, &open, &work)
    }
}

type Accept<'a, T> = &'a mut (dyn FnMut(T) -> Result<(), Error> + Send);

struct BatchLane<'a, T> {
    batches: Batches,
    accept: Option<Accept<'a, T>>,
}

impl<T: Send> Lane for BatchLane<'_, T> {
    type Job = (u64, Batch);
    type Output = T;

    fn next(&mut self) -> Result<Option<Self::Job>, Error> {
        self.batches.next().transpose()
    }

    fn bytes((_, batch): &Self::Job) -> u64 {
        batch.text_bytes()
    }

    fn accept(&mut self, done: T) -> Result<(), Error> {
        self.accept.as_mut().map_or(Ok(()), |accept| accept(done))
    }

    fn finish(self) -> Result<(), Error> {
        Ok(())
    }
}
