//! Timestamps of the device: events in the compute stream, read once all have passed.

use std::sync::{Mutex, PoisonError};

use super::Streams;
use crate::Result;
use crate::driver::Event;

/// Timestamps recorded so far.
#[derive(Default)]
pub struct Stamps(Mutex<Vec<Event>>);

impl Stamps {
    /// Records a timestamp in the compute stream and returns its index.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn mark(&self, streams: &Streams) -> Result<u64> {
        let event = streams.driver.event(true)?;
        streams.driver.record(event, streams.compute("a time is taken")?)?;
        let mut marked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marked.push(event);
        Ok(marked.len() as u64 - 1)
    }

    /// Waits for all timestamps, returns the seconds of each since the first, and clears them.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn take(&self, streams: &Streams) -> Result<Vec<f64>> {
        let marked = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let (Some(first), Some(last)) = (marked.first(), marked.last()) else { return Ok(Vec::new()) };
        let driver = &streams.driver;
        driver.join(*last)?;
        let seconds = marked.iter().map(|event| driver.seconds(*first, *event)).collect();
        marked.iter().try_for_each(|event| driver.end_event(*event))?;
        seconds
    }
}
