"""Writes tests/golden_adapters: adapter folders by PEFT 0.21, and what a tiny model computes, trains and merges with them.

    python oracle/adapters.py [CASE ...]
    PYTHONPATH=PEFT_0_18 python oracle/adapters.py     # with 0.18.1 in that folder: the one case that it lays out differently

`llama/`, `gpt2/` and `mixtral/` are random bases in f32. Every case has the folder that PEFT wrote before training (`before/`,
perturbed so that nothing is zero) and after three AdamW steps (`after/`), `expected.json` and `expected.safetensors`; README.md
explains their keys.
"""
import copy
import json
import shutil
import sys
import warnings
from pathlib import Path

import peft
import torch
import torch.nn.functional as F
import transformers as tf
from peft import IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

from cases import SMALL, rope
from families import IGNORED, all_in_files, compact_json, inputs, randomise

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_adapters"
LENGTHS = [8, 6, 4]
ROUNDING = 6e-8
ADAMW = dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
BASES = {
    "llama": tf.LlamaConfig(**SMALL, rope_parameters=rope()),
    "gpt2": tf.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_inner=48, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                          attn_pdrop=0.0, bos_token_id=None, eos_token_id=None),
    "mixtral": tf.MixtralConfig(**SMALL | dict(intermediate_size=20, num_local_experts=3, num_experts_per_tok=2),
                                rope_parameters=rope()),
    "tied": tf.LlamaConfig(**SMALL | dict(tie_word_embeddings=True), rope_parameters=rope()),
    "qwen2": tf.Qwen2Config(**SMALL, rope_parameters=rope()),
    "qwen3_next": tf.Qwen3NextConfig(
        **SMALL | dict(intermediate_size=24), head_dim=16, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=8, shared_expert_intermediate_size=8, mlp_only_layers=[0], rope_parameters=rope(partial_rotary_factor=0.25)),
    "mamba2": tf.Mamba2Config(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, expand=2,
                              n_groups=2, chunk_size=8, pad_token_id=None, bos_token_id=None, eos_token_id=None),
}
# Cases whose virtual tokens a network computes, which PEFT's folders do not have.
ENCODED = ["p_tuning", "p_tuning_lstm", "prefix_projection"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def lora(targets="all-linear", **more):
    return LoraConfig(**dict(r=3, lora_alpha=6, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM") | more)


def cases():
    """Yields name, base and configuration. Rank 3 divides none of the widths."""
    prompts = dict(task_type="CAUSAL_LM", num_virtual_tokens=5)
    yield "lora_attention", "llama", lora(ATTENTION)
    yield "lora_all_linear", "llama", lora()
    yield "lora_regex", "llama", lora(r".*layers\.1\.(self_attn\.[qv]|mlp\.up)_proj", r=2, lora_alpha=3)
    yield "lora_patterns", "llama", lora(
        ["q_proj", "v_proj", "down_proj"], rank_pattern={"q_proj": 5, "layers.1.mlp.down_proj": 2, r"^model\.layers\.0\.self_attn\.v_proj": 4},
        alpha_pattern={"down_proj": 11, "layers.0.self_attn.q_proj": 1})
    # Equal shapes in both layers, of which one has terms of keys and the other of values, with another weight.
    yield "lora_alphas", "llama", lora(
        r".*(self_attn\.q|mlp\.down|0\.self_attn\.k|1\.self_attn\.v)_proj", alpha_pattern={"layers.1.self_attn.q_proj": 1, "layers.1.mlp.down_proj": 11})
    yield "lora_layers", "llama", lora(["q_proj", "up_proj"], layers_to_transform=[1], exclude_modules=["nothing"])
    yield "rslora", "llama", lora(ATTENTION, use_rslora=True)
    yield "lora_bias", "llama", lora(ATTENTION, lora_bias=True)
    yield "lora_wide", "llama", lora(["k_proj", "v_proj"], r=20)
    yield "lora_embeddings", "llama", lora(["embed_tokens", "q_proj", "v_proj"])
    yield "lora_head", "llama", lora(["lm_head", "o_proj"])
    yield "dora", "llama", lora(use_dora=True)
    yield "pissa", "llama", lora(init_lora_weights="pissa")
    yield "lora_plus", "llama", lora(["embed_tokens", "q_proj", "down_proj"])
    yield "modules_to_save", "llama", lora(["q_proj", "v_proj"], modules_to_save=["lm_head", "norm"])
    # PEFT parts the head from the embedding where it saves one of them.
    yield "tied_head", "tied", lora(["q_proj"], modules_to_save=["lm_head"])
    yield "tied_embedding", "tied", lora(["q_proj"], modules_to_save=["embed_tokens"])
    yield "tied_ensured", "tied", lora(["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    # A Mixtral's router is called otherwise in files.
    yield "router", "mixtral", lora(["q_proj"], modules_to_save=["gate"])
    yield "token_rows", "llama", lora(["q_proj"], trainable_token_indices=[3, 17, 40])
    yield "ia3", "llama", IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj", "v_proj", "down_proj"],
                                    feedforward_modules=["down_proj"])
    yield "prompt", "llama", PromptTuningConfig(**prompts)
    yield "p_tuning", "llama", PromptEncoderConfig(**prompts, encoder_hidden_size=24)
    yield "p_tuning_lstm", "llama", PromptEncoderConfig(**prompts, encoder_hidden_size=16, encoder_reparameterization_type="LSTM")
    yield "prefix", "llama", PrefixTuningConfig(**prompts)
    yield "prefix_projection", "llama", PrefixTuningConfig(**prompts, prefix_projection=True, encoder_hidden_size=24)
    yield "gpt2_lora", "gpt2", lora(["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    yield "gpt2_bias", "gpt2", lora(["c_attn"], fan_in_fan_out=True, bias="all")
    # Biases of queries, keys and values, of which those of keys belong to no adapted module.
    yield "qwen2_lora_only", "qwen2", lora(["q_proj", "v_proj", "down_proj"], bias="lora_only")
    yield "qwen2_all", "qwen2", lora(["q_proj", "o_proj"], bias="all")
    yield "gpt2_ia3", "gpt2", IA3Config(task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True,
                                        feedforward_modules=["mlp.c_proj"])
    # Files have the rows of each key head together; and all parts of Mamba-2 in one projection, whose `out_proj` PEFT refuses.
    yield "qwen3_next_lora", "qwen3_next", lora(["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"])
    yield "mamba2_lora", "mamba2", lora(["in_proj"])
    yield "experts_each", "mixtral", lora(["q_proj", "w1", "w2", "w3"])
    yield "experts_stacked", "mixtral", lora(["q_proj"], target_parameters=EXPERTS)


def write_bases(wanted=()):
    for index, (name, config) in enumerate(BASES.items()):
        if wanted and name not in wanted:
            continue
        torch.manual_seed(index)
        model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
        randomise(model, torch.Generator().manual_seed(index), config.model_type == "qwen3_next")
        model.save_pretrained(OUT / name)
        (OUT / name / "generation_config.json").unlink(missing_ok=True)


def base_of(name):
    return tf.AutoModelForCausalLM.from_pretrained(OUT / name, attn_implementation="eager", dtype=torch.float32).eval()


class Expert(torch.nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.w1, self.w3 = (torch.nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.w2 = torch.nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class OldExperts(torch.nn.Module):
    """The sparse block as Transformers 4 had it: a linear layer for every projection of every expert."""

    def __init__(self, config):
        super().__init__()
        self.gate = torch.nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = torch.nn.ModuleList(Expert(config.hidden_size, config.intermediate_size) for _ in range(config.num_local_experts))
        self.chosen = config.num_experts_per_tok

    def forward(self, x):
        weights, which = self.gate(x).softmax(-1).topk(self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        shares = torch.zeros(*x.shape[:-1], len(self.experts)).scatter(-1, which, weights)
        return sum(shares[..., index, None] * expert(x) for index, expert in enumerate(self.experts))


class OldLayer(MixtralDecoderLayer):
    mlp = property(lambda layer: layer.block_sparse_moe)


def old_mixtral():
    model = base_of("mixtral")
    for layer in model.model.layers:
        del layer.mlp
        layer.__class__ = OldLayer
        layer.block_sparse_moe = OldExperts(model.config)
    model.load_state_dict(load_file(OUT / "mixtral" / "model.safetensors"))
    # PEFT would rewrite the configuration of a Mixtral for the stacked experts of Transformers 5.
    model.config.model_type = "mixtral_of_transformers_4"
    return model


def in_folder(name):
    """The name in the adapter's file of a parameter in memory."""
    name = name.replace("modules_to_save.default.", "")
    for part in ("lora_embedding_A", "lora_embedding_B", "ia3_l", "trainable_tokens_delta"):
        name = name.replace(f"{part}.default", part)
    name = name.replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector").replace(".default.", ".")
    return "prompt_embeddings" if name == "prompt_encoder.embedding.weight" else name


def logits_of(model, batch):
    """Documents as separate passes; of virtual tokens only the effect."""
    ids, _, starts = batch
    rows = [model(input_ids=ids[None, a:b], use_cache=False).logits[0, a - b :] for a, b in zip(starts, starts[1:])]
    return torch.cat(rows)


def mean_loss(model, batch):
    return F.cross_entropy(logits_of(model, batch), batch[1], ignore_index=IGNORED)


def save(model, folder, base, **more):
    model.save_pretrained(folder, **more)
    # Neither paths of this machine, nor prose, nor the order of a set.
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_config.json"
    said = json.loads(file.read_text()) | {"base_model_name_or_path": base}
    for key in ("target_modules", "target_parameters", "modules_to_save", "feedforward_modules", "exclude_modules"):
        if isinstance(said.get(key), list):
            said[key].sort()
    file.write_text(json.dumps(said, indent=2) + "\n")


def trained_of(model):
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def optimizer_of(name, model, expected):
    trained = trained_of(model)
    if name != "lora_plus":
        return torch.optim.AdamW(trained.values(), foreach=False, **ADAMW)
    how = dict(lr=1e-3, loraplus_lr_ratio=8.0, loraplus_lr_embedding=2e-3)
    rest = {key: value for key, value in ADAMW.items() if key not in ("lr", "weight_decay")}
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, foreach=False, **how, **rest)
    names = {id(weight): in_folder(key) for key, weight in trained.items()}
    groups = [dict(lr=group["lr"], names=[names[id(w)] for w in group["params"]]) for group in optimizer.param_groups]
    expected["lora_plus"] = how | dict(groups=[group for group in groups if group["names"]])
    return optimizer


def train(model, batch, optimizer, expected):
    trained, losses, norms = trained_of(model), [], []
    for step in range(4):
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        losses.append(loss.item())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), float("inf")).item())
        if step == 0:
            grads = {in_folder(name): weight.grad for name, weight in trained.items()}
            expected["grad_l2"] = {name: grad.norm().item() for name, grad in grads.items()}
            expected["grad_max"] = {name: grad.abs().max().item() for name, grad in grads.items()}
        if step < 3:
            optimizer.step()
    expected.update(losses=losses, grad_norms=norms)


def close(name, what, got, wanted, bar=2e-5):
    apart = (got - wanted).abs().max().item()
    if apart > bar:
        raise SystemExit(f"{name}: {what}: apart by {apart}")


def adapted(name, base, config, noise=0.0):
    """The base, every weight moved by `noise` of itself, with a perturbed adapter."""
    torch.manual_seed(len(name))
    model, generator = old_mixtral() if name == "experts_each" else base_of(base), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 1 + noise * torch.randn(weight.shape, generator=generator)
    model = peft.get_peft_model(model, copy.deepcopy(config))
    with torch.no_grad():
        for weight in trained_of(model).values():
            # A start by PiSSA is taken as it is, since the base changed with it.
            weight += 0.0 if name == "pissa" else 0.1 * torch.randn_like(weight)
    return model.eval()


def moves(name, base, config, batch, expected, after):
    """How far the figures move when every weight of the base moves by a rounding; AdamW makes much of gradients near zero."""
    model, again = adapted(name, base, config, ROUNDING), {}
    train(model, batch, optimizer_of(name, model, {}), again)
    found = {key: max(abs(a / b - 1) for a, b in zip(again[key], expected[key])) for key in ("losses", "grad_norms")}
    moved = peft.get_peft_model_state_dict(model)
    apart = {key: (moved[key] - value).abs().max().item() for key, value in after.items()}
    return found | {"after": {key: value for key, value in apart.items() if value > 1e-6}}


def encoder(model):
    return {key.replace("default.", ""): value for key, value in model.prompt_encoder.state_dict().items()}


def write_case(name, base, config):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    ids, labels, positions, starts = inputs(LENGTHS, 96, torch.Generator().manual_seed(9))
    batch = (ids, labels, starts)
    model, tensors = adapted(name, base, config), {}
    expected = dict(case=name, base=base, peft=peft.__version__, transformers=tf.__version__, torch=torch.__version__.split("+")[0],
                    adamw=ADAMW, clipping=None, input_ids=ids.tolist(), labels=labels.tolist(), document_starts=starts)
    with torch.no_grad():
        tensors["logits"] = logits_of(model, batch)
        changed = (tensors["logits"] - logits_of(base_of(base), batch)).abs().max()
    if name != "pissa" and changed < 0.01:
        raise SystemExit(f"{name}: the adapter changes nothing")
    save(model, folder / "before", base)
    if name in ENCODED:
        tensors |= {f"before.{key}": value.clone() for key, value in encoder(model).items()}
    # PEFT does not merge a bias into a layer that has none.
    if not config.is_prompt_learning and name != "lora_bias":
        with torch.no_grad():
            tensors["merged.logits"] = logits_of(copy.deepcopy(model).merge_and_unload(safe_merge=True), batch)
        close(name, "merged", tensors["merged.logits"], tensors["logits"])
    train(model, batch, optimizer_of(name, model, expected), expected)
    with torch.no_grad():
        tensors["after.logits"] = logits_of(model, batch)
    save(model, folder / "after", base)
    if name in ENCODED:
        tensors |= {f"after.{key}": value.clone() for key, value in encoder(model).items()}
    if name == "pissa":
        as_lora(model, folder, base)
    again(name, base, folder, batch, tensors)
    expected["moves"] = moves(name, base, config, batch, expected, load_file(folder / "after" / "adapter_model.safetensors"))
    in_file = set(load_file(folder / "before" / "adapter_model.safetensors"))
    if name not in ENCODED and not set(expected["grad_l2"]) <= in_file:
        raise SystemExit(f"{name}: {set(expected['grad_l2']) - in_file} are not in {in_file}")
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "expected.safetensors")
    compact_json(folder / "expected.json", expected)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{name:16} {size / 1024:4.0f} KiB  losses {expected['losses']} norms {expected['grad_norms']}", flush=True)


def as_lora(model, folder, base):
    """The trained PiSSA as a LoRA of twice the rank over the unchanged base."""
    start = folder / "start"
    shutil.copytree(folder / "before", start)
    save(model, folder / "as_lora", base, path_initial_model_for_weight_conversion=str(start))
    shutil.rmtree(start)


def again(name, base, folder, batch, tensors):
    """PEFT loads what it wrote, and computes the same; the older layout of experts as well."""
    with torch.no_grad():
        for part, wanted in (("before", "logits"), ("after", "after.logits"), ("as_lora", "after.logits")):
            if (folder / part).exists():
                model = PeftModel.from_pretrained(base_of(base), folder / part).eval()
                close(name, part, logits_of(model, batch), tensors[wanted])


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    assert peft.__version__ in ("0.21.2", "0.18.1"), peft.__version__
    wanted = set(sys.argv[1:])
    if peft.__version__ == "0.18.1":
        return write_case("experts_stacked_018", "mixtral", lora(["q_proj"], target_parameters=EXPERTS))
    if not wanted or wanted & set(BASES):
        write_bases(wanted)
    for name, base, config in cases():
        if not wanted or name in wanted:
            write_case(name, base, config)


if __name__ == "__main__":
    main()
