//! Chrome traces for Perfetto and `chrome://tracing`: one process per rank, one thread per stream.
//!
//! The file is a JSON array with one event per line. Readers of the format accept an array without its end, so the
//! trace of a killed run can be opened too.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// A span of work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// Name, e.g. `layer 3 attention`.
    pub name: String,
    /// Kind, e.g. `forward`, used for colours and filters.
    pub category: String,
    /// Rank.
    pub rank: u64,
    /// Stream within the rank.
    pub stream: u64,
    /// Start in microseconds since the start of the trace.
    pub start_us: f64,
    /// Duration in microseconds.
    pub duration_us: f64,
    /// Further facts to show, such as bytes or FLOPs.
    pub args: Vec<(String, Value)>,
}

/// A trace being written.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    file: BufWriter<File>,
    first: bool,
}

impl TraceWriter {
    /// Creates the file.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn create(path: impl AsRef<Path>) -> Result<TraceWriter> {
        let path = path.as_ref().to_path_buf();
        let mut file = File::create(&path).map(BufWriter::new).map_err(|error| Error::write(&path, error))?;
        file.write_all(b"[").map_err(|error| Error::write(&path, error))?;
        Ok(TraceWriter { path, file, first: true })
    }

    /// Names a rank.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn name_rank(&mut self, rank: u64, name: &str) -> Result<()> {
        self.event(&json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}))
    }

    /// Names a stream of a rank.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn name_stream(&mut self, rank: u64, stream: u64, name: &str) -> Result<()> {
        let args = json!({"name": name});
        self.event(&json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": stream, "args": args}))
    }

    /// Writes a span.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn span(&mut self, span: &Span) -> Result<()> {
        let args: Map<String, Value> = span.args.iter().cloned().collect();
        self.event(&json!({
            "ph": "X", "name": span.name, "cat": span.category, "pid": span.rank, "tid": span.stream,
            "ts": span.start_us, "dur": span.duration_us, "args": args,
        }))
    }

    /// Writes the end of the file and returns its path.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn finish(mut self) -> Result<PathBuf> {
        let ended = self.file.write_all(b"\n]\n").and_then(|()| self.file.flush());
        ended.map_err(|error| Error::write(&self.path, error))?;
        Ok(self.path)
    }

    fn event(&mut self, event: &Value) -> Result<()> {
        let gap = if self.first { "\n" } else { ",\n" };
        self.first = false;
        write!(self.file, "{gap}{event}").map_err(|error| Error::write(&self.path, error))
    }
}

/// Streams with a common name for spans that may overlap. Each span goes to the first free stream, since viewers draw
/// the spans of a stream on one line.
#[derive(Clone, Debug)]
pub struct Lanes {
    rank: u64,
    first_stream: u64,
    name: String,
    /// Time at which each stream becomes free, in microseconds.
    free_us: Vec<f64>,
}

impl Lanes {
    /// Creates lanes numbered from `first_stream`. Streams are added as spans overlap.
    pub fn new(rank: u64, first_stream: u64, name: &str) -> Lanes {
        Lanes { rank, first_stream, name: name.to_string(), free_us: Vec::new() }
    }

    /// Writes a span, with its rank and stream set here. Spans must be in order of their start.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn span(&mut self, trace: &mut TraceWriter, span: Span) -> Result<()> {
        let lane = self.free_us.iter().position(|free| *free <= span.start_us);
        let lane = lane.unwrap_or(self.free_us.len());
        let stream = self.first_stream + lane as u64;
        if lane == self.free_us.len() {
            self.free_us.push(0.0);
            let name = if lane == 0 { self.name.clone() } else { format!("{} {}", self.name, lane + 1) };
            trace.name_stream(self.rank, stream, &name)?;
        }
        self.free_us[lane] = span.start_us + span.duration_us;
        trace.span(&Span { rank: self.rank, stream, ..span })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_json_with_names_and_spans() {
        let folder = tempfile::tempdir().unwrap();
        let mut trace = TraceWriter::create(folder.path().join("trace.json")).unwrap();
        trace.name_rank(0, "rank 0").unwrap();
        trace.name_stream(0, 1, "compute").unwrap();
        let args = vec![("bytes".to_string(), json!(42))];
        let span = Span {
            name: "a \"b\"".into(),
            category: "forward".into(),
            stream: 1,
            start_us: 1.5,
            duration_us: 2.0,
            args,
            ..Span::default()
        };
        trace.span(&span).unwrap();
        let text = std::fs::read_to_string(trace.finish().unwrap()).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(events.len(), 3);
        assert_eq!(events[2]["dur"], 2.0);
        assert_eq!(events[2]["args"]["bytes"], 42);
    }

    #[test]
    fn spans_that_overlap_get_lanes_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut trace = TraceWriter::create(folder.path().join("trace.json")).unwrap();
        let mut lanes = Lanes::new(0, 100, "spill");
        for (start_us, duration_us) in [(0.0, 5.0), (1.0, 1.0), (3.0, 9.0), (5.0, 1.0), (6.0, 1.0)] {
            lanes.span(&mut trace, Span { start_us, duration_us, ..Span::default() }).unwrap();
        }
        let text = std::fs::read_to_string(trace.finish().unwrap()).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let names: Vec<&Value> =
            events.iter().filter(|e| e["ph"] == "M").map(|e| &e["args"]["name"]).collect();
        assert_eq!(names, ["spill", "spill 2"]);
        let streams: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").map(|e| &e["tid"]).collect();
        assert_eq!(streams, [100, 101, 101, 100, 100]);
    }
}
