//! Files around an exported encoder, for Sentence-Transformers and for those who ask for labels.

use std::fs;
use std::path::Path;

use fathom_model::{Spec, write_file};
use fathom_train::recipe::{LossName, MethodName, PoolingName, Recipe};
use serde_json::{Map, Value, json};

use crate::error::{Context, Result};

/// Writes the files that the objective of an encoder needs next to its weights.
///
/// # Errors
/// A file that cannot be read or written.
pub(crate) fn write(recipe: &Recipe, spec: &Spec, folder: &Path) -> Result<()> {
    match recipe.objective.method {
        MethodName::Embed => modules(recipe, spec, folder),
        MethodName::Rerank | MethodName::Classify => labels(recipe, folder),
        _ => Ok(()),
    }
}

/// Names and numbers the labels of an encoder that was merged with an adapter from elsewhere: as its base, if that has
/// as many.
///
/// # Errors
/// A file that cannot be read or written.
pub(crate) fn write_as(base: &Path, spec: &Spec, folder: &Path) -> Result<()> {
    let labels = spec.encoder.as_ref().map_or(0, |parts| parts.head.labels());
    if labels == 0 {
        return Ok(());
    }
    let (path, base) = (folder.join("config.json"), config(&base.join("config.json"))?);
    let mut own = config(&path)?;
    let as_many =
        |key: &&str| base.get(*key).and_then(Value::as_object).is_some_and(|map| map.len() == labels);
    if ["id2label", "label2id"].iter().all(as_many) {
        let keys = ["id2label", "label2id", "problem_type", "sentence_transformers"];
        let kept = keys.iter().filter_map(|key| Some((key.to_string(), base.get(*key)?.clone())));
        own.extend(kept);
    } else {
        let names = (0..labels).map(|label| format!("LABEL_{label}")).collect::<Vec<_>>();
        own.extend(by_number(&names));
    }
    put(&path, &Value::Object(own))
}

fn config(path: &Path) -> Result<Map<String, Value>> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Names of labels by number, and numbers by name.
fn by_number(names: &[String]) -> [(String, Value); 2] {
    let by_id: Map<String, Value> =
        names.iter().enumerate().map(|(id, name)| (id.to_string(), json!(name))).collect();
    let by_name: Map<String, Value> =
        names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    [("id2label".into(), Value::Object(by_id)), ("label2id".into(), Value::Object(by_name))]
}

fn put(path: &Path, value: &Value) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    Ok(write_file(path, format!("{value:#}\n").as_bytes())?)
}

/// A folder of Sentence-Transformers: the encoder, pooling, and vectors of length 1.
fn modules(recipe: &Recipe, spec: &Spec, folder: &Path) -> Result<()> {
    let objective = &recipe.objective;
    let module = |index: usize, path: &str, kind: &str| json!({"idx": index, "name": index.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")});
    let all = json!([
        module(0, "", "Transformer"),
        module(1, "1_Pooling", "Pooling"),
        module(2, "2_Normalize", "Normalize"),
    ]);
    let pools = [
        ("pooling_mode_cls_token", PoolingName::First),
        ("pooling_mode_mean_tokens", PoolingName::Mean),
        ("pooling_mode_lasttoken", PoolingName::Last),
    ];
    let mut pooling: Map<String, Value> =
        pools.iter().map(|(key, name)| ((*key).to_string(), json!(*name == objective.pooling))).collect();
    for key in
        ["pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"]
    {
        pooling.insert(key.into(), json!(false));
    }
    pooling.insert("word_embedding_dimension".into(), json!(spec.hidden));
    pooling.insert("include_prompt".into(), json!(true));
    let [query, document] = [&objective.query_prompt, &objective.document_prompt];
    // One default is read for all texts, so that it is named only where both are the same.
    let default = (query == document && !query.is_empty()).then_some("query");
    let settings = json!({
        "prompts": {"query": query, "document": document},
        "default_prompt_name": default,
        "similarity_fn_name": "cosine",
    });
    let limit = json!({"max_seq_length": recipe.data.max_text_tokens, "do_lower_case": false});
    fs::create_dir_all(folder.join("2_Normalize"))
        .with_context(|| format!("cannot create {}", folder.join("2_Normalize").display()))?;
    put(&folder.join("1_Pooling/config.json"), &Value::Object(pooling))?;
    put(&folder.join("config_sentence_transformers.json"), &settings)?;
    put(&folder.join("sentence_bert_config.json"), &limit)?;
    put(&folder.join("modules.json"), &all)
}

/// Names and meaning of the labels in the configuration.
fn labels(recipe: &Recipe, folder: &Path) -> Result<()> {
    let (path, objective) = (folder.join("config.json"), &recipe.objective);
    let mut config = config(&path)?;
    let (names, kind) = match (objective.method, objective.loss) {
        (MethodName::Rerank, loss) => {
            let pointwise = matches!(loss, LossName::Auto | LossName::Pointwise);
            let name = if pointwise { "activation.Sigmoid" } else { "linear.Identity" };
            config.insert(
                "sentence_transformers".into(),
                json!({"activation_fn": format!("torch.nn.modules.{name}"), "version": "5.0.0"}),
            );
            (vec!["LABEL_0".to_string()], None)
        }
        (_, LossName::Regression) => (objective.attributes.clone(), Some("regression")),
        (_, LossName::MultiLabel) => (objective.labels.clone(), Some("multi_label_classification")),
        (_, LossName::Tokens) => (objective.labels.clone(), None),
        _ => (objective.labels.clone(), Some("single_label_classification")),
    };
    config.extend(by_number(&names));
    if let Some(kind) = kind {
        config.insert("problem_type".into(), json!(kind));
    }
    put(&path, &Value::Object(config))
}
