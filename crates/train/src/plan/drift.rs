//! Differences between a real step's memory and its plan.

use fathom_base::human;
use fathom_tensor::PoolUsage;

/// A sentence that compares a step's memory with its plan and names the category that differs most. `None` if the peaks
/// agree, or if a step that is not `full` has a lower one: it has fewer tokens than the plan, for example because its
/// samples are short.
pub fn drift(planned: &PoolUsage, found: &PoolUsage, full: bool) -> Option<String> {
    if planned.peak_live == found.peak_live || (!full && found.peak_live < planned.peak_live) {
        return None;
    }
    let pairs =
        planned.peak_by_category.iter().map(|(at, planned)| (at, planned, found.peak_by_category[at]));
    let (category, planned_bytes, found_bytes) =
        pairs.max_by_key(|(_, planned, found)| planned.abs_diff(*found))?;
    Some(format!(
        "the first step's peak is {} in {} and the plan said {} in {}; it drifted most in {}: {} instead of {}",
        human::grouped(found.peak_live),
        found.peak_op,
        human::grouped(planned.peak_live),
        planned.peak_op,
        category.name(),
        human::grouped(found_bytes),
        human::grouped(planned_bytes),
    ))
}

#[cfg(test)]
mod tests {
    use fathom_tensor::Category;

    use super::*;

    #[test]
    fn names_the_category() {
        let mut planned = PoolUsage { peak_live: 300, peak_op: "attention".into(), ..PoolUsage::default() };
        planned.peak_by_category[Category::Params] = 100;
        planned.peak_by_category[Category::Activations] = 200;
        assert_eq!(drift(&planned, &planned, true), None);
        let mut found = planned.clone();
        found.peak_live = 350;
        found.peak_by_category[Category::Activations] = 240;
        found.peak_by_category[Category::Workspace] = 10;
        for full in [true, false] {
            assert!(
                drift(&planned, &found, full).unwrap().contains("most in activations: 240 instead of 200")
            );
        }
        // Fewer tokens may need less memory; the planned number may not.
        assert_eq!(drift(&found, &planned, false), None);
        assert!(drift(&found, &planned, true).unwrap().contains("most in activations: 200 instead of 240"));
    }
}
