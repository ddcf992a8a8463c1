//! The solver's choices: a place for each group of activations, the height of tiles, the groups of heads.

use std::ops::Range;

use fathom_grad::{Place, Places, Rule};

/// Activations that are needed and computed together, with their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its name in tables.
    pub name: &'static str,
    /// Names, or prefixes ending in `*`; the first unit that matches applies.
    names: &'static [&'static str],
}

const fn unit(name: &'static str, names: &'static [&'static str]) -> Unit {
    Unit { name, names }
}

/// The units of a block, in the order of its forward pass; activations of experts belong to the MLP's.
pub const UNITS: [Unit; 8] = [
    unit("block.in", &["block.in"]),
    unit("attn.norm", &["attn.norm*", "cross.norm*"]),
    unit("attn.qkv", &["attn.q*", "attn.k*", "attn.v*", "cross.q*", "cross.k*", "cross.v*", "mixer.in*"]),
    unit("attn.out", &["attn.out", "attn.lse", "mixer.out*"]),
    unit("block.mid", &["block.mid", "block.crossed", "attn.*", "cross.*", "mixer.*"]),
    unit("mlp.norm", &["mlp.norm*"]),
    unit("mlp.up", &["mlp.up", "moe.up", "moe.shared.up"]),
    unit("mlp.act", &["mlp.*", "moe.*"]),
];

/// Heights of tiles, descending; the first means no tiles.
const TILES: [usize; 6] = [usize::MAX, 8192, 4096, 2048, 1024, 512];

/// One choice for everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Table {
    /// By unit: an index into the available places.
    pub places: [u8; UNITS.len()],
    /// An index into [`TILES`].
    pub tile: u8,
    /// Groups of heads, as a power of two.
    pub groups: u8,
}

/// The available choices.
#[derive(Clone, Debug)]
pub(super) struct Choices {
    pub places: Vec<Place>,
    tiles: u8,
    groups: u8,
}

impl Choices {
    /// Choices for micro-batches of `tokens` tokens and this many key and value heads.
    pub fn new(places: Vec<Place>, tokens: usize, kv_heads: usize) -> Choices {
        let tiles = 1 + TILES[1..].iter().filter(|rows| **rows < tokens).count();
        // Only heights below the number of tokens are used.
        Choices { places, tiles: tiles as u8, groups: 1 + kv_heads.trailing_zeros() as u8 }
    }

    fn height(&self, tile: u8) -> Option<usize> {
        // With few tokens, only low tiles are available.
        let skipped = TILES.len() - usize::from(self.tiles);
        (tile > 0).then(|| TILES[usize::from(tile) + skipped])
    }

    /// Everything in the first place of the list, without tiles and groups.
    pub fn plain(&self) -> Table {
        Table { places: [0; UNITS.len()], tile: 0, groups: 0 }
    }

    /// [`Choices::plain`] with some units elsewhere.
    pub fn with(&self, place: Place, but: &[(&str, Place)], tiled: bool) -> Table {
        let index = |place: Place| self.places.iter().position(|known| *known == place).unwrap_or(0) as u8;
        let mut table = self.plain();
        for (slot, unit) in table.places.iter_mut().zip(UNITS) {
            let special = but.iter().find(|(name, _)| *name == unit.name);
            *slot = index(special.map_or(place, |(_, place)| *place));
        }
        table.tile = if tiled { self.tiles / 2 } else { 0 };
        table
    }

    /// The same table with the lowest tiles and the fewest heads per group.
    pub fn lowest(&self, table: Table) -> Table {
        Table { tile: self.tiles - 1, groups: self.groups - 1, ..table }
    }

    /// All tables that differ in one choice.
    pub fn neighbours(&self, table: &Table) -> Vec<Table> {
        let mut all = Vec::new();
        for unit in 0..UNITS.len() {
            for place in self.places_of(unit).filter(|place| *place != table.places[unit]) {
                let mut other = table.clone();
                other.places[unit] = place;
                all.push(other);
            }
        }
        all.extend(
            (0..self.tiles).filter(|tile| *tile != table.tile).map(|tile| Table { tile, ..table.clone() }),
        );
        let groups = (0..self.groups).filter(|groups| groups.abs_diff(table.groups) == 1);
        all.extend(groups.map(|groups| Table { groups, ..table.clone() }));
        all
    }

    /// Available places of a unit. A block's input cannot be recomputed by its own segment.
    pub fn places_of(&self, unit: usize) -> impl Iterator<Item = u8> {
        let recompute = self.places.iter().position(|place| *place == Place::Recompute);
        (0..self.places.len() as u8).filter(move |place| unit > 0 || Some(usize::from(*place)) != recompute)
    }

    /// The place of a unit in a table.
    pub fn place(&self, table: &Table, unit: usize) -> Place {
        self.places[usize::from(table.places[unit])]
    }

    /// The table as rules of a recipe, in which the first match applies: rules for units that are not kept, and for
    /// kept ones that a later rule would match.
    pub fn rules(&self, table: &Table) -> Vec<(&'static str, Place)> {
        let all: Vec<(&'static str, Place)> = UNITS
            .iter()
            .enumerate()
            .flat_map(|(unit, row)| row.names.iter().map(move |name| (*name, unit)))
            .map(|(name, unit)| (name, self.place(table, unit)))
            .collect();
        let covers = |rule: &str, name: &str| {
            rule.strip_suffix('*').is_some_and(|prefix| name.trim_end_matches('*').starts_with(prefix))
        };
        let needed = |at: usize| {
            let (name, place) = all[at];
            let taken = |(rule, other): &(&str, Place)| *other != Place::Keep && covers(rule, name);
            place != Place::Keep || all[at + 1..].iter().any(taken)
        };
        (0..all.len()).filter(|at| needed(*at)).map(|at| all[at]).collect()
    }

    /// The table in the executor's form: `first` for its layers, `rest` for all others; tiles and groups are those of
    /// `first`.
    pub fn places(&self, first: &Table, layers: Range<usize>, rest: &Table) -> Places {
        let rules = |table: &Table, layers: Range<usize>| -> Vec<Rule> {
            let rule = |(unit, name): (usize, &str)| Rule {
                layers: layers.clone(),
                name: name.to_string(),
                place: self.place(table, unit),
            };
            let names = UNITS
                .iter()
                .enumerate()
                .flat_map(|(unit, row)| row.names.iter().map(move |name| (unit, *name)));
            names.map(rule).collect()
        };
        let all = [rules(first, layers), rules(rest, 0..usize::MAX)].concat();
        Places::new(all, self.height(first.tile)).with_head_groups(1 << first.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_activation_of_a_block_has_a_unit() {
        let choices = Choices::new(vec![Place::Keep, Place::Recompute, Place::Disk], 4096, 8);
        let table =
            choices.with(Place::Recompute, &[("attn.out", Place::Disk), ("block.in", Place::Keep)], true);
        let places = choices.places(&table, 0..2, &choices.plain());
        assert_eq!((places.tile_rows, places.head_groups), (Some(1024), 1));
        for (name, expected) in [
            ("attn.lse", Place::Disk),
            ("attn.norm.stats", Place::Recompute),
            ("attn.q.raw", Place::Recompute),
            ("attn.post_norm", Place::Recompute),
            ("block.in", Place::Keep),
            ("cross.k", Place::Recompute),
            ("mixer.conv", Place::Recompute),
            ("mixer.out.states", Place::Disk),
            ("mlp.scaled", Place::Recompute),
            ("moe.up", Place::Recompute),
            ("moe.shared.act", Place::Recompute),
        ] {
            assert_eq!(places.place(1, name), expected, "{name}");
            assert_eq!(places.place(2, name), Place::Keep, "{name}");
        }
        // A recipe expresses the same in fewer rules.
        let rule = |(name, place): (&str, Place)| Rule { layers: 0..usize::MAX, name: name.into(), place };
        let short = choices.rules(&table);
        assert!(short.len() < 24, "{short:?}");
        let short = Places::new(short.into_iter().map(rule).collect(), None);
        for name in
            ["attn.lse", "attn.norm.stats", "attn.post_norm", "block.in", "block.mid", "mlp.up", "moe.x"]
        {
            assert_eq!(short.place(0, name), places.place(0, name), "{name}");
        }
        let neighbours = choices.neighbours(&table);
        assert_eq!(neighbours.len(), 7 * 2 + 1 + 3 + 1);
        assert_eq!(choices.height(1), Some(2048));
    }
}
