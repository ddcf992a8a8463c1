//! Configurations: both spellings are equivalent, written ones are read back, unknown keys are refused.

use std::path::Path;

use fathom_model::{FAMILIES, Family, Residual, RopeScaling, Spec};
use serde_json::{Map, Value, json};

use crate::golden_files::{cases, name, object, root};
use crate::{encoder_decoders, retrieval};

fn read(map: &Map<String, Value>) -> fathom_model::Result<Spec> {
    Family::read(Path::new("config.json"), map)
}

#[test]
fn old_and_new_spellings_mean_the_same() {
    let mut compared = 0;
    for case in cases() {
        let old = case.join("config_v4.json");
        if old.is_file() {
            let [old, new] = [old, case.join("config.json")].map(|file| read(&object(&file)).unwrap());
            assert_eq!(old, new, "{}", name(&case));
            compared += 1;
        }
    }
    assert!(compared >= 20);
}

#[test]
fn what_is_written_is_read_back() {
    let mut families = std::collections::BTreeSet::new();
    // LFM2 with experts has no golden folder.
    let alone = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs/lfm2_moe.json");
    let folders = cases().into_iter().chain(encoder_decoders::cases()).chain(retrieval::cases());
    for file in folders.map(|case| case.join("config.json")).chain([alone]) {
        let spec = read(&object(&file)).unwrap();
        let written = Family::write(Path::new("out/config.json"), &spec).unwrap();
        assert_eq!(read(&written).unwrap(), spec, "{}: {written:?}", file.display());
        families.insert(spec.family.model_type);
    }
    assert_eq!(families.len(), FAMILIES.len());
}

#[test]
fn a_stretched_model_is_written_and_read_back() {
    let scalings = [
        RopeScaling::Linear { factor: 4.0 },
        RopeScaling::Dynamic { factor: 2.0 },
        RopeScaling::Yarn {
            factor: 16.0,
            original: Some(128),
            beta_fast: None,
            beta_slow: None,
            attention_factor: Some(1.1),
            mscale: None,
            mscale_all_dim: None,
            truncate: Some(false),
        },
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 128 },
    ];
    for case in ["llama2", "qwen3", "mistral", "gemma3", "smollm3", "gpt_neox"] {
        let mut spec = read(&object(&root().join(case).join("config.json"))).unwrap();
        for scaling in &scalings {
            spec.max_positions = 2048;
            spec.ropes.iter_mut().for_each(|rope| rope.max_positions = 2048);
            spec.ropes[0].scaling = scaling.clone();
            spec.ropes[0].theta = 2e6;
            let written = Family::write(Path::new("config.json"), &spec).unwrap();
            assert_eq!(read(&written).unwrap(), spec, "{case}");
        }
    }
}

#[test]
fn a_family_refuses_what_it_cannot_express() {
    let mut spec = read(&object(&root().join("llama2/config.json"))).unwrap();
    spec.layers[0].set_window(Some(8));
    let message = Family::write(Path::new("config.json"), &spec).unwrap_err().to_string();
    assert!(message.contains("cannot express `") && !message.contains("Spec {"), "{message}");
    // Gemma's embeddings are scaled by the root of their width.
    let mut spec = read(&object(&root().join("gemma3/config.json"))).unwrap();
    spec.embed_scale += 1.0;
    let message = Family::write(Path::new("config.json"), &spec).unwrap_err().to_string();
    assert!(message.contains("`embed_scale: "), "{message}");
}

/// Sets keys of a golden configuration and expects an error that names `wanted`.
#[track_caller]
fn check_refused(case: &str, change: Value, wanted: &[&str]) {
    let mut map = object(&root().join(case).join("config.json"));
    map.extend(change.as_object().unwrap().clone());
    let message = read(&map).expect_err(&format!("{case} with {change}")).to_string();
    for part in wanted.iter().chain(&["config.json"]) {
        assert!(message.contains(part), "{case} with {change}: {message}");
    }
}

#[test]
fn unknown_and_unsupported_values_are_refused_by_name() {
    check_refused("llama2", json!({ "attention_sinks": 4 }), &["`attention_sinks`", "4", "llama"]);
    check_refused("llama2", json!({ "model_type": "lama" }), &["`model_type`", "lama", "llama"]);
    check_refused("llama2", json!({ "hidden_act": "mish" }), &["`hidden_act`", "mish", "silu"]);
    check_refused("llama2", json!({ "pretraining_tp": 2 }), &["`pretraining_tp`", "2"]);
    check_refused(
        "llama2",
        json!({ "quantization_config": { "bits": 4 } }),
        &["`quantization_config`", "bits"],
    );
    check_refused("llama2", json!({ "architectures": ["LlamaForTokenClassification"] }), &["Token"]);
    check_refused("llama2", json!({ "sliding_window": 8 }), &["`sliding_window`"]);
    check_refused("llama2", json!({ "hidden_size": "32" }), &["`hidden_size`", "\"32\""]);
    check_refused("llama2", json!({ "hidden_size": null }), &["`hidden_size`", "missing"]);
    check_refused("llama2", json!({ "hidden_size": 0 }), &["`hidden_size`"]);
    check_refused("llama2", json!({ "num_hidden_layers": 1_u64 << 62 }), &["`num_hidden_layers`"]);
    check_refused("llama2", json!({ "num_key_value_heads": 3 }), &["`num_key_value_heads`", "3"]);
    check_refused("llama2", json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }), &["disagree"]);
    check_refused("mistral", json!({ "sliding_window": 0 }), &["`sliding_window`"]);
    check_refused("qwen2", json!({ "attention_bias": true }), &["`attention_bias`"]);
    check_refused("qwen2", json!({ "layer_types": ["full_attention"] }), &["`layer_types`", "1"]);
    check_refused("qwen2_window", json!({ "layer_types": ["x", "y"] }), &["`layer_types`", "\"x\""]);
    check_refused("gemma3", json!({ "use_bidirectional_attention": true }), &["bidirectional"]);
    check_refused("gemma2", json!({ "query_pre_attn_scalar": 0 }), &["query_pre_attn_scalar"]);
    check_refused("gpt2", json!({ "scale_attn_by_inverse_layer_idx": true }), &["inverse_layer_idx"]);
    check_refused("gpt2", json!({ "rope_theta": 1e4 }), &["`rope_theta`"]);
    check_refused("nemotron", json!({ "kv_channels": 8 }), &["`kv_channels`", "16"]);
    check_refused("phi3", json!({ "lm_head_bias": true }), &["`lm_head_bias`"]);
    check_refused("granite", json!({ "logits_scaling": 0.0 }), &["`logits_scaling`"]);
    check_refused("smollm3", json!({ "no_rope_layers": [1] }), &["`no_rope_layers`"]);
    check_refused("llama2", json!({ "head_dim": 520 }), &["`head_dim`", "520", "1 to 512"]);
    check_refused("gemma3", json!({ "attn_logit_softcapping": 5.0 }), &["`attn_logit_softcapping`"]);
    check_refused("deepseek_v2", json!({ "rope_interleave": false }), &["`rope_interleave`"]);
    check_refused("falcon_7b", json!({ "alibi": true }), &["`alibi`", "ALiBi", "rotary"]);
    check_refused("falcon_7b", json!({ "num_ln_in_parallel_attn": 2 }), &["`num_ln_in_parallel_attn`"]);
    check_refused("falcon_7b", json!({ "multi_query": false, "num_kv_heads": 2 }), &["`num_kv_heads`", "4"]);
    check_refused("falcon_40b", json!({ "num_ln_in_parallel_attn": 3 }), &["`num_ln_in_parallel_attn`", "3"]);
    check_refused("falcon_40b", json!({ "parallel_attn": false }), &["`parallel_attn`"]);
    check_refused("falcon_40b", json!({ "num_kv_heads": 3 }), &["`num_kv_heads`", "3"]);
    check_refused("falcon_40b", json!({ "ff_factor": 4 }), &["`ff_factor`", "48"]);
    check_refused("phi", json!({ "qk_layernorm": true }), &["`qk_layernorm`"]);
    let attention = |key: &str, value: Value| json!({ "attn_config": { key: value } });
    check_refused("mpt", attention("clip_qkv", json!(6)), &["`attn_config.clip_qkv`", "6", "null"]);
    check_refused("mpt", attention("alibi", json!(false)), &["`attn_config.alibi`"]);
    check_refused("mpt", attention("alibi_bias_max", json!(4)), &["`attn_config.alibi_bias_max`", "8"]);
    check_refused("mpt", attention("softmax_scale", json!(-1)), &["`attn_config.softmax_scale`"]);
    check_refused("mpt", attention("kv_n_heads", json!(2)), &["`attn_config.kv_n_heads`", "not known"]);
    check_refused("mpt", json!({ "attn_config": 1 }), &["`attn_config`", "object"]);
    check_refused("mpt", json!({ "expansion_ratio": 2 }), &["`expansion_ratio`"]);
    check_refused("mpt", json!({ "n_heads": 5 }), &["`n_heads`", "32"]);
    check_refused("bloom", json!({ "n_head": 5 }), &["`n_head`", "32"]);
    let after = json!({ "apply_residual_connection_post_layernorm": true });
    check_refused("bloom", after, &["`apply_residual_connection_post_layernorm`"]);
    check_refused("cohere2", json!({ "use_parallel_block": false }), &["`use_parallel_block`"]);
    check_refused("cohere2", json!({ "position_embedding_type": "alibi" }), &["`position_embedding_type`"]);
    check_refused("cohere2", json!({ "head_dim": 16 }), &["`head_dim`", "16"]);
    check_refused("cohere2", json!({ "logit_scale": 0 }), &["`logit_scale`"]);
    check_refused("glm4", json!({ "attention_out_bias": true }), &["`attention_out_bias`"]);
    // Multimodal models.
    let multimodal = "gemma3_multimodal";
    check_refused(multimodal, json!({ "text_config": null }), &["`text_config`"]);
    check_refused(
        multimodal,
        json!({ "text_config": { "model_type": "llama" } }),
        &["`text_config.model_type`"],
    );
    check_refused(multimodal, json!({ "text_config": { "hidden_act2": 1 } }), &["`text_config.hidden_act2`"]);
    check_refused(multimodal, json!({ "audio_config": {} }), &["`audio_config`", "gemma3"]);
    check_refused(
        multimodal,
        json!({ "architectures": ["Gemma3Model"] }),
        &["`architectures`", "Gemma3Model"],
    );
}

#[test]
fn unsupported_rotary_settings_are_refused_by_name() {
    let rope = |map: Value| json!({ "rope_parameters": map });
    let refused = |map: Value, wanted: &[&str]| check_refused("llama2", rope(map), wanted);
    refused(json!({ "rope_type": "magic", "rope_theta": 1e4 }), &["rope_parameters", "magic", "yarn"]);
    refused(json!({ "rope_type": "linear" }), &["rope_parameters", "factor"]);
    refused(json!({ "rope_type": "linear", "factor": 0.0 }), &["rope_parameters", "out of range"]);
    refused(json!({ "rope_type": "linear", "factor": 2.0, "beta": 1.0 }), &["beta"]);
    refused(json!({ "rope_type": "default", "factor": 2.0 }), &["rope_parameters.factor"]);
    refused(json!({ "rope_type": "linear", "type": "yarn", "factor": 2.0 }), &["disagree"]);
    refused(json!({ "rope_theta": { "__float__": "Infinity" } }), &["rope_parameters.rope_theta"]);
    refused(json!({ "rope_type": "default", "partial_rotary_factor": 0.5 }), &["partial_rotary_factor"]);
    refused(json!("linear"), &["rope_parameters"]);
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0 });
    check_refused("phi3", rope(yarn), &["`rope_scaling`", "yarn", "longrope"]);
    let factors = json!({ "rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 2.0, 3.0] });
    check_refused("phi3", rope(factors), &["1 short", "3 long", "4 are needed"]);
    check_refused("gemma3", rope(json!({ "full_attention": {}, "other": {} })), &["rope_parameters.other"]);
    let band =
        json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0 });
    refused(band, &["out of range"]);
}

#[test]
fn what_is_left_out_is_what_transformers_takes() {
    let case = |case: &str, change: Value| {
        let mut map = object(&root().join(case).join("config.json"));
        map.extend(change.as_object().unwrap().clone());
        map.retain(|_, value| *value != json!("absent"));
        read(&map)
    };
    // The two versions of Transformers disagree on this one.
    for absent in [json!({ "rope_parameters": "absent" }), json!({ "rope_parameters": null })] {
        let message = case("gpt_oss", absent).unwrap_err().to_string();
        assert!(message.contains("`rope_scaling` is missing"), "{message}");
    }
    let scale = |name: &str| {
        let spec = case(name, json!({ "routed_scaling_factor": "absent" })).unwrap();
        spec.moe.unwrap().routing.scale
    };
    assert_eq!([scale("deepseek_v2"), scale("deepseek_v3")], [1.0, 2.5]);
    let types =
        json!({ "layer_types": "absent", "sliding_window_pattern": "absent", "_sliding_window_pattern": 1 });
    assert!(case("gemma3", types).unwrap().layers.iter().all(|layer| layer.window().is_some()));
}

#[test]
fn zeros_of_yarn_say_no_more_than_absent_keys() {
    let frequencies = |more: Value| {
        let mut map = object(&root().join("llama2/config.json"));
        let mut rope = json!({ "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0 });
        rope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        map.insert("rope_parameters".into(), rope);
        read(&map).unwrap().ropes[0].frequencies(8)
    };
    let plain = frequencies(json!({}));
    assert!(plain.inv_freq.iter().all(|frequency| frequency.is_finite()));
    assert_eq!(frequencies(json!({ "beta_fast": 0, "beta_slow": 0.0 })), plain);
    for one in ["mscale", "mscale_all_dim"] {
        let mut both = json!({ "mscale": 0.7, "mscale_all_dim": 0.7 });
        both[one] = json!(0);
        assert_eq!(frequencies(both).factor, plain.factor);
    }
    assert_eq!(frequencies(json!({ "truncate": null })), frequencies(json!({ "truncate": false })));
    assert_ne!(frequencies(json!({ "truncate": null })), plain);
}

/// Only Transformers 5 has keys for sliding layers with scaling.
#[test]
fn scaled_layers_that_slide_are_written_by_kind_of_layer() {
    let sliding = json!({ "rope_type": "yarn", "rope_theta": 2e4, "factor": 4.0 });
    for full in [
        json!({ "rope_type": "default", "rope_theta": 1e6 }),
        json!({ "rope_type": "linear", "rope_theta": 1e6, "factor": 8.0 }),
    ] {
        let mut map = object(&root().join("gemma3/config.json"));
        let kinds = json!({ "full_attention": full, "sliding_attention": sliding });
        map.insert("rope_parameters".into(), kinds.clone());
        let spec = read(&map).unwrap();
        let written = Family::write(Path::new("config.json"), &spec).unwrap();
        assert_eq!(written["rope_parameters"], kinds);
        assert_eq!(read(&written).unwrap(), spec);
    }
}

#[test]
fn written_files_name_what_has_another_default() {
    let write = |case: &str, change: Value| {
        let mut map = object(&root().join(case).join("config.json"));
        map.extend(change.as_object().unwrap().clone());
        Family::write(Path::new("config.json"), &read(&map).unwrap()).unwrap()
    };
    let plain = write("gpt_oss", json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 1e4 } }));
    assert_eq!(plain["rope_scaling"], json!({ "rope_type": "default" }));
    // Transformers' models build the window's mask even if no layer slides.
    for case in ["gpt_oss", "gemma2", "gemma3"] {
        let mut full = object(&root().join(case).join("config.json"));
        let layers = full["layer_types"].as_array().unwrap().len();
        full["layer_types"] = vec!["full_attention"; layers].into();
        assert!(!write(case, json!(full)).contains_key("sliding_window"), "{case}");
    }
}

#[test]
fn published_files_are_read() {
    let case = |case: &str, change: Value| {
        let mut map = object(&root().join(case).join("config.json"));
        map.extend(change.as_object().unwrap().clone());
        read(&map).unwrap()
    };
    // Harmless keys of files on the hub.
    let plain = case("llama2", json!({}));
    let smol =
        json!({ "is_llama_config": true, "rope_interleaved": false, "transformers.js_config": { "a": 1 } });
    assert_eq!(case("llama2", smol), plain);
    assert_eq!(case("llama2", json!({ "attention_dropout": 0.1, "quantization_config": null })), plain);
    // Early Gemma files say "gelu" but mean the approximation.
    assert_eq!(case("gemma", json!({ "hidden_act": "gelu" })), case("gemma", json!({})));
    // Early Phi-3 files call LongRoPE "su".
    let mut su = object(&root().join("phi3/config_v4.json"));
    su["rope_scaling"]["type"] = json!("su");
    assert_eq!(read(&su).unwrap(), case("phi3", json!({})));
    // Hub files of other families.
    let same = |name: &str, change: Value| assert_eq!(case(name, change), case(name, json!({})), "{name}");
    same("qwen2", json!({ "use_mrope": false }));
    same("smollm3", json!({ "pretraining_tp": 2, "max_window_layers": 28 }));
    same("nemotron", json!({ "kv_channels": 16 }));
    same(
        "phi3",
        json!({ "lm_head_bias": false, "full_attn_mod": 1, "attention_bias": false, "auto_map": {} }),
    );
    same(
        "gpt2",
        json!({ "n_ctx": 1024, "task_specific_params": { "text-generation": {} }, "_num_labels": 1 }),
    );
    same("gpt_neox", json!({ "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0 }));
    // Early Falcon files omit keys with defaults; those of 11B have a size twice.
    same("falcon_7b", json!({ "apply_residual_connection_post_layernorm": false, "num_kv_heads": 71 }));
    same("falcon_11b", json!({ "activation": "gelu", "multi_query": true, "max_position_embeddings": 128 }));
    let mpt = json!({ "architectures": ["MPTForCausalLM"], "init_config": { "name": "kaiming_normal_" }, "verbose": 0,
        "tokenizer_name": "EleutherAI/gpt-neox-20b", "learned_pos_emb": true, "attn_config": { "alibi": true,
        "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "clip_qkv": null, "softmax_scale": null } });
    same("mpt", mpt);
    let bloom = json!({ "attention_softmax_in_fp32": true, "bias_dropout_fusion": true, "masked_softmax_fusion": true,
        "n_inner": null, "offset_alibi": 100, "pretraining_tp": 4, "seq_length": 2048, "skip_bias_add": true,
        "skip_bias_add_qkv": false, "unk_token_id": 0 });
    same("bloom", bloom);
    same(
        "phi",
        json!({ "qk_layernorm": false, "embd_pdrop": 0.0, "resid_pdrop": 0.1, "rope_scaling": null }),
    );
    let cohere = json!({ "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "rotary_pct": 1.0,
        "position_embedding_type": "rope_gptj", "use_embedding_sharing": true, "use_gated_activation": true,
        "use_parallel_block": true, "use_parallel_embedding": true, "cache_implementation": "hybrid" });
    same("cohere2", cohere);
    let stack = json!({ "mlp_type": "default", "norm_type": "layer_norm", "layer_norm_epsilon": 1e-5 });
    assert_eq!(case("starcoder2", stack), case("starcoder2", json!({})));
}

/// Published files of large models, with sizes that they leave to Transformers.
#[test]
fn published_files_leave_sizes_out() {
    let gemma = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255_999, "eoi_token_index": 256_000,
        "eos_token_id": [1, 106], "image_token_index": 262_144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3", "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10_240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": { "factor": 8.0, "rope_type": "linear" }, "sliding_window": 1024
        },
        "vision_config": { "hidden_size": 1152, "model_type": "siglip_vision_model" }
    });
    let spec = read(gemma.as_object().unwrap()).unwrap();
    assert_eq!(
        (spec.family.model_type, spec.hidden, spec.layers.len(), spec.vocab),
        ("gemma3_text", 2560, 34, 262_208)
    );
    assert_eq!((spec.heads, spec.kv_heads, spec.head_dim, spec.max_positions), (8, 4, 256, 131_072));
    assert!(spec.tied && spec.layers[5].window().is_none() && spec.layers[4].window() == Some(1024));
    let falcon = json!({
        "alibi": false, "apply_residual_connection_post_layernorm": false, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": false, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
        "hidden_size": 4544, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "model_type": "falcon",
        "multi_query": true, "new_decoder_architecture": false, "num_attention_heads": 71, "num_hidden_layers": 32,
        "parallel_attn": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 65_024
    });
    let spec = read(falcon.as_object().unwrap()).unwrap();
    assert_eq!((spec.kv_heads, spec.head_dim, spec.ffn, spec.max_positions), (1, 64, 18_176, 2048));
    assert!(spec.tied && spec.has_residual(Residual::SharedNorm));
    // Early BLOOM files have other keys for sizes.
    let bloom = json!({
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_embed": 1024, "n_layer": 24,
        "num_attention_heads": 16, "offset_alibi": 100, "unk_token_id": 0, "vocab_size": 250_880
    });
    let spec = read(bloom.as_object().unwrap()).unwrap();
    assert_eq!((spec.hidden, spec.heads, spec.ffn, spec.max_positions), (1024, 16, 4096, 2048));
}

#[test]
fn unsupported_state_space_layers_are_refused_by_name() {
    let cases = [
        ("mamba2", "n_groups", json!(3), "does not divide the 8 heads"),
        ("mamba2", "chunk_size", json!(0), "1 to"),
        ("mamba2", "conv_kernel", json!(9), "2 to 8"),
        ("mamba2", "num_heads", json!(7), "times the hidden size"),
        ("mamba2", "hidden_act", json!("mish"), "supported: silu"),
        ("mamba2", "time_step_limit", json!([1.0, 0.5]), "ascending"),
        ("bamba", "mamba_n_groups", json!(5), "does not divide the 8 heads"),
        ("bamba", "mamba_chunk_size", json!(0), "1 to"),
        ("bamba", "attn_layer_indices", json!([1, 9]), "holds 9"),
        ("bamba", "attn_rotary_emb", json!(8), "half of each head"),
        (
            "granite_hybrid",
            "layer_types",
            json!(["mamba", "conv", "mamba"]),
            "holds \"conv\"; supported: mamba, attention",
        ),
        ("granite_hybrid", "layer_types", json!(["mamba"]), "1 entries for 3 layers"),
        ("granite_hybrid", "position_embedding_type", json!("alibi"), "supported: rope, nope"),
        ("nemotron_h", "layers_block_type", json!(["mamba", "window"]), "holds \"window\""),
        ("nemotron_h", "layers_block_type", json!([]), "0 layers"),
        ("nemotron_h_latent", "moe_latent_size", json!(1), "2 to"),
        ("nemotron_h_moe", "n_group", json!(3), "of which"),
        ("falcon_h1", "ssm_multipliers", json!([1.0, 2.0]), "5 numbers"),
        ("falcon_h1", "mamba_d_ssm", json!(60), "heads have 64 columns"),
        ("qwen3_next", "linear_num_key_heads", json!(3), "does not divide the 4 value heads"),
        ("qwen3_next", "linear_conv_kernel_dim", json!(9), "2 to 8"),
        ("qwen3_next", "layer_types", json!(["mamba", "full_attention"]), "holds \"mamba\"; supported"),
        ("olmo_hybrid", "layer_types", json!(["full_attention", "full_attention"]), "must hold both"),
        ("olmo_hybrid", "linear_num_key_heads", json!(3), "does not divide the 4 value heads"),
        ("qwen3_5", "linear_key_head_dim", json!(0), "1 to"),
        ("qwen3_5", "attn_output_gate", json!(false), "only true"),
        ("qwen3_5_moe", "norm_topk_prob", json!(false), "only true"),
    ];
    for (case, key, value, expected) in cases {
        let mut map = object(&root().join(case).join("config.json"));
        map.insert(key.into(), value);
        let message = read(&map).unwrap_err().to_string();
        assert!(message.contains(&format!("`{key}")) && message.contains(expected), "{case}: {message}");
    }
    let mut map = object(&root().join("nemotron_h/config.json"));
    map.remove("layers_block_type");
    for (pattern, expected) in [(json!("M-*X"), "'X'; supported"), (json!(null), "is missing")] {
        map.insert("hybrid_override_pattern".into(), pattern);
        let message = read(&map).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    // The published spellings, old and new.
    map.insert("hybrid_override_pattern".into(), json!("M-*-M"));
    let new = read(&object(&root().join("nemotron_h/config.json"))).unwrap();
    assert_eq!(read(&map).unwrap(), new);
    let mut map = object(&root().join("granite_hybrid/config.json"));
    let new = read(&map).unwrap();
    map.remove("layer_types");
    map.insert("layers_block_type".into(), json!(["mamba", "attention", "mamba"]));
    assert_eq!(read(&map).unwrap(), new);
}
