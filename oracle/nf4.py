"""Quantised weights by bitsandbytes (0.50.2) on a CPU: what NF4, its double quantisation and int8 make of tensors, and folders
that Transformers quantised.

Writes tests/golden_nf4:
- tensors.safetensors: `NAME.x` (input), `NAME.packed`, `NAME.absmax`, `NAME.out` (dequantised to the input's type) of NF4 for three
  types and ragged sizes; `nested.*` of double quantisation; `int8.*`; `map` (the 8-bit dynamic map);
- model/: a tiny Llama in bf16; model_nf4/ (double), model_plain/ (without) and model_int8/: the same, saved quantised;
- expected.safetensors: what bitsandbytes dequantises of the quantised folders' projections.

    python3 -P oracle/nf4.py
    python3 -P oracle/nf4.py check FOLDER    # loads a folder that Fathom wrote, and prints a loss
    python3 -P oracle/nf4.py qlora           # four steps of QLoRA with PEFT: writes tests/golden_nf4/qlora
"""

import json
import pathlib
import sys

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden_nf4"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def tensors():
    torch.manual_seed(3)
    out = {"map": F.create_dynamic_map()}
    for name, dtype in TYPES.items():
        for shape in [(8, 128), (3, 35), (1, 1), (1, 65)]:
            x = (torch.randn(shape) * 0.05).to(dtype)
            x.view(-1)[: min(64, x.numel() - 1)] *= 0.0 if shape == (8, 128) else 1.0
            packed, state = F.quantize_4bit(x, blocksize=64, quant_type="nf4")
            key = f"{name}.{shape[0]}x{shape[1]}"
            out |= {f"{key}.x": x, f"{key}.packed": packed, f"{key}.absmax": state.absmax}
            out[f"{key}.out"] = F.dequantize_4bit(packed, state)
    x = torch.randn(4096, 64) * 0.02
    packed, state = F.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
    plain = F.quantize_4bit(x, blocksize=64, quant_type="nf4")[1]
    out |= {"nested.plain": plain.absmax, "nested.codes": state.absmax, "nested.absmax": state.state2.absmax}
    out["nested.offset"] = state.offset.reshape(1)
    out["nested.out"] = F.dequantize_blockwise(state.absmax, state.state2) + state.offset
    x = torch.randn(6, 100).to(torch.bfloat16)
    x[2] = 0
    codes, scales, _ = F.int8_vectorwise_quant(x.to(torch.float16))
    out |= {"int8.x": x, "int8.codes": codes, "int8.scales": scales, "int8.out": F.int8_vectorwise_dequant(codes, scales)}
    save_file({key: value.contiguous() for key, value in out.items()}, HERE / "tensors.safetensors")


def models():
    torch.manual_seed(4)
    config = tf.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=2, head_dim=16,
        vocab_size=96, max_position_embeddings=256, tie_word_embeddings=False,
    )
    model = tf.LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.04 * torch.randn_like(weight)
    model.save_pretrained(HERE / "model")
    expected = {}
    kinds = {
        "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16),
        "plain": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16),
        "int8": dict(load_in_8bit=True),
    }
    for kind, settings in kinds.items():
        quantised = tf.AutoModelForCausalLM.from_pretrained(
            HERE / "model", quantization_config=tf.BitsAndBytesConfig(**settings), dtype=torch.bfloat16, device_map="cpu",
        )
        quantised.train()
        folder = HERE / f"model_{kind}"
        quantised.save_pretrained(folder)
        for name, module in quantised.named_modules():
            if isinstance(module, bnb.nn.Linear4bit):
                value = F.dequantize_4bit(module.weight.data, module.weight.quant_state)
            elif isinstance(module, bnb.nn.Linear8bitLt):
                scales = module.weight.SCB if module.weight.SCB is not None else module.state.SCB
                value = F.int8_vectorwise_dequant(module.weight.data, scales)
            else:
                continue
            if kind != "plain":
                expected[f"{kind}.{name}.weight"] = value.to(torch.bfloat16).contiguous()
    save_file(expected, HERE / "expected.safetensors")


def qlora():
    """Four AdamW steps of LoRA over the double-quantised model, in f32: the adapter before and after, losses and gradient norms."""
    import peft

    torch.manual_seed(6)
    settings = tf.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32,
    )
    base = tf.AutoModelForCausalLM.from_pretrained(
        HERE / "model_nf4", quantization_config=settings, dtype=torch.float32, device_map="cpu",
    )
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        for name, value in trained.items():
            value.copy_(0.05 * torch.randn_like(value))
    folder = HERE / "qlora"
    model.save_pretrained(folder / "before")
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    ids = (torch.arange(40) * 31 % 96)[None]
    losses, norms = [], []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained.values(), float("inf"))))
        losses.append(float(loss))
        optimizer.step()
    model.save_pretrained(folder / "after")
    for part in ["before", "after"]:
        # Neither paths of this machine nor prose.
        (folder / part / "README.md").unlink(missing_ok=True)
        file = folder / part / "adapter_config.json"
        said = json.loads(file.read_text()) | {"base_model_name_or_path": "model_nf4"}
        file.write_text(json.dumps(said, indent=2) + "\n")
    told = {"ids": ids[0].tolist(), "lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "losses": losses, "norms": norms}
    (folder / "steps.json").write_text(json.dumps(told, indent=2) + "\n")
    print(losses, norms)


def check(folder):
    model = tf.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
    model.train()
    kinds = sorted({type(module).__name__ for module in model.modules() if "Linear" in type(module).__name__})
    ids = torch.arange(40)[None] % model.config.vocab_size
    print(kinds, float(model(ids, labels=ids).loss))


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2])
    elif sys.argv[1:2] == ["qlora"]:
        qlora()
    else:
        tensors()
        models()
