"""The golden cases: which tiny model each one is, as Transformers' own config classes.

A case is (name, config, options). Sizes keep a case near 250 KB: hidden 32, vocabulary 96, two or
three layers. Windows, soft caps and original context lengths are small so that 40 tokens meet them.
Pad, bos and eos are unset: a padding id would zero one row of the embedding's gradient.
"""
import transformers as tf

SMALL = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    pad_token_id=None, bos_token_id=None, eos_token_id=None,
)
WINDOW = 8


def rope(kind="default", theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def llama(**more):
    return tf.LlamaConfig(**{**SMALL, "head_dim": 16, "rope_parameters": rope(), **more})


def cases():
    """Yields (name, config, options): `v4` asks for the old spelling, `long_prompt` for greedy output of a prompt that is
    longer than the original length (all cases have that of a short one)."""
    v4, long_prompt = dict(v4=True), dict(long_prompt=True)
    # Llama 2: no head_dim in its published config, so here it is hidden / heads = 8.
    yield "llama2", llama(head_dim=None), v4
    # Weights stored as bf16; everything is computed in f32 from the rounded weights.
    yield "llama2_bf16", llama(), dict(bf16=True)
    # 1 pair kept, 1 blended, 6 divided: every branch of the llama3 rule is met.
    yield "llama31", llama(rope_parameters=rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=48)), v4
    yield "llama32_tied", llama(tie_word_embeddings=True, rope_parameters=rope(
        "llama3", 500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)), {}
    yield "llama_linear", llama(rope_parameters=rope("linear", factor=4.0)), v4
    # The one document (40) is longer than 32 and changes the base; the packed ones are not.
    yield "llama_dynamic", llama(
        max_position_embeddings=32, rope_parameters=rope("dynamic", factor=2.0)), v4 | long_prompt
    # Unlike Phi-3, Transformers' Llama keeps the keys of the short factors when it crosses the original length.
    yield "llama_longrope", llama(rope_parameters=rope(
        "longrope", factor=6.0, original_max_position_embeddings=24,
        short_factor=[1.0, 1.1, 1.3, 1.5, 1.7, 2.0, 2.2, 2.5],
        long_factor=[1.2, 2.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0])), v4 | long_prompt
    yield "llama_yarn", llama(max_position_embeddings=256, rope_parameters=rope(
        "yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64)), v4
    yield "llama_yarn_plain", llama(rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.25, truncate=False)), {}
    yield "llama_bias", llama(attention_bias=True, mlp_bias=True), {}
    yield "mistral", tf.MistralConfig(**SMALL | dict(
        head_dim=16, sliding_window=WINDOW, rope_parameters=rope())), v4
    yield "qwen2", tf.Qwen2Config(**SMALL, tie_word_embeddings=True, rope_parameters=rope(theta=1e6)), v4
    yield "qwen2_window", tf.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1,
        rope_parameters=rope(theta=1e6)), v4
    yield "qwen3", tf.Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True,
                                  rope_parameters=rope(theta=1e6)), v4
    yield "gemma", tf.GemmaConfig(**SMALL, head_dim=16, rope_parameters=rope()), v4
    yield "gemma2", tf.Gemma2Config(
        **SMALL, head_dim=16, query_pre_attn_scalar=24, sliding_window=WINDOW,
        attn_logit_softcapping=5.0, final_logit_softcapping=8.0, rope_parameters=rope()), v4
    yield "gemma3", tf.Gemma3TextConfig(
        **SMALL | dict(num_hidden_layers=3), head_dim=16, query_pre_attn_scalar=24,
        sliding_window=WINDOW, sliding_window_pattern=3, rope_parameters=dict(
            full_attention=rope("linear", 1e6, factor=8.0), sliding_attention=rope())), v4
    # 6 of 8 dims rotate; the one document (40) takes the long factors, the packed ones the short.
    yield "phi3", tf.Phi3Config(
        **SMALL, sliding_window=WINDOW, original_max_position_embeddings=24, rope_parameters=rope(
            "longrope", partial_rotary_factor=0.75,
            short_factor=[1.0, 1.1, 1.3], long_factor=[1.2, 2.5, 4.0])), v4 | long_prompt
    yield "phi3_plain", tf.Phi3Config(**SMALL, rope_parameters=rope(partial_rotary_factor=1.0)), v4
    yield "nemotron", tf.NemotronConfig(
        **SMALL, head_dim=16, rope_parameters=rope(partial_rotary_factor=0.5)), v4
    yield "gpt2", tf.GPT2Config(
        vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=64,
        bos_token_id=None, eos_token_id=None), {}
    neox = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"} | dict(num_attention_heads=2)
    yield "gpt_neox", tf.GPTNeoXConfig(**neox, rope_parameters=rope(partial_rotary_factor=0.25)), v4
    yield "gpt_neox_sequential", tf.GPTNeoXConfig(
        **neox, use_parallel_residual=False, rope_parameters=rope(partial_rotary_factor=0.5)), {}
    # The layouts of 7B (one key head, one norm), 40B (groups, two norms), 11B (groups, one norm) and the first 1B (in sequence).
    falcon = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=48,
                  max_position_embeddings=128, rope_parameters=rope(), pad_token_id=None, bos_token_id=None, eos_token_id=None)
    grouped = dict(new_decoder_architecture=True, num_kv_heads=2)
    yield "falcon_7b", tf.FalconConfig(**falcon), v4
    yield "falcon_40b", tf.FalconConfig(**falcon | grouped), v4
    yield "falcon_11b", tf.FalconConfig(
        **falcon | grouped, num_ln_in_parallel_attn=1, tie_word_embeddings=False), {}
    yield "falcon_rw", tf.FalconConfig(**falcon, multi_query=False, parallel_attn=False, bias=True), {}
    # Slopes by distance (ALiBi) in place of positions, for numbers of heads that are powers of two and not.
    mpt = dict(vocab_size=96, n_layers=2, max_seq_len=64, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    yield "mpt", tf.MptConfig(**mpt, d_model=32, n_heads=4), {}
    yield "mpt_slopes", tf.MptConfig(
        **mpt, d_model=24, n_heads=3, tie_word_embeddings=False, attn_config=dict(softmax_scale=0.25)), {}
    bloom = dict(vocab_size=96, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    yield "bloom", tf.BloomConfig(**bloom, hidden_size=32, n_layer=2, n_head=4), {}
    yield "bloom_slopes", tf.BloomConfig(**bloom, hidden_size=48, n_layer=1, n_head=6), {}
    # The head has a bias; 4 of 8 dims rotate.
    yield "phi", tf.PhiConfig(**SMALL, rope_parameters=rope(partial_rotary_factor=0.5)), v4
    # The first layer slides and rotates, the second does neither.
    yield "cohere2", tf.Cohere2Config(**SMALL, sliding_window=WINDOW, logit_scale=0.25, rope_parameters=rope(theta=5e4),
                                      layer_types=["sliding_attention", "full_attention"]), v4
    yield "glm", tf.GlmConfig(**SMALL, head_dim=16, rope_parameters=rope(partial_rotary_factor=0.5)), v4
    yield "glm4", tf.Glm4Config(
        **SMALL, head_dim=16, attention_bias=False, rope_parameters=rope(partial_rotary_factor=0.5)), v4
    yield "smollm3", tf.SmolLM3Config(
        **SMALL, no_rope_layers=[1, 0], rope_parameters=rope(theta=5e6)), v4
    yield "olmo2", tf.Olmo2Config(**SMALL, rope_parameters=rope(theta=5e5)), v4
    yield "starcoder2", tf.Starcoder2Config(**SMALL, sliding_window=WINDOW, rope_parameters=rope()), v4
    yield "granite", tf.GraniteConfig(
        **SMALL, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5,
        attention_multiplier=0.2, rope_parameters=rope()), v4
    moe = dict(num_experts_per_tok=2, moe_intermediate_size=24, num_experts=6)
    yield "mixtral", tf.MixtralConfig(**SMALL | dict(
        intermediate_size=24, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW,
        rope_parameters=rope(theta=1e6))), v4
    # One layer of three is dense; a gated expert shared by all tokens.
    yield "qwen2_moe", tf.Qwen2MoeConfig(**SMALL | moe | dict(
        num_hidden_layers=3, mlp_only_layers=[1], shared_expert_intermediate_size=40,
        rope_parameters=rope(theta=1e6))), v4
    yield "qwen3_moe", tf.Qwen3MoeConfig(**SMALL | moe | dict(
        num_experts_per_tok=3, head_dim=16, norm_topk_prob=True, rope_parameters=rope(theta=1e6))), v4
    # Sinks, biases everywhere, every second layer slides.
    yield "gpt_oss", tf.GptOssConfig(**SMALL | dict(
        intermediate_size=24, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=WINDOW,
        rope_parameters=rope("yarn", 150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=32))), {}
    # Latent attention: keys of 8 + 8 columns, values of 12 or 16. The norms of latents have an epsilon of their own.
    latent = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"} | dict(
        num_hidden_layers=3, first_k_dense_replace=1, moe_intermediate_size=16, n_routed_experts=8,
        num_experts_per_tok=3, kv_lora_rank=20, qk_nope_head_dim=8, qk_rope_head_dim=8, n_group=4, topk_group=2)
    yield "deepseek_v2", tf.DeepseekV2Config(**latent | dict(
        rms_norm_eps=0.01, q_lora_rank=None, v_head_dim=16, n_shared_experts=2, topk_method="group_limited_greedy",
        routed_scaling_factor=1.5, rope_parameters=rope())), v4
    yield "deepseek_v3", tf.DeepseekV3Config(**latent | dict(
        num_key_value_heads=4, q_lora_rank=24, v_head_dim=12, n_shared_experts=1, num_mtp_layers=0, rope_parameters=rope(
            "yarn", factor=4.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.7,
            original_max_position_embeddings=32))), v4

    yield from hybrids()


LONG = dict(long=True)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=8)


def hybrids():
    """State-space layers, alone and with attention; chunks of 8 tokens, so that every batch has several."""
    ends = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
    mamba2 = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=16, expand=2,
                  chunk_size=8, **ends)
    yield "mamba2", tf.Mamba2Config(**mamba2, n_groups=2), LONG
    # Biases of projections, none of the convolution; a clamped step.
    yield "mamba2_bias", tf.Mamba2Config(**mamba2, n_groups=1, use_bias=True, use_conv_bias=False,
                                         tie_word_embeddings=True, time_step_limit=(0.1, 1.0)), LONG
    yield "bamba", tf.BambaConfig(**SMALL | MAMBA | dict(num_hidden_layers=3), attn_layer_indices=[1],
                                  mamba_n_groups=2, rope_parameters=rope(partial_rotary_factor=0.5)), LONG
    granite = SMALL | MAMBA | dict(num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                                   embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5,
                                   attention_multiplier=0.2, shared_intermediate_size=40)
    yield "granite_hybrid", tf.GraniteMoeHybridConfig(
        **granite, mamba_n_groups=1, num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope",
        rope_parameters=rope()), LONG
    yield "granite_hybrid_moe", tf.GraniteMoeHybridConfig(
        **granite | dict(intermediate_size=16), mamba_n_groups=2, num_local_experts=4, num_experts_per_tok=2), LONG
    # `time_step_min` would clamp steps in Transformers' class, which no checkpoint was trained with.
    nemotron = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=16, max_position_embeddings=128, mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=16,
                    chunk_size=8, time_step_min=1e-30, **ends)
    moe = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, routed_scaling_factor=2.5,
               moe_shared_expert_intermediate_size=24)
    M, A, E, F = "linear_attention", "full_attention", "moe", "mlp"
    yield "nemotron_h", tf.NemotronHConfig(**nemotron, n_groups=2, layers_block_type=[M, F, A, F, M]), LONG
    yield "nemotron_h_moe", tf.NemotronHConfig(
        **nemotron, **moe, n_groups=1, n_group=4, topk_group=2, layers_block_type=[M, E, A, E]), LONG
    yield "nemotron_h_latent", tf.NemotronHConfig(
        **nemotron, **moe, n_groups=2, moe_latent_size=20, layers_block_type=[M, E, A, M, E]), LONG
    yield "lfm2", tf.Lfm2Config(**SMALL | dict(num_hidden_layers=3), layer_types=["conv", "full_attention", "conv"],
                                block_auto_adjust_ff_dim=False, rope_parameters=rope(theta=1e6)), LONG
    yield "lfm2_moe", tf.Lfm2MoeConfig(
        **SMALL | dict(num_hidden_layers=3, intermediate_size=24), layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16, routed_scaling_factor=1.5, conv_bias=True,
        rope_parameters=rope(theta=1e6)), LONG
    # As published: no rotation. Every sub-layer has a norm, before it in linear layers and after it in those of attention.
    olmo = SMALL | dict(layer_types=[M, A], linear_num_key_heads=2, linear_num_value_heads=4,
                        linear_key_head_dim=8, linear_value_head_dim=12)
    yield "olmo_hybrid", tf.OlmoHybridConfig(**olmo, rope_parameters=rope(theta=None)), LONG
    yield "olmo_hybrid_rope", tf.OlmoHybridConfig(
        **olmo | dict(layer_types=[A, M], linear_num_key_heads=4, linear_conv_kernel_dim=3),
        rope_parameters=rope(), linear_allow_neg_eigval=False, attention_bias=True), LONG
    linear = dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                  linear_value_head_dim=12, rope_parameters=rope(partial_rotary_factor=0.25))
    experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)
    yield "qwen3_next", tf.Qwen3NextConfig(**SMALL | linear | experts, layer_types=[M, A], mlp_only_layers=[1]), LONG
    yield "qwen3_5", tf.Qwen3_5TextConfig(
        **SMALL | linear, layer_types=[M, A], attention_bias=True), LONG
    yield "qwen3_5_moe", tf.Qwen3_5MoeTextConfig(
        **{k: v for k, v in SMALL.items() if k != "intermediate_size"} | linear | experts | dict(
            linear_num_value_heads=2), layer_types=[A, M], tie_word_embeddings=True), LONG
    falcon = SMALL | MAMBA | dict(
        mamba_d_ssm=64, embedding_multiplier=3.0, lm_head_multiplier=0.5, mlp_multipliers=[0.7, 1.5], key_multiplier=0.6,
        attention_in_multiplier=1.3, attention_out_multiplier=0.8, ssm_in_multiplier=0.9, ssm_out_multiplier=1.2,
        ssm_multipliers=[0.6, 1.4, 0.8, 1.1, 0.7], rope_parameters=rope(theta=1e6))
    yield "falcon_h1", tf.FalconH1Config(**falcon, mamba_n_groups=2), LONG
    yield "falcon_h1_norm", tf.FalconH1Config(
        **falcon, mamba_n_groups=1, mamba_rms_norm=True, mamba_norm_before_gate=False), LONG


def old_spelling(config):
    """The same config dict as Transformers 4 would have written it."""
    old = {k: v for k, v in config.items() if k not in ("dtype", "rope_parameters", "transformers_version")}
    old["torch_dtype"] = config.get("dtype", "float32")
    old["transformers_version"] = "4.44.0"
    rules = config.get("rope_parameters")
    kind = config["model_type"]
    if kind == "gemma3_text":
        rope_into(old, rules["full_attention"], kind)
        old["rope_local_base_freq"] = rules["sliding_attention"]["rope_theta"]
        old["sliding_window_pattern"] = old.pop("_sliding_window_pattern", 3)
        old.pop("layer_types", None)
    elif rules:
        rope_into(old, rules, kind)
    if kind == "cohere2":
        old.pop("layer_types")
        old["sliding_window_pattern"] = 2
    if kind in ("qwen2", "qwen3", "gemma2", "smollm3", "qwen2_moe"):
        old.pop("layer_types", None)
    if kind == "llama" and config["head_dim"] * config["num_attention_heads"] == config["hidden_size"]:
        old.pop("head_dim")
    return old


def rope_into(old, rules, kind):
    rules = dict(rules)
    theta, style = rules.pop("rope_theta"), rules.pop("rope_type")
    partial = rules.pop("partial_rotary_factor", None)
    if kind == "gpt_neox":
        old["rotary_emb_base"], old["rotary_pct"] = theta, partial
    else:
        old["rope_theta"] = theta
        if partial is not None:
            old["partial_rotary_factor"] = partial
    if kind == "phi3":
        rules.pop("original_max_position_embeddings", None)
    # llama3 and gemma3 came with `rope_type`; the others are older and say `type`.
    key = "rope_type" if style == "llama3" or kind == "gemma3_text" else "type"
    old["rope_scaling"] = None if style == "default" else {key: style, **rules}
