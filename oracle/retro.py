"""Writes tests/golden_retro/<case>/: tiny random RETRO models, and what an own forward pass in f64 computes of packed documents
with neighbours.

    python oracle/retro.py [CASE ...]

The forward pass is written from the formulas (Borgeaud et al., arXiv 2112.04426, section 2 and algorithm 1), document by document
and chunk by chunk. Per case: config.json, model.safetensors, golden.safetensors (logits, gradients), golden.json (ids, labels, chunks,
neighbours, loss). Some chunks have fewer neighbours than others or none, some neighbours no continuation or a short one.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_retro"
SMALL = dict(model_type="retro", architectures=["RetroForCausalLM"], vocab_size=64, hidden_size=24, intermediate_size=32,
             num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, hidden_act="silu", rms_norm_eps=1e-6,
             max_position_embeddings=256, rope_parameters=dict(rope_type="default", rope_theta=10000.0),
             tie_word_embeddings=False, retro_layer_numbers=[2, 3], retro_chunk_size=8, retro_num_neighbors=2,
             retro_encoder_layers=2)
CASES = {
    "retro": SMALL,
    "retro_first": SMALL | dict(num_hidden_layers=2, retro_layer_numbers=[1], retro_num_neighbors=1, retro_encoder_layers=1,
                                tie_word_embeddings=True, num_key_value_heads=4, retro_chunk_size=5),
}
DOCUMENTS = [37, 5, 61]
IGNORED = -100


def shapes(c):
    """Names and shapes of all weights; the first dimension of a projection is its output."""
    d, f, heads, kv = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"]
    q, k = heads * c["head_dim"], kv * c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], d)
    yield "model.norm.weight", (d,)
    yield "model.encoder.norm.weight", (d,)
    layers = [(f"model.encoder.layers.{i}", True) for i in range(c["retro_encoder_layers"])]
    layers += [(f"model.layers.{i}", i + 1 in c["retro_layer_numbers"]) for i in range(c["num_hidden_layers"])]
    for at, crosses in layers:
        for attention in ["self_attn", "cross_attn"][:1 + crosses]:
            yield f"{at}.{attention}.q_proj.weight", (q, d)
            yield f"{at}.{attention}.k_proj.weight", (k, d)
            yield f"{at}.{attention}.v_proj.weight", (k, d)
            yield f"{at}.{attention}.o_proj.weight", (d, q)
        for norm in ["input_layernorm", "post_attention_layernorm", "cross_attention_layernorm"][:2 + crosses]:
            yield f"{at}.{norm}.weight", (d,)
        yield f"{at}.mlp.gate_proj.weight", (f, d)
        yield f"{at}.mlp.up_proj.weight", (f, d)
        yield f"{at}.mlp.down_proj.weight", (d, f)


class Retro:
    def __init__(self, c, w):
        self.c, self.w = c, w

    def norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]).sqrt() * self.w[name + ".weight"]

    def rotate(self, x):
        """x: [rows, heads, columns], at positions 0, 1, ..; halves are rotated against each other."""
        rows, _, columns = x.shape
        theta = self.c["rope_parameters"]["rope_theta"]
        speed = theta ** (-torch.arange(0, columns, 2, dtype=torch.float64) / columns)
        angle = torch.arange(rows, dtype=torch.float64)[:, None] * speed
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :columns // 2], x[..., columns // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(self, x, to, at, rotated, causal):
        size = self.c["head_dim"]
        q, k, v = [(y @ self.w[f"{at}.{p}_proj.weight"].T).view(len(y), -1, size) for y, p in [(x, "q"), (to, "k"), (to, "v")]]
        if rotated:
            q, k = self.rotate(q), self.rotate(k)
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = torch.einsum("qhc,khc->hqk", q, k) / size ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(len(x), len(to)).triu(1).bool(), -torch.inf)
        out = torch.einsum("hqk,khc->qhc", scores.softmax(-1), v).reshape(len(x), -1)
        return out @ self.w[f"{at}.o_proj.weight"].T

    def own(self, x, at, causal):
        n = self.norm(x, f"{at}.input_layernorm")
        return x + self.attend(n, n, f"{at}.self_attn", True, causal)

    def mlp(self, x, at):
        n = self.norm(x, f"{at}.post_attention_layernorm")
        gate, up = [n @ self.w[f"{at}.mlp.{p}_proj.weight"].T for p in ["gate", "up"]]
        return x + (torch.nn.functional.silu(gate) * up) @ self.w[f"{at}.mlp.down_proj.weight"].T

    def encode(self, ids, chunk):
        """One neighbour, beside the rows of its chunk."""
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["retro_encoder_layers"]):
            at = f"model.encoder.layers.{i}"
            x = self.own(x, at, False)
            n = self.norm(x, f"{at}.cross_attention_layernorm")
            x = x + self.attend(n, chunk, f"{at}.cross_attn", False, False)
            x = self.mlp(x, at)
        return self.norm(x, "model.encoder.norm")

    def cross(self, x, at, encoded):
        """Chunked cross attention: rows m - 1 of a chunk to m - 2 of the next one read the chunk's neighbours."""
        m = self.c["retro_chunk_size"]
        n = self.norm(x, f"{at}.cross_attention_layernorm")
        added = [torch.zeros_like(x[:m - 1])]
        for u, keys in enumerate(encoded):
            rows = n[u * m + m - 1:(u + 1) * m + m - 1]
            added.append(self.attend(rows, keys, f"{at}.cross_attn", False, False) if len(keys) else torch.zeros_like(rows))
        return x + torch.cat(added)[:len(x)]

    def logits(self, ids, neighbours):
        """neighbours: for each chunk a list of token lists."""
        m, encoded = self.c["retro_chunk_size"], None
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = self.own(x, at, True)
            if i + 1 in self.c["retro_layer_numbers"]:
                if encoded is None:
                    rows = self.norm(x, f"{at}.cross_attention_layernorm")
                    encoded = [[self.encode(one, rows[u * m:(u + 1) * m]) for one in all_] for u, all_ in enumerate(neighbours)]
                    encoded = [torch.cat(all_) if all_ else [] for all_ in encoded]
                x = self.cross(x, at, encoded)
            x = self.mlp(x, at)
        head = "model.embed_tokens.weight" if self.c["tie_word_embeddings"] else "lm_head.weight"
        return self.norm(x, "model.norm") @ self.w[head].T


def write(name, c):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    draw = lambda n: torch.randint(2, c["vocab_size"], (n,), generator=generator)
    saved = {}
    for weight, shape in shapes(c):
        noise = torch.randn(shape, generator=generator)
        saved[weight] = 1 + 0.1 * noise if "norm" in weight else noise if "embed" in weight else 0.2 * noise
    weights = {n: w.double().requires_grad_() for n, w in saved.items()}
    model, m = Retro(c, weights), c["retro_chunk_size"]
    documents, all_logits, labels = [], [], []
    for number, length in enumerate(DOCUMENTS):
        ids, count = draw(length), length // m
        # Of chunk u: as many neighbours as there may be, or fewer, each with a continuation, half of one, or none.
        of = lambda u: [draw((2 * m, m, m + m // 2)[(u + at) % 3]) for at in range((2, 1, 2, 0)[(u + number) % 4])]
        neighbours = [of(u)[:c["retro_num_neighbors"]] for u in range(count)]
        label = torch.cat([ids[1:], torch.tensor([IGNORED])])
        label[torch.rand(length, generator=generator) < 0.1] = IGNORED
        all_logits.append(model.logits(ids, neighbours))
        labels.append(label)
        documents.append(dict(ids=ids.tolist(), labels=label.tolist(), neighbours=[[n.tolist() for n in all_] for all_ in neighbours]))
    logits, label = torch.cat(all_logits), torch.cat(labels)
    loss = torch.nn.functional.cross_entropy(logits, label, ignore_index=IGNORED)
    loss.backward()
    tensors = {"logits": logits.detach().float()} | {f"grad.{n}": w.grad.float() for n, w in weights.items()}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "golden.safetensors")
    (folder / "config.json").write_text(json.dumps(c, indent=1, sort_keys=True) + "\n")
    golden = dict(documents=documents, loss=loss.item(), valid_tokens=int((label != IGNORED).sum()), torch=torch.__version__)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(name, loss.item())


if __name__ == "__main__":
    for name, config in CASES.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            write(name, config)
