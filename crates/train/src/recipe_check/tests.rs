//! Values and relations that are refused, by key, and some that are not.

use fathom_base::recipe::Layers;

use super::*;

fn load(settings: &str) -> Loaded<Recipe> {
    let layers = Layers::new().text(
        "small",
        "data.paths = [\"text\"]\n[[stage]]\nsteps = 1\nblend = [{ source = \"text\" }]\nlength_weights = [{ min_tokens = 8 }]\n",
    );
    let settings: Vec<&str> = settings.split_whitespace().collect();
    Loaded::load(layers.sets(&settings)).unwrap()
}

#[test]
fn every_number_has_a_range() {
    for key in keys::<Recipe>() {
        assert_eq!(key.expected.contains("number"), key.allowed.is_some(), "{}", key.path);
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_key() {
    let cases = "optimizer.lr=-1 optimizer.lr=nan optimizer.lr=inf optimizer.clip=-1 optimizer.clip=0 optimizer.beta2=1 \
        stage.0.micro_batches=0 stage.0.steps=0 stage.0.rope_factor=0 stage.0.rope_factor=-1 stage.0.rope_theta=0 \
        stage.0.samples_per_micro_batch=0 stage.0.max_docs=0 stage.0.max_docs=1000000000 stage.0.seq_tokens=1 \
        stage.0.seq_tokens=1000000000 stage.0.blend.0.weight=0 stage.0.length_weights.0.weight=-1 stages=0 stages=100000000000000 stages=1k,0 \
        activations.head_groups=0 activations.head_groups=7 activations.offload_fraction=0 \
        run.minutes=0 run.minutes=-1 run.minutes=nan checkpoint.every_steps=0 checkpoint.every_s=-1 \
        model.init_std=nan model.rope_theta=0 model.rope_theta=-1 model.layers=0 model.layers=1000000000 \
        model.kv_heads=3 model.kv_heads=0 model.head_dim=0 model.head_dim=7 model.hidden=0 model.kv_latent=0 \
        model.heads=0 model.vocab=0 model.vocab=1 model.vocab=256 model.from= moe.ffn=0 moe.dense_layers=9 \
        moe.capacity_factor=0 mesh.virtual_stages=0 mesh.cp=0 mesh.dp=0 mesh.pp=0 mesh.ep=0 mesh.etp=0 mesh.tp=0 \
        mesh.timeout_s=0 schedule.warmup_share=1 schedule.warmup_share=-0.1 data.held_out_share=1 data.recall_share=-1 data.max_bytes=0 data.tokenizer_bytes=0";
    for case in cases.split_whitespace() {
        let (key, _) = case.split_once('=').unwrap();
        let error = check(&load(case)).expect_err(case).to_string();
        assert!(error.contains(&format!("`{key}`")) && error.contains("command line"), "{case}: {error}");
    }
}

#[test]
fn relations_name_the_key_that_does_not_fit() {
    for (settings, key) in [
        ("model.heads=3", "model.kv_heads"),
        ("model.head_dim=12", "model.head_dim"),
        ("stage.0.seq_tokens=1m stage.0.samples_per_micro_batch=64", "stage.0.samples_per_micro_batch"),
        ("stage.0.seq_tokens=16m model.heads=512", "stage.0.seq_tokens"),
        ("mesh.pp=65536 mesh.tp=65536", "mesh.dp"),
        ("run.minutes=1 stage.0.minutes_share=0", "stage.0.minutes_share"),
        ("checkpoint.local=/tmp", "checkpoint.local"),
        ("schedule.warmup_steps=10 schedule.warmup_share=0.1", "schedule.warmup_share"),
        ("adapter.method=prompt adapter.rank=4", "adapter.rank"),
        ("adapter.method=prompt adapter.targets=all-linear", "adapter.targets"),
        ("adapter.method=prefix adapter.encoder_hidden_size=8", "adapter.encoder_hidden_size"),
        ("adapter.method=lora adapter.virtual_tokens=8", "adapter.virtual_tokens"),
        ("adapter.method=dora adapter.dropout=0.1", "adapter.dropout"),
        ("adapter.method=lora adapter.dropout=1", "adapter.dropout"),
        ("adapter.method=lora adapter.dropout=0.1 mesh.tp=2", "mesh.sequence_parallel"),
        ("adapter.method=ia3 adapter.token_rows=[3]", "adapter.token_rows"),
        ("adapter.method=prefix mesh.tp=2", "mesh.tp"),
        ("adapter.method=prompt mesh.tp=2", "mesh.sequence_parallel"),
        ("adapter.method=p_tuning objective.method=dft", "objective.method"),
        ("adapter.method=prompt model.trained=[\"norm\"]", "model.trained"),
        ("precision.qat=mxfp4 model.precision=f32", "model.precision"),
        ("precision.qat=int4 optimizer.master_weights=false", "optimizer.master_weights"),
        ("precision.qat=nvfp4 adapter.method=lora", "adapter.method"),
        ("precision.qat=mxfp4 model.trained=[\"norm\"]", "model.trained"),
        ("adapter.method=prompt stage.0.masked=false", "stage.0.masked"),
        ("adapter.method=prompt stage.0.masked=true stage.0.seq_tokens=21", "stage.0.seq_tokens"),
    ] {
        let error = check(&load(settings)).expect_err(settings).to_string();
        assert!(error.contains(&format!("`{key}`")), "{settings}: {error}");
    }
}

#[test]
fn what_can_be_is_not_refused() {
    for settings in [
        "",
        "optimizer.lr=1e30 optimizer.clip=none checkpoint.every_s=none stage.0.seq_tokens=1m",
        "model.family=deepseek_v3 model.heads=3 moe.dense_layers=6",
        "model.from=out model.heads=3 activations.head_groups=3",
    ] {
        check(&load(settings)).unwrap();
    }
}

#[test]
fn something_names_the_text() {
    let good = [
        "",
        "data.paths=cargo:",
        "data.paths=[] data.curate=books",
        "data.paths=[] stage.0.blend.0.source=store/train",
    ];
    good.into_iter().for_each(|settings| check_training(&load(settings)).unwrap());
    for bad in ["data.paths=[]", "data.paths=[] data.curate=none", "data.paths=cargo:,text"] {
        check(&load(bad)).unwrap();
        let error = check_training(&load(bad)).unwrap_err().to_string();
        assert!(error.contains("`data.paths`") && error.contains("cargo:"), "{error}");
    }
}

#[test]
fn a_stage_has_an_end() {
    check_training(&load("")).unwrap();
    check_training(&load("stage.0.steps=none run.minutes=1")).unwrap();
    let error = check_training(&load("stage.0.steps=none")).unwrap_err().to_string();
    assert!(error.contains("stage.0.steps") && error.contains("run.minutes"), "{error}");
}

#[test]
fn a_model_from_nothing_is_not_extended_at_once() {
    for set in ["rope_type=yarn", "rope_theta=40000"] {
        let error = check_training(&load(&format!("stage.0.{set}"))).unwrap_err().to_string();
        let key = set.split('=').next().unwrap();
        assert!(error.contains(&format!("`stage.0.{key}`")) && error.contains("model.from"), "{error}");
        check_training(&load(&format!("stage.0.{set} model.from=out"))).unwrap();
    }
    check_training(&load("stage.0.rope_type=default")).unwrap();
    let stretched = |tokens: &[usize]| {
        let mut loaded = load("stage.0.rope_type=yarn");
        let stage = loaded.value.stage[0].clone();
        let stages = tokens.iter().map(|tokens| Stage { seq_tokens: *tokens, ..stage.clone() });
        loaded.value.stage = stages.collect();
        check_training(&loaded)
    };
    stretched(&[16 << 10, 64 << 10]).unwrap();
    assert!(stretched(&[64 << 10]).is_err());
}
