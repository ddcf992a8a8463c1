//! Pre-tokenizers by llama.cpp's names.

use serde_json::{Value, json};

use crate::tokenizer::pieces::{GPT2, LLAMA3, O200K, QWEN2, TEKKEN};

/// Splitting of a text before merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitRule {
    /// By one regular expression.
    Expression(&'static str),
    /// Digits one by one, then GPT-2's regular expression.
    Digits,
}

/// A named pre-tokenizer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pre {
    /// All names; the first is used for writing.
    pub names: &'static [&'static str],
    pub cut: SplitRule,
    /// A word that is a token stays that token, whatever the merges yield.
    pub whole_words: bool,
    /// Default for prepending the beginning-of-text token.
    pub adds_bos: bool,
}

const fn pre(names: &'static [&'static str], cut: SplitRule, whole_words: bool, adds_bos: bool) -> Pre {
    Pre { names, cut, whole_words, adds_bos }
}

/// Among entries with the same meaning, the first is used for writing.
pub(super) const KNOWN: [Pre; 8] = [
    pre(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        SplitRule::Expression(LLAMA3),
        true,
        true,
    ),
    pre(&["smaug-bpe", "dbrx", "chatglm-bpe"], SplitRule::Expression(LLAMA3), false, false),
    pre(&["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"], SplitRule::Expression(QWEN2), false, false),
    pre(
        &["gpt-2", "phi-2", "olmo", "mpt", "jais", "roberta-bpe", "exaone4", "mellum", "gigachat"],
        SplitRule::Expression(GPT2),
        false,
        false,
    ),
    pre(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        SplitRule::Digits,
        false,
        false,
    ),
    pre(&["tekken"], SplitRule::Expression(TEKKEN), true, true),
    pre(&["gpt-4o", "llama4"], SplitRule::Expression(O200K), false, false),
    pre(&["glm4"], SplitRule::Expression(LLAMA3), true, false),
];

impl Pre {
    /// Pre-tokenizer with this name.
    pub fn named(name: &str) -> Option<Pre> {
        KNOWN.into_iter().find(|pre| pre.names.contains(&name))
    }

    /// The form used in `tokenizer.json`.
    pub fn json(self) -> Value {
        let bytes = |own: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": own });
        match self.cut {
            SplitRule::Expression(GPT2) => bytes(true),
            SplitRule::Expression(expression) => {
                let split = json!({
                    "type": "Split",
                    "pattern": { "Regex": expression },
                    "behavior": "Isolated",
                    "invert": false,
                });
                json!({ "type": "Sequence", "pretokenizers": [split, bytes(false)] })
            }
            SplitRule::Digits => {
                let digits = json!({ "type": "Digits", "individual_digits": true });
                json!({ "type": "Sequence", "pretokenizers": [digits, bytes(true)] })
            }
        }
    }

    /// Pre-tokenizer equivalent to one of `tokenizer.json`; `whole_words` is its model's `ignore_merges`.
    pub fn of(pre_tokenizer: &Value, whole_words: bool) -> Option<Pre> {
        let cut = cut(pre_tokenizer)?;
        KNOWN.into_iter().find(|pre| pre.cut == cut && pre.whole_words == whole_words)
    }
}

/// For a byte-level step, tells if it splits by GPT-2's expression; `None` for other steps.
fn bytes(part: &Value) -> Option<bool> {
    let plain = part["type"] == "ByteLevel" && part["add_prefix_space"] == false;
    plain.then(|| part["use_regex"].as_bool().unwrap_or(true))
}

fn cut(value: &Value) -> Option<SplitRule> {
    if bytes(value) == Some(true) {
        return Some(SplitRule::Expression(GPT2));
    }
    let [first, last] = value["pretokenizers"].as_array()?.as_slice() else { return None };
    match (first["type"].as_str()?, bytes(last)?) {
        ("Digits", true) if first["individual_digits"] == true => Some(SplitRule::Digits),
        ("Split", false) => {
            let apart = first["behavior"] == "Isolated" && first["invert"] == false;
            let matches = first["behavior"] == "Removed" && first["invert"] == true;
            let found = first["pattern"]["Regex"].as_str().filter(|_| apart || matches)?;
            [LLAMA3, QWEN2, GPT2, O200K, TEKKEN]
                .into_iter()
                .find(|known| *known == found)
                .map(SplitRule::Expression)
        }
        _ => None,
    }
}
