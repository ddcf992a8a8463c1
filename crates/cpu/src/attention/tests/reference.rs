//! Attention and its gradients by the formula, one pair at a time, in f64.

use fathom_tensor::DistanceTerms;

use super::Problem;

/// Expected results.
pub struct Reference {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
    pub d_sinks: Vec<f64>,
    pub d_bias: Vec<f64>,
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// True if query i attends to key j.
fn attends(p: &Problem, i: usize, j: usize) -> bool {
    let apart = i64::from(p.pos_k[j]) - i64::from(p.pos_q[i]);
    p.slices.iter().any(|s| {
        (s.q_start..s.q_end).contains(&(i as i64))
            && (s.k_start..s.k_end).contains(&(j as i64))
            && (s.lo..=s.hi).contains(&apart)
    })
}

/// Forward and backward.
pub fn reference(p: &Problem) -> Reference {
    let s = p.shape;
    let (qw, kw, d) = (s.heads * s.head_dim, s.kv_heads * s.head_dim, s.head_dim);
    let mut r = Reference {
        out: vec![0.0; p.q.len()],
        lse: vec![f64::NEG_INFINITY; s.q_tokens * s.heads],
        dq: vec![0.0; p.q.len()],
        dk: vec![0.0; p.k.len()],
        dv: vec![0.0; p.v.len()],
        d_sinks: vec![0.0; s.heads],
        d_bias: p.bias.as_ref().map_or(Vec::new(), |(table, _)| vec![0.0; table.len()]),
    };
    for i in 0..s.q_tokens {
        for head in 0..s.heads {
            let at = i * qw + head * d;
            let key = |j: usize| j * kw + head / (s.heads / s.kv_heads) * d;
            row(p, &mut r, (i, head), at, &key);
        }
    }
    r
}

fn row(p: &Problem, r: &mut Reference, (i, head): (usize, usize), at: usize, key: &dyn Fn(usize) -> usize) {
    let d = p.shape.head_dim;
    let (scale, cap) = (f64::from(p.options.scale), f64::from(p.options.softcap));
    let seen: Vec<usize> = (0..p.shape.k_tokens).filter(|&j| attends(p, i, j)).collect();
    if seen.is_empty() {
        return;
    }
    let q = &p.q[at..at + d];
    // A term, and the element of the table's gradient, if it has one.
    let of_bias = |j: usize| {
        let (table, terms) = p.bias.as_ref()?;
        let distance = i64::from(p.pos_k[j]) - i64::from(p.pos_q[i]);
        Some(match terms {
            DistanceTerms::Buckets(buckets) => {
                let at = buckets.of(distance) * p.shape.heads + head;
                (Some(at), f64::from(table[at]))
            }
            DistanceTerms::Slopes => (None, f64::from(table[head]) * distance as f64),
        })
    };
    // Logits, and their derivatives with respect to the raw score.
    let logits: Vec<(f64, f64)> = seen
        .iter()
        .map(|&j| {
            let raw = dot(q, &p.k[key(j)..key(j) + d]) * scale;
            if cap > 0.0 {
                (cap * (raw / cap).tanh(), scale * (1.0 - (raw / cap).tanh().powi(2)))
            } else {
                (raw + of_bias(j).map_or(0.0, |(_, bias)| bias), scale)
            }
        })
        .collect();
    let sink = p.sinks.as_ref().map(|s| f64::from(s[head]));
    let top = logits.iter().map(|l| l.0).chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|l| l.0).chain(sink).map(|l| (l - top).exp()).sum();
    let lse = top + total.ln();
    r.lse[i * p.shape.heads + head] = lse;
    let weights: Vec<f64> = logits.iter().map(|l| (l.0 - lse).exp()).collect();
    let dout = &p.dout[at..at + d];
    for (&j, &w) in seen.iter().zip(&weights) {
        for c in 0..d {
            r.out[at + c] += w * f64::from(p.v[key(j) + c]);
            r.dv[key(j) + c] += w * f64::from(dout[c]);
        }
    }
    let delta: f64 = (0..d).map(|c| r.out[at + c] * f64::from(dout[c])).sum();
    for ((&j, &w), &(_, slope)) in seen.iter().zip(&weights).zip(&logits) {
        let d_score = w * (dot(dout, &p.v[key(j)..key(j) + d]) - delta);
        if let Some((Some(at), _)) = of_bias(j) {
            r.d_bias[at] += d_score;
        }
        let ds = d_score * slope;
        for c in 0..d {
            r.dq[at + c] += ds * f64::from(p.k[key(j) + c]);
            r.dk[key(j) + c] += ds * f64::from(q[c]);
        }
    }
    if let Some(sink) = sink {
        r.d_sinks[head] -= (sink - lse).exp() * delta;
    }
}
