//! Built-in tasks over generated answers have the contexts and figures of lm-evaluation-harness (`oracle/answers.py`).

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use fathom_base::{GenerateRequest, Generation, LanguageModel, Numbers, Prompt, Result, Stop};
use fathom_eval::tasks::{Index, Options, Sets, Subject, prepare, run};
use fathom_text::Tokenizer;
use serde_json::Value;

/// Seed of the first of several sampled answers.
const SEED: u64 = 1234;

/// A model that gives the answers of a script to its contexts.
struct AnswerScript<'s> {
    tokenizer: &'s Tokenizer,
    given: HashMap<String, Vec<String>>,
}

impl LanguageModel for AnswerScript<'_> {
    fn max_tokens(&self) -> usize {
        1 << 20
    }

    fn generate_all(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Vec<Generation>>> {
        let one = |request: GenerateRequest| {
            let Prompt::Ids(ids) = request.prompt else { unreachable!("prompts are ids") };
            let context = self.tokenizer.decode_text(&ids);
            let given = self
                .given
                .get(&context)
                .unwrap_or_else(|| panic!("a context that the harness does not have: {context}"));
            let text = &given[(request.sampling.seed - SEED) as usize];
            let ids = self.tokenizer.encode(text).unwrap();
            let text = text.clone();
            vec![Generation {
                text,
                ids,
                stop: Stop::EndOfText,
                prompt_tokens: 0,
                prefill_s: 0.0,
                decode_s: 0.0,
            }]
        };
        Ok(requests.into_iter().map(one).collect())
    }

    fn look(&self, _: &[Vec<u32>], _: Numbers) -> Result<Vec<Vec<f32>>> {
        unreachable!("nothing is scored")
    }
}

#[test]
fn contexts_and_figures_of_generated_answers_are_those_of_the_harness() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_eval/answers");
    let golden: HashMap<String, Value> =
        serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let tokenizer = crate::tokenizer();
    // Programs pass if they hold this word, as where the golden figures were made.
    let passed = |all: &[String]| Ok(all.iter().map(|program| program.contains("GOOD")).collect());
    for (name, expected) in &golden {
        let nodes = Index::open(None).unwrap().find(std::slice::from_ref(name)).unwrap();
        let options = Options { run_programs: Some(&passed), ..Options::default() };
        let prepared = prepare(&nodes, &Sets { folder: Some(&folder), ..Sets::default() }, &options).unwrap();
        let given: Vec<(String, Vec<String>)> = serde_json::from_value(expected["given"].clone()).unwrap();
        let model = AnswerScript { tokenizer: &tokenizer, given: given.into_iter().collect() };
        let mut subject = Subject::new(&model, &tokenizer, 1 << 20);
        let results = run(&nodes, &prepared, &mut subject, &options).unwrap().json();
        for (metric, figure) in expected["figures"].as_object().unwrap() {
            let own = metric.replace("pass_at_1,none", "pass@1,create_test");
            let found = &results["results"][name][&own];
            assert!(
                (found.as_f64().unwrap() - figure.as_f64().unwrap()).abs() < 1e-12,
                "{name} {metric}: {found} for {figure}"
            );
        }
    }
    assert_eq!(golden.len(), 6);
}
