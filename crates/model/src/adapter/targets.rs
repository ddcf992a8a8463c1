//! Selection of an adapter's projections: PEFT's `target_modules`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use regex::Regex;

use super::declare::parts;
use super::experts::{ExpertPart, STACKED};
use crate::spec::{Adapter, AdapterMethod, Spec};
use crate::weight::{CrossNames, Kind, Module, Names, Parallel, Projection, Qkv};

/// A selection of projections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Projections whose names end with one of these, in whole components.
    Ends(Vec<String>),
    /// Projections whose full names match a regular expression.
    Matching(String),
    /// Every projection of the blocks, without experts.
    AllLinear,
}

/// Kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinds {
    /// A projection of a block, or of embeddings to the columns of the blocks.
    Block,
    /// The projection before an encoder's head.
    Pool,
    /// The embedding of tokens.
    Embedding,
    Head,
    /// A projection of one of this many experts.
    Expert(usize),
    /// The stacked projections of all experts of a layer.
    Stacked,
}

/// A projection to which an adapter can apply.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    out: usize,
    inner: usize,
    kind: Kinds,
    /// Whether its weight fuses several projections.
    fused: bool,
    /// Its weight: layer and role in the block.
    at: (usize, &'static str),
    /// Whether it closes an MLP.
    way_out: bool,
}

impl Targets {
    fn check(&self, name: &str, kind: Kinds, regex: Option<&Regex>) -> bool {
        match self {
            // A stacked tensor's name ends like that of an MLP.
            Targets::Ends(ends) => ends
                .iter()
                .any(|end| ends_with(name, end) && (kind != Kinds::Stacked || end.contains("experts."))),
            Targets::Matching(_) => regex.is_some_and(|regex| regex.is_match(name)),
            Targets::AllLinear => kind == Kinds::Block,
        }
    }
}

/// Endings that select exactly `chosen`; full names where an ending would select others too.
pub(super) fn ends(all: &BTreeSet<String>, chosen: &BTreeSet<String>) -> Vec<String> {
    let end = |name: &String| last(name).to_string();
    let spoilt: BTreeSet<String> = all.difference(chosen).map(end).collect();
    let named = chosen.iter().map(|name| if spoilt.contains(&end(name)) { name.clone() } else { end(name) });
    named.collect::<BTreeSet<String>>().into_iter().collect()
}

impl Spec {
    /// Names of modules that can have an adapter: projections of blocks and of experts, the embedding and the head.
    /// Stacked experts are tensors, not modules, and are not included.
    pub fn adaptable(&self) -> BTreeSet<String> {
        let modules = self.projections().into_iter().filter(|(_, sizes)| sizes.kind != Kinds::Stacked);
        modules.map(|(name, _)| name).collect()
    }

    /// Names of stacked expert tensors among an adapter's modules.
    pub(super) fn stacked(&self, adapter: &Adapter) -> BTreeSet<String> {
        let stacked = |name: &String| STACKED.iter().any(|end| ends_with(name, end));
        adapter.modules.keys().filter(|name| stacked(name)).cloned().collect()
    }

    fn projections(&self) -> BTreeMap<String, Sizes> {
        let mut all = BTreeMap::new();
        let names = &self.family.names;
        let mut see = |layer: Option<usize>, p: &Projection<'_>, _| {
            if p.kind != Kind::Linear {
                return;
            }
            let outside = if p.module == Module::Head { Kinds::Pool } else { Kinds::Block };
            let (index, kind) = layer.map_or((usize::MAX, outside), |layer| (layer, Kinds::Block));
            let (at, parts) = (self.prefix(layer, p.module), parts(p));
            let fused = parts.len() > 1;
            let way_out = p.module == Module::Mlp && p.parallel == Parallel::Rows;
            for part in parts {
                let (out, inner) = (part.rows.len(), p.inner);
                let size = Sizes { out, inner, kind, fused, at: (index, p.role), way_out };
                all.insert(format!("{at}{}", part.name), size);
            }
        };
        self.walk_projections(&mut see);
        if let Some(moe) = names.moe.as_ref() {
            for index in 0..self.layers.len() {
                let Some(m) = self.experts_of(index) else { continue };
                let at = self.prefix(Some(index), Module::Mlp);
                for ExpertPart { name, role, out, inner, stacked } in super::experts::parts(self, moe, m) {
                    let kind = if stacked { Kinds::Stacked } else { Kinds::Expert(m.experts) };
                    let size = Sizes { out, inner, kind, fused: false, at: (index, role), way_out: false };
                    all.insert(format!("{at}{name}"), size);
                }
            }
        }
        if self.encoder.is_none() {
            let [embed, head] = self.table_names();
            let sizes = |kind, role| {
                let (out, inner, at) = (self.vocab, self.hidden, (usize::MAX, role));
                Sizes { out, inner, kind, fused: false, at, way_out: false }
            };
            // Encoder and decoder share a table, whose copies PEFT adapts apart.
            if self.source == 0 {
                all.insert(embed, sizes(Kinds::Embedding, "embed"));
            }
            if !head.is_empty() {
                all.insert(head, sizes(Kinds::Head, "head"));
            }
        }
        all
    }

    /// Names of the projections that `targets` selects.
    ///
    /// # Errors
    /// Names without a projection; the message gives an existing one.
    pub fn targeted(&self, targets: &Targets) -> Result<BTreeSet<String>, String> {
        let all = self.projections();
        let regex = match targets {
            Targets::Matching(pattern) => {
                Some(Regex::new(&format!("^(?:{pattern})$")).map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        let found = all.iter().filter(|(name, sizes)| targets.check(name, sizes.kind, regex.as_ref()));
        let mut found: BTreeSet<String> = found.map(|(name, _)| name.clone()).collect();
        // Experts that are separate modules are not selected again as a stack.
        if found.iter().any(|name| matches!(all[name].kind, Kinds::Expert(_))) {
            found.retain(|name| all[name].kind != Kinds::Stacked);
        }
        let vain = |end: &&String| !all.keys().any(|name| ends_with(name, end));
        let vain = match targets {
            Targets::Ends(list) => {
                list.iter().find(vain).map(|end| format!("no projection is called `{end}`"))
            }
            _ => None,
        };
        match vain.or(found.is_empty().then(|| "no projection is meant".to_string())) {
            None => Ok(found),
            Some(vain) => {
                let ends: BTreeSet<&str> = all.keys().map(|name| last(name)).collect();
                let ends = ends.into_iter().collect::<Vec<&str>>().join(", ");
                let blocks = all.iter().find(|(_, sizes)| sizes.kind == Kinds::Block);
                let first = blocks.map_or("", |(name, _)| name.as_str());
                Err(format!("{vain}; names are like {first}, and end with {ends}"))
            }
        }
    }

    /// The subset in blocks, without experts, the embedding and the head.
    pub fn of_blocks(&self, of: &BTreeSet<String>) -> BTreeSet<String> {
        let all = self.projections();
        let block = |name: &&String| all.get(*name).is_some_and(|sizes| sizes.kind == Kinds::Block);
        of.iter().filter(block).cloned().collect()
    }

    /// The subset that closes MLPs; IA3's factors scale their input.
    pub fn ways_out(&self, of: &BTreeSet<String>) -> BTreeSet<String> {
        let all = self.projections();
        of.iter().filter(|name| all.get(*name).is_some_and(|sizes| sizes.way_out)).cloned().collect()
    }

    /// The projections that IA3 scales by default: those of keys and values, and those that close MLPs.
    pub fn factored(&self) -> BTreeSet<String> {
        let names = &self.family.names;
        let of_stack = |names: &Names| match names.qkv {
            Qkv::Separate([_, k, v]) => vec![k, v],
            Qkv::Fused(all) | Qkv::Grouped(all) => vec![all],
            Qkv::Latent(latent) => vec![latent.kv_latent[2]],
        };
        let mut ends = of_stack(names);
        ends.extend(names.source.map(of_stack).into_iter().flatten());
        ends.extend(names.cross.into_iter().flat_map(|CrossNames { projections: [_, k, v, _], .. }| [k, v]));
        let all = self.projections().into_iter().filter(|(name, sizes)| {
            let of_keys = ends.iter().any(|end| !end.is_empty() && ends_with(name, end));
            sizes.kind == Kinds::Block && (sizes.way_out || of_keys)
        });
        all.map(|(name, _)| name).collect()
    }

    /// This specification with an adapter.
    ///
    /// # Errors
    /// A rank of 0, or with PiSSA one larger than a projection; different ranks within one weight where unsupported;
    /// factors of an input shared by several projections; unknown names; only some experts of a layer; settings that
    /// an embedding, a head or experts do not support; virtual tokens that the model cannot have.
    pub fn with_adapter(mut self, adapter: Adapter) -> Result<Spec, String> {
        let all = self.projections();
        let mut ranks: BTreeMap<(usize, &'static str), (usize, &String)> = BTreeMap::new();
        for (name, size) in &adapter.modules {
            let Some(Sizes { out, inner, fused, at, kind, .. }) = all.get(name).copied() else {
                return Err(format!("no projection is called `{name}`, or none that can have an adapter"));
            };
            if !matches!(kind, Kinds::Block | Kinds::Pool) {
                check_outside(&adapter, name, kind)?;
            }
            if fused && adapter.inputs.contains(name) {
                return Err(format!(
                    "{name} shares its input with others, so its input has no factors of its own"
                ));
            }
            if adapter.method == AdapterMethod::Factors {
                continue;
            }
            let singular = matches!(adapter.method, AdapterMethod::Lora { singular: true, .. });
            // A matrix has no more singular parts than its smaller side; other terms may have a larger rank.
            if size.rank == 0 || (singular && size.rank > out.min(inner)) {
                let rank = size.rank;
                return Err(format!("a rank of {rank} does not go with {name}, which is [{out}, {inner}]"));
            }
            let (rank, other) = *ranks.entry(at).or_insert((size.rank, name));
            if rank != size.rank && (singular || !matches!(kind, Kinds::Block | Kinds::Pool)) {
                let own = size.rank;
                return Err(format!("{other} has rank {rank} and {name} {own}; they are one weight here"));
            }
        }
        if let AdapterMethod::Networks(width) = adapter.method
            && !(2..=self.hidden).contains(&width)
        {
            return Err(format!("a width of {width} does not go with the model's {} columns", self.hidden));
        }
        if adapter.biases && !adapter.adds() {
            return Err("low-rank terms have biases of their own with LoRA and rsLoRA alone".into());
        }
        self.check_experts(&adapter, &all)?;
        self.check_tokens(&adapter)?;
        self.check_leading(adapter.method)?;
        self.adapter = Some(Arc::new(adapter));
        Ok(self)
    }

    /// Refuses low-rank terms of a rank above the smaller side of a projection, which add no capacity: files may have
    /// them, but a user who asks for one is mistaken.
    ///
    /// # Errors
    /// The first such projection.
    pub fn check_ranks(&self, adapter: &Adapter) -> Result<(), String> {
        let all = self.projections();
        let terms = matches!(adapter.method, AdapterMethod::Lora { .. });
        for (name, size) in adapter.modules.iter().filter(|_| terms) {
            let Some(Sizes { out, inner, .. }) = all.get(name).copied() else { continue };
            if size.rank > out.min(inner) {
                let rank = size.rank;
                return Err(format!("a rank of {rank} does not go with {name}, which is [{out}, {inner}]"));
            }
        }
        Ok(())
    }

    /// Checks that all experts of a layer have equal adapters.
    fn check_experts(&self, adapter: &Adapter, all: &BTreeMap<String, Sizes>) -> Result<(), String> {
        let mut each: BTreeMap<(usize, &'static str), [usize; 2]> = BTreeMap::new();
        let mut stacked = BTreeSet::new();
        for name in adapter.modules.keys() {
            let Sizes { kind, at, .. } = all[name];
            match kind {
                Kinds::Expert(experts) => {
                    let [count, most] = each.entry(at).or_default();
                    (*count, *most) = (*count + 1, experts);
                }
                Kinds::Stacked => _ = stacked.insert(at.0),
                _ => {}
            }
        }
        for ((layer, _), [count, most]) in each {
            if count < most {
                return Err(format!(
                    "of layer {layer} {count} of {most} experts have an adapter; give all of them one, or none"
                ));
            }
            if stacked.contains(&layer) {
                return Err(format!(
                    "the experts of layer {layer} have adapters one by one and as a stack; give one of both"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the rows of these tokens can be trained.
    fn check_tokens(&self, adapter: &Adapter) -> Result<(), String> {
        let tokens = &adapter.tokens;
        if tokens.is_empty() {
            return Ok(());
        }
        let known: BTreeSet<u32> = tokens.iter().copied().collect();
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.vocab) {
            return Err(format!("token {token} is none of the model's {}", self.vocab));
        }
        let plain = matches!(adapter.method, AdapterMethod::Lora { singular: false, .. });
        let also = adapter.modules.contains_key(&self.table_names()[0]);
        let refused = [
            (known.len() < tokens.len(), "a token is named twice"),
            (!plain, "rows of tokens are trained next to low-rank terms that leave the base as it is"),
            (also, "the embedding has low-rank terms already; train rows of tokens or these, not both"),
            (self.encoder.is_some(), "rows of tokens are trained of decoders, and the model is an encoder"),
            (self.source > 0, "rows of tokens are trained of decoders, and the model is an encoder-decoder"),
            (
                self.tied,
                "the head is the embedding, of which PEFT trains the rows too; that is not done here",
            ),
        ];
        refused.iter().find(|(refused, _)| *refused).map_or(Ok(()), |(_, why)| Err((*why).into()))
    }

    /// Checks that the adapter can be merged into the model's weights.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn merges(&self) -> Result<(), String> {
        let Some(adapter) = self.adapter.as_deref() else { return Ok(()) };
        if !matches!(adapter.method, AdapterMethod::Lora { .. } | AdapterMethod::Factors) {
            return Err("networks behind sub-layers and virtual tokens are no part of any weight".into());
        }
        if adapter.biases {
            return Err(
                "its low-rank terms have biases, and the projections have none that these could join".into(),
            );
        }
        if self.tied && self.table_names().iter().any(|name| adapter.modules.contains_key(name)) {
            return Err("the model's head is its embedding, and the adapter is of one of the two".into());
        }
        Ok(())
    }

    /// Returns the specification without its adapter.
    pub fn without_adapter(&self) -> Spec {
        Spec { adapter: None, ..self.clone() }
    }
}

/// Refuses settings that an embedding, a head and experts do not support.
fn check_outside(adapter: &Adapter, name: &str, kind: Kinds) -> Result<(), String> {
    let AdapterMethod::Lora { lengths, singular, .. } = adapter.method else {
        return Err(format!("{name} has low-rank terms or none"));
    };
    let what = [
        (lengths, "lengths of rows (DoRA)"),
        (singular, "terms that begin as singular parts (PiSSA)"),
        (adapter.biases, "biases of terms"),
        // PEFT applies no dropout to an embedding's terms either.
        (adapter.dropout > 0.0 && kind != Kinds::Embedding, "dropout"),
    ];
    match what.iter().find(|(asked, _)| *asked) {
        None => Ok(()),
        Some((_, what)) => Err(format!("{what} of {name} are not trained here; take it out of the targets")),
    }
}

/// The last component of a name.
pub(super) fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn ends_with(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
