//! Byte ranges of findings, and boundaries of graphemes.

use std::ops::Range;

use unicode_segmentation::GraphemeCursor;

use crate::verdict::Finding;

/// Ascending, disjoint ranges that cover the same bytes; overlapping ones are united.
pub fn merged(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_by_key(|span| (span.start, span.end));
    let mut out: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match out.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => out.push(span),
        }
    }
    out
}

/// Ascending, disjoint findings that cover the same bytes; overlapping ones are united under the kind of the first, the
/// longest of those that begin together.
pub fn united(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| (finding.span.start, std::cmp::Reverse(finding.span.end)));
    let mut out: Vec<Finding> = Vec::with_capacity(findings.len());
    for finding in findings {
        match out.last_mut() {
            Some(last) if finding.span.start < last.span.end => {
                last.span.end = last.span.end.max(finding.span.end);
            }
            _ => out.push(finding),
        }
    }
    out
}

/// The grapheme boundary at or before an offset; before the last grapheme, if the offset is the text's end.
pub fn grapheme_floor(text: &str, at: usize) -> usize {
    let at = text.floor_char_boundary(at);
    if at == 0 {
        return 0;
    }
    let bytes = text.as_bytes();
    if at < text.len() && bytes[at - 1].is_ascii() && bytes[at].is_ascii() && bytes[at - 1] != b'\r' {
        return at;
    }
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    if at < text.len() && cursor.is_boundary(text, 0).unwrap_or(false) {
        return at;
    }
    cursor.prev_boundary(text, 0).ok().flatten().unwrap_or(0)
}
