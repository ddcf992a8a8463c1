//! Smoothing and thinning of long series, so that the page of a run with a million steps stays small and keeps its
//! spikes.

/// Exponential moving average over about `window` points. The window grows with the series (a fifth of the points so
/// far), so that the average follows the steep start of a loss curve without lag. Points that are not finite are
/// skipped and leave the average unchanged.
pub(crate) fn ema(values: &[f64], window: f64) -> Vec<f64> {
    let (mut average, mut count) = (f64::NAN, 0.0);
    let mut next = |x: &f64| {
        if x.is_finite() {
            let share = 1.0 / (1.0 + count / 5.0f64).min(window.max(1.0));
            average = if count == 0.0 { *x } else { average + share * (x - average) };
            count += 1.0;
        }
        average
    };
    values.iter().map(&mut next).collect()
}

/// Returns a suitable window for `n` points.
pub(crate) fn window(n: usize) -> f64 {
    (n as f64 / 40.0).clamp(5.0, 200.0)
}

/// Returns the indices of about `limit` points at most, including the first, the last, and the smallest and largest
/// of every stretch.
pub(crate) fn thin(values: &[f64], limit: usize) -> Vec<usize> {
    let n = values.len();
    if n <= limit || limit < 8 {
        return (0..n).collect();
    }
    let stretches = limit / 2 - 1;
    let mut out = vec![0];
    for s in 0..stretches {
        let (from, to) = (s * n / stretches, (s + 1) * n / stretches);
        let finite = || (from..to).filter(|i| values[*i].is_finite());
        let low = finite().min_by(|a, b| values[*a].total_cmp(&values[*b]));
        let high = finite().max_by(|a, b| values[*a].total_cmp(&values[*b]));
        out.extend([low, high].into_iter().flatten());
        if low.is_none() {
            out.push(from);
        }
    }
    out.push(n - 1);
    out.sort_unstable();
    out.dedup();
    out
}

/// Returns the value below which a share of the finite values lies; NaN if there are none.
pub(crate) fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().filter(|x| x.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => sorted[((n - 1) as f64 * share).round() as usize],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smooths_from_the_first_point_on() {
        assert_eq!(ema(&[4.0, 4.0, f64::NAN, 4.0], 10.0).last(), Some(&4.0));
        let line = ema(&[2.0, 1.0], 2.0);
        assert_eq!(line[0], 2.0);
        assert!((line[1] - (2.0 - 1.0 / 1.2)).abs() < 1e-12);
        assert!(ema(&[f64::NAN], 5.0)[0].is_nan());
    }

    #[test]
    fn thinning_keeps_ends_and_spikes() {
        let mut values = vec![1.0; 100_000];
        values[54_321] = 99.0;
        values[777] = f64::NAN;
        let kept = thin(&values, 400);
        assert!(kept.len() <= 400 && kept.contains(&54_321));
        assert_eq!((kept[0], kept[kept.len() - 1]), (0, 99_999));
        assert_eq!(thin(&values[..10], 400).len(), 10);
        assert_eq!(quantile([3.0, 1.0, 2.0, f64::NAN], 0.5), 2.0);
        assert!(quantile([], 0.5).is_nan());
    }
}
