//! Arithmetic in the handbook's notation: lines `name = expression` with `+ - * / ^`, functions and `pi`.

use std::collections::BTreeMap;

/// Values by name.
pub type Values = BTreeMap<String, f64>;

/// Evaluates the lines, adding their names to `values`.
pub fn evaluate(lines: &str, values: &mut Values) {
    for line in lines.lines() {
        let (name, text) = line.split_once('=').unwrap_or_else(|| panic!("`{line}` defines nothing"));
        let mut reader = Reader { line, rest: text.trim(), values };
        let value = reader.sum();
        assert!(reader.rest.is_empty(), "`{}` is left of `{line}`", reader.rest);
        values.insert(name.trim().to_string(), value);
    }
}

struct Reader<'a> {
    line: &'a str,
    rest: &'a str,
    values: &'a Values,
}

impl<'a> Reader<'a> {
    fn take(&mut self, sign: char) -> bool {
        let Some(rest) = self.rest.strip_prefix(sign) else { return false };
        self.rest = rest.trim_start();
        true
    }

    #[track_caller]
    fn need(&mut self, sign: char) {
        assert!(self.take(sign), "`{sign}` expected before `{}` in `{}`", self.rest, self.line);
    }

    fn sum(&mut self) -> f64 {
        let mut value = self.product();
        loop {
            if self.take('+') {
                value += self.product();
            } else if self.take('-') {
                value -= self.product();
            } else {
                return value;
            }
        }
    }

    fn product(&mut self) -> f64 {
        let mut value = self.power();
        loop {
            if self.take('*') {
                value *= self.power();
            } else if self.take('/') {
                value /= self.power();
            } else {
                return value;
            }
        }
    }

    fn power(&mut self) -> f64 {
        let base = self.atom();
        if self.take('^') { base.powf(self.power()) } else { base }
    }

    fn atom(&mut self) -> f64 {
        if self.take('-') {
            return -self.power();
        }
        if self.take('(') {
            let value = self.sum();
            self.need(')');
            return value;
        }
        let word = self.word();
        if let Ok(number) = word.parse() {
            return number;
        }
        if self.take('(') {
            return self.call(word);
        }
        let known = || panic!("`{word}` has no value in `{}`", self.line);
        if word == "pi" { std::f64::consts::PI } else { self.values.get(word).copied().unwrap_or_else(known) }
    }

    fn call(&mut self, function: &str) -> f64 {
        let first = self.sum();
        let value = match function {
            "ln" => first.ln(),
            "sqrt" => first.sqrt(),
            "cos" => first.cos(),
            "floor" => first.floor(),
            "ceil" => first.ceil(),
            "max" | "min" => {
                self.need(',');
                let second = self.sum();
                if function == "max" { first.max(second) } else { first.min(second) }
            }
            other => panic!("no function `{other}` in `{}`", self.line),
        };
        self.need(')');
        value
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        word
    }
}

#[test]
fn arithmetic_is_read_as_written() {
    let mut values = Values::from([("x".to_string(), 3.0)]);
    evaluate("a = 2 + x * 2 ^ 3\nb = -x ^ 2 + max(a, 1) / 2\nc = (1 - ln(1)) * cos(0) - 4 - 5", &mut values);
    assert_eq!((values["a"], values["b"], values["c"]), (26.0, 4.0, -8.0));
}
