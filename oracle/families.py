"""Writes tests/golden/<case>/ with PyTorch and Transformers: tiny random models and what they compute.

    python oracle/families.py [CASE ...]

Per case: config.json, model.safetensors, golden.safetensors, golden.json and for many config_v4.json
(old spelling, checked here to give the same logits). README.md explains every key.
"""
import copy
import json
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from cases import cases, old_spelling

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden"
VARIANTS = {"single": [40], "packed": [17, 9, 14]}
IGNORED = -100
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
DECAY = 0.1
NORM_WORDS = ("norm", "ln_")


def is_norm(name):
    return any(word in name for word in NORM_WORDS)


def randomise(model, generator, plus_one):
    """Weights of std 0.2, norm weights around 1 (or around 0 where the family adds 1), biases of std 0.1."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith(("A_log", "dt_bias")):
                weight.copy_(0.7 * noise + (0.5 if name.endswith("A_log") else -0.5))
            elif name.endswith(".D"):
                weight.copy_(0.5 * noise + 1.0)
            elif name.endswith("bias"):
                weight.copy_(0.1 * noise)
            elif is_norm(name):
                weight.copy_(0.1 * noise + (0.0 if plus_one and ".linear_attn." not in name else 1.0))
            else:
                weight.copy_(0.2 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))


def in_files(name, tensor, kind):
    """Names and parts of a parameter as files have it: Transformers 5 stacks experts in memory, files do not."""
    if kind == "nemotron_h":
        name = name.replace("model.", "backbone.", 1)
        at, found, part = name.partition(".mixer.experts.")
        parts = enumerate(tensor) if found else ()
        yield from ((f"{at}.mixer.experts.{index}.{part}.weight", of.contiguous()) for index, of in parts)
        if found:
            return
    if kind == "granitemoehybrid":
        for memory, files in (("experts.gate_up_proj", "input_linear.weight"), ("router.weight", "router.layer.weight"),
                              ("experts.down_proj", "output_linear.weight")):
            name = name.replace(f".block_sparse_moe.{memory}", f".block_sparse_moe.{files}")
    if kind == "lfm2_moe":
        name = name.replace(".feed_forward.experts.", ".mlp.experts.")
    prefix, found, part = name.partition(".mlp.experts.")
    if kind == "gpt_oss" or not (found or ".mlp.gate." in name):
        yield name, tensor
    elif not found:
        yield name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if kind == "mixtral" else name, tensor
    else:
        inside = {"mixtral": "block_sparse_moe", "lfm2_moe": "feed_forward"}.get(kind, "mlp")
        at = f"{prefix}.{inside}.experts"
        gate, up, down = ("gate_proj", "up_proj", "down_proj") if inside == "mlp" else ("w1", "w3", "w2")
        for index, of in enumerate(tensor):
            parts = zip((gate, up), of.chunk(2)) if part == "gate_up_proj" else [(down, of)]
            for called, weight in parts:
                yield f"{at}.{index}.{called}.weight", weight.contiguous()


def olmo_hybrid_in_files(tensors):
    """The published layout: norms of linear layers by their own names, a convolution each for q, k and v. (What
    Transformers 5.23 itself saves renames norms of attention too, and cuts convolutions evenly.)"""
    for name, tensor in tensors.items():
        at, _, part = name.rpartition("layers.")[2].partition(".")
        linear = f"model.layers.{at}.linear_attn."
        if name == f"{linear}conv1d.weight":
            rows = [tensors[f"{linear}{part}_proj.weight"].shape[0] for part in "qkv"]
            for part, of in zip("qkv", tensor.split(rows)):
                yield f"{linear}{part}_conv1d.weight", of.contiguous()
        elif f"{linear}q_proj.weight" in tensors and "norm" in name and "linear_attn" not in name:
            yield name.replace("input_layernorm", "attention_layer_norm").replace(
                "post_attention_layernorm", "feedforward_layer_norm"), tensor
        else:
            yield name, tensor


def all_in_files(tensors, kind):
    if kind == "olmo_hybrid":
        return dict(olmo_hybrid_in_files(tensors))
    return {n: t for name, tensor in tensors.items() for n, t in in_files(name, tensor, kind)}


def build(config, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    plus_one = config.model_type in ("gemma", "gemma2", "gemma3_text", "nemotron") or config.model_type.startswith(
        ("qwen3_next", "qwen3_5"))
    randomise(model, generator, plus_one)
    return model.eval(), generator


def inputs(lengths, vocab, generator):
    """One packed stream. labels[t] is the target of logits[t]: shifted, last of a document ignored."""
    total = sum(lengths)
    ids = torch.randint(0, vocab, (total,), generator=generator)
    labels, positions, starts = torch.full((total,), IGNORED), [], [0]
    for length in lengths:
        start = starts[-1]
        labels[start : start + length - 1] = ids[start + 1 : start + length]
        positions += range(length)
        starts.append(start + length)
    masked = torch.rand(total, generator=generator) < 0.15
    labels[masked] = IGNORED
    return ids, labels, positions, starts


def logits_of(model, ids, starts):
    """Documents as separate forward passes, concatenated: no attention and no position crosses them."""
    rows = [model(input_ids=ids[None, a:b], use_cache=False).logits[0] for a, b in zip(starts, starts[1:])]
    return torch.cat(rows).float()


def loss_sum(model, ids, labels, starts):
    return F.cross_entropy(logits_of(model, ids, starts), labels, ignore_index=IGNORED, reduction="sum")


def adamw_losses(model, batch):
    """Mean losses before and after 1, 2 and 3 AdamW steps on the same batch; names that decay."""
    ids, labels, starts = batch
    count = int((labels != IGNORED).sum())
    named = list(model.named_parameters())
    decayed = [n for n, p in named if p.ndim >= 2 and not is_norm(n) and not n.endswith("bias")]
    groups = [
        dict(params=[p for n, p in named if n in decayed], weight_decay=DECAY),
        dict(params=[p for n, p in named if n not in decayed], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, foreach=False, fused=False, **ADAMW)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_sum(model, ids, labels, starts) / count
        losses.append(loss.item())
        if step < 3:
            loss.backward()
            optimizer.step()
    return losses, list(all_in_files({n: p for n, p in named if n in decayed}, model.config.model_type))


def variant(model, name, lengths, generator, tensors):
    """Runs one batch; leaves the model's weights as they were."""
    ids, labels, positions, starts = inputs(lengths, model.config.vocab_size, generator)
    count = int((labels != IGNORED).sum())
    model.zero_grad()
    total = loss_sum(model, ids, labels, starts)
    (total / count).backward()
    tensors[f"{name}.logits"] = logits_of(model, ids, starts).detach().clone()
    grads = {n: p.grad.detach().clone() for n, p in model.named_parameters()}
    grads = all_in_files(grads, model.config.model_type)
    if name == "packed":
        tensors.update({f"{name}.grad.{n}": g for n, g in grads.items()})
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    losses, decayed = adamw_losses(model, (ids, labels, starts))
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(before[n])
    model.zero_grad()
    golden = dict(
        input_ids=ids.tolist(), positions=positions, labels=labels.tolist(), document_starts=starts,
        loss=total.item() / count, loss_sum=total.item(), valid_tokens=count,
        adamw_losses=losses,
        grad_max={n: g.abs().max().item() for n, g in grads.items()},
        grad_l2={n: g.norm().item() for n, g in grads.items()},
    )
    return golden, decayed


def greedy(model, generator, prompt_tokens=10, new_tokens=32):
    """A prompt whose greedy path is decided by clear margins, so that rounding cannot change it."""
    for _ in range(400):
        prompt = torch.randint(0, model.config.vocab_size, (1, prompt_tokens), generator=generator)
        with torch.no_grad():
            # A length-dependent rotation remembers its longest sequence; one token makes it forget.
            model(input_ids=prompt[:, :1], use_cache=False)
        # With a cache, Transformers does not limit the steps of state-space layers.
        cached = getattr(model.config, "time_step_limit", (0.0,))[0] == 0.0
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, use_cache=cached,
                             max_new_tokens=new_tokens, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
        top = torch.cat(out.logits).topk(2).values
        margin = (top[:, 0] - top[:, 1]).min().item()
        new = out.sequences[0, prompt_tokens:].tolist()
        if margin > 0.005 and len(set(new)) > 5:
            return dict(prompt=prompt[0].tolist(), new_tokens=new, smallest_margin=margin)
    raise SystemExit("no prompt with clear margins")


def long_document(model, generator, tensors, tokens=300, step=15):
    """State-space layers over several of Fathom's chunks of 128 tokens: the logits of every 15th of 300."""
    ids = torch.randint(0, model.config.vocab_size, (tokens,), generator=generator)
    with torch.no_grad():
        tensors["long.logits"] = logits_of(model, ids, [0, tokens])[step - 1 :: step].clone()
    return dict(input_ids=ids.tolist(), step=step)


def check_old_spelling(folder, model, ids, expected):
    """config_v4.json as config.json must give the same logits in Transformers."""
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copy(folder / "config_v4.json", Path(tmp) / "config.json")
        shutil.copy(folder / "model.safetensors", tmp)
        other = AutoModelForCausalLM.from_pretrained(tmp, attn_implementation="eager", dtype=torch.float32).eval()
        with torch.no_grad():
            got = logits_of(other, ids, [0, len(ids)])
    if not torch.equal(got, expected):
        raise SystemExit(f"{folder.name}: config_v4.json differs by {(got - expected).abs().max()}")


def write_sharded(name, source, shard_size="32KB"):
    """The same weights in shards with model.safetensors.index.json; golden.json names its source."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(OUT / source, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "golden.json", dict(case=name, same_as=source))
    print(name, sorted(f.name for f in folder.iterdir()))


def write_resaved(name, source):
    """The same weights as Transformers 5.23 itself saves an OLMo-hybrid; golden.json names its source."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    AutoModelForCausalLM.from_pretrained(OUT / source, dtype=torch.float32).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "golden.json", dict(case=name, same_as=source))
    print(name, sorted(n for n in load_file(folder / "model.safetensors") if "conv" in n or "layer_norm" in n))


def write_multimodal(name, source, as_in_memory=False):
    """The same text model inside one that sees pictures, with tensors called as in published files or as in Transformers 5's
    memory; golden.json names its source."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    text = AutoModelForCausalLM.from_pretrained(OUT / source, attn_implementation="eager", dtype=torch.float32).eval()
    vision = tf.SiglipVisionConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                   image_size=4, patch_size=2)
    text_config = {k: v for k, v in text.config.to_dict().items() if k not in ("_name_or_path", "architectures")}
    config = tf.Gemma3Config(text_config=text_config, vision_config=vision.to_dict(), mm_tokens_per_image=1)
    torch.manual_seed(zlib.crc32(name.encode()))
    model = tf.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    golden = json.loads((OUT / source / "golden.json").read_text())["single"]
    ids = torch.tensor(golden["input_ids"])
    with torch.no_grad():
        same = torch.equal(logits_of(model, ids, [0, len(ids)]), logits_of(text, ids, [0, len(ids)]))
    if not same:
        raise SystemExit(f"{name}: the text part's logits are not those of {source}")
    model.save_pretrained(folder)
    if as_in_memory:
        tensors = {n: t.clone() for n, t in model.state_dict().items() if n != "lm_head.weight"}
        save_file(tensors, folder / "model.safetensors", metadata=dict(format="pt"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "golden.json", dict(case=name, same_as=source))
    print(name, sorted({".".join(n.split(".")[:2]) for n in load_file(folder / "model.safetensors")}))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def compact_json(path, value):
    """One key a line at the top levels, long lists on one line."""
    def show(v, depth):
        if isinstance(v, dict) and depth < 2:
            inner = ",\n".join(f'{" " * (depth + 1)}{json.dumps(k)}: {show(x, depth + 1)}' for k, x in v.items())
            return "{\n" + inner + "\n" + " " * depth + "}"
        return json.dumps(v)
    path.write_text(show(value, 0) + "\n")


def write_case(name, config, options):
    seed = zlib.crc32(name.encode())
    model, generator = build(config, seed)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if options.get("bf16"):
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.bfloat16().float())
    golden = dict(case=name, model_type=config.model_type, gradient_of="mean loss over valid tokens",
                  adamw=dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=DECAY))
    tensors = {}
    for kind, lengths in VARIANTS.items():
        golden[kind], golden["adamw"]["decayed"] = variant(model, kind, lengths, generator, tensors)
    golden["generate"] = greedy(model, generator)
    if options.get("long_prompt"):
        golden["generate_long"] = greedy(model, generator, prompt_tokens=36)
    if options.get("long"):
        golden["long"] = long_document(model, generator, tensors)
    save_model(model, folder, options)
    save_file(tensors, folder / "golden.safetensors")
    compact_json(folder / "golden.json", golden)
    verify(folder, model, golden, tensors, options)
    size = sum(f.stat().st_size for f in folder.iterdir())
    params = sum(p.numel() for p in model.parameters())
    print(f"{name:22} {params:6} params {size / 1024:5.0f} KiB  loss {golden['single']['loss']:.4f} "
          f"{golden['packed']['loss']:.4f} -> {golden['packed']['adamw_losses'][3]:.4f}", flush=True)


def save_model(model, folder, options):
    if options.get("bf16"):
        model = copy.deepcopy(model).bfloat16()
    model.save_pretrained(folder)
    if model.config.model_type == "olmo_hybrid":
        tensors = all_in_files(dict(model.state_dict()), "olmo_hybrid")
        save_file(tensors, folder / "model.safetensors", metadata=dict(format="pt"))
    (folder / "generation_config.json").unlink(missing_ok=True)


def verify(folder, model, golden, tensors, options):
    """What was written loads with Transformers and gives what was recorded."""
    ids = torch.tensor(golden["single"]["input_ids"])
    again = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        got = logits_of(again, ids, [0, len(ids)])
    if not torch.equal(got, tensors["single.logits"]):
        raise SystemExit(f"{folder.name}: reloaded logits differ by {(got - tensors['single.logits']).abs().max()}")
    if options.get("v4"):
        config = json.loads((folder / "config.json").read_text())
        write_json(folder / "config_v4.json", old_spelling(config))
        check_old_spelling(folder, model, ids, tensors["single.logits"])


def main():
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    wanted = set(sys.argv[1:])
    for name, config, options in cases():
        if not wanted or name in wanted:
            write_case(name, config, options)
    if not wanted or "llama2_sharded" in wanted:
        write_sharded("llama2_sharded", "llama2")
    if not wanted or "olmo_hybrid_resaved" in wanted:
        write_resaved("olmo_hybrid_resaved", "olmo_hybrid")
    for name, as_in_memory in (("gemma3_multimodal", False), ("gemma3_multimodal_v5", True)):
        if not wanted or name in wanted:
            write_multimodal(name, "gemma3", as_in_memory)


if __name__ == "__main__":
    main()
