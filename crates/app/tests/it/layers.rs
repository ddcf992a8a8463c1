//! User settings over a shipped recipe, and the values that they displace.

use std::fs;

use fathom_app::library;

/// Returns the value of a path in a recipe with settings, and its source.
fn shown(recipe: &str, settings: &str, path: &str) -> (String, String) {
    let settings: Vec<String> = settings.split_whitespace().map(str::to_string).collect();
    let loaded = library::load(library::layers(recipe, &settings))
        .unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    if let Err(error) = fathom_train::check_training(&loaded) {
        panic!("{recipe} {settings:?}: {error}");
    }
    let row = loaded.rows().iter().find(|row| row.path == path).unwrap();
    (row.value.clone(), row.source.clone())
}

#[test]
fn a_setting_displaces_what_a_shipped_recipe_says_that_makes_no_sense_with_it() {
    for (recipe, settings, path, value, by) in [
        ("sft", "stage.0.steps=3", "stage.0.epochs", "none", "stage.0.steps"),
        ("sft", "run.minutes=1", "stage.0.epochs", "none", "run.minutes"),
        ("grpo", "run.minutes=1 rl.reward=r.toml", "stage.0.epochs", "none", "run.minutes"),
        ("lora", "adapter.method=ia3", "adapter.rank", "none", "adapter.method"),
        ("lora", "adapter.method=ia3", "adapter.alpha", "none", "adapter.method"),
        ("lora", "adapter.method=prompt", "adapter.rank", "none", "adapter.method"),
        ("lora", "adapter.method=none", "adapter.rank", "none", "adapter.method"),
        ("qlora", "adapter.method=none", "model.quantization", "\"none\"", "adapter.method"),
        ("ppo", "rl.loss=rejection rl.reward=r.toml rl.answers=4", "rl.advantage", "", "rl.loss"),
        ("sft", "schedule.warmup_share=0.1", "schedule.warmup_steps", "", ""),
    ] {
        let settings = format!("model.from=m data.paths=a.jsonl {settings}");
        let (found, source) = shown(recipe, &settings, path);
        if !by.is_empty() {
            assert!(source.starts_with(&format!("default: {by} displaced")), "{settings}: {path}: {source}");
        }
        if !value.is_empty() {
            assert_eq!(found, value, "{settings}: {path}");
        }
    }
}

#[test]
fn two_settings_of_one_layer_conflict_and_a_file_gives_way_to_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let text = "extends = \"sft\"\n[model]\nfrom = \"m\"\n[data]\npaths = [\"a.jsonl\"]\n[schedule]\nwarmup_share = 0.1\n";
    fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    assert_eq!(shown(&file, "stage.0.steps=3", "stage.0.epochs").0, "none");
    // The shipped recipe's 0 steps do not contradict a share; those of the command line do.
    assert_eq!(shown(&file, "", "schedule.warmup_share").0, "0.1");
    assert_eq!(shown(&file, "schedule.warmup_steps=0", "schedule.warmup_share").0, "none");
    let settings = ["model.from=m", "data.paths=a.jsonl"];
    for (recipe, more, key) in [
        ("sft", "stage.0.steps=3 stage.0.epochs=2", "stage.0.epochs"),
        ("lora", "adapter.method=ia3 adapter.rank=8", "adapter.rank"),
        // Settings that define the recipe are not displaced.
        ("dpo", "adapter.method=prompt", "objective.method"),
        ("lora", "adapter.prompt_text=hello", "adapter.prompt_text"),
    ] {
        let settings: Vec<String> =
            settings.into_iter().chain(more.split_whitespace()).map(str::to_string).collect();
        let loaded = library::load(library::layers(recipe, &settings));
        let error = match loaded {
            Ok(loaded) => fathom_train::check_training(&loaded).expect_err(more).to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(&format!("`{key}`")), "{more}: {error}");
    }
}
