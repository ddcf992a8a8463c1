//! A table of recipes with the values they load to, and a table of mistakes with the messages they produce.

use super::*;
use crate::error::Error;

choice! {
    /// How the learning rate falls.
    pub enum Schedule {
        /// Half a cosine.
        Cosine = "cosine",
        /// A straight line.
        Linear = "linear",
        /// Warm-up, stable, decay.
        Wsd = "wsd",
    }
}

recipe! {
    /// A run.
    struct Run {
        /// Name of the run.
        name: String = "run".into(),
        /// The optimizer.
        train: Train,
        /// Where text comes from.
        data: Data,
        /// Saves.
        checkpoint: Option<Checkpoint>,
        /// The stages,
        /// in order.
        stage: Vec<Stage> = vec![Stage::default()],
    }
    /// The optimizer.
    struct Train {
        /// Peak learning rate.
        lr: f64 = 3e-4,
        /// Steps.
        steps: u64 = 100,
        /// How the rate falls.
        schedule: Schedule,
        /// Largest norm.
        clip: Option<f64> = Some(1.0),
        /// Adam's betas.
        betas: [f64; 2] = [0.9, 0.95],
    }
    /// Text.
    struct Data {
        /// Files.
        paths: Vec<std::path::PathBuf>,
        /// Weights by source.
        weights: std::collections::BTreeMap<String, f64>,
        /// Lengths.
        lengths: Vec<u64> = vec![2048],
    }
    /// Saves.
    struct Checkpoint {
        /// Every so many steps.
        every: u32 = 50,
        /// Kept saves.
        keep: u32 = 2,
    }
    /// One stage.
    struct Stage {
        /// Sequence length.
        tokens: u64 = 2048,
        /// Position scaling.
        r#type: String = "none-yet".into(),
    }
}

const SHIPPED: &[(&str, &str)] = &[
    ("base", "about = 'the base'\n[train]\nlr = 1e-3\nsteps = 10\n"),
    ("long", "extends = 'base'\n[train]\nsteps = 20\n[[stage]]\ntokens = '16k'\n[[stage]]\ntokens = 65536\n"),
    ("loop-a", "extends = 'loop-b'"),
    ("loop-b", "extends = 'loop-a'"),
];

fn layers() -> Layers<'static> {
    const LIBRARY: Library<'static> = Library::new(SHIPPED);
    Layers::with_library(LIBRARY)
}

fn load(layers: Layers<'_>) -> Loaded<Run> {
    Loaded::load(layers).unwrap()
}

#[test]
fn layers_lie_over_each_other_and_sources_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.toml");
    std::fs::write(&file, "# mine\n[train]\nclip = 'none'\n\n[data.weights]\n\"a b\" = 2\n").unwrap();
    let recipe = load(layers().recipe("long").recipe(file.to_str().unwrap()).set("train.lr=3e-5").flag(
        "--steps",
        "train.steps",
        "1k",
    ));
    assert_eq!(recipe.value.train.lr, 3e-5);
    assert_eq!(recipe.value.train.steps, 1024);
    assert_eq!(recipe.value.train.clip, None);
    assert_eq!(recipe.value.data.weights["a b"], 2.0);
    assert_eq!(recipe.value.stage.iter().map(|s| s.tokens).collect::<Vec<_>>(), [16384, 65536]);
    let source = |path: &str| recipe.source(path).unwrap().to_string();
    assert_eq!(source("train.lr"), "command line");
    assert_eq!(source("train.steps"), "--steps");
    assert_eq!(source("train.clip"), format!("file {}:3", file.display()));
    assert_eq!(source("data.weights.a b"), format!("file {}:6", file.display()));
    assert_eq!(source("stage.1.tokens"), "recipe long, line 7");
    assert_eq!(source("stage.1.type"), "default");
    assert_eq!(source("train.schedule"), "default");
    assert!(recipe.is_set("train") && recipe.is_set("data.weights") && !recipe.is_set("name"));
    assert_eq!(load(layers().recipe("long")).source("train.lr").unwrap().to_string(), "recipe base, line 3");
    assert_eq!(header("base", SHIPPED[0].1, "about").unwrap().as_deref(), Some("the base"));
}

#[test]
fn settings_need_no_quotes() {
    let get = |settings: &[&str]| load(layers().sets(settings)).value;
    assert_eq!(get(&["train.schedule=wsd"]).train.schedule, Schedule::Wsd);
    assert_eq!(get(&["train.betas=0.8,0.9"]).train.betas, [0.8, 0.9]);
    assert_eq!(get(&["data.lengths=16k,64k,128k"]).data.lengths, [16384, 65536, 131_072]);
    assert_eq!(get(&["data.lengths=[1, \"2k\"]"]).data.lengths, [1, 2048]);
    assert_eq!(get(&["data.lengths="]).data.lengths, [] as [u64; 0]);
    assert_eq!(get(&["data.paths=a b.txt,c"]).data.paths.len(), 2);
    assert_eq!(get(&["name=a=b"]).name, "a=b");
    assert_eq!(get(&["name=\"x y\""]).name, "x y");
    assert_eq!(get(&["data.weights.my.txt=3"]).data.weights["my.txt"], 3.0);
    assert_eq!(get(&["stage.0.tokens=2k", "stage.1.tokens=4k", "stage.1.type=yarn"]).stage[1].r#type, "yarn");
    assert_eq!(get(&["stage=[{tokens = 7}, {}]"]).stage[0].tokens, 7);
    assert_eq!(get(&["checkpoint.every=5"]).checkpoint, Some(Checkpoint { every: 5, keep: 2 }));
    assert_eq!(get(&["checkpoint.every=5", "checkpoint=none"]).checkpoint, None);
    assert_eq!(get(&["train={lr = 1, steps = \"2k\"}"]).train.steps, 2048);
}

#[test]
fn resolved_text_loads_to_the_same_values_and_shows_sources() {
    let recipe =
        load(layers().recipe("long").sets(&["train.clip=none", "data.weights.x-y=1", "name=it's \"q\""]));
    let again = load(layers().text("saved", recipe.text()));
    assert_eq!(again.value, recipe.value, "{}", recipe.text());
    assert!(diff(recipe.rows(), again.rows()).is_empty());
    assert!(recipe.text().contains("lr = 0.001"), "{}", recipe.text());
    assert!(recipe.text().contains("# recipe base, line 3"), "{}", recipe.text());
    assert!(recipe.text().contains("\n[[stage]]\n"));
    let paths: Vec<&str> = recipe.rows().iter().map(|row| row.path.as_str()).collect();
    assert_eq!(paths[..4], ["name", "train.lr", "train.steps", "train.schedule"]);
    let differences = diff(load(layers()).rows(), recipe.rows());
    assert!(
        differences.iter().any(|d| d.to_string() == "train.steps: 100 (default) -> 20 (recipe long, line 3)")
    );
}

#[test]
fn keys_are_listed_with_their_documentation() {
    let keys = keys::<Run>();
    let lr = keys.iter().find(|key| key.path == "train.lr").unwrap();
    assert_eq!((lr.doc.as_str(), lr.default.as_str()), ("Peak learning rate.", "0.0003"));
    let clip = keys.iter().find(|key| key.path == "train.clip").unwrap();
    assert_eq!(clip.expected, "a number, or none");
    assert!(keys.iter().any(|key| key.path == "stage.*.type"));
    assert!(keys.iter().any(|key| key.path == "data.weights.*"));
    assert_eq!(keys.iter().find(|key| key.path == "checkpoint.every").unwrap().default, "50");
}

fn refused(layers: Layers<'_>, message: &str) {
    let error = Loaded::<Run>::load(layers).map(|r| r.value).expect_err(message);
    assert_eq!(error.to_string(), message);
}

#[test]
fn mistakes_in_files_name_line_key_and_remedy() {
    let file = |text: &str, message: &str| refused(layers().text("r", text), message);
    file("[train]\n\nlrr = 1\n", "recipe r, line 3: unknown key `train.lrr`; did you mean `train.lr`?");
    file("lr = 1", "recipe r, line 1: unknown key `lr`; did you mean `train.lr`?");
    file(
        "[train]\nzzzzzz = 1",
        "recipe r, line 2: unknown key `train.zzzzzz`; `train` has: lr, steps, schedule, clip, betas",
    );
    file("[trian]\nlr = 1", "recipe r, line 1: unknown key `trian`; did you mean `train`?");
    file("[train]\nlr = 'fast'", "recipe r, line 2: `train.lr` should be a number, found the text \"fast\"");
    file(
        "[train]\nlr = '3e-4'",
        "recipe r, line 2: `train.lr` should be a number, found the text \"3e-4\"; write 3e-4 without quotes",
    );
    file(
        "[train]\nsteps = 1.5",
        "recipe r, line 2: `train.steps` should be a whole number, found the number 1.5",
    );
    file(
        "[train]\nschedule = 'cosin'",
        "recipe r, line 2: `train.schedule` should be one of cosine, linear, wsd, found the text \"cosin\"; \
         did you mean `cosine`?",
    );
    file("train = 3", "recipe r, line 1: `train` should be a table, found the whole number 3");
    file(
        "[stage]\ntokens = 1",
        "recipe r, line 1: `stage` should be an array of tables (write [[...]] headers), found a table",
    );
    file(
        "[[stage]]\ntokens = 1\n[[stage]]\ntoken = 1",
        "recipe r, line 4: unknown key `stage.1.token`; did you mean `stage.1.tokens`?",
    );
    file(
        "extends = 'loop-a'",
        "recipes extend each other in a circle: r -> loop-a -> loop-b -> loop-a; \
         remove one `extends`",
    );
    file(
        "extends = 'bas'",
        "recipe r, line 1: no recipe is called `bas`; did you mean `base`? (a file's name ends in .toml)",
    );
    file(
        "[data]\npaths = 'x'",
        "recipe r, line 2: `data.paths` should be a list of texts, found the text \"x\"",
    );
    let error = Loaded::<Run>::load(layers().text("r", "[train]\nlr = = 3")).map(|r| r.value).unwrap_err();
    assert!(error.to_string().starts_with("recipe r, line 2: not valid TOML"), "{error}");
    assert!(error.to_string().ends_with("\n  lr = = 3\n       ^"), "{error}");
    let error = Loaded::<Run>::load(layers().recipe("no/such.toml")).map(|r| r.value).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("no/such.toml"), "{error}");
}

#[test]
fn whole_numbers_may_be_sizes() {
    let steps = |text: &str| {
        Loaded::<Run>::load(layers().set(&format!("train.steps={text}"))).map(|r| r.value.train.steps)
    };
    assert_eq!(steps("4MiB").unwrap(), 4 << 20);
    assert_eq!(
        (steps("2 KB").unwrap(), steps("512B").unwrap(), steps("16k").unwrap()),
        (2000, 512, 16 << 10)
    );
    assert!(steps("1.5").is_err() && steps("b").is_err() && steps("4MiBs").is_err());
}

#[test]
fn mistakes_in_settings_name_the_setting() {
    let set = |text: &str, message: &str| refused(layers().set(text), message);
    set("train.lrr=0.1", "command line, `train.lrr=0.1`: unknown key `train.lrr`; did you mean `train.lr`?");
    set("train.lr=x", "command line, `train.lr=x`: `train.lr` should be a number, found `x`");
    set(
        "train.steps=abc",
        "command line, `train.steps=abc`: `train.steps` should be a whole number, found `abc`: `abc` is not a \
         whole number (write 2048, 16k or 1m; k is 1024)",
    );
    set(
        "train.steps=-1",
        "command line, `train.steps=-1`: `train.steps` should be a whole number, found `-1`: invalid value: \
         integer `-1`, expected u64",
    );
    set(
        "train.lr",
        "command line: `train.lr` is not a setting; write `path.to.key=value`, for example `optimizer.lr=3e-4`",
    );
    set(
        "train.lr.x=1",
        "command line, `train.lr.x=1`: unknown key `train.lr.x`; `train.lr` holds a value; set it whole: \
         train.lr=VALUE",
    );
    set(
        "stage.7.tokens=1",
        "command line, `stage.7.tokens=1`: unknown key `stage.7`; `stage` has 1 elements, numbered from 0; \
         stage.1.tokens=... adds one",
    );
    set(
        "stage.1.rope.factor=2",
        "command line, `stage.1.rope.factor=2`: unknown key `stage.1`; `stage` has 1 elements, numbered from 0; \
         stage.1.tokens=... adds one",
    );
    set(
        "train=fast",
        "command line, `train=fast`: `train` should be a table, found `fast`; name a key of it: train.KEY=VALUE",
    );
    refused(
        layers().recipe("lng"),
        "command line: no recipe is called `lng`; did you mean `long`? (a file's name ends in .toml)",
    );
    let recipe = load(layers().set("train.lr=9"));
    assert_eq!(recipe.refuse("train.lr", "too large").to_string(), "command line: `train.lr`: too large");
    // A path keeps the form in which it was typed, such as an element's name; a path that was not typed keeps its
    // index.
    let stages = "[[stage]]\ntype = 'yarn'\n[[stage]]\ntokens = '4k'\n";
    let recipe = load(layers().text("r", stages).set("stage.yarn.tokens=1k").set("stage.1.type=plain"));
    let key = |path: &str| recipe.typed(path).map(str::to_owned);
    assert_eq!(key("stage.0.tokens").as_deref(), Some("stage.yarn.tokens"));
    assert_eq!(key("stage.1.type").as_deref(), Some("stage.1.type"));
    assert_eq!((key("stage.0.type"), key("stage.1.tokens")), (None, None));
    assert_eq!(
        recipe.refuse("stage.0.tokens", "too few").to_string(),
        "command line: `stage.yarn.tokens`: too few"
    );
    let recipe = load(layers().text("r", stages).set("stage.1.type=plain"));
    assert_eq!(
        recipe.refuse("stage.1.tokens", "too few").to_string(),
        "recipe r, line 4: `stage.1.tokens`: too few"
    );
}

/// A device has no end, and a file of a gigabyte is not a recipe.
#[test]
fn what_is_no_file_of_a_recipe_s_size_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |base: &str, message: &str| {
        let path = folder.path().join("own.toml");
        std::fs::write(&path, format!("extends = \"{base}\"\n")).unwrap();
        let error = Loaded::<Run>::load(layers().file(&path)).unwrap_err().to_string();
        assert!(error.contains(base) && error.contains(message), "{error}");
    };
    refused("/dev/zero", "not a regular file");
    let long = folder.path().join("long.toml");
    std::fs::File::create(&long).unwrap().set_len(1 << 30).unwrap();
    refused(&long.display().to_string(), "longer than 16.0 MiB");
}

#[test]
fn any_bytes_are_survived() {
    let seeds: [&[u8]; 8] = [
        b"stage.1.tokens=4k\n[inner]\ntokens = '1k'\nnote = \"a\\nb\"\n",
        b"weights.\xc3\xa9=1\nname = '''x\ny'''\n[weights]\n\"a\\\"b\\u0007\" = inf\n",
        b"maybe=none\n[maybe]\ntokens = 3\n",
        b"name=\"\\u0000\"\nrate = 'none'\nstage = []\n",
        b"rate=nan\nrate = -0.0\nsizes = [0x10, 1_000]\n",
        b"a.b.c=[[[[\n[[[",
        b"colour=gren\n",
        b"\xff\xfe",
    ];
    for seed in seeds {
        fuzz_recipe(seed);
        // Every prefix and every single-byte change of a few kinds.
        for i in 0..seed.len() {
            fuzz_recipe(&seed[..i]);
            for byte in [b'"', b'\n', b'.', b'=', 0, b'[', b'9'] {
                let mut changed = seed.to_vec();
                changed[i] = byte;
                fuzz_recipe(&changed);
            }
        }
    }
}
