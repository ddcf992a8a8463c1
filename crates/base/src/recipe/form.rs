//! Recipes that differ in a few values: rows of a table, each filled into one form.

use std::collections::BTreeSet;

use toml::Value;

use super::raw::{Raw, RawValue};
use super::source::Origin;
use super::suggest;
use crate::error::{Error, Result};

/// Recipes as rows of a table. A row's columns, those of its model and those of its heading stand in the braces of a form; the
/// row's win over the model's, and these over the heading's.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// A recipe with `{column}` where rows differ: after `= ` the value as TOML, elsewhere its text, in capitals if the name is.
    /// A line with `{column?}` is left out where there is no such column, and so is a table without lines. `{name}` is the row's.
    pub text: &'a str,
    /// TOML: a table of columns for each model.
    pub sizes: &'a str,
    /// TOML: tables with a `heading`, columns that their rows share, and `runs`, a table of columns for each row; column `model`
    /// is the row's model.
    pub runs: &'a str,
}

/// A heading, and the names of the recipes below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The heading.
    pub heading: String,
    /// Names in the order in which they are written.
    pub names: Vec<String>,
}

type Columns = Vec<(String, Raw)>;

/// The rows below one heading.
struct Rows {
    heading: String,
    shared: Columns,
    rows: Columns,
}

impl Form<'_> {
    /// The rows by heading, in the order in which they are written.
    ///
    /// # Errors
    /// A table of runs that is not TOML, or not as [`Form::runs`] says.
    pub fn groups(&self) -> Result<Vec<Group>> {
        let names = |rows: Columns| rows.into_iter().map(|(name, _)| name).collect();
        let group = |rows: Rows| Group { heading: rows.heading, names: names(rows.rows) };
        Ok(self.rows()?.into_iter().map(group).collect())
    }

    /// The recipe of a row as TOML; none where no row has this name.
    ///
    /// # Errors
    /// A table that is not TOML, a model that is not in the table of sizes, a column that the form asks for and nothing has, or one
    /// that it does not use; with its place.
    pub fn recipe(&self, name: &str) -> Result<Option<String>> {
        for Rows { shared, rows, .. } in self.rows()? {
            if let Some((_, row)) = rows.into_iter().find(|(row, _)| row == name) {
                return self.fill(name, row, shared).map(Some);
            }
        }
        Ok(None)
    }

    fn rows(&self) -> Result<Vec<Rows>> {
        let read = |(name, raw): (String, Raw)| {
            let line = raw.line;
            let mut shared = columns(raw, &runs(), &name)?;
            let mut take = |key: &str| {
                let at = shared.iter().position(|(column, _)| column == key);
                let missing = || refused(&runs(), line, &name, format!("has no `{key}`"));
                at.map(|at| shared.remove(at).1).ok_or_else(missing)
            };
            let (heading, rows) = (take("heading")?.into_text().unwrap_or_default(), take("runs")?);
            Ok(Rows { heading, shared, rows: columns(rows, &runs(), &name)? })
        };
        Raw::parse(self.runs, &runs())?.into_iter().map(read).collect()
    }

    /// The form with the columns of a row, of its model and of its heading.
    fn fill(&self, name: &str, row: Raw, shared: Columns) -> Result<String> {
        let line = row.line;
        let mut row = columns(row, &runs(), name)?;
        let model = row.iter().position(|(column, _)| column == "model").map(|at| row.remove(at).1);
        let model = model.and_then(Raw::into_text).unwrap_or_default();
        let sizes = Raw::parse(self.sizes, &sizes())?;
        let models: Vec<&str> = sizes.iter().map(|(model, _)| model.as_str()).collect();
        let Some(size) = models.iter().position(|known| *known == model) else {
            let hint = suggest::name(&model, &models, "there are");
            let message = format!("no model is called `{model}`; {hint}");
            return Err(refused(&runs(), line, name, message));
        };
        let size = columns(sizes[size].1.clone(), &self::sizes(), &model)?;
        let columns: Columns = row.into_iter().chain(size).chain(shared).collect();
        let mut filling = Filling { name, line, columns, used: BTreeSet::new() };
        let mut recipe = Vec::new();
        for table in self.text.split("\n\n") {
            let lines: Vec<String> =
                table.lines().filter_map(|line| filling.line(line).transpose()).collect::<Result<_>>()?;
            if lines.iter().any(|line| !line.starts_with(['#', '['])) {
                recipe.push(lines.join("\n"));
            }
        }
        match filling.columns.iter().find(|(column, _)| !filling.used.contains(column)) {
            Some((column, _)) => {
                let message = format!("the form has no place for the column `{column}`; remove it");
                Err(refused(&runs(), line, name, message))
            }
            None => Ok(recipe.join("\n\n") + "\n"),
        }
    }
}

/// A form that is being filled in.
struct Filling<'a> {
    name: &'a str,
    /// Line of the row.
    line: usize,
    /// The first of a name is taken.
    columns: Columns,
    used: BTreeSet<String>,
}

impl Filling<'_> {
    /// A line with values in place of braces; none where it is left out.
    fn line(&mut self, line: &str) -> Result<Option<String>> {
        let (mut out, mut rest) = (String::new(), line);
        while let Some((before, after)) = rest.split_once('{') {
            let (column, after) = after.split_once('}').unwrap_or((after, ""));
            out.push_str(before);
            match (self.value(column.trim_end_matches('?'), out.ends_with("= "))?, column.ends_with('?')) {
                (Some(value), _) => out.push_str(&value),
                (None, true) => return Ok(None),
                (None, false) => {
                    let message =
                        format!("the form asks for the column `{column}`; give it to the row or its model");
                    return Err(refused(&runs(), self.line, self.name, message));
                }
            }
            rest = after;
        }
        Ok(Some(out + rest))
    }

    /// The value of a column, as TOML or as text.
    fn value(&mut self, column: &str, as_toml: bool) -> Result<Option<String>> {
        if column == "name" {
            return Ok(Some(self.name.to_string()));
        }
        let lower = column.to_lowercase();
        let Some((_, raw)) = self.columns.iter().find(|(name, _)| *name == lower) else { return Ok(None) };
        let value = raw.to_value();
        self.used.insert(lower);
        match value {
            Value::String(text) if !as_toml => {
                let text = self.line(&text)?;
                let is_lower = column.contains(char::is_lowercase);
                Ok(text.map(|text| if is_lower { text } else { text.to_uppercase() }))
            }
            value => Ok(Some(value.to_string())),
        }
    }
}

fn runs() -> Origin {
    Origin::Recipe { name: "models/runs.toml".into() }
}

fn sizes() -> Origin {
    Origin::Recipe { name: "models/sizes.toml".into() }
}

fn columns(raw: Raw, origin: &Origin, name: &str) -> Result<Columns> {
    match raw.value {
        RawValue::Table(columns) => Ok(columns),
        _ => Err(refused(origin, raw.line, name, "should be a table of columns")),
    }
}

fn refused(origin: &Origin, line: usize, key: &str, message: impl Into<String>) -> Error {
    Error::Refused { place: origin.place(line), key: key.into(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form<'static> = Form {
        text: "# What it is.\n\nabout = \"{about}\"\n\n# {note}\n[run]\nname = \"{name}\"\n\n[moe]\nexperts = {experts?}\n\n[model]\nlayers = {layers}\ntied = {tied?}\nlength = \"{length}\"",
        sizes: "a = { title = 'A', layers = 2 }\nb = { title = 'B', layers = 4, tied = true }",
        runs: "[long]\nheading = 'Long ones'\nabout = \"{title} at {LENGTH}\"\nnote = 'none'\n[long.runs]\nb-1k = { model = 'b', length = '1k' }\na-2k = { model = 'a', length = '2k', note = 'from {title}', experts = 8 }",
    };

    #[test]
    fn rows_fill_a_form() {
        let names = ["b-1k", "a-2k"].map(String::from).to_vec();
        assert_eq!(FORM.groups().unwrap(), [Group { heading: "Long ones".into(), names }]);
        let b = "about = \"B at 1K\"\n\n# none\n[run]\nname = \"b-1k\"\n\n[model]\nlayers = 4\ntied = true\nlength = \"1k\"\n";
        assert_eq!(FORM.recipe("b-1k").unwrap().as_deref(), Some(b));
        let a = "about = \"A at 2K\"\n\n# from A\n[run]\nname = \"a-2k\"\n\n[moe]\nexperts = 8\n\n[model]\nlayers = 2\nlength = \"2k\"\n";
        assert_eq!(FORM.recipe("a-2k").unwrap().as_deref(), Some(a));
        assert_eq!(FORM.recipe("a-1k").unwrap(), None);
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let refused = |from: &str, to: &str, what: &str| {
            let runs = FORM.runs.replace(from, to);
            let error = Form { runs: &runs, ..FORM }.recipe("b-1k").unwrap_err().to_string();
            assert!(error.starts_with("recipe models/runs.toml, line ") && error.contains(what), "{error}");
        };
        refused("model = 'b'", "model = 'c'", "`b-1k`: no model is called `c`; there are: a, b");
        refused("length = '1k'", "width = '1k'", "the form asks for the column `LENGTH`");
        refused("length = '1k'", "length = '1k', width = 2", "no place for the column `width`");
        refused("heading = ", "head = ", "`long`: has no `heading`");
        refused("{ model = 'b', length = '1k' }", "3", "should be a table of columns");
    }
}
