//! Where each activation lives between the forward and the backward pass: one table, one pure function.

/// Where an activation is between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the machine's memory.
    Keep,
    /// Nowhere: computed again.
    Recompute,
    /// On disk.
    Disk,
}

/// One row of the table: the first row that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Layers `from..to`.
    pub layers: std::ops::Range<usize>,
    /// An activation name, a prefix ending in `*`, or `*`.
    pub name: String,
    /// The place.
    pub place: Place,
}

/// The table of places and the tile height.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    rules: Vec<Rule>,
    /// What of the kept goes to disk.
    offloaded: Vec<Rule>,
    /// Rows of a tile in a rows region; a multiple of 128. `None` runs regions whole.
    pub tile_rows: Option<usize>,
    /// Attention runs over this many groups of key and value heads, one after the other, and needs scratch for one; the
    /// largest number up to this that divides the heads.
    pub head_groups: usize,
}

/// What `attention` makes and full recompute does not throw away: its forward pass is the one that is not linear in
/// the number of tokens.
const ATTENTION: [&str; 2] = ["attn.out", "attn.lse"];

/// Modules by Megatron's names, and the activations that belong to each.
const MODULES: [(&str, &[&str]); 6] = [
    ("core_attn", &ATTENTION),
    ("layernorm", &["attn.norm", "attn.norm.stats", "mlp.norm", "mlp.norm.stats"]),
    ("mlp", &["mlp.*"]),
    ("mlp_act", &["mlp.act"]),
    ("block", &["block.in"]),
    ("all", &["*"]),
];

impl Places {
    /// A table; names that no rule matches are kept.
    pub fn new(rules: Vec<Rule>, tile_rows: Option<usize>) -> Places {
        Places { rules, offloaded: Vec::new(), tile_rows, head_groups: 1 }
    }

    /// Everything is kept.
    pub fn none() -> Places {
        Places::new(Vec::new(), None)
    }

    /// Megatron's `full`: only the block's input is kept, everything else is computed again.
    pub fn full() -> Places {
        Places::new(vec![rule("block.in", Place::Keep), rule("*", Place::Recompute)], None)
    }

    /// Fathom's default for long sequences: block input and attention's results are kept, the linear parts are
    /// computed again (design, idea 3).
    pub fn linear() -> Places {
        let mut rules: Vec<Rule> = ATTENTION.iter().map(|name| rule(name, Place::Keep)).collect();
        rules.extend(Places::full().rules);
        Places::new(rules, None)
    }

    /// Megatron's `selective` over modules ([`MODULES`]).
    ///
    /// # Errors
    /// Names a module that is not known.
    pub fn selective(modules: &[String]) -> Result<Places, String> {
        Ok(Places::new(rules(modules, Place::Recompute)?, None))
    }

    /// The same table, with what it keeps of these modules on disk instead (Megatron's `offload_modules`); `all` is
    /// everything that it keeps.
    ///
    /// # Errors
    /// Names a module that is not known.
    pub fn offload(mut self, modules: &[String]) -> Result<Places, String> {
        self.offloaded.extend(rules(modules, Place::Disk)?);
        Ok(self)
    }

    /// True if any activation goes to disk.
    pub fn uses_disk(&self) -> bool {
        !self.offloaded.is_empty() || self.rules.iter().any(|rule| rule.place == Place::Disk)
    }

    /// The same table with tiles of `rows`.
    ///
    /// # Panics
    /// If `rows` is not a positive multiple of 128: sums over tokens run in chunks of 128.
    #[track_caller]
    pub fn with_tiles(mut self, rows: Option<usize>) -> Places {
        assert!(
            rows.is_none_or(|rows| rows > 0 && rows % 128 == 0),
            "tile of {rows:?} rows: must be a multiple of 128"
        );
        self.tile_rows = rows;
        self
    }

    /// The same table with attention over this many groups of heads.
    pub fn with_head_groups(mut self, groups: usize) -> Places {
        self.head_groups = groups.max(1);
        self
    }

    /// The place of an activation.
    pub fn place(&self, layer: i32, name: &str) -> Place {
        let matches = |rule: &&Rule| {
            let in_layers = layer >= 0 && rule.layers.contains(&(layer as usize));
            in_layers
                && rule.name.strip_suffix('*').map_or(rule.name == name, |prefix| name.starts_with(prefix))
        };
        let place = self.rules.iter().find(matches).map_or(Place::Keep, |rule| rule.place);
        if place == Place::Keep && self.offloaded.iter().any(|rule| matches(&rule)) {
            Place::Disk
        } else {
            place
        }
    }
}

/// Activation names of a module.
fn names(module: &str) -> Option<&'static [&'static str]> {
    MODULES.iter().find(|(name, _)| *name == module).map(|(_, names)| *names)
}

fn rules(modules: &[String], place: Place) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    for module in modules {
        let known = || MODULES.map(|(name, _)| name).join(", ");
        let names = names(module).ok_or_else(|| format!("unknown module `{module}`; known: {}", known()))?;
        rules.extend(names.iter().map(|name| rule(name, place)));
    }
    Ok(rules)
}

fn rule(name: &str, place: Place) -> Rule {
    Rule { layers: 0..usize::MAX, name: name.to_string(), place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_match_decides() {
        let linear = Places::linear();
        assert_eq!(linear.place(3, "attn.out"), Place::Keep);
        assert_eq!(linear.place(3, "mlp.act"), Place::Recompute);
        assert_eq!(linear.place(3, "block.in"), Place::Keep);
        assert_eq!(Places::none().place(0, "mlp.act"), Place::Keep);
        let selective = Places::selective(&["mlp".into()]).unwrap();
        assert_eq!(selective.place(0, "mlp.gate_up"), Place::Recompute);
        assert_eq!(selective.place(0, "attn.q"), Place::Keep);
        assert!(Places::selective(&["mpl".into()]).unwrap_err().contains("mpl"));
        let disk = linear.offload(&["core_attn".into()]).unwrap();
        assert!(disk.uses_disk());
        assert_eq!(disk.place(0, "attn.lse"), Place::Disk);
        assert_eq!((disk.place(0, "block.in"), disk.place(0, "attn.q")), (Place::Keep, Place::Recompute));
        let all = Places::none().offload(&["all".into()]).unwrap();
        assert_eq!((all.place(2, "mlp.act"), all.place(-1, "embed")), (Place::Disk, Place::Keep));
    }
}
