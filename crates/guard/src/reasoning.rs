//! Removes thoughts from a growing text (`reasoning = "drop"`).

use crate::calls::{THOUGHTS, partial};

/// Removes the thoughts of one answer, with their markers.
#[derive(Debug)]
pub(crate) struct ThoughtFilter {
    held: String,
    /// The marker that ends the thoughts in which the text is.
    inside: Option<&'static str>,
}

impl ThoughtFilter {
    /// A filter for an answer behind this end of a prompt, which may have opened thoughts.
    pub fn new(prompt: &str) -> ThoughtFilter {
        let open = THOUGHTS.iter().find(|(open, _)| prompt.trim_end().ends_with(open));
        ThoughtFilter { held: String::new(), inside: open.map(|(_, close)| *close) }
    }

    /// Adds text; returns what is no thought.
    pub fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let mut out = String::new();
        loop {
            match self.inside {
                Some(close) => {
                    let Some(at) = self.held.find(close) else {
                        let kept = partial(&self.held, close);
                        self.held.drain(..self.held.len() - kept);
                        return out;
                    };
                    self.held.drain(..at + close.len());
                    self.inside = None;
                }
                None => {
                    let marks = THOUGHTS
                        .iter()
                        .filter_map(|(open, close)| self.held.find(open).map(|at| (at, open.len(), *close)));
                    let Some((at, len, close)) = marks.min() else {
                        let kept = THOUGHTS.iter().map(|(open, _)| partial(&self.held, open)).max();
                        out.extend(self.held.drain(..self.held.len() - kept.unwrap_or(0)));
                        return out;
                    };
                    out.extend(self.held.drain(..at));
                    self.held.drain(..len);
                    self.inside = Some(close);
                }
            }
        }
    }

    /// Ends the text; returns the rest that is no thought.
    pub fn finish(&mut self) -> String {
        match self.inside {
            Some(_) => String::new(),
            None => std::mem::take(&mut self.held),
        }
    }
}

/// Markers that have to appear in an answer's text so that its thoughts can be removed.
pub(crate) fn marks() -> impl Iterator<Item = String> {
    THOUGHTS.iter().flat_map(|(open, close)| [open.to_string(), close.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_removed_for_every_chunking() {
        let text = "<think>no</think>Yes [THINK]never[/THINK]and <thin";
        for chunk in 1..20 {
            let mut filter = ThoughtFilter::new("");
            let mut out = String::new();
            for piece in text.as_bytes().chunks(chunk) {
                out.push_str(&filter.push(std::str::from_utf8(piece).unwrap()));
            }
            out.push_str(&filter.finish());
            assert_eq!(out, "Yes and <thin", "pieces of {chunk}");
        }
        let mut filter = ThoughtFilter::new("<|assistant|><think>\n");
        assert_eq!(filter.push("hidden</think>shown"), "shown");
    }
}
