"""Writes tests/golden_t5/<case>/ with PyTorch and Transformers: tiny random encoder-decoders and what they compute.

    python oracle/t5.py [CASE ...]

Per case: config.json, model.safetensors, golden.safetensors (logits of pairs, packed; gradients), golden.json (ids, loss,
greedy continuations). Documents are longer than the largest distance of the biases.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_t5"
SMALL = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4,
             dropout_rate=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
# Lengths of the pairs: a source and a target each.
PAIRS = [(37, 9), (5, 14), (150, 20)]
IGNORED = -100


def cases():
    t5, umt5 = tf.T5Config, tf.UMT5Config
    yield "t5_v10", t5(**SMALL, feed_forward_proj="relu"), tf.T5ForConditionalGeneration, {}
    yield "t5_v11", t5(**SMALL, feed_forward_proj="gated-gelu"), tf.T5ForConditionalGeneration, dict(untied=True)
    flan = SMALL | dict(num_heads=6, d_kv=16, num_layers=3, num_decoder_layers=1, d_ff=40)
    yield "flan", t5(**flan, feed_forward_proj="gated-gelu"), tf.T5ForConditionalGeneration, dict(untied=True)
    yield "umt5", umt5(**SMALL), tf.UMT5ForConditionalGeneration, dict(untied=True)
    yield "t5_odd_heads", t5(**SMALL | dict(num_heads=3, d_kv=5), feed_forward_proj="gated-gelu"), tf.T5ForConditionalGeneration, dict(untied=True)
    few = SMALL | dict(relative_attention_num_buckets=8, relative_attention_max_distance=20, num_heads=3, d_kv=24)
    yield "t5_few_buckets", t5(**few, feed_forward_proj="relu"), tf.T5ForConditionalGeneration, {}


def randomise(model, generator):
    """Weights of std 0.2, those that unscaled scores grow from smaller, norms around 1, biases by distance of std 1."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "relative_attention_bias" in name:
                weight.copy_(noise)
            elif "layer_norm" in name:
                weight.copy_(1.0 + 0.1 * noise)
            elif name == "shared.weight":
                weight.copy_(noise)
            else:
                weight.copy_(0.15 * noise)


def logits_of(model, pairs):
    rows = [model(input_ids=s[None], decoder_input_ids=d[None], use_cache=False).logits[0] for s, d, _ in pairs]
    return torch.cat(rows)


def write(name, config, kind, options):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    untied = options.get("untied", False)
    if untied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.shared.weight))
        if hasattr(config, "scale_decoder_outputs"):
            config.scale_decoder_outputs = False
    randomise(model, generator)
    pairs = []
    for s, t in PAIRS:
        source = torch.randint(2, config.vocab_size, (s,), generator=generator)
        labels = torch.randint(1, config.vocab_size, (t,), generator=generator)
        decoder = torch.cat([torch.zeros(1, dtype=torch.long), labels[:-1]])
        masked = torch.rand(t, generator=generator) < 0.1
        labels[masked] = IGNORED
        pairs.append((source, decoder, labels))
    labels = torch.cat([l for *_, l in pairs])
    count = int((labels != IGNORED).sum())
    logits = logits_of(model, pairs)
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED)
    loss.backward()
    named = dict(model.named_parameters())
    tensors = {"logits": logits.detach()} | {f"grad.{n}": p.grad.clone() for n, p in named.items()}
    greedy = []
    for source, *_ in pairs:
        out = model.generate(source[None], do_sample=False, num_beams=1, max_new_tokens=12, min_new_tokens=12,
                             return_dict_in_generate=True, output_logits=True)
        top = torch.cat(out.logits).topk(2).values
        greedy.append(dict(tokens=out.sequences[0, 1:].tolist(),
                           smallest_margin=(top[:, 0] - top[:, 1]).min().item()))
    saved = {n: p.detach().clone() for n, p in named.items()}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    map_ = json.loads(config.to_json_string())
    # As folders on the hub have it: this key decides the head and its scale.
    map_["tie_word_embeddings"] = not untied
    map_.pop("scale_decoder_outputs", None)
    map_["architectures"] = [kind.__name__]
    (folder / "config.json").write_text(json.dumps(map_, indent=1, sort_keys=True) + "\n")
    back = kind.from_pretrained(folder, attn_implementation="eager").eval()
    assert torch.equal(logits_of(back, pairs), logits), f"{name}: Transformers reads another model from the folder"
    save_file(tensors, folder / "golden.safetensors")
    golden = dict(
        pairs=[dict(source=s.tolist(), decoder=d.tolist(), labels=l.tolist()) for s, d, l in pairs],
        loss=loss.item(), valid_tokens=count, greedy=greedy, transformers=tf.__version__, torch=torch.__version__)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(name, loss.item(), [g["smallest_margin"] for g in greedy])


if __name__ == "__main__":
    for name, config, kind, options in cases():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            write(name, config, kind, options)
