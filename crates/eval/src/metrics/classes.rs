//! F1 and Matthews' correlation as scikit-learn computes them, and the Brier score.

/// F1 of class 1 among pairs of (right class, predicted class); 0 where it is undefined.
pub fn f1(pairs: &[(i64, i64)]) -> f64 {
    let count =
        |is: &dyn Fn(i64, i64) -> bool| pairs.iter().filter(|(gold, found)| is(*gold, *found)).count();
    let hits = count(&|gold, found| gold == 1 && found == 1);
    let (golds, founds) = (count(&|gold, _| gold == 1), count(&|_, found| found == 1));
    if golds + founds == 0 { 0.0 } else { 2.0 * hits as f64 / (golds + founds) as f64 }
}

/// Matthews' correlation coefficient of pairs of (right class, predicted class).
pub fn mcc(pairs: &[(i64, i64)]) -> f64 {
    let mut classes: Vec<i64> = pairs.iter().flat_map(|(gold, found)| [*gold, *found]).collect();
    classes.sort_unstable();
    classes.dedup();
    let at = |class: &i64| classes.binary_search(class).unwrap_or(0);
    let (mut golds, mut founds) = (vec![0.0; classes.len()], vec![0.0; classes.len()]);
    let mut right = 0.0;
    for (gold, found) in pairs {
        golds[at(gold)] += 1.0;
        founds[at(found)] += 1.0;
        right += f64::from(u8::from(gold == found));
    }
    let all = pairs.len() as f64;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let covariance = right * all - dot(&golds, &founds);
    let spread = (all * all - dot(&founds, &founds)) * (all * all - dot(&golds, &golds));
    if spread == 0.0 { 0.0 } else { covariance / spread.sqrt() }
}

/// Mean squared distance of the probabilities of all classes to the right one.
pub fn brier(items: &[(i64, Vec<f64>)]) -> f64 {
    let one = |(gold, probabilities): &(i64, Vec<f64>)| {
        let term = |(class, p): (usize, &f64)| (p - f64::from(u8::from(class as i64 == *gold))).powi(2);
        probabilities.iter().enumerate().map(term).sum::<f64>()
    };
    items.iter().map(one).sum::<f64>() / items.len() as f64
}
