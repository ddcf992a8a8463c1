//! Windows with overlap over all tokens of a text.

use std::ops::Range;

use super::question::{JudgeError, JudgeResult};

/// Division of a text that is longer than a judge reads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Tokens per window; fewer if the context has less room.
    pub tokens: usize,
    /// Tokens that two windows share.
    pub overlap: usize,
    /// Most tokens of a text; longer texts are refused.
    pub most: usize,
}

impl Windows {
    /// Windows over `len` tokens, each at most `room` long.
    ///
    /// # Errors
    /// More tokens than are allowed.
    pub fn of(&self, len: usize, room: usize) -> JudgeResult<Vec<Range<usize>>> {
        if len > self.most {
            return Err(JudgeError::TooLong { tokens: len, most: self.most });
        }
        let size = self.tokens.min(room).max(1);
        Ok(cut(len, size, self.overlap.min(size / 2)))
    }
}

/// Windows of `size` tokens that share `overlap` tokens; the last one ends at the text's end and is as long as the
/// others. An empty text is one empty window.
pub(crate) fn cut(len: usize, size: usize, overlap: usize) -> Vec<Range<usize>> {
    if len <= size {
        return std::iter::once(0..len).collect();
    }
    let stride = (size - overlap).max(1);
    let mut windows: Vec<Range<usize>> = (0..)
        .map(|at| at * stride)
        .take_while(|start| start + size < len)
        .map(|start| start..start + size)
        .collect();
    windows.push(len - size..len);
    windows
}

/// Bytes of a text that windows of its tokens cover: those of all tokens before and in them, widened to whole
/// characters. The whole text if the tokens' bytes are not the text's own, as after normalisation.
pub(crate) fn spans_of(
    text: &str,
    ids: &[u32],
    windows: &[Range<usize>],
    bytes: &dyn Fn(u32) -> usize,
) -> Vec<Range<usize>> {
    if windows.len() == 1 {
        return std::iter::once(0..text.len()).collect();
    }
    let mut ends = vec![0];
    for id in ids {
        ends.push(ends[ends.len() - 1] + bytes(*id));
    }
    if ends[ids.len()] != text.len() {
        return vec![0..text.len(); windows.len()];
    }
    let span = |window: &Range<usize>| {
        let (mut start, mut end) = (ends[window.start], ends[window.end]);
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        while !text.is_char_boundary(end) {
            end += 1;
        }
        start..end
    };
    windows.iter().map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_every_token_and_overlap() {
        for len in 0..200 {
            for size in 1..20 {
                for overlap in 0..=size / 2 {
                    let windows = cut(len, size, overlap);
                    assert_eq!((windows[0].start, windows[windows.len() - 1].end), (0, len));
                    assert!(windows.iter().all(|window| window.len() == size.min(len)));
                    let steps = windows.windows(2);
                    for pair in steps {
                        assert!(pair[1].start > pair[0].start && pair[1].start + overlap <= pair[0].end);
                    }
                }
            }
        }
    }

    #[test]
    fn a_span_is_of_whole_characters_and_the_whole_text_if_tokens_are_not_its_bytes() {
        let text = "aé漢b";
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let spans = spans_of(text, &ids, &[0..2, 4..7], &|_| 1);
        assert_eq!(spans, [0..3, 3..7]);
        assert_eq!(spans_of(text, &ids, &[0..2, 4..7], &|_| 2), [0..7, 0..7]);
    }

    #[test]
    fn a_text_beyond_the_limit_is_refused_and_never_cut_short() {
        let windows = Windows { tokens: 10, overlap: 2, most: 30 };
        assert_eq!(windows.of(30, 8).unwrap().len(), 5);
        assert!(matches!(windows.of(31, 8), Err(JudgeError::TooLong { tokens: 31, most: 30 })));
    }
}
