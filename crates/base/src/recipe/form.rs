//! Recipes that differ in a few values: rows of a table, each filled into the same template.

use std::collections::BTreeSet;

use toml::Value;

use super::raw::{Raw, RawValue};
use super::source::Origin;
use super::suggest;
use crate::error::{Error, Result};

/// A template for recipes, with a table of rows. Columns of a row, of its model and of its heading replace the names
/// in braces. The row's own columns take precedence over the model's, and those over the heading's.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// Recipe text with `{column}` where rows differ. After `= ` the column's value is written as TOML; elsewhere as
    /// text, in capitals if the name in braces is. A line with `{column?}` is left out if the column does not exist,
    /// and so is a table that has no lines. `{name}` is the name of the row.
    pub text: &'a str,
    /// TOML: a table of columns for each model.
    pub sizes: &'a str,
    /// TOML: tables with a `heading`, columns shared by their rows, and `runs`, a table of columns for each row. The
    /// column `model` names the row's model.
    pub runs: &'a str,
}

/// A heading with the names of its recipes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The heading.
    pub heading: String,
    /// Names of the recipes, in file order.
    pub names: Vec<String>,
}

type Columns = Vec<(String, Raw)>;

/// Rows under one heading.
struct Rows {
    heading: String,
    shared: Columns,
    rows: Columns,
}

impl Form<'_> {
    /// Returns the rows by heading, in file order.
    ///
    /// # Errors
    /// Fails if the table of runs is not TOML, or does not have the form described at [`Form::runs`].
    pub fn groups(&self) -> Result<Vec<Group>> {
        let names = |rows: Columns| rows.into_iter().map(|(name, _)| name).collect();
        let group = |rows: Rows| Group { heading: rows.heading, names: names(rows.rows) };
        Ok(self.rows()?.into_iter().map(group).collect())
    }

    /// Returns the recipe of a row as TOML, or `None` if there is no row of this name.
    ///
    /// # Errors
    /// Fails, with the place, if a table is not TOML, a model is missing from the table of sizes, the template needs
    /// a column that is not defined, or a column is not used by the template.
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

    /// Fills the template with the columns of a row, of its model and of its heading.
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
        let mut filling = FormState { name, line, columns, used: BTreeSet::new() };
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

/// State of a template being filled in.
struct FormState<'a> {
    name: &'a str,
    /// Line of the row.
    line: usize,
    /// Columns by precedence: the first with a name is used.
    columns: Columns,
    used: BTreeSet<String>,
}

impl FormState<'_> {
    /// Returns a line with values in place of braces, or `None` if it is left out.
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

    /// Returns the value of a column, as TOML or as text.
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
