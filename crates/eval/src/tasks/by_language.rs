//! Figures by language, of sets with a part for each.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::results::Results;

/// Figures by language and set.
#[derive(Clone, Debug, Default)]
pub struct Languages {
    /// Set of a column, with the metric that it shows.
    columns: Vec<(String, String)>,
    /// By language and column, all figures: metric, figure, standard error; and the number of items.
    cells: BTreeMap<String, BTreeMap<usize, (Vec<Figure>, usize)>>,
}

type Figure = (String, f64, Option<f64>);

impl Languages {
    /// The figures of tasks that have a language; `None` if there are none.
    pub fn of(results: &Results) -> Option<Languages> {
        let mut all = Languages::default();
        for task in &results.tasks {
            let text = |key: &str| task.config.keys.get("metadata").and_then(|it| it[key].as_str());
            let (Some(language), Some(set)) = (text("language"), text("set")) else { continue };
            let Some(shown) = task.figures.first() else { continue };
            let column = (set.to_string(), shown.0.clone());
            let at = all.columns.iter().position(|known| *known == column).unwrap_or_else(|| {
                all.columns.push(column);
                all.columns.len() - 1
            });
            let figures = task.figures.iter().filter(|figure| figure.1 == shown.1);
            let figures = figures.map(|(name, _, figure, error)| (name.clone(), *figure, *error)).collect();
            all.cells.entry(language.to_string()).or_default().insert(at, (figures, task.effective));
        }
        (!all.cells.is_empty()).then_some(all)
    }

    /// The object of the results' file: by language and set, each metric with its standard error.
    pub fn json(&self) -> Value {
        let of_set = |(at, (figures, items)): (&usize, &(Vec<Figure>, usize))| {
            let mut own = Map::new();
            for (name, figure, error) in figures {
                own.insert(name.clone(), json!(figure));
                own.insert(format!("{name}_stderr"), json!(error));
            }
            own.insert("items".into(), (*items).into());
            (self.columns[*at].0.clone(), Value::Object(own))
        };
        let of_language = |(language, sets): (&String, &BTreeMap<usize, _>)| {
            (language.clone(), Value::Object(sets.iter().map(of_set).collect()))
        };
        Value::Object(self.cells.iter().map(of_language).collect())
    }

    /// A table with a row for each language, as Markdown.
    pub fn table(&self) -> String {
        let width = self.cells.keys().map(|language| language.chars().count()).max().unwrap_or(0).max(8);
        let heads: Vec<String> = self.columns.iter().map(|(set, metric)| format!("{set} {metric}")).collect();
        let widths: Vec<usize> = heads.iter().map(|head| head.chars().count().max(17)).collect();
        let cells = |texts: Vec<String>| -> String {
            texts.iter().zip(&widths).map(|(text, width)| format!("{text:>width$}|")).collect()
        };
        let mut table = format!("|{:<width$}|{}\n", "language", cells(heads));
        table += &format!(
            "|{}|{}\n",
            "-".repeat(width),
            cells(widths.iter().map(|width| "-".repeat(width - 1) + ":").collect())
        );
        for (language, sets) in &self.cells {
            let cell = |at: usize| {
                let shown = sets.get(&at).and_then(|(figures, _)| figures.first());
                shown.map_or_else(String::new, |(_, figure, error)| match error {
                    Some(error) => format!("{figure:.4} ± {error:.4}"),
                    None => format!("{figure:.4}"),
                })
            };
            table += &format!("|{language:<width$}|{}\n", cells((0..self.columns.len()).map(cell).collect()));
        }
        table
    }
}
