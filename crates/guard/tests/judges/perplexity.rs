//! The perplexity of NeMo Guardrails 0.24.1, whose own loop computed the figures (`oracle/guard.py`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fathom_guard::{jailbreak_affixes, perplexity};
use serde::Deserialize;

use crate::scripted::ScriptedModel;

#[derive(Deserialize)]
struct Case {
    text: String,
    perplexity: f64,
    /// Log-probabilities of the tokens after the first, by window.
    rows: Vec<Vec<f32>>,
    #[serde(default)]
    affixes: Vec<Case>,
}

/// Windows of 1,024 bytes at a stride of 512, with their rows.
fn windows(case: &Case) -> Vec<(Vec<u32>, Vec<f32>)> {
    let ids: Vec<u32> = case.text.bytes().map(u32::from).collect();
    let one =
        |(at, row): (usize, &Vec<f32>)| (ids[at * 512..ids.len().min(at * 512 + 1024)].to_vec(), row.clone());
    case.rows.iter().enumerate().map(one).collect()
}

#[test]
fn perplexity_equals_the_formula_of_0_24_1_to_1e_4() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_guard/perplexity.json");
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let all = || cases.iter().flat_map(|case| std::iter::once(case).chain(&case.affixes));
    let rows: HashMap<Vec<u32>, Vec<f32>> = all().flat_map(windows).collect();
    let model = Arc::new(
        ScriptedModel::always(&[])
            .context(1024)
            .losing(move |ids| rows[ids].iter().map(|logprob| -logprob).collect()),
    );
    let of = |text: &str| perplexity(&*model, text, 1 << 20, &|| true).unwrap().unwrap();
    for case in all() {
        let found = of(&case.text);
        let error = (found.by_windows / case.perplexity - 1.0).abs();
        assert!(
            error < 1e-4,
            "{} characters: {} against {}",
            case.text.len(),
            found.by_windows,
            case.perplexity
        );
        assert_eq!(found.tokens, case.text.len() - 1);
    }
    for case in &cases {
        let expected: Vec<&str> = case.affixes.iter().map(|affix| &*affix.text).collect();
        let found = jailbreak_affixes(&case.text);
        assert_eq!(found.iter().flatten().collect::<Vec<_>>(), expected);
    }
}
