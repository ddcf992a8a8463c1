//! Expressions of Colang 1.0: conditions and values, read and never evaluated as code.

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A text.
    Text(String),
    /// A number.
    Number(f64),
    /// A boolean.
    Bool(bool),
    /// `None`.
    None,
    /// A list.
    List(Vec<Expression>),
    /// A variable.
    Variable(String),
    /// An attribute of a value.
    Attribute(Box<Expression>, String),
    /// An element of a value.
    Index(Box<Expression>, Box<Expression>),
    /// A call of `len`, or of a value's `get`, with arguments.
    Call(Box<Expression>, Vec<Expression>),
    /// A function's name.
    Function(String),
    /// `not` of an expression.
    Not(Box<Expression>),
    /// Two expressions with an operator between.
    Binary(&'static str, Box<Expression>, Box<Expression>),
}

/// Deepest nesting.
const MOST_DEPTH: usize = 64;
/// Operators by precedence, the loosest first.
const LEVELS: &[&[&str]] = &[
    &["or"],
    &["and"],
    &["not in", "in", "is not", "is", "==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/"],
];

/// Reads an expression.
///
/// # Errors
/// Text outside the grammar.
pub fn read(text: &str) -> Result<Expression, String> {
    let mut parser = Parser { rest: text.trim(), depth: 0 };
    let found = parser.level(0)?;
    match parser.rest.trim() {
        "" => Ok(found),
        rest => Err(format!("`{}` is not of this grammar", short(rest))),
    }
}

/// Reads arguments by name.
///
/// # Errors
/// Text outside the grammar.
pub fn arguments(text: &str) -> Result<Vec<(String, Expression)>, String> {
    let mut parser = Parser { rest: text.trim(), depth: 0 };
    let mut all = Vec::new();
    while !parser.rest.trim().is_empty() {
        let name = parser.word().ok_or_else(|| format!("`{}` is no argument", short(parser.rest)))?;
        if !parser.eat("=") || parser.rest.starts_with('=') {
            return Err(format!("the argument `{name}` has no value"));
        }
        all.push((name, parser.level(0)?));
        if !parser.eat(",") && !parser.rest.trim().is_empty() {
            return Err(format!("`{}` is not of this grammar", short(parser.rest)));
        }
    }
    Ok(all)
}

fn short(text: &str) -> String {
    text.trim().chars().take(40).collect()
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    /// Passes a symbol or a word.
    fn eat(&mut self, symbol: &str) -> bool {
        let rest = self.rest.trim_start();
        let Some(after) = rest.strip_prefix(symbol) else { return false };
        let is_word = symbol.ends_with(char::is_alphabetic);
        if is_word && after.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            return false;
        }
        self.rest = after;
        true
    }

    fn word(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let first = rest.chars().next()?;
        if end == 0 || first.is_ascii_digit() {
            return None;
        }
        self.rest = &rest[end..];
        Some(rest[..end].to_string())
    }

    fn level(&mut self, level: usize) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err("the expression is nested too deep".into());
        }
        let found = self.operators(level);
        self.depth -= 1;
        found
    }

    fn operators(&mut self, level: usize) -> Result<Expression, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        if level == 2 && self.eat("not") {
            return Ok(Expression::Not(Box::new(self.level(level)?)));
        }
        let mut left = self.level(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.operator(operator)) {
            let right = self.level(level + 1)?;
            left = Expression::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    /// Passes an operator, which may be two words.
    fn operator(&mut self, operator: &str) -> bool {
        let before = self.rest;
        let passed = operator.split(' ').all(|part| self.eat(part));
        if !passed {
            self.rest = before;
        }
        passed
    }

    fn unary(&mut self) -> Result<Expression, String> {
        let mut value = self.value()?;
        loop {
            if self.eat(".") {
                let name = self.word().ok_or("a name is missing after `.`")?;
                value = Expression::Attribute(Box::new(value), name);
            } else if self.rest.starts_with('[') {
                self.rest = &self.rest[1..];
                let index = self.level(0)?;
                self.require("]")?;
                value = Expression::Index(Box::new(value), Box::new(index));
            } else if self.rest.starts_with('(') {
                let is_known = match &value {
                    Expression::Function(name) => name == "len",
                    Expression::Attribute(_, name) => name == "get",
                    _ => false,
                };
                if !is_known {
                    return Err("only `len` and `.get` are called".into());
                }
                self.rest = &self.rest[1..];
                value = Expression::Call(Box::new(value), self.list(")")?);
            } else {
                return Ok(value);
            }
        }
    }

    fn require(&mut self, symbol: &str) -> Result<(), String> {
        if self.eat(symbol) {
            Ok(())
        } else {
            Err(format!("`{symbol}` is missing before `{}`", short(self.rest)))
        }
    }

    /// Expressions up to a closing symbol.
    fn list(&mut self, end: &str) -> Result<Vec<Expression>, String> {
        let mut all = Vec::new();
        while !self.eat(end) {
            all.push(self.level(0)?);
            if !self.eat(",") {
                self.require(end)?;
                break;
            }
        }
        Ok(all)
    }

    fn value(&mut self) -> Result<Expression, String> {
        let rest = self.rest.trim_start();
        self.rest = rest;
        let first = rest.chars().next().ok_or("a value is missing")?;
        if let quote @ ('"' | '\'') = first {
            return self.text(quote);
        }
        if self.eat("(") {
            let inner = self.level(0)?;
            self.require(")")?;
            return Ok(inner);
        }
        if self.eat("[") {
            return Ok(Expression::List(self.list("]")?));
        }
        if self.eat("$") {
            return self.word().map(Expression::Variable).ok_or("a name is missing after `$`".into());
        }
        if first.is_ascii_digit() || first == '-' {
            let digits =
                rest[1..].find(|c: char| !(c.is_ascii_digit() || c == '.')).map_or(rest.len(), |at| at + 1);
            let number = rest[..digits].parse().map_err(|_| format!("`{}` is no number", &rest[..digits]))?;
            self.rest = &rest[digits..];
            return Ok(Expression::Number(number));
        }
        match self.word().as_deref() {
            Some("True") => Ok(Expression::Bool(true)),
            Some("False") => Ok(Expression::Bool(false)),
            Some("None") => Ok(Expression::None),
            Some("len") => Ok(Expression::Function("len".into())),
            _ => Err(format!("`{}` is no value", short(rest))),
        }
    }

    /// A text in quotes. Quotes of the same kind in braces belong to it, as in `"'{$model}'"`.
    fn text(&mut self, quote: char) -> Result<Expression, String> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == quote {
                let text = self.rest[quote.len_utf8()..at].to_string();
                self.rest = &self.rest[at + quote.len_utf8()..];
                return Ok(Expression::Text(text));
            }
        }
        Err("a text is not closed".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_are_used_are_read() {
        for text in [
            "$config.enable_rails_exceptions",
            "not $allowed",
            "$accuracy < 0.4",
            "$result.violations.get(\"War & Conflict\", 0) > 0.8",
            "$input_result[\"pii_fast\"] and $input_result[\"pii_fast\"][\"guarded\"]",
            "$generation_options is None or $generation_options.rails.input",
            "$user_message + \" \" + \" hello\"",
            "\"hello\" in $user_message",
            "len($input_flows)",
            "$i < len($input_flows)",
            "($a or $b) and not $c in [1, 2.5, None]",
            "-1",
        ] {
            assert!(read(text).is_ok(), "{text}: {:?}", read(text));
        }
        let sum = read("1 + 2 * 3 == 7 and not $x").unwrap();
        let Expression::Binary("and", left, right) = sum else { panic!("{sum:?}") };
        assert!(matches!(*left, Expression::Binary("==", ..)) && matches!(*right, Expression::Not(_)));
    }

    #[test]
    fn code_is_refused() {
        for text in [
            "__import__('os')",
            "$x.system('rm')",
            "lambda: 1",
            "$x if $y else 1",
            "",
            "1 +",
            "\"open",
            "$",
            "f(1)",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read(&"(".repeat(1000)).is_err());
        assert!(read(&"not ".repeat(1000)).is_err());
    }

    #[test]
    fn arguments_have_names() {
        let found = arguments("flow_id=$rail, message=\"a, b (c)\"").unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].1, Expression::Text("a, b (c)".into()));
        for text in ["1", "a", "a==1", "a=1 b=2"] {
            assert!(arguments(text).is_err(), "{text}");
        }
    }
}
