//! Byte ranges of findings.

use std::ops::Range;

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
