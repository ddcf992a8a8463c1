"""A tiny gpt-oss folder with experts in MXFP4, and what Transformers reads out of it.

Writes tests/mxfp4: config.json and model.safetensors as published folders have them (NAME_blocks, NAME_scales, everything
else bf16), and expected.safetensors with NAME as transformers.integrations.mxfp4 dequantises it to bf16.

    python3 -P oracle/mxfp4.py
"""

import json
import pathlib

import torch
import transformers as tf
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "mxfp4"
HIDDEN, FFN, EXPERTS, LAYERS = 64, 96, 3, 1


def packed(rows, inner):
    """Random blocks and scales of experts with `rows` outputs: all codes, scales around one and at both ends."""
    groups = inner // 32
    blocks = torch.randint(0, 256, (EXPERTS, rows, groups, 16), dtype=torch.uint8)
    scales = torch.randint(118, 126, (EXPERTS, rows, groups), dtype=torch.uint8)
    scales[0, 0, 0], scales[0, 1, 0] = 90, 140
    return blocks, scales


def main():
    torch.manual_seed(5)
    HERE.mkdir(parents=True, exist_ok=True)
    config = tf.GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=FFN, num_local_experts=EXPERTS, num_experts_per_tok=2,
        num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=16, vocab_size=40,
        max_position_embeddings=128, sliding_window=8,
    )
    model = tf.GptOssForCausalLM(config).to(torch.bfloat16)
    tensors, expected = {}, {}
    for name, value in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            rows, inner = (2 * FFN, HIDDEN) if name.endswith("gate_up_proj") else (HIDDEN, FFN)
            blocks, scales = packed(rows, inner)
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
            expected[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).contiguous()
        else:
            tensors[name] = value.contiguous()
    save_file(tensors, HERE / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, HERE / "expected.safetensors")
    map = json.loads(config.to_json_string(use_diff=False))
    map["architectures"] = ["GptOssForCausalLM"]
    keep = {key: map[key] for key in sorted(json.loads(config.to_json_string())) if key in map}
    keep["architectures"] = ["GptOssForCausalLM"]
    keep["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4",
    }
    (HERE / "config.json").write_text(json.dumps(keep, indent=2) + "\n")


main()
