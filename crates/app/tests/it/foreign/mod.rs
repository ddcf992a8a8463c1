//! Translation of other tools' files, on their own examples.

mod preferences;
mod rewards;
mod tools;

use fathom_app::foreign::{METHODS, Tool, Translation, translate, translate_as};
use fathom_app::library::{LIBRARY, resolve};
use fathom_base::recipe::Layers;

fn says(text: &str) -> (Translation, toml_edit::DocumentMut) {
    let translated = translate(text).unwrap();
    let recipe = translated.recipe.parse().unwrap();
    (translated, recipe)
}

fn unsaid(translated: &Translation) -> Vec<&str> {
    translated.unsaid.iter().map(|(key, _)| key.as_str()).collect()
}

#[test]
fn an_axolotl_file_of_qlora() {
    let (translated, recipe) = says(
        "base_model: models/llama
load_in_4bit: true
strict: false
datasets:
  - path: rows.jsonl
    type: chat_template
    field_messages: talk
    message_property_mappings: {role: who, content: what}
val_set_size: 0.05
output_dir: ./outputs/qlora-out
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 4096
sample_packing: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
weight_decay: 0.0
special_tokens:
  pad_token: <|end_of_text|>
",
    );
    assert_eq!((translated.tool, translated.base), (Tool::Axolotl, "qlora"));
    assert_eq!(unsaid(&translated), ["optimizer", "special_tokens.pad_token"]);
    assert_eq!(recipe["model"]["quantization"].as_str(), Some("nf4"));
    assert_eq!(recipe["model"]["from"].as_str(), Some("models/llama"));
    assert_eq!(recipe["adapter"]["rank"].as_integer(), Some(32));
    assert_eq!(recipe["adapter"]["alpha"].as_float(), Some(16.0));
    assert_eq!(recipe["adapter"]["dropout"].as_float(), Some(0.05));
    assert_eq!(recipe["optimizer"]["lr"].as_float(), Some(2e-4));
    assert_eq!(recipe["stage"][0]["seq_tokens"].as_integer(), Some(4096));
    assert_eq!(recipe["stage"][0]["micro_batches"].as_integer(), Some(8));
    assert_eq!(recipe["stage"][0]["packing"].as_str(), Some("best_fit"));
    assert_eq!(recipe["stage"][0]["epochs"].as_integer(), Some(4));
    assert_eq!(recipe["data"]["columns"]["role"].as_str(), Some("who"));
    assert_eq!(recipe["data"]["paths"][0].as_str(), Some("rows.jsonl"));
}

/// Settings of another method are listed as untranslated, and so are those of entries in a list of data sets.
#[test]
fn switches_of_two_methods_and_settings_of_one_file() {
    let (translated, recipe) = says(
        "base_model: models/llama
datasets:
  - {path: rows.jsonl, type: chat_template, roles_to_train: [user, assistant], train_on_eos: none}
  - {path: text.jsonl, type: completion, field: text}
  - {path: more.jsonl, type: chat_template, roles_to_train: [assistant], train_on_eos: turn}
adapter: lora
lora_r: 16
peft_use_dora: true
peft_use_rslora: true
sequence_len: 256
",
    );
    assert_eq!(recipe["adapter"]["method"].as_str().or(Some("dora")), Some("dora"));
    assert_eq!(
        unsaid(&translated),
        ["datasets.0.roles_to_train", "datasets.0.train_on_eos", "datasets.1.type", "peft_use_rslora"]
    );
    let (translated, recipe) = says(
        "model_name_or_path: models/llama
dataset_name: rows.jsonl
use_peft: true
use_rslora: true
lora_r: 8
max_length: 256
packing: true
packing_strategy: wrapped
per_device_train_batch_size: 2
",
    );
    assert_eq!(unsaid(&translated), [] as [&str; 0]);
    assert_eq!(recipe["stage"][0]["packing"].as_str(), Some("cut"));
}

#[test]
fn a_llama_factory_file_of_dpo() {
    let (translated, recipe) = says(
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
pref_beta: 0.1
pref_loss: sigmoid
dataset: dpo_en_demo
template: llama3
cutoff_len: 2048
output_dir: saves/llama3-8b/lora/dpo
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
",
    );
    assert_eq!((translated.tool, translated.base), (Tool::LlamaFactory, "dpo"));
    assert_eq!(unsaid(&translated), ["dataset", "template"]);
    assert_eq!(at(&recipe, "schedule.warmup_share"), "0.1");
    assert_eq!(recipe["adapter"]["method"].as_str(), Some("lora"));
    assert_eq!(recipe["adapter"]["targets"].as_str(), Some("all-linear"));
    assert_eq!(recipe["objective"]["loss"].as_str(), Some("sigmoid"));
    assert_eq!(recipe["schedule"]["decay"].as_str(), Some("cosine"));
}

#[test]
fn a_torchtune_file_and_one_of_trl() {
    let (translated, recipe) = says(
        "output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
  lora_dropout: 0.0
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: null
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Meta-Llama
  checkpoint_files: [a, b]
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False
seed: 3
batch_size: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
epochs: 1
max_steps_per_epoch: 50
enable_activation_checkpointing: False
dtype: bf16
",
    );
    assert_eq!((translated.tool, translated.base), (Tool::Torchtune, "lora"));
    assert_eq!(unsaid(&translated), ["dataset._component_", "tokenizer.max_seq_len"]);
    assert_eq!(recipe["data"]["truncation"].as_str(), Some("error"));
    let targets: Vec<&str> =
        recipe["adapter"]["targets"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    assert_eq!(targets, ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
    assert_eq!(recipe["schedule"]["decay"].as_str(), Some("cosine"));
    assert_eq!(recipe["optimizer"]["clip"].as_str(), Some("none"));
    assert_eq!(recipe["schedule"]["warmup_steps"].as_integer(), Some(100));
    assert_eq!(recipe["stage"][0]["steps"].as_integer(), Some(50));
    assert!(recipe["stage"][0].get("epochs").is_none());
    let (translated, recipe) = says(
        "model_name_or_path: m\nmax_length: 1024\nper_device_train_batch_size: 8\nmax_steps: 200\nwarmup_ratio: 0.05\nuse_peft: false\nmade_up: 3\n",
    );
    assert_eq!((translated.tool, translated.base), (Tool::Trl, "sft"));
    assert_eq!(unsaid(&translated), ["made_up"]);
    assert_eq!(at(&recipe, "schedule.warmup_share"), "0.05");
    assert_eq!(recipe["stage"][0]["packing"].as_str(), Some("single"));
}

#[test]
fn warm_up_is_that_of_the_tool() {
    let trl = "model_name_or_path: m\nper_device_train_batch_size: 8\n";
    let axolotl = "base_model: m\nmicro_batch_size: 2\n";
    let share = |value: &str| Some(("schedule.warmup_share".to_string(), value.to_string()));
    let steps = |value: &str| Some(("schedule.warmup_steps".to_string(), value.to_string()));
    for (start, rest, said) in [
        (trl, "num_train_epochs: 2\nwarmup_ratio: 0.03", share("0.03")),
        (trl, "max_steps: 200\nwarmup_steps: 0.03", share("0.03")),
        // A number of steps has precedence over a share.
        (trl, "max_steps: 200\nwarmup_steps: 7\nwarmup_ratio: 0.03", steps("7")),
        (trl, "max_steps: 200\nwarmup_steps: 0\nwarmup_ratio: 0.03", share("0.03")),
        (trl, "num_generations: 4\nwarmup_ratio: 0.1", share("0.1")),
        (trl, "max_steps: 200", None),
        // axolotl rounds a share down, so it becomes a number of steps if the total is known.
        (axolotl, "max_steps: 199\nwarmup_ratio: 0.1", steps("19")),
        (axolotl, "max_steps: 199\nwarmup_ratio: 0.01", steps("2")),
        (axolotl, "num_epochs: 2\nwarmup_ratio: 0.1", share("0.1")),
        (axolotl, "max_steps: 200\nwarmup_steps: 0\nwarmup_ratio: 0.1", steps("0")),
        // The default is some warm-up.
        (axolotl, "max_steps: 200", steps("6")),
        (axolotl, "max_steps: 9000", steps("100")),
        (axolotl, "num_epochs: 2", share("0.03")),
    ] {
        let (translated, recipe) = says(&format!("{start}{rest}\n"));
        assert!(
            !unsaid(&translated).iter().any(|key| key.contains("warmup")),
            "{rest}: {:?}",
            translated.unsaid
        );
        match said {
            Some((path, value)) => assert_eq!(at(&recipe, &path), value, "{rest}"),
            None => assert!(recipe["schedule"].get("warmup_share").is_none(), "{rest}"),
        }
        let settings = ["model.from=m", "data.paths=r.jsonl", "rl.reward=r.toml"];
        let loaded =
            resolve(Layers::with_library(LIBRARY).text("translated", &translated.recipe).sets(&settings))
                .unwrap();
        fathom_train::check(&loaded).unwrap();
    }
    let (translated, _) = says(&format!("{trl}max_steps: 200\nwarmup_ratio: 1.0\n"));
    assert_eq!(unsaid(&translated), ["warmup_ratio"]);
}

/// A method given by name has precedence over what the keys suggest.
#[test]
fn a_method_by_name() {
    let named = |text: &str, method: &str| translate_as(text, method).unwrap();
    let beta = "model_name_or_path: m\nbeta: 0.2\nmax_steps: 9\n";
    assert_eq!(translate(beta).unwrap().base, "dpo");
    for (method, base, path, value) in [
        ("kto", "kto", "objective.beta", "0.2"),
        ("orpo", "orpo", "objective.beta", "0.2"),
        ("cpo", "dpo", "objective.method", "\"cpo\""),
        ("distill", "distill", "objective.jsd_beta", "0.2"),
        ("grpo", "grpo", "rl.beta", "0.2"),
        ("rloo", "rloo", "rl.beta", "0.2"),
        ("prm", "reward", "objective.loss", "\"process\""),
        ("text", "sft", "data.format", "\"text\""),
    ] {
        let translated = named(beta, method);
        let recipe = translated.recipe.parse().unwrap();
        assert_eq!((translated.base, at(&recipe, path).as_str()), (base, value), "{method}");
    }
    // A key of the other method is listed as untranslated.
    let axolotl = named(
        "base_model: m\nmicro_batch_size: 8\nrl: dpo\nrl_beta: 0.3\nsimpo_gamma: 0.5\nmax_steps: 3\n",
        "grpo",
    );
    assert_eq!((axolotl.base, unsaid(&axolotl)), ("grpo", vec!["simpo_gamma"]));
    let error = translate_as(beta, "dppo").unwrap_err().to_string();
    assert!(error.contains("`dppo`") && METHODS.iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn what_is_none_of_them_is_refused() {
    for (text, why) in
        [("a: [", "no YAML"), ("- a", "no mapping"), ("x: 1", "has no key by which"), ("", "documents")]
    {
        let error = translate(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// Returns the TOML of a value in a recipe, by path.
fn at(recipe: &toml_edit::DocumentMut, path: &str) -> String {
    let mut item = recipe.as_item();
    for part in path.split('.') {
        let inner = match part.parse::<usize>() {
            Ok(index) => item.get(index),
            Err(_) => item.get(part),
        };
        item = inner.unwrap_or_else(|| panic!("{path} is not said:\n{recipe}"));
    }
    item.to_string().trim().to_string()
}

/// File, base recipe, expected values by path, and the keys that are listed as untranslated.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

fn cases(cases: &[Case<'_>]) {
    for (text, base, values, left) in cases {
        let (translated, recipe) = says(text);
        assert_eq!(translated.base, *base, "{text}");
        for (path, value) in *values {
            assert_eq!(at(&recipe, path), *value, "{path} of\n{text}");
        }
        assert_eq!(unsaid(&translated), *left, "{text}: {:?}", translated.unsaid);
    }
}

/// A file with its lines reversed gives the same translation.
#[test]
fn the_order_of_keys_does_not_matter() {
    let files = [
        "model_name_or_path: m\nloss_type: dr_grpo\nbeta: 0.04\nnum_generations: 4\nscale_rewards: false\nmax_steps: 5\n",
        "model_name_or_path: m\nloss_type: kto\nbeta: 0.2\nuse_peft: true\nlora_r: 4\nwarmup_ratio: 0.1\nmax_steps: 100\n",
        "base_model: m\nrl: ipo\nrl_beta: 0.3\nadapter: qlora\nlora_r: 4\nload_in_4bit: true\nlora_target_linear: true\n",
        "model_name_or_path: m\nstage: ppo\nppo_buffer_size: 2\ngradient_accumulation_steps: 4\nper_device_train_batch_size: 2\nmax_steps: 9\n",
    ];
    for file in files {
        let lines: Vec<&str> = file.lines().rev().collect();
        assert_eq!(translate(file).unwrap().recipe, translate(&lines.join("\n")).unwrap().recipe, "{file}");
    }
}

/// YAML readers in Python allow a closing bracket at any column.
#[test]
fn brackets_close_where_python_lets_them() {
    let (_, recipe) = says(
        "base_model: m\nlora_r: 4\nadapter: lora\nlora_target_modules: [\n  q_proj, # [\n\n]\nmax_steps: 2\n",
    );
    assert_eq!(at(&recipe, "adapter.targets"), "[\"q_proj\"]");
}

#[test]
fn what_a_person_would_miss_is_named() {
    let keys = "use_tensorboard: true\nwandb_project: p\nhub_model_id: me/it\npush_to_hub: true\nresume_from_checkpoint: out/1\nreport_to: wandb\n";
    for start in
        ["base_model: m\nmicro_batch_size: 1\n", "model_name_or_path: m\nper_device_train_batch_size: 1\n"]
    {
        let (translated, _) = says(&format!("{start}{keys}"));
        let named = unsaid(&translated);
        for key in keys.lines().filter_map(|line| Some(line.split_once(':')?.0)) {
            assert!(named.contains(&key), "{key}: {named:?}");
        }
    }
    let (translated, _) =
        says("model_name_or_path: m\nper_device_train_batch_size: 1\nreport_to: none\npush_to_hub: false\n");
    assert!(unsaid(&translated).is_empty(), "{:?}", unsaid(&translated));
}
