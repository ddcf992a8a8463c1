//! A row of figures: a JSON object with keys in insertion order.

use serde_json::Value;

/// A row being built.
pub struct Row(Vec<(&'static str, Value)>);

impl Row {
    /// A row of a benchmark.
    pub fn new(bench: &'static str) -> Row {
        Row(vec![("bench", bench.into())])
    }

    /// Adds a value.
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Row {
        self.0.push((key, value.into()));
        self
    }

    /// Adds a measured figure, rounded to five digits.
    pub fn figure(self, key: &'static str, value: f64) -> Row {
        let rounded = format!("{value:.4e}").parse::<f64>().unwrap_or(value);
        self.with(key, rounded)
    }

    /// Prints the row, marked if it was measured under other load.
    pub fn print(self, loaded: bool) {
        let row = if loaded { self.with("loaded", true) } else { self };
        outln!("{}", row.text());
    }

    fn text(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_figures_five_digits() {
        let row =
            Row::new("gemm").with("packed", false).figure("gflops", 1234.5678).with("none", Value::Null);
        assert_eq!(row.text(), r#"{"bench":"gemm","packed":false,"gflops":1234.6,"none":null}"#);
    }
}
