//! Measures what alignment methods teach a small model, over three seeds. The task is a question about key-value pairs,
//! to be answered in a requested form. Run by hand; the output is the handbook's tables.
//!
//! The base model is first taught to answer in any of four forms, starting with rows that ask about the same pairs many
//! times: most tokens of such a row can be copied, which rows with a single question teach about ten times more slowly.
//! Reinforcement learning must raise the share of correct answers in the wanted form from below 30 % to above 90 % on
//! unseen keys. Preference learning must hold for held-out pairs. A reward model must pick the better answer of such
//! pairs, and choosing the best of eight answers by it must beat a single answer.

use std::fmt::Write as _;
use std::fs;
use std::ops::Deref;
use std::time::Instant;

use serde_json::{Value, json};

use crate::kill_test::build;
use crate::random::Random;
use crate::trial::{Trial, over_seeds};

/// The forms of an answer; the first is the wanted one.
const FORMS: [&str; 4] = ["{}!", "{}.", "{};", "{}?"];
/// Number of pairs in a question.
const PAIRS: u64 = 4;
/// Questions per row that asks about the same pairs many times.
const MANY: u64 = 16;

/// Runs everything; returns complaints about what did not hold.
pub fn run() -> Result<Vec<String>, String> {
    let complaints = over_seeds("lessons", &build()?, |trial| {
        let complaints = Lesson(trial).all()?;
        Ok(complaints
            .into_iter()
            .map(|complaint| format!("seed {}: {complaint}", trial.seed))
            .collect::<Vec<_>>())
    })?;
    Ok(complaints.concat())
}

/// The runs of one seed.
struct Lesson<'a>(&'a Trial<'a>);

impl<'a> Deref for Lesson<'a> {
    type Target = Trial<'a>;

    fn deref(&self) -> &Trial<'a> {
        self.0
    }
}

/// Random key-value pairs.
fn pairs(random: &mut Random) -> Vec<(char, u64)> {
    // All keys differ.
    let first = random.below(26);
    let key = |at: u64| char::from(b'a' + ((first + at * 7) % 26) as u8);
    (0..PAIRS).map(|at| (key(at), 10 + random.below(90))).collect()
}

fn spelled(pairs: &[(char, u64)]) -> String {
    pairs.iter().map(|(key, value)| format!("{key}{value} ")).collect()
}

/// A question, and the value that answers it.
fn question(random: &mut Random) -> (String, u64) {
    let pairs = pairs(random);
    let (key, value) = pairs[random.below(PAIRS) as usize];
    (format!("{}{key}", spelled(&pairs)), value)
}

/// A row that asks about the same pairs many times.
fn many(random: &mut Random) -> (String, String) {
    let pairs = pairs(random);
    let mut answers = String::new();
    for _ in 0..MANY {
        let (key, value) = pairs[random.below(PAIRS) as usize];
        _ = write!(answers, "{key}{} ", said(random.below(4) as usize, value));
    }
    (spelled(&pairs), answers)
}

fn said(form: usize, value: u64) -> String {
    FORMS[form].replace("{}", &value.to_string())
}

impl Lesson<'_> {
    fn all(&self) -> Result<Vec<String>, String> {
        self.rows()?;
        let started = Instant::now();
        self.base()?;
        println!("seed {}: the base took {:.0} s", self.seed, started.elapsed().as_secs_f64());
        let mut complaints = Vec::new();
        for method in ["grpo", "ppo"] {
            let (first, last, seconds) = self.rewards(method)?;
            println!("seed {}: {method:<7} {first:.3} -> {last:.3} right, {seconds:.0} s", self.seed);
            if first >= 0.3 || last <= 0.9 {
                complaints.push(format!("{method} went from {first:.3} to {last:.3}"));
            }
        }
        for method in ["dpo", "kto", "simpo"] {
            let [before, after] = self.preferences(method)?;
            println!(
                "seed {}: {method:<7} held-out accuracy {:.3} -> {:.3}, margin {:.2} -> {:.2} nats",
                self.seed, before[0], after[0], before[1], after[1]
            );
            if after[0] <= before[0] || after[1] <= before[1] {
                complaints.push(format!("{method} did not rise: {before:?}, {after:?}"));
            }
        }
        let (accuracy, [one, best]) = self.reward_model()?;
        println!(
            "seed {}: reward  held-out accuracy {accuracy:.3}; right {one:.3} of one answer, {best:.3} of the best of eight",
            self.seed
        );
        if accuracy <= 0.9 || best <= one {
            complaints.push(format!("the reward model: {accuracy:.3}, {one:.3}, {best:.3}"));
        }
        Ok(complaints)
    }

    /// Writes all files of rows.
    fn rows(&self) -> Result<(), String> {
        let mut random = Random(self.seed << 32);
        self.write(
            "many.jsonl",
            (0..40_000).map(|_| {
                let (prompt, completion) = many(&mut random);
                json!({"prompt": prompt, "completion": completion})
            }),
        )?;
        self.write(
            "forms.jsonl",
            (0..12_000).map(|at| {
                let (prompt, value) = question(&mut random);
                json!({"prompt": prompt, "completion": said(at % 4, value)})
            }),
        )?;
        self.write(
            "prompts.jsonl",
            (0..4000).map(|_| {
                let (prompt, value) = question(&mut random);
                json!({"prompt": prompt, "answer": value})
            }),
        )?;
        // The better answer is correct and in the wanted form; the worse one is either a wrong value in that form, or
        // the correct value in another form. Recognising the correct value needs a lookup, which a reward model learns
        // only from many pairs.
        for (name, count) in [("pairs.jsonl", 2000), ("held.jsonl", 300), ("many-pairs.jsonl", 16_000)] {
            self.write(
                name,
                (0..count).map(|at| {
                    let (prompt, value) = question(&mut random);
                    let other = 10 + (value - 10 + 1 + random.below(89)) % 90;
                    let worse = if at % 2 == 0 { said(0, other) } else { said(1 + at / 2 % 3, value) };
                    json!({"prompt": prompt, "chosen": said(0, value), "rejected": worse, "subset": "pairs"})
                }),
            )?;
        }
        let pairs = self.lines("pairs.jsonl")?;
        self.write("labels.jsonl", pairs.iter().flat_map(|row| {
            ["chosen", "rejected"]
                .map(|which| json!({"prompt": row["prompt"], "completion": row[which], "label": which == "chosen"}))
        }))?;
        let text: String = self
            .lines("forms.jsonl")?
            .iter()
            .map(|row| {
                format!(
                    "{}{}\n",
                    row["prompt"].as_str().unwrap_or(""),
                    row["completion"].as_str().unwrap_or("")
                )
            })
            .collect();
        fs::write(self.path("text.txt"), text).map_err(|error| error.to_string())?;
        let reward = "[[reward]]\nname = \"right\"\nrule = \"exact\"\nextract = '^(\\d+)!$'\n";
        fs::write(self.path("reward.toml"), reward).map_err(|error| error.to_string())?;
        let both =
            format!("{reward}\n[[reward]]\nname = \"model\"\nrule = \"model\"\nmodel = \"judge/model\"\n");
        fs::write(self.path("both.toml"), both).map_err(|error| error.to_string())?;
        // Weights initialised like the quickstart's model: with the usual initialisation, copying started after 2,400
        // steps in one seed, and in the other two it had not started after 4,500.
        let base = "[model]\nfamily = \"granite\"\ninit = \"induction\"\nembedding_multiplier = 16.0\ntied = true\nhidden = 128\n\
                    layers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 32\nffn = 352\nvocab = 257\ninit_std = 0.06\n\
                    precision = \"f32\"\n[data]\npaths = [\"text.txt\"]\n[eval]\nenabled = false\n[[stage]]\nseq_tokens = 256\n\
                    steps = 2\n";
        fs::write(self.path("base.toml"), base).map_err(|error| error.to_string())
    }

    /// Trains from the model `from`; `words` are the additional arguments of the method.
    fn train(&self, (recipe, from, rows): (&str, &str, &str), words: &[&str]) -> Result<(), String> {
        let out = match (recipe, from) {
            ("sft", "base") => "many",
            ("sft", _) => "forms",
            ("reward", _) => "judge",
            _ => recipe,
        };
        let settings = [
            format!("model.from={from}"),
            format!("data.paths={rows}"),
            format!("run.out={out}"),
            format!("run.seed={}", self.seed),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        self.fathom(&[&["train", recipe, "--quiet"], &settings[..], words].concat()).map(drop)
    }

    /// Trains the base model into `forms`.
    fn base(&self) -> Result<(), String> {
        self.fathom(&["train", "base.toml", "--quiet", "run.out=base", &format!("run.seed={}", self.seed)])?;
        let words = [
            "data.held_out_share=0",
            "stage.0.seq_tokens=1024",
            "stage.0.micro_batches=1",
            "stage.0.epochs=none",
            "eval.enabled=false",
            "schedule.warmup_steps=50",
        ];
        let copying =
            ["optimizer.lr=2.5e-3", "optimizer.beta2=0.95", "stage.0.steps=1200", "schedule.decay=wsd"];
        self.train(("sft", "base", "many.jsonl"), &[&words[..], &copying].concat())?;
        let forms = ["optimizer.lr=1e-3", "stage.0.steps=200"];
        self.train(("sft", "many/model", "forms.jsonl"), &[&words[..], &forms].concat())
    }

    /// The share of correct answers in the first step and in the last ten, and the duration in seconds.
    fn rewards(&self, method: &str) -> Result<(f64, f64, f64), String> {
        let started = Instant::now();
        let words = ["rl.reward=reward.toml", "rl.max_answer_tokens=8", "rl.prompts=16", "rl.answers=8"];
        let more = ["optimizer.lr=1e-3", "stage.0.steps=160", "stage.0.seq_tokens=128"];
        self.train((method, "forms/model", "prompts.jsonl"), &[&words[..], &more].concat())?;
        let events = self.lines(&format!("{method}/metrics.jsonl"))?;
        let shares: Vec<f64> =
            events.iter().filter_map(|event| event["rewards/right/mean"].as_f64()).collect();
        let last = shares.iter().rev().take(10).sum::<f64>() / 10.0;
        Ok((*shares.first().ok_or("no step says its reward")?, last, started.elapsed().as_secs_f64()))
    }

    /// The accuracy and the mean margin in nats on held-out pairs, before and after.
    fn preferences(&self, method: &str) -> Result<[[f64; 2]; 2], String> {
        let rows = if method == "kto" { "labels.jsonl" } else { "pairs.jsonl" };
        let words =
            ["optimizer.lr=1e-4", "data.held_out_share=0", "stage.0.seq_tokens=1024", "stage.0.max_docs=64"];
        let more = ["stage.0.micro_batches=1", "stage.0.epochs=1"];
        self.train((method, "forms/model", rows), &[&words[..], &more].concat())?;
        Ok([self.margins("forms/model")?, self.margins(&format!("{method}/model"))?])
    }

    /// The share of held-out pairs whose better answer is more likely, and the mean margin in nats.
    fn margins(&self, model: &str) -> Result<[f64; 2], String> {
        let _ = fs::remove_file(self.path("scored.jsonl"));
        self.fathom(&["score", model, "held.jsonl", "--out", "scored.jsonl"])?;
        let rows = self.lines("scored.jsonl")?;
        // Both include the prompt's tokens, which cancel.
        let sum = |logps: &Value| Some(logps.as_array()?.iter().filter_map(Value::as_f64).sum::<f64>());
        let of =
            |row: &Value| Some(sum(&row["reference"]["logps"][0])? - sum(&row["reference"]["logps"][1])?);
        let margins: Vec<f64> = rows.iter().filter_map(of).collect();
        let count = margins.len().max(1) as f64;
        Ok([
            margins.iter().filter(|margin| **margin > 0.0).count() as f64 / count,
            margins.iter().sum::<f64>() / count,
        ])
    }

    /// The reward model's accuracy on held-out pairs, and the share of correct answers for one answer and for the best
    /// of eight.
    fn reward_model(&self) -> Result<(f64, [f64; 2]), String> {
        let words =
            ["optimizer.lr=1e-3", "data.held_out_share=0", "stage.0.seq_tokens=1024", "stage.0.max_docs=64"];
        let more = ["stage.0.micro_batches=1", "stage.0.epochs=4"];
        self.train(("reward", "forms/model", "many-pairs.jsonl"), &[&words[..], &more].concat())?;
        let _ = fs::remove_file(self.path("scored.jsonl"));
        self.fathom(&["score", "judge", "held.jsonl", "--out", "scored.jsonl"])?;
        let rows = self.lines("scored.jsonl")?;
        let score = |row: &Value, at: usize| row["rewards"][at][0].as_f64().or(row["rewards"][at].as_f64());
        let better = rows.iter().filter(|row| score(row, 0) > score(row, 1));
        let accuracy = better.count() as f64 / rows.len().max(1) as f64;
        let words = [
            "rl.reward=both.toml",
            "rl.max_answer_tokens=8",
            "rl.prompts=32",
            "rl.answers=8",
            "rl.shown=256",
        ];
        self.train(
            ("rejection", "forms/model", "prompts.jsonl"),
            &[&words[..], &["stage.0.steps=1", "stage.0.seq_tokens=128"]].concat(),
        )?;
        let events = self.lines("rejection/metrics.jsonl")?;
        let shown = events.iter().find(|event| event["event"] == "rollout").ok_or("no rollout was logged")?;
        best_of(shown["answers"].as_array().map_or(&[], Vec::as_slice)).map(|shares| (accuracy, shares))
    }
}

/// The mean rule-based reward of all answers, and that of the best answer per prompt according to the model.
fn best_of(answers: &[Value]) -> Result<[f64; 2], String> {
    let read = |answer: &Value| {
        let part = |name: &str| answer["rewards"][name].as_f64();
        // Unscored answers rank last.
        let model = part("model").unwrap_or(f64::NEG_INFINITY);
        Some((answer["prompt"].as_str()?.to_string(), model, part("right")?))
    };
    let read: Option<Vec<_>> = answers.iter().map(read).collect();
    let mut read = read.filter(|read| !read.is_empty()).ok_or("a rollout's answers have no rewards")?;
    read.sort_by(|a, b| a.0.cmp(&b.0));
    let one = read.iter().map(|(_, _, right)| right).sum::<f64>() / read.len() as f64;
    let groups: Vec<&[(String, f64, f64)]> = read.chunk_by(|a, b| a.0 == b.0).collect();
    let best = |group: &&[(String, f64, f64)]| {
        group.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |(_, _, right)| *right)
    };
    Ok([one, groups.iter().map(best).sum::<f64>() / groups.len() as f64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_answer_of_each_prompt_counts() {
        let answer = |prompt: &str, model: f64, right: f64| json!({"prompt": prompt, "rewards": {"model": model, "right": right}});
        let answers =
            [answer("a", 0.5, 1.0), answer("a", 0.1, 0.0), answer("b", 0.2, 0.0), answer("b", 0.1, 0.0)];
        assert_eq!(best_of(&answers).unwrap(), [0.25, 0.5]);
        assert!(best_of(&[]).is_err());
        let empty = json!({"prompt": "a", "rewards": {"right": 0.0}});
        assert_eq!(best_of(&[empty, answer("a", -1.0, 1.0)]).unwrap(), [0.5, 1.0]);
    }

    #[test]
    fn a_question_has_its_answer_in_it() {
        let mut random = Random(1);
        for _ in 0..100 {
            let (text, value) = question(&mut random);
            let key = text.split(' ').next_back().unwrap();
            assert!(text.contains(&format!("{key}{value} ")), "{text}");
        }
    }
}
