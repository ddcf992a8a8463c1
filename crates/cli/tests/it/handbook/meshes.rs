//! The table of meshes in `docs/clusters.md` against the solver.

use std::fs;

use super::{chapter, docs};
use crate::good;

const BEGIN: &str = "<!-- meshes: begin -->\n";
const END: &str = "<!-- meshes: end -->";
const HEAD: &str = "\
| recipe | GPUs | its mesh | peak | tokens/s a GPU | solver's mesh | activations | peak | tokens/s a GPU | why |
|---|---|---|---|---|---|---|---|---|---|
";

/// Recipes of the table and their arguments; true for rows that the test always solves.
const ROWS: [(&str, &[&str], bool); 18] = [
    ("llama3-8b-16k-nvidia", &[], true),
    ("llama3-8b-64k-nvidia", &[], true),
    ("llama3-8b-128k-nvidia", &[], false),
    ("llama3-8b-1m", &["--gpus", "128", "--machine-profile", "dgx-h100"], false),
    ("llama3-70b-nvidia", &[], false),
    ("llama3-70b-16k-nvidia", &[], false),
    ("llama3-70b-64k-nvidia", &[], false),
    ("llama3-405b-128k-nvidia", &[], false),
    ("mixtral-8x7b-nvidia", &[], false),
    ("mixtral-8x7b-16k-nvidia", &[], false),
    ("mixtral-8x7b-64k-nvidia", &[], false),
    ("mixtral-8x22b-64k-nvidia", &[], false),
    ("nemotron4-15b-16k-nvidia", &[], true),
    ("nemotron4-15b-64k-nvidia", &[], false),
    ("nemotron4-340b-nvidia", &[], false),
    ("nemotron3-22b-16k-nvidia", &[], true),
    ("nemotron3-22b-64k-nvidia", &[], false),
    ("dense-48l-10m", &[], false),
];

fn row(recipe: &str, more: &[&str]) -> String {
    let call = ["plan", recipe, "--solve", "mesh", "--markdown"];
    good(call.iter().chain(more))
}

#[test]
fn meshes_are_what_the_solver_takes() {
    let page = chapter("clusters");
    let start = page.find(BEGIN).unwrap() + BEGIN.len();
    let end = page.find(END).unwrap();
    if std::env::var_os("FATHOM_BLESS").is_some() {
        let rows: String = ROWS.iter().map(|(recipe, more, _)| row(recipe, more)).collect();
        let text = format!("{}\n{HEAD}{rows}\n{}", &page[..start], &page[end..]);
        fs::write(docs().join("clusters.md"), text).unwrap();
        return;
    }
    for (recipe, more, asked) in ROWS {
        let begins = format!("| `{recipe}` |");
        let shown = page[start..end].lines().find(|line| line.starts_with(&begins));
        let shown = shown.unwrap_or_else(|| panic!("{recipe} is not in the table of docs/clusters.md"));
        if asked {
            let found = row(recipe, more);
            assert_eq!(found.trim_end(), shown, "docs/clusters.md; FATHOM_BLESS=1 rewrites the table");
        }
    }
}
