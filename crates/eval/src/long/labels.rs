//! HELMET's examples with labels: texts whose labels are numbers of a random order, as many of each, and a text without.

use serde_json::{Value, json};

use super::examples::{Pick, seed_of};
use super::files::Row;
use crate::python::pcg::Pcg;
use crate::python::random::Random;

/// Sets with their numbers of labels.
const SETS: [(&str, usize); 5] =
    [("trec_coarse", 6), ("trec_fine", 50), ("banking77", 77), ("clinic150", 151), ("nlu", 68)];

/// The set of a name such as `icl_nlu_510shot_balance`, and its numbers of labels and of examples.
pub fn name(dataset: &str) -> Option<(&'static str, [usize; 2])> {
    let shots = dataset.split("shot").next()?.rsplit('_').next()?.parse().ok()?;
    let set = SETS.iter().find(|set| dataset.contains(set.0))?;
    Some((set.0, [set.1, shots]))
}

fn label(row: &Row) -> Result<usize, String> {
    let label = row.get("label").and_then(Value::as_u64);
    label.map(|label| label as usize).ok_or_else(|| "a row has no number `label`".to_string())
}

fn text(row: &Row) -> Result<&str, String> {
    row.get("text").and_then(Value::as_str).ok_or_else(|| "a row has no `text`".to_string())
}

/// Rows whose context has examples of the training split.
pub fn rows(
    train: &[Row],
    test: &[Row],
    [labels, shots]: [usize; 2],
    pick: Pick,
) -> Result<Vec<Row>, String> {
    let mut asked = test.to_vec();
    if test.len() > pick.samples {
        let order = Pcg::new(pick.seed).permutation(test.len());
        asked = order.into_iter().map(|at| test[at].clone()).collect();
        asked = balanced(&asked, pick.samples, u64::from(pick.seed))?.into_iter().cloned().collect();
    }
    let one = |row: &Row| {
        let seed = (u64::from(seed_of(text(row)?)) + u64::from(pick.seed)) % (1 << 31);
        let mut numbers: Vec<usize> = (0..labels).collect();
        Random::new(seed).shuffle(&mut numbers);
        let number = |row: &Row| {
            let label = label(row)?;
            numbers.get(label).copied().ok_or_else(|| format!("the label {label} is none of {labels}"))
        };
        let mut shown = Vec::with_capacity(shots);
        for example in balanced(train, shots, seed)? {
            shown.push(format!("{}\nlabel: {}", text(example)?, number(example)?));
        }
        let made = json!({
            "context": shown.join("\n\n"), "question": text(row)?, "answers": [number(row)?.to_string()], "label": label(row)?,
        });
        Ok(made.as_object().cloned().unwrap_or_default())
    };
    asked.iter().map(one).collect()
}

/// Equally many rows of each label, in rounds that have each label once in a drawn order.
fn balanced(data: &[Row], count: usize, seed: u64) -> Result<Vec<&Row>, String> {
    let mut random = Random::new(seed);
    let mut by_label: Vec<(usize, Vec<&Row>)> = Vec::new();
    for row in data {
        let label = label(row)?;
        match by_label.iter_mut().find(|known| known.0 == label) {
            Some((_, rows)) => rows.push(row),
            None => by_label.push((label, vec![row])),
        }
    }
    if by_label.is_empty() {
        return Err("there are no examples".into());
    }
    let rounds = count.div_ceil(by_label.len());
    let mut drawn: Vec<Vec<&Row>> = vec![Vec::new(); rounds];
    for (_, rows) in &by_label {
        let mut places = random.sample(rows.len(), rounds % rows.len()).unwrap_or_default();
        while places.len() < rounds {
            places.extend(
                random.sample(rows.len(), (rounds - places.len()).min(rows.len())).unwrap_or_default(),
            );
        }
        drawn.iter_mut().zip(places).for_each(|(round, at)| round.push(rows[at]));
    }
    drawn.iter_mut().for_each(|round| random.shuffle(round));
    Ok(drawn.concat().into_iter().take(count).collect())
}
