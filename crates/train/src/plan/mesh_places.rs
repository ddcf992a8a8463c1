//! Places of activations for the ranks of a mesh: presets, ordered by computing cost, and the memory solver's choices
//! for one mesh.

use std::sync::{Mutex, PoisonError};

use fathom_grad::{Place, Places};

use super::needs::Needs;
use super::solve::{Figures, FiguresByTable, Search};
use super::table::{Choices, Table};
use super::{Budgets, Workload, table};
use crate::place_rules;
use crate::recipe::{Activations, Granularity, Memory, PlaceName, PlaceRule, Recipe};

/// Places of activations, as recipe settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshPlaces {
    /// Description.
    pub name: String,
    activations: Activations,
}

/// How a preset divides kept and recomputed work: rows of tiles and groups of heads.
#[derive(Clone, Copy, Debug)]
struct Cuts {
    tile_rows: Option<usize>,
    head_groups: usize,
}

impl MeshPlaces {
    fn preset(granularity: Granularity, cuts: Cuts, place: Place) -> MeshPlaces {
        let Cuts { tile_rows, head_groups } = cuts;
        let mut words = vec![granularity.to_string()];
        words.extend(cut(tile_rows, head_groups));
        let mut activations = Activations {
            memory: Memory::Manual,
            recompute_granularity: granularity,
            tile_rows,
            head_groups,
            ..Activations::default()
        };
        if place.is_offloaded() {
            activations.offload_modules = vec!["all".into()];
            activations.offload_place = place_name(place);
            words.push(if place == Place::Host { "kept with the host" } else { "kept on disk" }.into());
        }
        MeshPlaces { name: words.join(", "), activations }
    }

    fn of(work: &Workload<'_>, choices: &Choices, table: &Table) -> MeshPlaces {
        let places = choices.places(table, 0..usize::MAX, table);
        // A recipe must not name activations that the model does not have.
        let known = place_rules::ModelActivations::of(work.profile, &work.spec, 1);
        let mut rules = choices.rules(table);
        rules.retain(|(name, _)| known.layers(name).next().is_some());
        let mut words: Vec<String> = [Place::Recompute, Place::Host, Place::Disk]
            .into_iter()
            .filter_map(|place| {
                let units: Vec<&str> = (0..table::UNITS.len())
                    .filter(|unit| choices.place(table, *unit) == place)
                    .map(|unit| table::UNITS[unit].name)
                    .collect();
                (!units.is_empty()).then(|| format!("{} {}", place.name(), units.join(" ")))
            })
            .collect();
        words.extend(cut(places.tile_rows, places.head_groups));
        let rule = |(name, place): &(&str, Place)| PlaceRule {
            name: name.to_string(),
            place: place_name(*place),
            ..PlaceRule::default()
        };
        let activations = Activations {
            memory: Memory::Manual,
            places: rules.iter().map(rule).collect(),
            tile_rows: places.tile_rows,
            head_groups: places.head_groups,
            ..Activations::default()
        };
        MeshPlaces { name: words.join("; "), activations }
    }

    /// Applies the places to the recipe whose stage `index` is planned.
    pub(super) fn apply(&self, recipe: &mut Recipe, index: usize) {
        recipe.activations = self.activations.clone();
        // The stage's own settings are overridden where present: typed after its key, `none` is a granularity too.
        let (stage, own) = (&mut recipe.stage[index], &self.activations);
        stage.recompute_granularity = stage.recompute_granularity.map(|_| own.recompute_granularity);
        stage.tile_rows = stage.tile_rows.and(own.tile_rows);
    }

    /// True if nothing is recomputed, offloaded or divided.
    pub(super) fn keeps_all(&self) -> bool {
        self.activations == MeshPlaces::preset(Granularity::None, WHOLE, Place::Keep).activations
    }
}

/// Without tiles and groups of heads.
const WHOLE: Cuts = Cuts { tile_rows: None, head_groups: 1 };

fn place_name(place: Place) -> PlaceName {
    match place {
        Place::Keep => PlaceName::Keep,
        Place::Recompute => PlaceName::Recompute,
        Place::Host => PlaceName::Host,
        Place::Disk => PlaceName::Disk,
    }
}

fn cut(tile_rows: Option<usize>, head_groups: usize) -> impl Iterator<Item = String> {
    let tiles = tile_rows.map(|rows| format!("tiles of {rows}"));
    tiles.into_iter().chain((head_groups > 1).then(|| format!("heads in {head_groups} groups")))
}

/// Places to which the work of a rank can offload activations, the host before disk.
fn offload_places(work: &Workload<'_>, budgets: &Budgets) -> Vec<Place> {
    let has_host = budgets.host > 0 && work.profile.host_bytes.is_some();
    let host = has_host.then_some(Place::Host);
    host.into_iter().chain((budgets.disk > 0).then_some(Place::Disk)).collect()
}

/// Presets for a rank of this work's mesh, ordered by computing cost; the last ones need least memory.
pub(super) fn presets(work: &Workload<'_>, budgets: &Budgets) -> Vec<MeshPlaces> {
    let grid = work.how.ranks.grid;
    let (tokens, kv_heads) = (work.tokens / grid.cp, work.spec.kv_heads / grid.tp);
    let tiled = |rows: usize| Some(rows).filter(|rows| *rows < tokens);
    let high = Cuts { tile_rows: tiled(4096), ..WHOLE };
    let low = Cuts { tile_rows: tiled(1024), head_groups: 1 << kv_heads.trailing_zeros() };
    let offload_places = offload_places(work, budgets);
    let mut all = vec![MeshPlaces::preset(Granularity::None, WHOLE, Place::Keep)];
    all.extend(high.tile_rows.map(|_| MeshPlaces::preset(Granularity::None, high, Place::Keep)));
    for granularity in [Granularity::Linear, Granularity::Full] {
        all.push(MeshPlaces::preset(granularity, high, Place::Keep));
        let host = offload_places.first().filter(|place| **place == Place::Host);
        all.extend(host.map(|host| MeshPlaces::preset(granularity, high, *host)));
    }
    let lowest = if offload_places.is_empty() { vec![Place::Keep] } else { offload_places };
    for place in lowest {
        for (cuts, granularity) in [
            (high, Granularity::Linear),
            (low, Granularity::Linear),
            (high, Granularity::Full),
            (low, Granularity::Full),
        ] {
            let preset = MeshPlaces::preset(granularity, cuts, place);
            if !all.contains(&preset) {
                all.push(preset);
            }
        }
    }
    all
}

/// The memory solver's choice for a mesh: `of` returns the needs of a step with given places, and `known` has its
/// earlier answers for the same mesh. `None` if nothing that it tries fits.
pub(super) fn solve(
    work: &Workload<'_>,
    budgets: &Budgets,
    of: &(dyn Fn(&Places) -> Option<Needs> + Sync),
    known: &Mutex<FiguresByTable>,
) -> Option<MeshPlaces> {
    let grid = work.how.ranks.grid;
    // Disk is used only without a host: tables with both would be many more, and hardly ever better.
    let places = [Place::Keep, Place::Recompute]
        .into_iter()
        .chain(offload_places(work, budgets).into_iter().take(1))
        .collect();
    let choices = Choices::new(places, work.tokens / grid.cp, work.spec.kv_heads / grid.tp);
    let figures = |places: &Places| {
        let Some(needs) = of(places) else {
            return Figures { memory: u64::MAX as f64, host: 0.0, disk: 0.0, cost: f64::INFINITY };
        };
        let [memory, host, disk] =
            [needs.peak_bytes, needs.host_bytes, needs.disk_bytes].map(|bytes| bytes as f64);
        Figures { memory, host, disk, cost: needs.step_s }
    };
    let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::take(&mut *lock());
    let search = Search::over(work, *budgets, choices.clone(), &figures, before);
    let table = search.quick();
    *lock() = search.into_known();
    let table = table?;
    Some(MeshPlaces::of(work, &choices, &table))
}
