//! Where a mesh's ranks keep activations: presets, in the order of what they cost to compute, and what the memory solver finds for
//! one mesh.

use fathom_grad::{Place, Places};

use super::Workload;
use super::solve::{Figures, Search};
use super::stagewise::Estimate;
use super::table::{Choices, Table};
use super::{Budgets, table};
use crate::place_rules::Known;

/// Places of activations, and how a recipe says so.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshPlaces {
    /// In words.
    pub name: String,
    /// The table.
    pub places: Places,
    /// Keys of a recipe that make it, over any recipe.
    pub settings: Vec<String>,
}

impl MeshPlaces {
    fn preset(name: &'static str, tile_rows: Option<usize>, away: bool) -> MeshPlaces {
        let places = match name {
            "none" => Places::none(),
            "linear" => Places::linear(),
            _ => Places::full(),
        };
        let mut words = vec![name.to_string()];
        let mut settings = vec![format!("activations.recompute_granularity={name}")];
        settings.push(tiles(tile_rows));
        words.extend(tile_rows.map(|rows| format!("tiles of {rows}")));
        let mut places = places.with_tiles(tile_rows);
        if away && let Ok(offloaded) = places.clone().offload(&["all".to_string()], Place::Host) {
            places = offloaded;
            settings.push("activations.offload_modules=[\"all\"]".into());
            settings.push("activations.offload_place=host".into());
            words.push("kept with the host".into());
        }
        MeshPlaces { name: words.join(", "), places, settings }
    }

    fn of(work: &Workload<'_>, choices: &Choices, table: &Table) -> MeshPlaces {
        let places = choices.places(table, 0..usize::MAX, table);
        // A recipe may not speak of what the model does not have.
        let known = Known::of(work.profile, &work.spec, 1);
        let mut rules = choices.rules(table);
        rules.retain(|(name, _)| known.layers(name).next().is_some());
        let rule = |(name, place): &(&str, Place)| format!("{{name=\"{name}\",place=\"{}\"}}", place.name());
        let rules: Vec<String> = rules.iter().map(rule).collect();
        let mut words: Vec<String> = [Place::Recompute, Place::Host]
            .into_iter()
            .filter_map(|place| {
                let units: Vec<&str> = (0..table::UNITS.len())
                    .filter(|unit| choices.place(table, *unit) == place)
                    .map(|unit| table::UNITS[unit].name)
                    .collect();
                (!units.is_empty()).then(|| format!("{} {}", place.name(), units.join(" ")))
            })
            .collect();
        words.extend(places.tile_rows.map(|rows| format!("tiles of {rows}")));
        words.extend((places.head_groups > 1).then(|| format!("heads in {} groups", places.head_groups)));
        let settings = vec![
            "activations.recompute_granularity=none".to_string(),
            format!("activations.places=[{}]", rules.join(",")),
            tiles(places.tile_rows),
            format!("activations.head_groups={}", places.head_groups),
        ];
        MeshPlaces { name: words.join("; "), places, settings }
    }
}

fn tiles(rows: Option<usize>) -> String {
    format!("activations.tile_rows={}", rows.map_or("none".to_string(), |rows| rows.to_string()))
}

/// Presets for so many tokens of a rank, in the order of what they cost to compute; with values away where there is a host for them.
pub(super) fn presets(tokens: usize, has_host: bool) -> Vec<MeshPlaces> {
    let tile = Some(4096).filter(|rows| *rows < tokens);
    let mut all = vec![MeshPlaces::preset("none", None, false)];
    all.extend(tile.map(|_| MeshPlaces::preset("none", tile, false)));
    for name in ["linear", "full"] {
        all.push(MeshPlaces::preset(name, tile, false));
        all.extend(has_host.then(|| MeshPlaces::preset(name, tile, true)));
    }
    all
}

/// What the memory solver finds for a mesh: `of` is a step's estimate with some places. `None` if nothing it looks at fits.
pub(super) fn solve(
    work: &Workload<'_>,
    budgets: &Budgets,
    of: &dyn Fn(&Places) -> Option<Estimate>,
) -> Option<(MeshPlaces, Estimate)> {
    let grid = work.how.ranks.grid;
    let mut places = vec![Place::Keep, Place::Recompute];
    if budgets.host > 0 && work.profile.host_bytes.is_some() {
        places.push(Place::Host);
    }
    let choices = Choices::new(places, work.tokens / grid.cp, work.spec.kv_heads / grid.tp);
    let figures = |places: &Places| {
        let most = Estimate { step_s: f64::INFINITY, peak_bytes: u64::MAX, host_bytes: 0, disk_bytes: 0 };
        let Estimate { step_s, peak_bytes, host_bytes, disk_bytes } = of(places).unwrap_or(most);
        let [memory, host, disk] = [peak_bytes, host_bytes, disk_bytes].map(|bytes| bytes as f64);
        Figures { memory, host, disk, cost: step_s }
    };
    let table = Search::over(work, *budgets, choices.clone(), &figures).quick()?;
    let named = MeshPlaces::of(work, &choices, &table);
    let estimate = of(&named.places)?;
    Some((named, estimate))
}
