//! Sentence embeddings from hidden states, configured by a Sentence-Transformers folder (`modules.json`; Reimers and
//! Gurevych 2019, arXiv 1908.10084): pooling over tokens, then layers on the pooled vector.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::files::json::read_object;
use crate::files::{SafeTensors, Source, read_f32};

/// Steps from hidden states to a vector of length 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Sentence {
    /// Most tokens of a text that the original code reads, if given.
    pub max_tokens: Option<usize>,
    /// Whether texts are lowercased.
    pub lower: bool,
    /// Prefix of every text; mostly empty.
    pub prompt: String,
    pools: Vec<Pool>,
    after: Vec<After>,
}

/// Pooling of hidden states to one row; several modes are concatenated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    /// The first token's row.
    Cls,
    Max,
    Mean,
    /// The sum divided by the square root of the token count.
    MeanSqrt,
    /// Weighted by position, from 1 on.
    Weighted,
    Last,
}

/// Keys in older files, names in newer ones.
const POOLS: [(&str, &str, Pool); 6] = [
    ("pooling_mode_cls_token", "cls", Pool::Cls),
    ("pooling_mode_max_tokens", "max", Pool::Max),
    ("pooling_mode_mean_tokens", "mean", Pool::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pool::MeanSqrt),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Pool::Weighted),
    ("pooling_mode_lasttoken", "lasttoken", Pool::Last),
];

/// A step after pooling.
#[derive(Clone, Debug, PartialEq)]
enum After {
    /// `act(W x + b)`: [out, in], [out].
    Dense { weight: Vec<f32>, bias: Vec<f32>, tanh: bool },
    /// Scales to length 1.
    Normalise,
}

impl Default for Sentence {
    /// The mean over a text's tokens, Sentence-Transformers' default for folders without modules.
    fn default() -> Sentence {
        let (pools, after) = (vec![Pool::Mean], Vec::new());
        Sentence { max_tokens: None, lower: false, prompt: String::new(), pools, after }
    }
}

impl Sentence {
    /// Reads a folder's setting for hidden states of `hidden` numbers; `None` for a folder (or a GGUF file) without
    /// `modules.json`.
    ///
    /// # Errors
    /// An unsupported module or value, or a layer of another size, by file and key.
    pub fn open(folder: &Path, hidden: usize) -> Result<Option<Sentence>> {
        let file = folder.join("modules.json");
        if !file.is_file() {
            return Ok(None);
        }
        let bytes =
            std::fs::read(&file).map_err(|error| Error::config(&file, "modules", error.to_string()))?;
        let refuse = |what: String| Error::config(&file, "type", what);
        let modules: Vec<Map<String, Value>> = serde_json::from_slice(&bytes)
            .map_err(|error| Error::config(&file, "modules", error.to_string()))?;
        let mut found = Sentence { pools: Vec::new(), ..Sentence::default() };
        let (mut size, mut pools_prompt) = (hidden, true);
        for (at, module) in modules.iter().enumerate() {
            let named = module.get("type").and_then(Value::as_str).unwrap_or_default();
            let path = inside(folder, module.get("path").and_then(Value::as_str).unwrap_or_default())
                .ok_or_else(|| Error::config(&file, "path", "leaves the folder"))?;
            match (named.rsplit('.').next().unwrap_or_default(), at) {
                ("Transformer", 0) => {
                    if path.canonicalize().ok() != folder.canonicalize().ok() {
                        return Err(refuse(format!(
                            "names a Transformer in {}; its files are read from the folder itself: move them there",
                            path.display()
                        )));
                    }
                    found.transformer(&path)?;
                }
                ("Pooling", 1) => {
                    (found.pools, pools_prompt) = pools(&path.join("config.json"))?;
                    size *= found.pools.len();
                }
                ("Dense", 2..) => found.after.push(dense(&path, &mut size)?),
                ("Normalize", 2..) => found.after.push(After::Normalise),
                (other, _) => {
                    return Err(refuse(format!(
                        "is {other} in place {at}; supported: Transformer, Pooling, and then Dense and Normalize"
                    )));
                }
            }
        }
        if found.pools.is_empty() {
            return Err(refuse("names no Pooling, so texts have no vectors".into()));
        }
        found.prompts(folder, pools_prompt)?;
        Ok(Some(found))
    }

    /// Reads `sentence_bert_config.json`; in newer folders only `tokenizer_config.json` has the token limit.
    fn transformer(&mut self, folder: &Path) -> Result<()> {
        let file = folder.join("sentence_bert_config.json");
        let map = if file.is_file() { read_object(&file)? } else { Map::new() };
        self.max_tokens = limit(&map, "max_seq_length")
            .map_or_else(|| Sentence::tokenizer_limit(folder), |it| Ok(Some(it)))?;
        self.lower = map.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
        Ok(())
    }

    /// Token limit in the tokenizer's configuration.
    ///
    /// # Errors
    /// A file that is not JSON.
    pub fn tokenizer_limit(folder: &Path) -> Result<Option<usize>> {
        let file = folder.join("tokenizer_config.json");
        if !file.is_file() {
            return Ok(None);
        }
        Ok(limit(&read_object(&file)?, "model_max_length"))
    }

    /// Reads the default prompt. Its tokens must be `pooled` with the text's.
    fn prompts(&mut self, folder: &Path, pooled: bool) -> Result<()> {
        let file = folder.join("config_sentence_transformers.json");
        if !file.is_file() {
            return Ok(());
        }
        let map = read_object(&file)?;
        let Some(name) = map.get("default_prompt_name").and_then(Value::as_str) else { return Ok(()) };
        let prompt = map.get("prompts").and_then(|all| all.get(name)).and_then(Value::as_str);
        let missing =
            || Error::config(&file, "default_prompt_name", format!("is {name}, which `prompts` has not"));
        self.prompt = prompt.ok_or_else(missing)?.to_string();
        if !pooled && !self.prompt.is_empty() {
            let what = "names a prompt that pooling leaves out (`include_prompt`); that is not supported";
            return Err(Error::config(&file, "default_prompt_name", what));
        }
        Ok(())
    }

    /// Size of the vector for hidden states of `hidden` numbers.
    pub fn size(&self, hidden: usize) -> usize {
        let dense = self.after.iter().rev().find_map(|after| match after {
            After::Dense { bias, .. } => Some(bias.len()),
            After::Normalise => None,
        });
        dense.unwrap_or(self.pools.len() * hidden)
    }

    /// Embeds a text from its rows [tokens, size]: computed in f64, scaled to length 1; `None` if the vector has no
    /// direction.
    pub fn vector(&self, rows: &[f32], size: usize) -> Option<Vec<f32>> {
        let mut vector: Vec<f64> = self.pools.iter().flat_map(|pool| pool.of(rows, size)).collect();
        for after in &self.after {
            vector = match after {
                After::Normalise => unit(vector)?,
                After::Dense { weight, bias, tanh } => {
                    let row = |(row, bias): (&[f32], &f32)| {
                        let sum = row.iter().zip(&vector).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
                        let sum = sum + f64::from(*bias);
                        if *tanh { sum.tanh() } else { sum }
                    };
                    weight.chunks_exact(vector.len()).zip(bias).map(row).collect()
                }
            };
        }
        Some(unit(vector)?.into_iter().map(|x| x as f32).collect())
    }
}

impl Pool {
    fn of(self, rows: &[f32], size: usize) -> Vec<f64> {
        let tokens = rows.len() / size;
        let row = |at: usize| rows[at * size..(at + 1) * size].iter().map(|x| f64::from(*x)).collect();
        let sum = |weight: &dyn Fn(usize) -> f64| {
            let mut sum = vec![0f64; size];
            for (at, row) in rows.chunks_exact(size).enumerate() {
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight(at) * f64::from(*x));
            }
            sum
        };
        let over = |sum: Vec<f64>, by: f64| sum.into_iter().map(|x| x / by).collect();
        match self {
            Pool::Cls => row(0),
            Pool::Last => row(tokens - 1),
            Pool::Mean => over(sum(&|_| 1.0), tokens as f64),
            Pool::MeanSqrt => over(sum(&|_| 1.0), (tokens as f64).sqrt()),
            Pool::Weighted => over(sum(&|at| (at + 1) as f64), (1..=tokens).map(|at| at as f64).sum::<f64>()),
            Pool::Max => {
                let mut most = vec![f64::NEG_INFINITY; size];
                for row in rows.chunks_exact(size) {
                    most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(f64::from(*x)));
                }
                most
            }
        }
    }
}

/// A token limit; tokenizers without one write 1e30.
fn limit(map: &Map<String, Value>, key: &str) -> Option<usize> {
    let most = map.get(key).and_then(Value::as_u64).and_then(|most| usize::try_from(most).ok());
    most.filter(|most| *most > 0)
}

fn unit(vector: Vec<f64>) -> Option<Vec<f64>> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    (length.is_finite() && length > 0.0).then(|| vector.into_iter().map(|x| x / length).collect())
}

/// Joins a relative path to a folder; `None` if it would leave it.
fn inside(folder: &Path, path: &str) -> Option<PathBuf> {
    let plain = |part: std::path::Component<'_>| {
        matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir)
    };
    Path::new(path).components().all(plain).then(|| folder.join(path))
}

/// Pooling modes of a configuration, and whether a prompt's tokens are pooled. Newer files have a name or names,
/// older ones boolean keys.
fn pools(file: &Path) -> Result<(Vec<Pool>, bool)> {
    let map = read_object(file)?;
    let named = |name: &Value| {
        let known = POOLS.iter().find(|(_, known, _)| name.as_str() == Some(known));
        let refuse = || {
            Error::config(
                file,
                "pooling_mode",
                format!("is {name}; supported: {}", POOLS.map(|it| it.1).join(", ")),
            )
        };
        known.map(|(_, _, pool)| *pool).ok_or_else(refuse)
    };
    let found: Vec<Pool> = match map.get("pooling_mode") {
        Some(Value::Array(names)) => names.iter().map(named).collect::<Result<_>>()?,
        Some(name) => vec![named(name)?],
        None => {
            let asked = |(key, _, _): &&(&str, &str, Pool)| map.get(*key) == Some(&Value::Bool(true));
            let asked: Vec<Pool> = POOLS.iter().filter(asked).map(|(_, _, pool)| *pool).collect();
            if asked.is_empty() { vec![Pool::Mean] } else { asked }
        }
    };
    Ok((found, map.get("include_prompt") != Some(&Value::Bool(false))))
}

/// A dense layer over `size` numbers; updates `size` to its output.
fn dense(folder: &Path, size: &mut usize) -> Result<After> {
    let file = folder.join("config.json");
    let map = read_object(&file)?;
    let refuse = |key: &str, what: &str| Err(Error::config(&file, key, what));
    if map.get("use_residual").is_some_and(|value| *value != Value::Bool(false)) {
        return refuse("use_residual", "is set; only false is supported");
    }
    for key in ["module_input_name", "module_output_name"] {
        if map.get(key).and_then(Value::as_str).is_some_and(|name| name != "sentence_embedding") {
            return refuse(key, "is not sentence_embedding, which alone is supported");
        }
    }
    let function = map.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    let tanh = match function.rsplit('.').next() {
        Some("Tanh") => true,
        Some("Identity") => false,
        _ => return refuse("activation_function", &format!("is {function}; supported: Tanh, Identity")),
    };
    let source = SafeTensors::open_folder(folder)?;
    let all = |name: &str, shape: &[usize]| -> Result<Vec<f32>> {
        if source.shape(name) != Some(shape) {
            let what = format!("is needed with shape {shape:?}");
            return Err(Error::tensor(source.place(name), name, what));
        }
        read_f32(&source, name, 0..shape[0])
    };
    let sizes =
        ["out_features", "in_features"].map(|key| map.get(key).and_then(Value::as_u64).unwrap_or(0) as usize);
    if sizes[1] != *size {
        return refuse("in_features", &format!("is {}, and {size} numbers come to it", sizes[1]));
    }
    if sizes[0] == 0 {
        return refuse("out_features", "is 0 or missing; a number from 1 on is needed");
    }
    let weight = all("linear.weight", &sizes)?;
    let bias = match map.get("bias") {
        Some(Value::Bool(false)) => vec![0.0; sizes[0]],
        _ => all("linear.bias", &sizes[..1])?,
    };
    *size = sizes[0];
    Ok(After::Dense { weight, bias, tanh })
}
