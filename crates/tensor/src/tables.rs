//! Tables of documents on a device.

use crate::{Category, Device, DocumentRun, DocumentRuns, RunPlaces};

impl DocumentRuns {
    /// Charged at `most` runs.
    ///
    /// # Panics
    /// If there are more.
    #[track_caller]
    pub fn new(device: &Device, runs: Vec<DocumentRun>, most: usize) -> DocumentRuns {
        assert!(runs.len() <= most, "documents: {} runs, and at most {most} are charged", runs.len());
        let end = runs.last().map_or(0, |run| run.rows.end);
        let line = |value: &dyn Fn(&DocumentRun) -> usize, rest: usize| {
            let rest = std::iter::repeat_n(rest, most + 1 - runs.len());
            runs.iter().map(value).chain(rest).map(|value| value as i32).collect::<Vec<i32>>()
        };
        let lines = [line(&|run| run.rows.start, end), line(&|run| run.offset, 0)].concat();
        let table = device.from_i32(&lines, Category::Data).reshape(2, most + 1);
        DocumentRuns { runs, table }
    }
}

impl RunPlaces {
    /// Charged at `most` runs.
    ///
    /// # Panics
    /// If there are more.
    #[track_caller]
    pub fn new(device: &Device, places: Vec<Option<usize>>, most: usize) -> RunPlaces {
        assert!(places.len() <= most, "documents: {} runs, and at most {most} are charged", places.len());
        let mut table: Vec<i32> = places.iter().map(|place| place.map_or(-1, |place| place as i32)).collect();
        table.resize(most, -1);
        RunPlaces { places, table: device.from_i32(&table, Category::Data) }
    }
}
