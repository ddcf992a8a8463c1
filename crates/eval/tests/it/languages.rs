//! Sets with a part for each language: their tasks come from the files that are there, their figures are by language.

use std::fs;
use std::path::Path;

use fathom_eval::Result;
use fathom_eval::tasks::{Index, Languages, Options, Results, Sets, Subject, prepare, run};
use serde_json::json;

use crate::{Rule, tokenizer};

fn ran(folder: &Path, names: &[&str]) -> Result<Results> {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let mut index = Index::open(None)?;
    index.add_languages(folder)?;
    let nodes = index.find(&names)?;
    let options = Options { resamples: 10, ..Options::default() };
    let prepared = prepare(&nodes, &Sets { folder: Some(folder), ..Sets::default() }, &options)?;
    let (model, tokenizer) = (Rule::new(|_, _| 2.0, 513), tokenizer());
    let mut subject = Subject::new(&model, &tokenizer, 512);
    run(&nodes, &prepared, &mut subject, &options)
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn figures_of_belebele_global_mmlu_and_flores_are_by_language() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let passage = |right: &str| {
        let row = json!({
            "flores_passage": "A.", "question": "Q? ", "mc_answer1": "a", "mc_answer2": "b", "mc_answer3": "c", "mc_answer4": "d",
            "correct_answer_num": right,
        });
        format!("{row}\n")
    };
    // All answers are as likely, so the first one is chosen.
    write(&at("facebook/belebele/data/eng_Latn.jsonl"), &(passage("1") + &passage("1")));
    write(&at("facebook/belebele/data/fra_Latn.jsonl"), &(passage("1") + &passage("3")));
    let question = json!({"question": "Q", "option_a": "a", "option_b": "b", "option_c": "c", "option_d": "d", "answer": "B"});
    write(&at("Global-MMLU/fra_Latn/test.jsonl"), &format!("{question}\n"));
    for (language, text) in
        [("eng_Latn", "One.\nTwo.\n"), ("fra_Latn", "Un.\nDeux.\n"), ("deu_Latn", "Eins.\nZwei.\n")]
    {
        write(&at(&format!("flores200_dataset/devtest/{language}.devtest")), text);
    }
    let results = ran(folder.path(), &["belebele", "global_mmlu", "flores"]).unwrap();
    let languages = Languages::of(&results).unwrap();
    let json = languages.json();
    assert_eq!(json["eng_Latn"]["belebele"]["acc"], 1.0);
    assert_eq!(
        (&json["fra_Latn"]["belebele"]["acc"], &json["fra_Latn"]["belebele"]["items"]),
        (&json!(0.5), &json!(2))
    );
    // The standard error of one right item of two: sqrt(0.5) / sqrt(2).
    assert!((json["fra_Latn"]["belebele"]["acc_stderr"].as_f64().unwrap() - 0.5).abs() < 1e-12);
    assert_eq!(json["fra_Latn"]["global_mmlu"]["acc"], 0.0);
    assert_eq!(json["deu_Latn"]["flores_from_english"]["chrf++"], 0.0);
    assert!(json["deu_Latn"]["flores_to_english"]["bleu"].is_f64());
    assert_eq!(results.json()["results"]["belebele"]["acc,none"], 0.75);
    let table = languages.table();
    assert!(table.contains("|fra_Latn|  0.5000 ± 0.5000|"), "{table}");
    let asked = results.tasks.iter().find(|task| task.config.name == "flores_deu_Latn-eng_Latn").unwrap();
    assert_eq!(asked.samples[1]["arguments"]["gen_args_0"]["arg_0"], "deu_Latn: Zwei.\neng_Latn:");
    assert_eq!(asked.samples[1]["target"], "Two.");
}

#[test]
fn sets_without_languages_are_named_with_where_people_get_them() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str| ran(folder.path(), &[name]).unwrap_err().to_string();
    assert!(refused("belebele").contains("https://huggingface.co/datasets/facebook/belebele"));
    assert!(refused("global_mmlu_lite_en").contains("CohereLabs/Global-MMLU-Lite"));
    assert!(refused("flores").contains("flores200_dataset"));
    assert!(refused("helmet_narrativeqa").contains("need a judge"));
    write(&folder.path().join("flores/devtest/eng_Latn.devtest"), "One.\nTwo.\n");
    write(&folder.path().join("flores/devtest/fra_Latn.devtest"), "Un.\n");
    assert!(refused("flores").contains("eng_Latn has 2 sentences in devtest, and fra_Latn 1"));
}
