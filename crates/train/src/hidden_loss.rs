//! The comparison of hidden states in an objective.

use fathom_tensor::Distance;

/// The hidden states to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenLoss {
    /// Number of blocks before the student's state and before the teacher's, ascending; 0 is the input of the first
    /// block.
    pub pairs: Vec<[usize; 2]>,
    /// The distance.
    pub distance: Distance,
    /// Weight in the loss of the mean over the pairs.
    pub weight: f64,
}

impl HiddenLoss {
    /// Parses pairs of the form `student:teacher`.
    ///
    /// # Errors
    /// The text that is not a pair.
    pub fn parse(pairs: &[String]) -> std::result::Result<Vec<[usize; 2]>, String> {
        let one = |text: &String| {
            let (student, teacher) = text.split_once(':')?;
            Some([student.trim().parse().ok()?, teacher.trim().parse().ok()?])
        };
        let read = |text: &String| {
            one(text).ok_or_else(|| {
                format!("has \"{text}\"; give numbers of blocks, the student's and the teacher's, as \"4:8\"")
            })
        };
        let mut pairs = pairs.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
        pairs.sort_unstable();
        pairs.dedup();
        Ok(pairs)
    }

    /// The teacher's sides of the pairs.
    pub(crate) fn of_teacher(&self) -> Vec<usize> {
        self.pairs.iter().map(|[_, teacher]| *teacher).collect()
    }
}
