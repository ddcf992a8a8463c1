//! Metrics of a server: counters and histograms with vLLM's names and buckets, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use fathom_base::{Load, Usage};
use serde_json::{Value, json};

use crate::now::now_s;

/// Bucket bounds of times to a first token, in seconds.
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Bucket bounds of times between tokens, in seconds.
const BETWEEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Bucket bounds of durations of requests and their parts, in seconds.
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Bucket bounds of token counts: 1, 2, 5 and their multiples by powers of ten.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6,
    2e6,
];
/// Bucket bounds of answers per prompt.
const ANSWERS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Counts of values between bounds.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, value: f64, times: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += times;
        self.sum += value * times as f64;
    }

    fn write(&self, out: &mut String, name: &str, model: &str) {
        let mut below = 0;
        for (at, count) in self.counts.iter().enumerate() {
            below += count;
            let bound = self.bounds.get(at).map_or("+Inf".to_string(), |bound| format!("{bound:?}"));
            _ = writeln!(out, "{name}_bucket{{le=\"{bound}\",model_name=\"{model}\"}} {below}");
        }
        _ = writeln!(out, "{name}_sum{{model_name=\"{model}\"}} {}", self.sum);
        _ = writeln!(out, "{name}_count{{model_name=\"{model}\"}} {below}");
    }
}

/// Names, descriptions and buckets of the histograms, in order.
const HISTOGRAMS: [(&str, &str, &[f64]); 11] = [
    ("vllm:time_to_first_token_seconds", "Time to the first token", FIRST),
    ("vllm:inter_token_latency_seconds", "Time between tokens", BETWEEN),
    ("vllm:time_per_output_token_seconds", "Time between tokens, by its older name", BETWEEN),
    ("vllm:e2e_request_latency_seconds", "Time of whole requests", WHOLE),
    ("vllm:request_queue_time_seconds", "Time in the queue", WHOLE),
    ("vllm:request_prefill_time_seconds", "Time from the queue to the first token", WHOLE),
    ("vllm:request_decode_time_seconds", "Time of the tokens after the first", WHOLE),
    ("vllm:request_inference_time_seconds", "Time outside the queue", WHOLE),
    ("vllm:request_prompt_tokens", "Tokens of prompts", TOKENS),
    ("vllm:request_generation_tokens", "Tokens of answers", TOKENS),
    ("vllm:request_params_max_tokens", "Tokens that requests ask for, at most", TOKENS),
];
const PARAMS_N: (&str, &str) = ("vllm:request_params_n", "Answers that requests ask for");

/// Metrics of a model.
#[derive(Debug)]
struct Counts {
    histograms: Vec<Histogram>,
    answers: Histogram,
    finished: BTreeMap<&'static str, u64>,
}

/// State of a request with an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting: no prompt of it is being read.
    Waiting,
    /// Running.
    Running,
}

/// All metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Waiting and running requests, by model and adapter.
    adapters: Mutex<BTreeMap<(String, String), [u64; 2]>>,
    models: Mutex<BTreeMap<String, Counts>>,
    failures: Mutex<BTreeMap<&'static str, u64>>,
    http: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Counts {
    fn new() -> Counts {
        Counts {
            histograms: HISTOGRAMS.iter().map(|(_, _, bounds)| Histogram::new(bounds)).collect(),
            answers: Histogram::new(ANSWERS),
            finished: BTreeMap::new(),
        }
    }

    fn add(&mut self, name: &str, value: f64, times: u64) {
        if let Some(at) = HISTOGRAMS.iter().position(|(other, ..)| *other == name) {
            self.histograms[at].add(value, times);
        }
    }
}

impl Metrics {
    fn of<T>(&self, model: &str, work: impl FnOnce(&mut Counts) -> T) -> T {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if !models.contains_key(model) {
            models.insert(model.to_string(), Counts::new());
        }
        // The entry was just inserted if it was missing.
        work(models.entry(model.to_string()).or_insert_with(Counts::new))
    }

    /// Counts a new request.
    pub fn asked(&self, model: &str, answers: usize, max_tokens: usize) {
        self.of(model, |counts| {
            counts.answers.add(answers as f64, 1);
            counts.add("vllm:request_params_max_tokens", max_tokens as f64, 1);
        });
    }

    /// Records the time between tokens.
    pub fn between(&self, model: &str, seconds: f64, tokens: usize) {
        let each = seconds / tokens.max(1) as f64;
        self.of(model, |counts| {
            counts.add("vllm:inter_token_latency_seconds", each, tokens as u64);
            counts.add("vllm:time_per_output_token_seconds", each, tokens as u64);
        });
    }

    /// Changes the state of a request with an adapter.
    pub fn adapter(&self, model: &str, adapter: &str, was: Option<State>, now: Option<State>) {
        let mut all = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = all.entry((model.to_string(), adapter.to_string())).or_default();
        was.iter().for_each(|was| counts[*was as usize] -= 1);
        now.iter().for_each(|now| counts[*now as usize] += 1);
        if *counts == [0; 2] {
            all.remove(&(model.to_string(), adapter.to_string()));
        }
    }

    /// vLLM's line for each model with adapters: adapters of waiting and running requests, with the time.
    fn write_adapters(&self, out: &mut String, adapters: &[(String, usize)]) {
        const NAME: &str = "vllm:lora_requests_info";
        head(out, NAME, "Adapters of requests, at a time in seconds since 1970", "gauge");
        let all = self.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        for (model, count) in adapters.iter().filter(|(_, count)| *count > 0) {
            let those = |state: State| {
                let here = all.iter().filter(|((of, _), counts)| of == model && counts[state as usize] > 0);
                escaped(&here.map(|((_, adapter), _)| adapter.as_str()).collect::<Vec<_>>().join(","))
            };
            let (running, waiting) = (those(State::Running), those(State::Waiting));
            let labels = format!(
                "max_lora=\"{count}\",model_name=\"{}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"",
                escaped(model)
            );
            _ = writeln!(out, "{NAME}{{{labels}}} {}", now_s());
        }
    }

    /// Records a first token.
    pub fn first(&self, model: &str, seconds: f64) {
        self.of(model, |counts| counts.add("vllm:time_to_first_token_seconds", seconds, 1));
    }

    /// Counts a finished answer by its reason.
    pub fn finished(&self, model: &str, reason: &'static str) {
        self.of(model, |counts| *counts.finished.entry(reason).or_default() += 1);
    }

    /// Records a completed request.
    pub fn answered(&self, model: &str, usage: &Usage, whole_s: f64) {
        let Usage { prompt_tokens, answer_tokens, queue_s, prefill_s, decode_s, .. } = *usage;
        let values = [
            ("vllm:e2e_request_latency_seconds", whole_s),
            ("vllm:request_queue_time_seconds", queue_s),
            ("vllm:request_prefill_time_seconds", prefill_s),
            ("vllm:request_decode_time_seconds", decode_s),
            ("vllm:request_inference_time_seconds", prefill_s + decode_s),
            ("vllm:request_prompt_tokens", prompt_tokens as f64),
            ("vllm:request_generation_tokens", answer_tokens as f64),
        ];
        self.of(model, |counts| values.into_iter().for_each(|(name, value)| counts.add(name, value, 1)));
    }

    /// Counts a failed request by its cause: `overloaded`, `validation`, `dropped`, `generation`, `denied`,
    /// `shutting_down`.
    pub fn failed(&self, cause: &'static str) {
        *self.failures.lock().unwrap_or_else(PoisonError::into_inner).entry(cause).or_default() += 1;
    }

    /// Counts a response of a route by its status.
    pub fn http(&self, route: &'static str, status: u16) {
        *self.http.lock().unwrap_or_else(PoisonError::into_inner).entry((route, status)).or_default() += 1;
    }

    /// Latency histograms of a model, for the page: bounds and counts.
    pub fn latency(&self, model: &str) -> Value {
        let one = |counts: &Counts, at: usize| {
            let Histogram { bounds, counts, sum } = &counts.histograms[at];
            json!({"bounds": bounds, "counts": counts, "sum": sum})
        };
        self.of(
            model,
            |counts| json!({"first": one(counts, 0), "between": one(counts, 1), "whole": one(counts, 3)}),
        )
    }

    /// All metrics in Prometheus' format, with the models' loads and numbers of adapters.
    pub fn text(&self, loads: &[(String, Load)], adapters: &[(String, usize)]) -> String {
        let mut out = String::with_capacity(1 << 14);
        gauges(&mut out, loads);
        self.write_adapters(&mut out, adapters);
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        head(&mut out, "vllm:request_success_total", "Answers by why they ended", "counter");
        for (model, counts) in models.iter() {
            for (reason, count) in &counts.finished {
                let labels = format!("finished_reason=\"{reason}\",model_name=\"{}\"", escaped(model));
                _ = writeln!(out, "vllm:request_success_total{{{labels}}} {count}");
            }
        }
        for (at, (name, about, _)) in HISTOGRAMS.iter().enumerate() {
            head(&mut out, name, about, "histogram");
            models
                .iter()
                .for_each(|(model, counts)| counts.histograms[at].write(&mut out, name, &escaped(model)));
        }
        head(&mut out, PARAMS_N.0, PARAMS_N.1, "histogram");
        models.iter().for_each(|(model, counts)| counts.answers.write(&mut out, PARAMS_N.0, &escaped(model)));
        drop(models);
        head(&mut out, "fathom:request_failure_total", "Requests that failed, by cause", "counter");
        for (cause, count) in self.failures.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            _ = writeln!(out, "fathom:request_failure_total{{err=\"{cause}\"}} {count}");
        }
        head(&mut out, "http_requests_total", "Requests by route and status", "counter");
        for ((route, status), count) in self.http.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            _ = writeln!(out, "http_requests_total{{handler=\"{route}\",status=\"{status}\"}} {count}");
        }
        head(&mut out, "fathom:anonymous_memory_bytes", "Resident memory that no file is behind", "gauge");
        _ = writeln!(
            out,
            "fathom:anonymous_memory_bytes {}",
            fathom_base::rss::anonymous_bytes().unwrap_or(0)
        );
        out
    }
}

fn head(out: &mut String, name: &str, about: &str, kind: &str) {
    _ = writeln!(out, "# HELP {name} {about}.\n# TYPE {name} {kind}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

type Figure = fn(&Load) -> f64;

const GAUGES: &[(&str, &str, &str, Figure)] = &[
    ("vllm:num_requests_running", "Requests that run", "gauge", |load| load.running as f64),
    ("vllm:num_requests_waiting", "Requests that wait", "gauge", |load| load.waiting as f64),
    ("vllm:kv_cache_usage_perc", "Share of the pages in use, from 0 to 1", "gauge", |load| {
        load.pages_used as f64 / load.pages.max(1) as f64
    }),
    ("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up", "counter", |load| {
        load.prefix_queries as f64
    }),
    ("vllm:prefix_cache_hits_total", "Those that were found", "counter", |load| load.prefix_hits as f64),
    ("fathom:prefix_restored_tokens_total", "Those that came back from disk", "counter", |load| {
        load.restored_tokens as f64
    }),
    ("fathom:prefix_store_bytes", "Beginnings of prompts on disk", "gauge", |load| load.stored_bytes as f64),
    ("vllm:num_preemptions_total", "Requests whose pages were preempted", "counter", |load| {
        load.preemptions as f64
    }),
    ("vllm:prompt_tokens_total", "Tokens of prompts that were computed", "counter", |load| {
        load.prompt_tokens as f64
    }),
    ("vllm:generation_tokens_total", "Tokens that were generated", "counter", |load| {
        load.answer_tokens as f64
    }),
    ("vllm:spec_decode_num_drafts_total", "Guesses, of one or more tokens each", "counter", |load| {
        load.drafts as f64
    }),
    ("vllm:spec_decode_num_draft_tokens_total", "Tokens that were guessed", "counter", |load| {
        load.drafted_tokens as f64
    }),
    ("vllm:spec_decode_num_accepted_tokens_total", "Guesses that were right", "counter", |load| {
        load.accepted_tokens as f64
    }),
    ("fathom:draft_pages_used", "Pages of the draft model in use", "gauge", |load| {
        load.draft_pages_used as f64
    }),
    ("fathom:waiting_tokens", "Tokens of prompts that wait", "gauge", |load| load.waiting_tokens as f64),
    ("fathom:prefill_tokens_per_second", "Tokens a second that prompts are read with", "gauge", |load| {
        load.prefill_tokens_per_s
    }),
    ("fathom:step_tokens", "Tokens of the last step", "gauge", |load| {
        load.step_tokens.last().copied().unwrap_or(0).into()
    }),
];

fn gauges(out: &mut String, loads: &[(String, Load)]) {
    for (name, about, kind, figure) in GAUGES {
        head(out, name, about, kind);
        for (model, load) in loads {
            _ = writeln!(out, "{name}{{model_name=\"{}\"}} {}", escaped(model), figure(load));
        }
    }
    const PLACES: &str = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    head(out, PLACES, "Guesses that were right, by their place in their step", "counter");
    for (model, load) in loads {
        for (place, count) in load.accepted_at.iter().enumerate() {
            _ = writeln!(out, "{PLACES}{{model_name=\"{}\",position=\"{place}\"}} {count}", escaped(model));
        }
    }
    head(out, "vllm:cache_config_info", "Pages of keys and values", "gauge");
    for (model, load) in loads {
        let (size, pages) = (load.page_tokens, load.pages);
        let labels =
            format!("block_size=\"{size}\",num_gpu_blocks=\"{pages}\",model_name=\"{}\"", escaped(model));
        _ = writeln!(out, "vllm:cache_config_info{{{labels}}} 1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative_and_in_order() {
        let metrics = Metrics::default();
        metrics.first("m\"", 0.001);
        metrics.first("m\"", 0.3);
        metrics.between("m\"", 0.4, 4);
        metrics.failed("overloaded");
        metrics.adapter("m\"", "a", None, Some(State::Waiting));
        metrics.adapter("m\"", "b", None, Some(State::Waiting));
        metrics.adapter("m\"", "b", Some(State::Waiting), Some(State::Running));
        let load = Load { pages: 4, pages_used: 1, drafts: 3, accepted_at: vec![2, 1], ..Load::default() };
        let text = metrics.text(&[("m\"".into(), load)], &[("m\"".into(), 3)]);
        let adapters = "vllm:lora_requests_info{max_lora=\"3\",model_name=\"m\\\"\",running_lora_adapters=\"b\",waiting_lora_adapters=\"a\"} ";
        assert!(text.contains(adapters), "{text}");
        for line in [
            "vllm:time_to_first_token_seconds_bucket{le=\"0.001\",model_name=\"m\\\"\"} 1",
            "vllm:time_to_first_token_seconds_bucket{le=\"0.5\",model_name=\"m\\\"\"} 2",
            "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\\\"\"} 2",
            "vllm:inter_token_latency_seconds_bucket{le=\"0.1\",model_name=\"m\\\"\"} 4",
            "vllm:kv_cache_usage_perc{model_name=\"m\\\"\"} 0.25",
            "vllm:spec_decode_num_drafts_total{model_name=\"m\\\"\"} 3",
            "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\\\"\",position=\"1\"} 1",
            "fathom:request_failure_total{err=\"overloaded\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        let mut names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
