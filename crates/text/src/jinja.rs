//! Jinja for texts other than conversations, with the engine and the limits of chat templates.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

pub use crate::chat::numbers::float;
use crate::chat::{engine, loops, python, values};

/// Instructions that one rendering may take; 64 bytes of output count as one.
const FUEL: u64 = 2_000_000;
/// Bytes of a rendered text, at most.
const MOST_BYTES: usize = 16 << 20;

/// Templates over the members of an object, by their source. Names that the object lacks are errors, as with Jinja's
/// `StrictUndefined`; a line end behind the template stays.
pub struct Templates {
    environment: Environment<'static>,
}

impl std::fmt::Debug for Templates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Templates").finish_non_exhaustive()
    }
}

/// Function of a text, a pattern and a replacement.
pub type Replace = fn(&str, &str, &str) -> Result<String, String>;

impl Templates {
    /// Templates with the filter `regex_replace`, which `replace` computes.
    pub fn new(replace: Replace) -> Templates {
        let mut environment = engine::environment();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
            environment.set_syntax(syntax);
        }
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", |value: &minijinja::Value| python::to_html_json(value));
        environment.add_filter("regex_replace", move |text: &str, pattern: &str, with: &str| {
            replace(text, pattern, with).map_err(|reason| Error::new(ErrorKind::InvalidOperation, reason))
        });
        Templates { environment }
    }

    /// Compiles a source that is not known yet.
    ///
    /// # Errors
    /// A message if it is no template.
    pub fn add(&mut self, source: &str) -> Result<(), String> {
        if self.environment.get_template(source).is_ok() {
            return Ok(());
        }
        let normal = source.replace("\r\n", "\n").replace('\r', "\n");
        let added = self.environment.add_template_owned(source.to_string(), loops::asking(&normal));
        added.map_err(|error| reason(&error))
    }

    /// Renders a source that was added.
    ///
    /// # Errors
    /// A message if it fails, does not end within its limit of steps, or makes too long a text.
    pub fn render(&self, source: &str, members: &Map<String, Value>) -> Result<String, String> {
        let template = self.environment.get_template(source).map_err(|error| reason(&error))?;
        let text = template.render(values::members(members)).map_err(|error| reason(&error))?;
        if text.len() > MOST_BYTES {
            return Err(format!("makes a text of {} bytes; {MOST_BYTES} are the most", text.len()));
        }
        Ok(text)
    }
}

/// Reason of a failure, without the engine's traces.
fn reason(error: &Error) -> String {
    match error.kind() {
        ErrorKind::OutOfFuel => "does not end within its limit of steps".to_string(),
        _ => {
            let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
            let line = error.line().filter(|line| *line > 1);
            detail + &line.map_or(String::new(), |line| format!(" (line {line} of the template)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(source: &str) -> Result<String, String> {
        let mut templates = Templates::new(|text, pattern, with| Ok(text.replace(pattern, with)));
        templates.add(source)?;
        let row = json!({"q": " What? ", "choices": ["a b", "c"], "answer": "B", "label": 1, "yes": true, "none": null,
                         "nested": {"text": ["x", "y"]}, "score": 0.5});
        templates.render(source, row.as_object().unwrap())
    }

    #[test]
    fn templates_render_as_jinja_does_under_python() {
        for (source, text) in [
            ("{{q.strip()}}\nA. {{choices[0]}}\n", "What?\nA. a b\n"),
            ("{{['A', 'B'].index(answer)}}", "1"),
            (
                "{{choices}}|{{nested}}|{{yes}}|{{none}}|{{score}}",
                "['a b', 'c']|{'text': ['x', 'y']}|True|None|0.5",
            ),
            ("{{ choices[0].split(' ')[:-1]|join(' ') }}", "a"),
            ("{{choices.index('c')}}{{q.index('W')}}", "11"),
            ("{{q|regex_replace('What', 'Who')}}", " Who? "),
            ("{% set n = label + 1 %}\n  {% if yes %}{{n}}{% endif %}\n", "\n  2\n"),
            ("{{ [choices[0] + 'x', choices[label]] }}", "['a bx', 'c']"),
            ("{{ '%s-%s' % (label, answer) if false else answer|lower }}", "b"),
            ("{{ nested.text[label] }}{{ nested['text'] | length }}", "y2"),
            ("{% for c in choices %}{{ loop.index }}.{{ c }};{% endfor %}", "1.a b;2.c;"),
            ("{{choices[-1:]}}{{q[0:2]}}{{answer ~ label}}", "['c'] WB1"),
            ("{{ [\"it's\", 'a\"b'] }}", "[\"it's\", 'a\"b']"),
            (
                "{{ {'b': \"it's\", 'a': '<é>'} | tojson }}",
                r#"{"a": "\u003c\u00e9\u003e", "b": "it\u0027s"}"#,
            ),
            ("{{ \"it's x1y\".title() }}|{{ 'aBc'.swapcase() }}", "It'S X1Y|AbC"),
            ("{{ 'a-b-c'.rsplit('-', 1) }}{{ ' a  b c '.rsplit(none, 1) }}", "['a-b', 'c'][' a  b', 'c']"),
            ("{{ 'k=v=w'.partition('=')[2] }}{{ 'k=v=w'.rpartition('=')[0] }}", "v=wk=v"),
            (
                "{{ '7'.zfill(3) }}{{ '-7'.zfill(3) }}|{{ 'a'.ljust(3, '.') }}{{ 'ab'.center(5) }}|",
                "007-07|a..  ab |",
            ),
            ("{{ 'a.txt'.removesuffix('.txt') }}{{ 'xab'.removeprefix('x') }}", "aab"),
            ("{{ \"it's two words\" | wordcount }}{{ '<b>bold</b>' | striptags }}", "4bold"),
            ("{{ 'foo bar baz qux' | truncate(9) }}|{{ 'x' | center(4) }}|", "foo...| x  |"),
            ("{{ 'foo bar baz qux' | truncate(11, killwords=true, end='!', leeway=0) }}", "foo bar ba!"),
        ] {
            assert_eq!(rendered(source).as_deref(), Ok(text), "{source}");
        }
    }

    #[test]
    fn missing_names_and_endless_templates_are_refused() {
        assert!(rendered("{{question}}").unwrap_err().contains("undefined"));
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert_eq!(rendered(endless).unwrap_err(), "does not end within its limit of steps");
        assert!(rendered("{% if %}").is_err());
    }
}
