//! Converts the output lines of the programs to a dated table for `docs/log`, with the bars of the issue next to the
//! figures.

use serde_json::Value;

/// Name of rows of the larger shape.
pub const LARGE: &str = "Llama-3-8B shape, bf16 moments and no masters";
/// Name of rows of the larger shape with the optimizer state in host memory.
pub const OFFLOADED: &str = "Llama-3-8B shape, f32 masters and moments with the host";
/// Name of rows of steps with an optimizer state like PyTorch's: bf16 weights and moments, no master weights.
pub const LEAN: &str = "step with bf16 moments and no masters";
/// Name of rows of steps whose attention scores have the range of a trained model's.
pub const PEAKED: &str = "step with peaked attention";
/// Name of rows of steps with blocks as CUDA graphs.
pub const GRAPHS: &str = "step with blocks as graphs";
/// Maximum relative difference between the device memory used and planned.
const MEMORY_BAR: f64 = 0.02;
/// Minimum ratio of our step rate to PyTorch's.
const STEP_BAR: f64 = 1.1;
/// Minimum rate of a step of the longest length, as a share of the measured matrix product rate.
const RATE_BAR: f64 = 0.55;
/// Minimum ratio of our attention rate to PyTorch's.
const ATTENTION_BAR: f64 = 0.97;
/// Minimum speedup of a step with FP8 products.
const FP8_BAR: f64 = 1.2;
/// Lengths in tokens that these bars apply to.
const LONG: u64 = 131_072;
const ATTENTION_TOKENS: u64 = 32_768;

/// Compares figures with their bars.
#[derive(Default)]
struct Bars {
    missed: Vec<String>,
}

impl Bars {
    /// Formats a figure that must be at least `bar`.
    fn least(&mut self, what: String, value: Option<f64>, bar: f64) -> String {
        match value {
            Some(value) if value >= bar => format!("{value:.2} (bar {bar})"),
            Some(value) => {
                self.missed.push(format!("{what}: {value:.2} is below {bar}"));
                format!("**{value:.2}** (bar {bar})")
            }
            None => "-".to_string(),
        }
    }

    /// Formats a figure that must be close to one.
    fn memory(&mut self, what: &str, value: Option<f64>) -> String {
        match value {
            Some(value) if (value - 1.0).abs() <= MEMORY_BAR => format!("{value:.4}"),
            Some(value) => {
                self.missed.push(format!("{what}: {value:.4} is more than {MEMORY_BAR} off"));
                format!("**{value:.4}**")
            }
            None => "-".to_string(),
        }
    }
}

/// All results printed as JSON.
#[derive(Default)]
pub struct Results {
    rows: Vec<Value>,
}

impl Results {
    /// Adds the lines that are JSON objects; if `name` is given, benchmark rows get that name.
    pub fn add(&mut self, lines: &[String], name: Option<&str>) {
        let parsed = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        self.rows.extend(parsed.filter(Value::is_object).map(|mut row| {
            if let (Some(name), true) = (name, row["bench"].is_string()) {
                row["bench"] = name.into();
            }
            row
        }));
    }

    /// True if the device is the rehearsal device.
    pub fn is_rehearsed(&self) -> bool {
        self.found("device").is_some_and(|name| name.contains("(rehearsal)"))
    }

    /// The text of a check's result.
    fn found(&self, what: &str) -> Option<&str> {
        self.rows.iter().find(|row| row["what"] == what).and_then(|row| row["found"].as_str())
    }

    /// The number at the beginning of a check's result.
    fn number(&self, what: &str) -> Option<f64> {
        self.found(what)?.split(' ').next()?.parse().ok()
    }

    fn bench(&self, bench: &str, tokens: u64, rival: bool) -> Option<&Value> {
        self.rows
            .iter()
            .find(|row| row["bench"] == bench && row["tokens"] == tokens && row["rival"].is_string() == rival)
    }

    /// Lengths of steps, ours or PyTorch's, ascending.
    fn lengths(&self) -> Vec<u64> {
        let steps = self.rows.iter().filter(|row| row["bench"] == "step");
        let mut lengths: Vec<u64> = steps.filter_map(|row| row["tokens"].as_u64()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// The table, and complaints about missed bars.
    pub fn table(&self, date: &str) -> (String, Vec<String>) {
        let mut bars = Bars::default();
        let mut out = format!("## {date}: on a GPU\n\n{}\n\n", self.where_it_ran());
        let failed = self.rows.iter().filter(|row| row["ok"] == false).count();
        let checks = self.rows.iter().filter(|row| row["ok"].is_boolean()).count();
        out += &format!("Checks: {checks}, failed {failed}.\n\n");
        out += "| step, Llama-3.2-1B shape, bf16 | TFLOP/s | PyTorch | ratio | of the product rate | device / plan |\n|---|---|---|---|---|---|\n";
        for tokens in self.lengths() {
            out += &self.step(tokens, &mut bars);
        }
        for row in self.rows.iter().filter(|row| row["bench"] == LEAN) {
            let (tokens, rate) = (row["tokens"].as_u64().unwrap_or(0), row["model_tflops"].as_f64());
            let theirs = self.bench("step", tokens, true).and_then(|theirs| theirs["model_tflops"].as_f64());
            let ratio = rate.zip(theirs).map(|(ours, theirs)| ours / theirs);
            let ratio = bars.least(format!("{LEAN}, {tokens} tokens, against PyTorch"), ratio, STEP_BAR);
            out += &format!(
                "\nWith bf16 moments and no masters, as PyTorch's: {tokens} tokens at {rate:.0} TFLOP/s, ratio {ratio}.\n",
                rate = rate.unwrap_or(0.0)
            );
        }
        out += &format!("\n{}\n", self.attention(&mut bars));
        for row in self.rows.iter().filter(|row| row["bench"] == LARGE || row["bench"] == OFFLOADED) {
            let name = row["bench"].as_str().unwrap_or_default();
            let memory = bars.memory(&format!("{name}, device against plan"), self.memory(row));
            let (tokens, rate) = (&row["tokens"], &row["model_tflops"]);
            out += &format!("\n{name}, {tokens} tokens: {rate} TFLOP/s, device / plan {memory}.\n");
        }
        for row in self.rows.iter().filter(|row| row["bench"] == PEAKED && !row["rival"].is_string()) {
            let tokens = row["tokens"].as_u64().unwrap_or(0);
            let rate = |row: Option<&Value>| row.map_or("-".into(), |row| row["model_tflops"].to_string());
            let (flat, theirs) = (self.bench("step", tokens, false), self.bench(PEAKED, tokens, true));
            let [ours, flat, theirs] = [Some(row), flat, theirs].map(rate);
            out += &format!(
                "\nWith peaked attention, {tokens} tokens: {ours} TFLOP/s, {flat} with flat, PyTorch's {theirs} with peaked.\n"
            );
        }
        for row in self.rows.iter().filter(|row| row["bench"] == GRAPHS) {
            let plain = self.bench("step", row["tokens"].as_u64().unwrap_or(0), false);
            let plain = plain.map_or("-".into(), |plain| plain["model_tflops"].to_string());
            let (tokens, rate, graphs) = (&row["tokens"], &row["model_tflops"], &row["graphs"]);
            out +=
                &format!("\nBlocks as graphs, {tokens} tokens: {rate} TFLOP/s, {plain} without; {graphs}.\n");
        }
        if let Some(longest) = self.rows.iter().rfind(|row| row["bench"] == "longest") {
            let (tokens, beyond) = (&longest["tokens"], &longest["too_long"]);
            out += &format!("\nPyTorch's longest step: {tokens} tokens; {beyond} are too many.\n");
        }
        for line in self.fp8(&mut bars) {
            out += &format!("\n{line}\n");
        }
        out.push('\n');
        for what in [
            "host to device",
            "device to host",
            "both ways, each",
            "taken without a tensor",
            "taken outside the pool",
        ] {
            out += &format!("{what}: {}. ", self.found(what).unwrap_or("-"));
        }
        (out.trim_end().to_string(), bars.missed)
    }

    /// The table row of a length.
    fn step(&self, tokens: u64, bars: &mut Bars) -> String {
        let rate = |rival| self.bench("step", tokens, rival).and_then(|row| row["model_tflops"].as_f64());
        let (ours, theirs) = (rate(false), rate(true));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        let ratio = bars.least(format!("step of {tokens} tokens against PyTorch"), ratio, STEP_BAR);
        let product = self.number("product, 8192 cubed, bf16");
        let share = ours.zip(product).map(|(ours, product)| ours / product);
        let share = match (tokens, share) {
            (LONG, share) => bars.least(format!("step of {tokens} tokens against products"), share, RATE_BAR),
            (_, Some(share)) => format!("{share:.2}"),
            (_, None) => "-".to_string(),
        };
        let memory = self.bench("step", tokens, false).and_then(|row| self.memory(row));
        let memory = bars.memory(&format!("step of {tokens} tokens, device against plan"), memory);
        let text = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.0}"));
        format!("| {tokens} tokens | {} | {} | {ratio} | {share} | {memory} |\n", text(ours), text(theirs))
    }

    /// Device memory used by a step, without the libraries' allocations outside the pool, relative to the memory
    /// reserved by the plan.
    fn memory(&self, row: &Value) -> Option<f64> {
        let outside = self.number("taken outside the pool")?;
        Some((row["device_used_bytes"].as_f64()? - outside) / row["planned_reserved_bytes"].as_f64()?)
    }

    /// Attention compared with PyTorch's, in both directions.
    fn attention(&self, bars: &mut Bars) -> String {
        let ours = self.found(&format!("causal attention, {ATTENTION_TOKENS} tokens")).unwrap_or_default();
        let theirs = self.bench("attention", ATTENTION_TOKENS, true);
        let ratio = |bars: &mut Bars, index: usize, direction: &str| {
            // "600 TFLOP/s forward by cuDNN, 500 backward by cuDNN".
            let ours =
                ours.split(", ").nth(index).and_then(|part| part.split(' ').next()?.parse::<f64>().ok());
            let theirs = theirs.and_then(|row| row[format!("{direction}_tflops")].as_f64());
            let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
            bars.least(format!("attention {direction} against PyTorch"), ratio, ATTENTION_BAR)
        };
        let (forward, backward) = (ratio(bars, 0, "forward"), ratio(bars, 1, "backward"));
        format!(
            "Attention, {ATTENTION_TOKENS} tokens, d 128, against PyTorch's: {forward} forward, {backward} backward."
        )
    }

    /// Steps and losses of the FP8 formats compared with bf16.
    fn fp8(&self, bars: &mut Bars) -> Vec<String> {
        let rate = |format: &str| {
            self.rows
                .iter()
                .find(|row| row["bench"] == SHAPE_NAME && row["gemm"] == format)
                .and_then(|row| row["model_tflops"].as_f64())
        };
        let mut line = |format: &&str| {
            let ratio = rate(format).zip(rate("bf16")).map(|(ours, bf16)| ours / bf16);
            let ratio = bars.least(format!("step in {format} against bf16"), ratio, FP8_BAR);
            let loss = self.found(&loss_of(format)).unwrap_or("-");
            format!("{format}, step of the {} against bf16: {ratio}; loss {loss}.", SHAPE_NAME)
        };
        FORMATS.iter().map(&mut line).collect()
    }

    fn where_it_ran(&self) -> String {
        let names = ["device", "driver", "NVRTC", "cuBLASLt", "cuDNN", "NCCL"];
        let words: Vec<String> =
            names.iter().filter_map(|name| self.found(name).map(|found| format!("{name} {found}"))).collect();
        if words.is_empty() { "No device answered.".to_string() } else { format!("{}.", words.join("; ")) }
    }
}

/// Values of `precision.gemm` compared with bf16.
pub const FORMATS: [&str; 2] = ["fp8_delayed", "fp8_block"];

/// Name of its rows.
pub const SHAPE_NAME: &str = "Llama-3-8B shape of 16 layers";

/// Name of the loss check of a format.
pub fn loss_of(format: &str) -> String {
    format!("loss of {STEPS} steps in {format} against bf16")
}

/// Steps of each stage of a training run, and the number of final steps whose losses are compared.
pub(super) const STEPS: &str = "200";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_judged_and_what_is_missing_is_a_dash() {
        let mut results = Results::default();
        let large = r#"{"bench":"step","tokens":262144,"model_tflops":400.0,"device_used_bytes":1150,"planned_reserved_bytes":1000}"#;
        results.add(&[large.to_string()], Some(LARGE));
        let graphs = r#"{"bench":"step","tokens":8192,"model_tflops":310.0,"graphs":{"captured":3}}"#;
        results.add(&[graphs.to_string()], Some(GRAPHS));
        let lean = r#"{"bench":"step","tokens":8192,"model_tflops":319.0}"#;
        results.add(&[lean.to_string()], Some(LEAN));
        let peaked = [
            r#"{"bench":"step","tokens":8192,"model_tflops":298.0}"#,
            r#"{"bench":"step","tokens":8192,"model_tflops":288.0,"rival":"torch"}"#,
        ];
        results.add(&peaked.map(str::to_string), Some(PEAKED));
        let rows = [
            r#"{"what":"device","ok":true,"found":"NVIDIA H200"}"#.to_string(),
            r#"{"what":"product, 8192 cubed, bf16","ok":true,"found":"700 TFLOP/s"}"#.to_string(),
            r#"{"bench":"step","tokens":8192,"model_tflops":300.0,"device_used_bytes":1113,"planned_reserved_bytes":1000}"#.to_string(),
            r#"{"what":"taken outside the pool","ok":true,"found":"100 bytes outside 2000"}"#.to_string(),
            r#"{"what":"causal attention, 32768 tokens","ok":true,"found":"600 TFLOP/s forward by cuDNN, 450 backward by cuDNN"}"#.to_string(),
            r#"{"bench":"attention","tokens":32768,"forward_tflops":605.0,"backward_tflops":500.0,"rival":"torch"}"#.to_string(),
            r#"{"bench":"longest","tokens":300000,"too_long":320000,"rival":"torch"}"#.to_string(),
            r#"{"bench":"step","tokens":8192,"model_tflops":290.0,"rival":"torch"}"#.to_string(),
            r#"{"bench":"step","tokens":131072,"model_tflops":420.0}"#.to_string(),
            "not json".to_string(),
        ];
        results.add(&rows, None);
        let (table, missed) = results.table("2026-01-01");
        assert!(table.contains("## 2026-01-01") && table.contains("device NVIDIA H200"));
        assert!(
            table.contains("| 8192 tokens | 300 | 290 | **1.03** (bar 1.1) | 0.43 | 1.0130 |"),
            "{table}"
        );
        assert!(table.contains("8192 tokens at 319 TFLOP/s, ratio 1.10 (bar 1.1)"), "{table}");
        assert!(table.contains("| 131072 tokens | 420 | - | - | 0.60 (bar 0.55) | - |"), "{table}");
        assert!(
            table.contains("no masters, 262144 tokens: 400.0 TFLOP/s, device / plan **1.0500**"),
            "{table}"
        );
        assert!(table.contains("0.99 (bar 0.97) forward, **0.90** (bar 0.97) backward"), "{table}");
        assert!(
            table.contains("graphs, 8192 tokens: 310.0 TFLOP/s, 300.0 without; {\"captured\":3}"),
            "{table}"
        );
        assert!(
            table.contains("8192 tokens: 298.0 TFLOP/s, 300.0 with flat, PyTorch's 288.0 with peaked"),
            "{table}"
        );
        assert!(table.contains("PyTorch's longest step: 300000 tokens; 320000 are too many"), "{table}");
        assert_eq!(missed.len(), 3, "{missed:?}");
    }

    #[test]
    fn number_formats_are_judged_against_bf16() {
        let mut results = Results::default();
        for (format, rate) in [("bf16", 400.0), ("fp8_delayed", 520.0), ("fp8_block", 440.0)] {
            let row = format!(r#"{{"bench":"step","gemm":"{format}","tokens":8192,"model_tflops":{rate}}}"#);
            results.add(&[row], Some(super::super::fp8::SHAPE_NAME));
        }
        let loss = super::super::fp8::loss_of("fp8_block");
        results.add(&[format!(r#"{{"what":"{loss}","ok":false,"found":"1.02 of bf16's"}}"#)], None);
        let (table, missed) = results.table("2026-01-01");
        assert!(
            table.contains("fp8_delayed, step of the") && table.contains("1.30 (bar 1.2); loss -."),
            "{table}"
        );
        assert!(table.contains("**1.10** (bar 1.2); loss 1.02 of bf16's."), "{table}");
        assert!(missed.len() == 1 && missed[0].contains("fp8_block"), "{missed:?}");
    }
}
