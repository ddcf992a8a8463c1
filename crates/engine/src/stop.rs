//! Stop texts: no text is emitted that could still become part of one.

/// Collects a sequence's text and cuts it at the first stop text.
#[derive(Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// Result of a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub enum Passed {
    /// Final text; may be empty.
    Text(String),
    /// The text before a stop text, and the stop text; the sequence ends here.
    Stopped(String, String),
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
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            self.held.truncate(at);
            return Passed::Stopped(std::mem::take(&mut self.held), stop.clone());
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed::Text(std::mem::replace(&mut self.held, rest))
    }

    /// The remaining text of a sequence that ended for another reason.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Length of the end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let lens = stop.char_indices().map(|(at, _)| at).skip(1);
    lens.filter(|len| text.ends_with(&stop[..*len])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'s>(stops: &[&'s str], pieces: &[&str]) -> (String, Option<&'s str>) {
        let mut filter = StopFilter::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>());
        let mut out = String::new();
        for piece in pieces {
            match filter.push(piece) {
                Passed::Text(text) => out.push_str(&text),
                Passed::Stopped(text, by) => {
                    return (out + &text, stops.iter().copied().find(|stop| *stop == by));
                }
            }
        }
        (out + &filter.finish(), None)
    }

    #[test]
    fn stop_texts_across_pieces() {
        assert_eq!(run(&["\n\n"], &["a\n", "b\n", "\nc"]), ("a\nb".into(), Some("\n\n")));
        assert_eq!(run(&["END"], &["E", "N", "x"]), ("ENx".into(), None));
        assert_eq!(run(&["END"], &["xEN"]), ("xEN".into(), None));
        assert_eq!(run(&["éa", "b"], &["cé", "ab"]), ("c".into(), Some("éa")));
        assert_eq!(run(&["b", "ab", "a"], &["cab"]), ("c".into(), Some("ab")));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }
}
