//! Translation edit rate as `sacrebleu.corpus_ter` computes it (Tercom's shifts with a beam around the diagonal), in
//! lower case and without normalization.

use crate::python::words;

const MOST_SHIFTED: usize = 10;
const MOST_DISTANCE: usize = 50;
const BEAM: usize = 25;
const MOST_CANDIDATES: usize = 1000;

/// Edits and reference words of a segment, or of several that are added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TerCounts {
    edits: f64,
    words: f64,
}

impl TerCounts {
    /// Fewest edits of an answer over its references, and their mean length.
    pub fn of(answer: &str, references: &[String]) -> TerCounts {
        let answer = answer.trim_end_matches(crate::python::is_space).to_lowercase();
        let answer: Vec<&str> = words(&answer).collect();
        let (mut edits, mut length) = (usize::MAX, 0);
        for reference in references {
            let reference = reference.to_lowercase();
            let reference: Vec<&str> = words(&reference).collect();
            edits = edits.min(self::edits(&answer, &reference));
            length += reference.len();
        }
        TerCounts { edits: edits as f64, words: length as f64 / references.len().max(1) as f64 }
    }

    /// Adds the counts of another segment.
    pub fn add(&mut self, other: &TerCounts) {
        self.edits += other.edits;
        self.words += other.words;
    }

    /// The rate in percent; 100 without reference words.
    pub fn score(&self) -> f64 {
        match () {
            () if self.words > 0.0 => 100.0 * (self.edits / self.words),
            () if self.edits > 0.0 => 100.0,
            () => 0.0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Edit {
    Keep,
    Substitute,
    Insert,
    Delete,
}

fn edits(answer: &[&str], reference: &[&str]) -> usize {
    if reference.is_empty() {
        return answer.len();
    }
    let (mut shifts, mut now, mut candidates) = (0, answer.to_vec(), 0);
    loop {
        let (gain, shifted) = best_shift(&now, reference, &mut candidates);
        if candidates >= MOST_CANDIDATES || gain <= 0 {
            break;
        }
        shifts += 1;
        now = shifted;
    }
    shifts + distance(&now, reference).0
}

/// The edit distance within the beam, and the edits from the answer to the reference.
fn distance(answer: &[&str], reference: &[&str]) -> (usize, Vec<Edit>) {
    let (rows, columns) = (answer.len(), reference.len());
    let far = (usize::MAX / 2, Edit::Keep);
    let ratio = if rows > 0 { columns as f64 / rows as f64 } else { 1.0 };
    let beam = if (BEAM as f64) < ratio / 2.0 { (ratio / 2.0 + BEAM as f64).ceil() as usize } else { BEAM };
    let mut costs = vec![vec![far; columns + 1]; rows + 1];
    costs[0] = (0..=columns).map(|j| (j, Edit::Insert)).collect();
    for i in 1..=rows {
        let diagonal = (i as f64 * ratio).floor() as usize;
        let last = if i == rows { columns + 1 } else { (columns + 1).min(diagonal + beam) };
        for j in diagonal.saturating_sub(beam)..last {
            if j == 0 {
                costs[i][0] = (costs[i - 1][0].0 + 1, Edit::Delete);
                continue;
            }
            let same = answer[i - 1] == reference[j - 1];
            let kept = (
                costs[i - 1][j - 1].0 + usize::from(!same),
                if same { Edit::Keep } else { Edit::Substitute },
            );
            for (cost, edit) in
                [kept, (costs[i - 1][j].0 + 1, Edit::Delete), (costs[i][j - 1].0 + 1, Edit::Insert)]
            {
                if costs[i][j].0 > cost {
                    costs[i][j] = (cost, edit);
                }
            }
        }
    }
    let (mut i, mut j, mut trace) = (rows, columns, Vec::new());
    while i > 0 || j > 0 {
        let edit = costs[i][j].1;
        trace.push(edit);
        i -= usize::from(edit != Edit::Insert).min(i);
        j -= usize::from(edit != Edit::Delete).min(j);
    }
    trace.reverse();
    (costs[rows][columns].0, trace)
}

/// For each reference word the index of the answer's word that it is aligned with (-1 before the first), whether it is
/// wrong, and whether each word of the answer is.
fn aligned(trace: &[Edit]) -> (Vec<isize>, Vec<bool>, Vec<bool>) {
    let (mut at, mut align, mut wrong_reference, mut wrong_answer) = (-1, Vec::new(), Vec::new(), Vec::new());
    for edit in trace {
        // The reference is rewritten into the answer, so insertions and deletions change places.
        if *edit != Edit::Insert {
            at += 1;
            wrong_answer.push(*edit != Edit::Keep);
        }
        if *edit != Edit::Delete {
            align.push(at);
            wrong_reference.push(*edit != Edit::Keep);
        }
    }
    (align, wrong_reference, wrong_answer)
}

/// The shift of words that reduces the distance the most, and by how much.
fn best_shift<'w>(answer: &[&'w str], reference: &[&str], candidates: &mut usize) -> (isize, Vec<&'w str>) {
    let (before, trace) = distance(answer, reference);
    let (align, wrong_reference, wrong_answer) = aligned(&trace);
    let mut best: Option<(isize, usize, isize, isize, Vec<&str>)> = None;
    for (start, target, length) in matches(answer, reference) {
        if !wrong_answer[start..start + length].contains(&true)
            || !wrong_reference[target..target + length].contains(&true)
            || (start as isize <= align[target] && align[target] < (start + length) as isize)
        {
            continue;
        }
        let mut previous = None;
        for offset in -1..length as isize {
            let place = target as isize + offset;
            let to = match usize::try_from(place) {
                Err(_) => 0,
                Ok(place) if place < align.len() => (align[place] + 1) as usize,
                Ok(_) => break,
            };
            if previous.replace(to) == Some(to) {
                continue;
            }
            let shifted = shifted(answer, start, length, to);
            let gain = before as isize - distance(&shifted, reference).0 as isize;
            let candidate = (gain, length, -(start as isize), -(to as isize), shifted);
            *candidates += 1;
            if best.as_ref().is_none_or(|best| candidate > *best) {
                best = Some(candidate);
            }
        }
        if *candidates >= MOST_CANDIDATES {
            break;
        }
    }
    best.map_or_else(|| (0, answer.to_vec()), |best| (best.0, best.4))
}

fn shifted<'w>(words: &[&'w str], start: usize, length: usize, to: usize) -> Vec<&'w str> {
    let (moved, end) = (&words[start..start + length], start + length);
    if to < start {
        [&words[..to], moved, &words[to..start], &words[end..]].concat()
    } else if to > end {
        [&words[..start], &words[end..to], moved, &words[to..]].concat()
    } else {
        let until = (length + to).min(words.len());
        [&words[..start], &words[end.min(until)..until], moved, &words[until..]].concat()
    }
}

/// Starts and lengths of equal runs of words, in Tercom's order.
fn matches(answer: &[&str], reference: &[&str]) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    for start in 0..answer.len() {
        for target in 0..reference.len() {
            if start.abs_diff(target) > MOST_DISTANCE {
                continue;
            }
            let run = answer[start..].iter().zip(&reference[target..]).take_while(|(a, b)| a == b).count();
            found.extend((1..=run.min(MOST_SHIFTED)).map(|length| (start, target, length)));
        }
    }
    found
}
