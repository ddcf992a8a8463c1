//! Conditions of rules, in a subset of the Common Expression Language: literals, lists, members and indices, `!`,
//! `-`, arithmetic, comparison, `in`, `&&`, `||`, `?:`, `size`, `has`, `contains`, `startsWith`, `endsWith`, `matches`
//! (in linear time), and the macros `all` and `exists`. Syntax is checked when a configuration is loaded; whatever
//! goes wrong later is an error, which denies.

use std::collections::BTreeMap;

use regex_automata::meta;
use serde_json::Value;

/// Nesting of an expression at most.
const MAX_DEPTH: usize = 64;
/// Steps of one evaluation at most.
const MAX_STEPS: usize = 100_000;

/// A parsed condition.
#[derive(Debug)]
pub struct Condition {
    root: Expr,
    /// Patterns of `matches`, compiled.
    patterns: BTreeMap<String, meta::Regex>,
    /// Variables that it reads.
    used: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Literal(Value),
    Name(String),
    List(Vec<Expr>),
    Member(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Minus(Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    Call(String, Vec<Expr>),
    /// A macro over a list: its name, the list, the variable and the condition.
    Macro(&'static str, Box<Expr>, String, Box<Expr>),
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Literal(Value),
    Sign(&'static str),
}

const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "-", "+", "*", "/", "%", "(", ")", "[", "]", ",", ".",
    "?", ":", "{", "}",
];

/// Binary operators by precedence, the weakest first.
const OPERATORS: [&[&str]; 5] =
    [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">", "in"], &["+", "-"], &["*", "/", "%"]];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let used = if c == '"' || c == '\'' {
            let (value, used) = quoted(rest, c)?;
            out.push(Token::Literal(value.into()));
            used
        } else if c.is_ascii_digit() {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).unwrap_or(rest.len());
            let number = &rest[..end];
            let value = match number.parse::<i64>() {
                Ok(whole) => whole.into(),
                Err(_) => number.parse::<f64>().map_err(|_| format!("`{number}` is no number"))?.into(),
            };
            out.push(Token::Literal(value));
            end
        } else if c.is_alphabetic() || c == '_' {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            out.push(match &rest[..end] {
                "true" => Token::Literal(true.into()),
                "false" => Token::Literal(false.into()),
                "null" => Token::Literal(Value::Null),
                name => Token::Name(name.to_string()),
            });
            end
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("unexpected `{c}`"))?;
            out.push(Token::Sign(sign));
            sign.len()
        };
        rest = rest[used..].trim_start();
    }
    Ok(out)
}

/// A quoted text at the beginning, with the bytes that it takes.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Ok((value, at + 1)),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some('r') => value.push('\r'),
                Some(c @ ('\\' | '"' | '\'')) => value.push(c),
                // Escapes of patterns stay as they are.
                Some(c) => value.extend(['\\', c]),
                None => break,
            },
            c => value.push(c),
        }
    }
    Err("a text has no closing quote".into())
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn eat(&mut self, sign: &str) -> bool {
        let is = matches!(self.tokens.get(self.at), Some(Token::Sign(next)) if *next == sign);
        self.at += usize::from(is);
        is
    }

    fn need(&mut self, sign: &str) -> Result<(), String> {
        if self.eat(sign) { Ok(()) } else { Err(format!("expected `{sign}` {}", self.place())) }
    }

    fn place(&self) -> String {
        match self.tokens.get(self.at) {
            None => "at the end".into(),
            Some(Token::Name(name)) => format!("before `{name}`"),
            Some(Token::Sign(sign)) => format!("before `{sign}`"),
            Some(Token::Literal(value)) => format!("before {value}"),
        }
    }

    fn choice(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("is nested too deeply".into());
        }
        let condition = self.binary(0)?;
        let expr = if self.eat("?") {
            let yes = self.choice()?;
            self.need(":")?;
            Expr::Choice(Box::new(condition), Box::new(yes), Box::new(self.choice()?))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn binary(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = OPERATORS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let operator = operators.iter().find(|operator| match self.tokens.get(self.at) {
                Some(Token::Sign(sign)) => sign == *operator,
                Some(Token::Name(name)) => name == **operator,
                _ => false,
            });
            let Some(operator) = operator else { return Ok(left) };
            self.at += 1;
            left = Expr::Binary(operator, Box::new(left), Box::new(self.binary(level + 1)?));
        }
    }

    fn unary(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("is nested too deeply".into());
        }
        let expr = if self.eat("!") {
            Expr::Not(Box::new(self.unary()?))
        } else if self.eat("-") {
            Expr::Minus(Box::new(self.unary()?))
        } else {
            self.postfix()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn postfix(&mut self) -> Result<Expr, String> {
        let mut expr = self.primary()?;
        loop {
            if self.eat(".") {
                let name = self.name()?;
                expr =
                    if self.eat("(") { self.method(expr, name)? } else { Expr::Member(Box::new(expr), name) };
            } else if self.eat("[") {
                let index = self.choice()?;
                self.need("]")?;
                expr = Expr::Index(Box::new(expr), Box::new(index));
            } else {
                return Ok(expr);
            }
        }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens.get(self.at) {
            Some(Token::Name(name)) => {
                self.at += 1;
                Ok(name.clone())
            }
            _ => Err(format!("expected a name {}", self.place())),
        }
    }

    fn method(&mut self, of: Expr, name: String) -> Result<Expr, String> {
        if let Some(quantifier) = ["all", "exists"].into_iter().find(|it| *it == name) {
            let variable = self.name()?;
            self.need(",")?;
            let condition = self.choice()?;
            self.need(")")?;
            return Ok(Expr::Macro(quantifier, Box::new(of), variable, Box::new(condition)));
        }
        let mut arguments = vec![of];
        arguments.extend(self.list(")")?);
        known(&name, arguments.len())?;
        Ok(Expr::Call(name, arguments))
    }

    fn list(&mut self, end: &str) -> Result<Vec<Expr>, String> {
        let mut items = Vec::new();
        if self.eat(end) {
            return Ok(items);
        }
        loop {
            items.push(self.choice()?);
            if self.eat(end) {
                return Ok(items);
            }
            self.need(",")?;
        }
    }

    fn primary(&mut self) -> Result<Expr, String> {
        match self.tokens.get(self.at).cloned() {
            Some(Token::Literal(value)) => {
                self.at += 1;
                Ok(Expr::Literal(value))
            }
            Some(Token::Name(name)) => {
                self.at += 1;
                if !self.eat("(") {
                    return Ok(Expr::Name(name));
                }
                let arguments = self.list(")")?;
                known(&name, arguments.len())?;
                Ok(Expr::Call(name, arguments))
            }
            Some(Token::Sign("(")) => {
                self.at += 1;
                let inner = self.choice()?;
                self.need(")")?;
                Ok(inner)
            }
            Some(Token::Sign("[")) => {
                self.at += 1;
                Ok(Expr::List(self.list("]")?))
            }
            _ => Err(format!("expected a value {}", self.place())),
        }
    }
}

/// Checks the name of a function and the number of its arguments.
fn known(name: &str, arguments: usize) -> Result<(), String> {
    let needed = match name {
        "size" | "has" | "string" | "double" | "int" | "lowerAscii" => 1,
        "contains" | "startsWith" | "endsWith" | "matches" => 2,
        _ => return Err(format!("no function is called `{name}`")),
    };
    if needed == arguments { Ok(()) } else { Err(format!("`{name}` has a wrong number of arguments")) }
}

impl Condition {
    /// Parses a condition over these variables.
    ///
    /// # Errors
    /// A message about its syntax, an unknown name, or a pattern.
    pub fn parse(text: &str, variables: &[&str]) -> Result<Condition, String> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
        let root = parser.choice()?;
        if parser.at < parser.tokens.len() {
            return Err(format!("unexpected text {}", parser.place()));
        }
        let mut condition = Condition { root: root.clone(), patterns: BTreeMap::new(), used: Vec::new() };
        condition.check(&root, &mut variables.iter().map(|it| it.to_string()).collect())?;
        Ok(condition)
    }

    fn check(&mut self, expr: &Expr, names: &mut Vec<String>) -> Result<(), String> {
        match expr {
            Expr::Literal(_) => Ok(()),
            Expr::Name(name) if names.contains(name) => {
                self.used.push(name.clone());
                Ok(())
            }
            Expr::Name(name) => {
                let all: Vec<&str> = names.iter().map(String::as_str).collect();
                Err(format!(
                    "no variable is called `{name}`; {}",
                    fathom_base::recipe::suggest_name(name, &all, "there are")
                ))
            }
            Expr::List(items) => items.iter().try_for_each(|item| self.check(item, names)),
            Expr::Member(of, _) | Expr::Not(of) | Expr::Minus(of) => self.check(of, names),
            Expr::Index(a, b) | Expr::Binary(_, a, b) => {
                self.check(a, names)?;
                self.check(b, names)
            }
            Expr::Choice(a, b, c) => [a, b, c].into_iter().try_for_each(|it| self.check(it, names)),
            Expr::Call(name, arguments) => {
                if name == "matches" {
                    let Expr::Literal(Value::String(pattern)) = &arguments[1] else {
                        return Err("`matches` needs a pattern in quotes".into());
                    };
                    let config = meta::Config::new().nfa_size_limit(Some(1 << 20));
                    let regex = meta::Builder::new().configure(config).build(pattern);
                    let regex = regex.map_err(|error| format!("`{pattern}`: {error}"))?;
                    self.patterns.insert(pattern.clone(), regex);
                }
                arguments.iter().try_for_each(|it| self.check(it, names))
            }
            Expr::Macro(_, list, variable, condition) => {
                self.check(list, names)?;
                names.push(variable.clone());
                let checked = self.check(condition, names);
                names.pop();
                checked
            }
        }
    }

    /// Returns whether the condition reads a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.used.iter().any(|used| used == variable)
    }

    /// Evaluates the condition.
    ///
    /// # Errors
    /// A missing member, operands of wrong types, or a result that is neither true nor false.
    pub fn is_true(&self, variables: &BTreeMap<String, Value>) -> Result<bool, String> {
        let mut run = Run { condition: self, variables: variables.clone(), steps: 0 };
        match run.value(&self.root)? {
            Value::Bool(result) => Ok(result),
            _ => Err("the result is neither true nor false".into()),
        }
    }
}

struct Run<'a> {
    condition: &'a Condition,
    variables: BTreeMap<String, Value>,
    steps: usize,
}

impl Run<'_> {
    fn value(&mut self, expr: &Expr) -> Result<Value, String> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err("takes too many steps".into());
        }
        match expr {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Name(name) => {
                self.variables.get(name).cloned().ok_or_else(|| format!("`{name}` is not known"))
            }
            Expr::List(items) => {
                items.iter().map(|item| self.value(item)).collect::<Result<Vec<_>, _>>().map(Value::Array)
            }
            Expr::Member(of, name) => member(&self.value(of)?, name),
            Expr::Index(of, index) => match (self.value(of)?, self.value(index)?) {
                (of, Value::String(name)) => member(&of, &name),
                (Value::Array(items), index) => {
                    let at = index.as_u64().and_then(|at| items.get(at as usize).cloned());
                    at.ok_or_else(|| "an index is outside its list".to_string())
                }
                _ => Err("only lists and objects have indices".into()),
            },
            Expr::Not(of) => Ok((!self.bool(of)?).into()),
            Expr::Minus(of) => number(&self.value(of)?).map(|it| number_value(-it)),
            Expr::Binary("&&", a, b) => Ok((self.bool(a)? && self.bool(b)?).into()),
            Expr::Binary("||", a, b) => Ok((self.bool(a)? || self.bool(b)?).into()),
            Expr::Binary(operator, a, b) => binary(operator, &self.value(a)?, &self.value(b)?),
            Expr::Choice(condition, yes, no) => {
                let chosen = if self.bool(condition)? { yes } else { no };
                self.value(chosen)
            }
            Expr::Call(name, arguments) if name == "has" => Ok(self.value(&arguments[0]).is_ok().into()),
            Expr::Call(name, arguments) => {
                let values = arguments.iter().map(|it| self.value(it)).collect::<Result<Vec<_>, _>>()?;
                self.call(name, &values)
            }
            Expr::Macro(quantifier, list, variable, condition) => {
                let items = match self.value(list)? {
                    Value::Array(items) => items,
                    Value::Object(members) => members.keys().map(|key| key.as_str().into()).collect(),
                    _ => return Err(format!("`{quantifier}` needs a list")),
                };
                let before = self.variables.get(variable).cloned();
                let mut result = *quantifier == "all";
                for item in items {
                    self.variables.insert(variable.clone(), item);
                    let holds = self.bool(condition)?;
                    if holds != (*quantifier == "all") {
                        result = holds;
                        break;
                    }
                }
                match before {
                    Some(value) => self.variables.insert(variable.clone(), value),
                    None => self.variables.remove(variable),
                };
                Ok(result.into())
            }
        }
    }

    fn bool(&mut self, expr: &Expr) -> Result<bool, String> {
        self.value(expr)?.as_bool().ok_or_else(|| "a condition is neither true nor false".to_string())
    }

    fn call(&self, name: &str, values: &[Value]) -> Result<Value, String> {
        let text = |at: usize| values[at].as_str().ok_or_else(|| format!("`{name}` needs a text"));
        match name {
            "size" => Ok(match &values[0] {
                Value::String(text) => text.chars().count(),
                Value::Array(items) => items.len(),
                Value::Object(members) => members.len(),
                _ => return Err("`size` needs a text, a list or an object".into()),
            }
            .into()),
            "contains" => Ok(text(0)?.contains(text(1)?).into()),
            "startsWith" => Ok(text(0)?.starts_with(text(1)?).into()),
            "endsWith" => Ok(text(0)?.ends_with(text(1)?).into()),
            "matches" => {
                let pattern = self.condition.patterns.get(text(1)?).ok_or("a pattern is not known")?;
                Ok(pattern.is_match(text(0)?).into())
            }
            "lowerAscii" => Ok(text(0)?.to_ascii_lowercase().into()),
            "string" => Ok(values[0].as_str().map_or_else(|| values[0].to_string(), str::to_string).into()),
            "double" | "int" => {
                let number = match &values[0] {
                    Value::String(text) => {
                        text.trim().parse().map_err(|_| "a text is no number".to_string())?
                    }
                    value => number(value)?,
                };
                Ok(number_value(if name == "int" { number.trunc() } else { number }))
            }
            _ => Err(format!("no function is called `{name}`")),
        }
    }
}

fn member(of: &Value, name: &str) -> Result<Value, String> {
    of.get(name).cloned().ok_or_else(|| format!("there is no `{name}`"))
}

fn number(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| "a value is no number".to_string())
}

fn number_value(number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or(Value::Null, Value::Number)
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn binary(operator: &str, a: &Value, b: &Value) -> Result<Value, String> {
    match operator {
        "==" => return Ok(equal(a, b).into()),
        "!=" => return Ok((!equal(a, b)).into()),
        "in" => {
            return match (a, b) {
                (a, Value::Array(items)) => Ok(items.iter().any(|item| equal(a, item)).into()),
                (Value::String(name), Value::Object(members)) => Ok(members.contains_key(name).into()),
                _ => Err("`in` needs a list or an object".into()),
            };
        }
        _ => {}
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return match operator {
            "+" => Ok(format!("{a}{b}").into()),
            "<" => Ok((a < b).into()),
            "<=" => Ok((a <= b).into()),
            ">" => Ok((a > b).into()),
            ">=" => Ok((a >= b).into()),
            _ => Err(format!("`{operator}` needs numbers")),
        };
    }
    let (a, b) = (number(a)?, number(b)?);
    match operator {
        "<" => Ok((a < b).into()),
        "<=" => Ok((a <= b).into()),
        ">" => Ok((a > b).into()),
        ">=" => Ok((a >= b).into()),
        "+" => Ok(number_value(a + b)),
        "-" => Ok(number_value(a - b)),
        "*" => Ok(number_value(a * b)),
        "/" | "%" if b == 0.0 => Err("a division by zero".into()),
        "/" => Ok(number_value(a / b)),
        _ => Ok(number_value(a % b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(text: &str) -> Result<bool, String> {
        let args =
            json!({"amount": 1200, "currency": "USD", "to": ["a@x.org", "b@y.org"], "note": {"k": "v"}});
        let variables = BTreeMap::from([("args".to_string(), args), ("tool".to_string(), json!("transfer"))]);
        Condition::parse(text, &["args", "tool", "result"])?.is_true(&variables)
    }

    #[test]
    fn conditions_are_evaluated() {
        for (text, expected) in [
            ("args.amount > 1000 && args.currency != 'EUR'", true),
            ("args.amount > 1000 && args.currency in ['USD', \"CHF\"] ? tool == 'transfer' : false", true),
            ("args['amount'] + 1 == 1201 && -args.amount < 0", true),
            ("args.to.all(x, x.endsWith('.org')) && !args.to.exists(x, x.startsWith('c'))", true),
            ("size(args.to) == 2 && args.to[1].matches('^b@[a-z]+')", true),
            ("has(args.missing) || 'k' in args.note", true),
            ("args.currency.lowerAscii().contains('eur')", false),
            ("args.amount * 2 / 4 % 7 >= 4.5", true),
        ] {
            assert_eq!(result(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn whatever_goes_wrong_is_an_error() {
        for text in [
            "args.missing > 1",
            "args.amount",
            "args.amount > 'a'",
            "args.amount >",
            "arg.amount > 1",
            "f(1)",
            "args.to[5] == 1",
            "'a' matches 'b'",
            "args.note.matches(args.note)",
            "args.currency.matches('(')",
            "1 / 0 > 1",
            "'open",
            "args.amount > 1 args",
        ] {
            assert!(result(text).is_err(), "{text}");
        }
        assert!(result(&"(".repeat(10_000)).is_err());
        assert!(result(&"!".repeat(10_000)).is_err());
    }
}
