//! Which projections an adapter is of: PEFT's `target_modules`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use regex::Regex;

use super::{Adapter, AdapterMethod, parts, prefix};
use crate::spec::Spec;
use crate::walk::{Kind, Module, Parallel, Projection};

/// Which projections, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Those whose names end with one of these, whole parts of names.
    Ends(Vec<String>),
    /// Those whose whole names match a regular expression.
    Matching(String),
    /// Every projection of the blocks.
    AllLinear,
}

/// A projection that an adapter can be of.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    out: usize,
    inner: usize,
    /// It is one of several in a weight.
    fused: bool,
    /// The weight: its layer and its part in the block.
    at: (usize, &'static str),
    /// It is the end of an MLP.
    way_out: bool,
}

impl Targets {
    fn check(&self, name: &str, regex: Option<&Regex>) -> bool {
        match self {
            Targets::Ends(ends) => ends.iter().any(|end| ends_with(name, end)),
            Targets::Matching(_) => regex.is_some_and(|regex| regex.is_match(name)),
            Targets::AllLinear => true,
        }
    }
}

/// The ends of names that mean these projections and no others; whole names where an end means others too.
pub(super) fn ends(all: &BTreeSet<String>, chosen: &BTreeSet<String>) -> Vec<String> {
    let end = |name: &String| last(name).to_string();
    let spoilt: BTreeSet<String> = all.difference(chosen).map(end).collect();
    let named = chosen.iter().map(|name| if spoilt.contains(&end(name)) { name.clone() } else { end(name) });
    named.collect::<BTreeSet<String>>().into_iter().collect()
}

impl Spec {
    /// The names of the projections of blocks that can have an adapter.
    pub fn adaptable(&self) -> BTreeSet<String> {
        self.projections().into_keys().collect()
    }

    fn projections(&self) -> BTreeMap<String, Sizes> {
        let mut all = BTreeMap::new();
        let names = &self.family.names;
        let mut see = |layer: Option<usize>, p: &Projection<'_>, _| {
            let Some(index) = layer.filter(|_| p.kind == Kind::Linear) else { return };
            let (at, parts) = (prefix(names, layer, p.module), parts(p));
            let fused = parts.len() > 1;
            let way_out = p.module == Module::Mlp && p.parallel == Parallel::Rows;
            for part in parts {
                let size =
                    Sizes { out: part.rows.len(), inner: p.inner, fused, at: (index, p.role), way_out };
                all.insert(format!("{at}{}", part.name), size);
            }
        };
        self.walk_projections(&mut see);
        all
    }

    /// The projections that targets mean, by name.
    ///
    /// # Errors
    /// Names that no projection has, with some that one has.
    pub fn targeted(&self, targets: &Targets) -> Result<BTreeSet<String>, String> {
        let all = self.adaptable();
        let regex = match targets {
            Targets::Matching(pattern) => {
                Some(Regex::new(&format!("^(?:{pattern})$")).map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        let found: BTreeSet<String> =
            all.iter().filter(|name| targets.check(name, regex.as_ref())).cloned().collect();
        let vain = |end: &&String| !all.iter().any(|name| ends_with(name, end));
        let vain = match targets {
            Targets::Ends(list) => {
                list.iter().find(vain).map(|end| format!("no projection is called `{end}`"))
            }
            _ => None,
        };
        match vain.or(found.is_empty().then(|| "no projection is meant".to_string())) {
            None => Ok(found),
            Some(vain) => {
                let ends: BTreeSet<&str> = all.iter().map(|name| last(name)).collect();
                let ends = ends.into_iter().collect::<Vec<&str>>().join(", ");
                let first = all.first().map_or("", String::as_str);
                Err(format!("{vain}; names are like {first}, and end with {ends}"))
            }
        }
    }

    /// Those of some projections that are ways out of MLPs: IA3's factors are of their input.
    pub fn ways_out(&self, of: &BTreeSet<String>) -> BTreeSet<String> {
        let all = self.projections();
        of.iter().filter(|name| all.get(*name).is_some_and(|sizes| sizes.way_out)).cloned().collect()
    }

    /// This specification with an adapter.
    ///
    /// # Errors
    /// A rank that is larger than a projection; projections that are one weight here and have different ranks; factors of an input that
    /// is several projections'; names that no projection has; virtual tokens that the model cannot have.
    pub fn with_adapter(mut self, adapter: Adapter) -> Result<Spec, String> {
        let all = self.projections();
        let mut ranks: BTreeMap<(usize, &'static str), (usize, &String)> = BTreeMap::new();
        for (name, size) in &adapter.modules {
            let Some(Sizes { out, inner, fused, at, .. }) = all.get(name).copied() else {
                return Err(format!("no projection is called `{name}`, or none that can have an adapter"));
            };
            if fused && adapter.inputs.contains(name) {
                return Err(format!(
                    "{name} shares its input with others, so its input has no factors of its own"
                ));
            }
            if adapter.method == AdapterMethod::Factors {
                continue;
            }
            if size.rank == 0 || size.rank > out.min(inner) {
                let rank = size.rank;
                return Err(format!("a rank of {rank} does not go with {name}, which is [{out}, {inner}]"));
            }
            let (rank, other) = *ranks.entry(at).or_insert((size.rank, name));
            if rank != size.rank {
                let own = size.rank;
                return Err(format!("{other} has rank {rank} and {name} {own}; they are one weight here"));
            }
        }
        if let AdapterMethod::Networks(width) = adapter.method
            && !(2..=self.hidden).contains(&width)
        {
            return Err(format!("a width of {width} does not go with the model's {} columns", self.hidden));
        }
        self.check_leading(adapter.method)?;
        self.adapter = Some(Arc::new(adapter));
        Ok(self)
    }

    /// This specification without its adapter.
    pub fn without_adapter(&self) -> Spec {
        Spec { adapter: None, ..self.clone() }
    }
}

/// The last part of a name.
pub(super) fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn ends_with(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
