//! Where each activation is stored between the forward and the backward pass: one table, one pure function.

use fathom_tensor::spill::Codec;
use fathom_tensor::{SUM_CHUNK, is_whole_chunks};

/// Place of an activation between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In device memory.
    Keep,
    /// Nowhere: recomputed.
    Recompute,
    /// In host memory.
    Host,
    /// On disk.
    Disk,
}

impl Place {
    /// The name in recipes and reports.
    pub fn name(self) -> &'static str {
        match self {
            Place::Keep => "keep",
            Place::Recompute => "recompute",
            Place::Host => "host",
            Place::Disk => "disk",
        }
    }

    /// True for host and disk.
    pub fn is_offloaded(self) -> bool {
        matches!(self, Place::Host | Place::Disk)
    }
}

/// One row of the table: the first row that matches applies.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    rules: Vec<Rule>,
    /// Rules for offloading kept values.
    offloaded: Vec<Rule>,
    /// Fraction of the tokens, the last ones, whose offloaded values leave memory; the rest stays.
    pub offload_fraction: f64,
    /// Encoding of offloaded values; statistics are never encoded.
    pub codec: Codec,
    /// Layers per segment (Megatron's `recompute_method = "uniform"`): only the input of its first layer is kept as a segment's
    /// input. Its places are those of the first layer.
    pub segment_layers: usize,
    /// Rows of a tile in a rows region; a multiple of 128. `None` runs regions whole.
    pub tile_rows: Option<usize>,
    /// Number of groups of key and value heads that attention processes one after the other, with scratch for one; the
    /// largest number up to this that divides the heads is used.
    pub head_groups: usize,
}

/// Results of passes over all tokens, which `linear` recompute keeps: attention is the only one that is not linear in the
/// number of tokens, and a family's own mixers (`mixer.out*`) would scan them twice.
const MIXED: [&str; 3] = ["attn.out", "attn.lse", "mixer.out*"];

/// Modules with the activations that belong to each: the parts of a model.
pub type Modules = [(&'static str, &'static [&'static str])];

/// Modules of every model: the input of a block, and everything.
const EVERY: [(&str, &[&str]); 2] = [("block", &["block.in"]), ("all", &["*"])];

impl Places {
    /// A table; names that no rule matches are kept.
    pub fn new(rules: Vec<Rule>, tile_rows: Option<usize>) -> Places {
        Places {
            rules,
            offloaded: Vec::new(),
            offload_fraction: 1.0,
            codec: Codec::AsIs,
            segment_layers: 1,
            tile_rows,
            head_groups: 1,
        }
    }

    /// Everything is kept.
    pub fn none() -> Places {
        Places::new(Vec::new(), None)
    }

    /// Megatron's `full`: only the block's input is kept, everything else is recomputed.
    pub fn full() -> Places {
        Places::new(vec![rule("block.in", Place::Keep), rule("*", Place::Recompute)], None)
    }

    /// For long sequences: the block's input and the results of its mixers are kept, the rest is recomputed.
    pub fn linear() -> Places {
        let mut rules: Vec<Rule> = MIXED.iter().map(|name| rule(name, Place::Keep)).collect();
        rules.extend(Places::full().rules);
        Places::new(rules, None)
    }

    /// Megatron's `selective` over modules of a table.
    ///
    /// # Errors
    /// Names a module that is not known, or cannot be recomputed.
    pub fn selective(modules: &[String], table: &Modules) -> Result<Places, String> {
        if modules.iter().any(|module| module == "block") {
            return Err("`block` is what a block begins with, and nothing can compute it again".into());
        }
        Ok(Places::new(rules(modules, table, Place::Recompute)?, None))
    }

    /// Megatron's `full` with `recompute_method = "block"`: [`Places::full`] in the first `layers` layers, everything
    /// kept in the others.
    pub fn full_block(layers: usize) -> Places {
        let mut places = Places::full();
        places.rules.iter_mut().for_each(|rule| rule.layers = 0..layers);
        places
    }

    /// Adds `rules`, which take precedence.
    pub fn with_rules(mut self, mut rules: Vec<Rule>) -> Places {
        rules.append(&mut self.rules);
        self.rules = rules;
        self
    }

    /// Offloads the kept activations of these modules to host memory or disk (Megatron's `offload_modules`); `block`
    /// and `all` are known in addition to those of `table`.
    ///
    /// # Errors
    /// If a module is unknown; names it.
    pub fn offload(mut self, modules: &[String], table: &Modules, place: Place) -> Result<Places, String> {
        self.offloaded.extend(rules(modules, table, place)?);
        Ok(self)
    }

    /// Offloads every kept activation.
    pub fn offload_all(mut self, place: Place) -> Places {
        self.offloaded.push(rule("*", place));
        self
    }

    /// True if any activation has this place.
    pub fn uses(&self, place: Place) -> bool {
        self.offloaded.iter().chain(&self.rules).any(|rule| rule.place == place)
    }

    /// Sets tiles of `rows`.
    ///
    /// # Panics
    /// If `rows` is not whole chunks ([`SUM_CHUNK`]).
    #[track_caller]
    pub fn with_tiles(mut self, rows: Option<usize>) -> Places {
        assert!(rows.is_none_or(is_whole_chunks), "tile of {rows:?} rows: must be a multiple of {SUM_CHUNK}");
        self.tile_rows = rows;
        self
    }

    /// Sets the fraction of the tokens that is offloaded.
    pub fn with_fraction(mut self, fraction: f64) -> Places {
        self.offload_fraction = fraction;
        self
    }

    /// Sets the encoding of offloaded values.
    pub fn with_codec(mut self, codec: Codec) -> Places {
        self.codec = codec;
        self
    }

    /// Sets the number of layers per segment.
    pub fn with_segment_layers(mut self, layers: usize) -> Places {
        self.segment_layers = layers.max(1);
        self
    }

    /// Sets the number of groups of heads in attention.
    pub fn with_head_groups(mut self, groups: usize) -> Places {
        self.head_groups = groups.max(1);
        self
    }

    /// The rules that concern a layer: layers with the same rules have the same places.
    pub(crate) fn rules_of(&self, layer: i32) -> Vec<u16> {
        let all = self.offloaded.iter().chain(&self.rules).enumerate();
        let about = all.filter(|(_, rule)| layer >= 0 && rule.layers.contains(&(layer as usize)));
        about.map(|(at, _)| at as u16).collect()
    }

    /// The place of an activation.
    pub fn place(&self, layer: i32, name: &str) -> Place {
        let matches = |rule: &&Rule| {
            let in_layers = layer >= 0 && rule.layers.contains(&(layer as usize));
            in_layers
                && rule.name.strip_suffix('*').map_or(rule.name == name, |prefix| name.starts_with(prefix))
        };
        let place = self.rules.iter().find(matches).map_or(Place::Keep, |rule| rule.place);
        match place {
            Place::Keep => self.offloaded.iter().find(matches).map_or(Place::Keep, |rule| rule.place),
            decided => decided,
        }
    }
}

/// Activation names of a module.
///
/// # Errors
/// If it is unknown; names the known ones.
fn activations_of(module: &str, table: &Modules) -> Result<&'static [&'static str], String> {
    let mut all = table.iter().chain(&EVERY);
    match all.clone().find(|(name, _)| *name == module) {
        Some((_, names)) => Ok(names),
        None => {
            let first = all.next().map_or("", |(name, _)| name).to_string();
            let known = all.fold(first, |known, (name, _)| known + ", " + name);
            Err(format!("unknown module `{module}`; known: {known}"))
        }
    }
}

fn rules(modules: &[String], table: &Modules, place: Place) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    for module in modules {
        rules.extend(activations_of(module, table)?.iter().map(|name| rule(name, place)));
    }
    Ok(rules)
}

fn rule(name: &str, place: Place) -> Rule {
    Rule { layers: 0..usize::MAX, name: name.to_string(), place }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &Modules = &[
        ("core_attn", &MIXED),
        ("layernorm", &["mlp.post_norm", "mlp.post_norm.stats"]),
        ("mlp", &["mlp.*"]),
    ];

    #[test]
    fn first_match_decides() {
        let linear = Places::linear();
        assert_eq!(linear.place(3, "attn.out"), Place::Keep);
        assert_eq!(linear.place(3, "mixer.out.states"), Place::Keep);
        assert_eq!(linear.place(3, "mlp.act"), Place::Recompute);
        assert_eq!(linear.place(3, "block.in"), Place::Keep);
        assert_eq!(Places::none().place(0, "mlp.act"), Place::Keep);
        let selective = Places::selective(&["mlp".into()], TABLE).unwrap();
        assert_eq!(selective.place(0, "mlp.up"), Place::Recompute);
        assert_eq!(selective.place(0, "attn.q"), Place::Keep);
        for module in ["mpl", "block"] {
            assert!(Places::selective(&[module.into()], TABLE).unwrap_err().contains(module));
        }
        let norms = Places::selective(&["layernorm".into()], TABLE).unwrap();
        assert_eq!(norms.place(0, "mlp.post_norm.stats"), Place::Recompute);
        assert_eq!(norms.place(0, "attn.q.norm"), Place::Keep);
        let disk = linear.offload(&["core_attn".into()], TABLE, Place::Disk).unwrap();
        assert!(disk.uses(Place::Disk) && !disk.uses(Place::Host));
        assert_eq!(disk.place(0, "attn.lse"), Place::Disk);
        assert_eq!((disk.place(0, "block.in"), disk.place(0, "attn.q")), (Place::Keep, Place::Recompute));
        let all = Places::none().offload(&["all".into()], &[], Place::Disk).unwrap();
        assert_eq!(all, Places::none().offload_all(Place::Disk));
        assert_eq!((all.place(2, "mlp.act"), all.place(-1, "embed")), (Place::Disk, Place::Keep));
        let block = Places::full_block(2);
        assert_eq!((block.place(1, "attn.q"), block.place(2, "attn.q")), (Place::Recompute, Place::Keep));
        let own = Rule { layers: 1..2, name: "attn.*".into(), place: Place::Host };
        let own = Places::full().with_rules(vec![own]);
        assert_eq!((own.place(1, "attn.out"), own.place(0, "attn.out")), (Place::Host, Place::Recompute));
    }
}
