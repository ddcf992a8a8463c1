//! Architectures of the models that judge answers, for plans: they stay on the device of a run from beginning to end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fathom_grad::Params;
use fathom_model::{Model, Spec, open_config};
use fathom_tensor::mesh::Mesh;
use fathom_tensor::{DType, Device};

use super::rules::{self, RewardTable};
use super::scores;
use crate::recipe::Recipe;

/// Architectures of all models used by a run's rewards, each once, including those of the other adapters over the same
/// base. Models that cannot be read are skipped here and refused when they are loaded.
pub(crate) fn judging(recipe: &Recipe) -> Vec<Arc<Spec>> {
    let mut found: BTreeMap<PathBuf, Arc<Spec>> = BTreeMap::new();
    let others: Vec<Recipe> = recipe.over_same_base().collect();
    let files = [recipe].into_iter().chain(&others).filter(|recipe| recipe.rl.is_on());
    for file in files.filter_map(|recipe| recipe.rl.reward.as_deref()) {
        for table in rules::read(file).unwrap_or_default().into_iter().filter(RewardTable::asks_model) {
            let Some(folder) = table.model.map(|model| folder(file, &model)) else { continue };
            if let Ok((spec, _)) = open_config(&folder) {
                found.entry(folder).or_insert_with(|| Arc::new(spec));
            }
        }
    }
    found.into_values().collect()
}

/// Folder of a model named in a file of rewards: the path itself, or the `model` folder within it if it is that of a
/// run.
fn folder(file: &Path, model: &Path) -> PathBuf {
    let at = file.parent().map_or(model.to_path_buf(), |folder| folder.join(model));
    let within = at.join("model");
    if !at.join("config.json").is_file() && within.join("config.json").is_file() { within } else { at }
}

/// Declares the weights of judges on a device if its rank scores answers; each rank holds them whole, whatever the
/// mesh.
pub(crate) fn declared(device: &Device, judges: &[Arc<Spec>], dtype: DType) -> Vec<Params> {
    let alone = Device { mesh: Mesh::alone(), ..device.clone() };
    let asked = judges.iter().filter(|_| scores(&device.mesh));
    asked.map(|spec| Model::declare(&alone, spec, dtype).1).collect()
}
