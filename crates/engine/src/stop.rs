//! Text that is certain: nothing that could still become part of a stop text is given out.

/// Collects a sequence's text and cuts it at the first stop text.
#[derive(Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// What became of a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub enum Passed {
    /// Text that is certain; may be empty.
    Text(String),
    /// The text before a stop text; the sequence ends here.
    Stopped(String),
}

impl StopFilter {
    /// A filter for some stop texts; empty ones are ignored.
    pub fn new(stops: &[String]) -> StopFilter {
        StopFilter {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            held: String::new(),
        }
    }

    /// Takes a piece of text.
    pub fn push(&mut self, piece: &str) -> Passed {
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return Passed::Stopped(std::mem::take(&mut self.held));
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed::Text(std::mem::replace(&mut self.held, rest))
    }

    /// The rest, when the sequence ended for another reason.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let lens = stop.char_indices().map(|(at, _)| at).skip(1);
    lens.filter(|len| text.ends_with(&stop[..*len])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut filter = StopFilter::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>());
        let mut out = String::new();
        for piece in pieces {
            match filter.push(piece) {
                Passed::Text(text) => out.push_str(&text),
                Passed::Stopped(text) => return (out + &text, true),
            }
        }
        (out + &filter.finish(), false)
    }

    #[test]
    fn stop_texts_across_pieces() {
        assert_eq!(run(&["\n\n"], &["a\n", "b\n", "\nc"]), ("a\nb".into(), true));
        assert_eq!(run(&["END"], &["E", "N", "x"]), ("ENx".into(), false));
        assert_eq!(run(&["END"], &["xEN"]), ("xEN".into(), false));
        assert_eq!(run(&["éa", "b"], &["cé", "ab"]), ("c".into(), true));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), false));
    }
}
