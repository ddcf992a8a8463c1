//! Task files that are part of the binary. Their sets are local, as all are.

use serde_json::{Map, Value, json};

use super::yaml;

/// Names and texts of the files.
pub const FILES: [(&str, &str); 15] = [
    ("race.yaml", include_str!("../../tasks/race.yaml")),
    ("piqa.yaml", include_str!("../../tasks/piqa.yaml")),
    ("winogrande.yaml", include_str!("../../tasks/winogrande.yaml")),
    ("hellaswag.yaml", include_str!("../../tasks/hellaswag.yaml")),
    ("nemo_reasoning.yaml", include_str!("../../tasks/nemo_reasoning.yaml")),
    ("arc_easy.yaml", include_str!("../../tasks/arc_easy.yaml")),
    ("arc_challenge.yaml", include_str!("../../tasks/arc_challenge.yaml")),
    ("boolq.yaml", include_str!("../../tasks/boolq.yaml")),
    ("openbookqa.yaml", include_str!("../../tasks/openbookqa.yaml")),
    ("sciq.yaml", include_str!("../../tasks/sciq.yaml")),
    ("lambada_openai.yaml", include_str!("../../tasks/lambada_openai.yaml")),
    ("gsm8k.yaml", include_str!("../../tasks/gsm8k.yaml")),
    ("gsm8k_maj8.yaml", include_str!("../../tasks/gsm8k_maj8.yaml")),
    ("humaneval.yaml", include_str!("../../tasks/humaneval.yaml")),
    ("mbpp.yaml", include_str!("../../tasks/mbpp.yaml")),
];
const MMLU: &str = include_str!("../../tasks/mmlu_base.yaml");

/// Names of MATH's subjects in tasks and in the set.
const MATH_SUBJECTS: [(&str, &str); 7] = [
    ("algebra", "algebra"),
    ("counting_and_prob", "counting_and_probability"),
    ("geometry", "geometry"),
    ("intermediate_algebra", "intermediate_algebra"),
    ("num_theory", "number_theory"),
    ("prealgebra", "prealgebra"),
    ("precalc", "precalculus"),
];
const MATH: [(&str, &str); 2] = [
    ("hendrycks_math", include_str!("../../tasks/hendrycks_math_base.yaml")),
    ("minerva_math", include_str!("../../tasks/minerva_math_base.yaml")),
];
/// Tasks of LongBench (MIT licence): name, group, rule of its score, tokens of an answer, prompt in Python's notation.
const LONGBENCH: &str = include_str!("../../tasks/longbench.jsonl");
/// Tasks of LongBench whose prompts are no questions, and go through no chat template.
const UNASKED: [&str; 6] = ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"];
/// Tasks of LongBench of whose answers the first line counts.
const FIRST_LINE: [&str; 4] = ["trec", "triviaqa", "samsum", "lsht"];

/// Subjects of MMLU by the group that the harness puts them into.
const SUBJECTS: [(&str, &str); 4] = [
    (
        "stem",
        "abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science \
         college_mathematics college_physics computer_security conceptual_physics electrical_engineering \
         elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science \
         high_school_mathematics high_school_physics high_school_statistics machine_learning",
    ),
    (
        "other",
        "business_ethics clinical_knowledge college_medicine global_facts human_aging management marketing \
         medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology",
    ),
    (
        "social_sciences",
        "econometrics high_school_geography high_school_government_and_politics high_school_macroeconomics \
         high_school_microeconomics high_school_psychology human_sexuality professional_psychology public_relations \
         security_studies sociology us_foreign_policy",
    ),
    (
        "humanities",
        "formal_logic high_school_european_history high_school_us_history high_school_world_history \
         international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory \
         professional_law world_religions",
    ),
];

/// A built-in file that another one includes.
///
/// # Errors
/// There is none of this name.
pub fn include(name: &str) -> Result<Map<String, Value>, String> {
    let found = FILES.iter().find(|(known, _)| *known == name);
    yaml::read(found.ok_or_else(|| format!("there is no built-in {name}"))?.1)
}

/// The tasks and groups of MMLU.
///
/// # Errors
/// Their file cannot be read.
pub fn mmlu() -> Result<Vec<Map<String, Value>>, String> {
    let base = yaml::read(MMLU)?;
    let mut all = Vec::new();
    let mean = json!([{"metric": "acc", "weight_by_size": true}]);
    let group = |name: &str, alias: &str, members: Vec<String>| {
        let group =
            json!({"group": name, "group_alias": alias, "task": members, "aggregate_metric_list": mean});
        group.as_object().cloned().unwrap_or_default()
    };
    for (name, subjects) in SUBJECTS {
        for subject in subjects.split_whitespace() {
            let words = subject.replace('_', " ");
            let mut task = base.clone();
            task.insert("task".into(), format!("mmlu_{subject}").into());
            task.insert("task_alias".into(), subject.into());
            task.insert("dataset_name".into(), subject.into());
            let said =
                format!("The following are multiple choice questions (with answers) about {words}.\n\n");
            task.insert("description".into(), said.into());
            all.push(task);
        }
        let members = subjects.split_whitespace().map(|subject| format!("mmlu_{subject}")).collect();
        all.push(group(&format!("mmlu_{name}"), &name.replace('_', " "), members));
    }
    all.push(group("mmlu", "mmlu", SUBJECTS.iter().map(|(name, _)| format!("mmlu_{name}")).collect()));
    Ok(all)
}

/// The tasks and groups of MATH, with answers compared by the harness's rules and by Minerva's.
///
/// # Errors
/// Their files cannot be read.
pub fn mathematics() -> Result<Vec<Map<String, Value>>, String> {
    let mean = json!([{"metric": "exact_match", "weight_by_size": true}]);
    let mut all = Vec::new();
    for (group, base) in MATH {
        let base = yaml::read(base)?;
        let names = MATH_SUBJECTS.map(|(subject, _)| format!("{group}_{subject}"));
        for (name, (_, set)) in names.iter().zip(MATH_SUBJECTS) {
            let mut task = base.clone();
            task.insert("task".into(), name.as_str().into());
            task.insert("dataset_name".into(), set.into());
            all.push(task);
        }
        let whole = json!({"group": group, "task": names, "aggregate_metric_list": mean});
        all.extend(whole.as_object().cloned());
    }
    Ok(all)
}

/// The tasks and groups of LongBench.
///
/// # Errors
/// Their file cannot be read.
pub fn longbench() -> Result<Vec<Map<String, Value>>, String> {
    let mean = json!([{"metric": "score", "weight_by_size": false}]);
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let mut all = Vec::new();
    for line in LONGBENCH.lines() {
        let row: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let (name, group) = (text("name"), format!("longbench_{}", text("group")));
        let task = format!("longbench_{name}");
        match groups.iter_mut().find(|known| known.0 == group) {
            Some((_, members)) => members.push(task.clone()),
            None => groups.push((group, vec![task.clone()])),
        }
        all.push(json!({
            "task": task, "task_alias": name, "dataset_path": "THUDM/LongBench", "dataset_name": name,
            "test_split": "test", "output_type": "generate_until",
            "doc_to_text": text("prompt").replace('{', "{{").replace('}', "}}"),
            "doc_to_target": "answers", "target_delimiter": "", "num_fewshot": 0,
            "generation_kwargs": {
                "until": [], "do_sample": false, "temperature": 0.0, "max_gen_toks": row["tokens"], "truncation": "middle",
            },
            "metric_list":
                [{"metric": "score", "rule": row["rule"], "first_line": FIRST_LINE.contains(&name)}],
            "metadata": {"version": 1.0, "chat_template": !UNASKED.contains(&name)},
        }));
    }
    let names: Vec<String> = groups.iter().map(|group| group.0.clone()).collect();
    for (name, members) in groups {
        all.push(json!({"group": name, "task": members, "aggregate_metric_list": mean}));
    }
    all.push(json!({"group": "longbench", "task": names, "aggregate_metric_list": mean}));
    Ok(all.into_iter().filter_map(|file| file.as_object().cloned()).collect())
}
