"""A model of two layers that copies by construction, for needles at any length: after a token that stood before once, it says what
followed then.

    python oracle/bench/copying_model.py OUT [--tokens 1048576]

A Cohere 2 of the bench model's shape (hidden 512, 8 heads of 64, 4 of keys). The first layer has a window and rotates: every head
looks at the token before and writes its code beside the token's own. The second neither has a window nor rotates: it looks for
places whose token before is this one, and adds the code of what stands there. Nothing is trained.
"""
import argparse
import json
import math
import os

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KEYS, HEAD, FFN, VOCAB = 512, 8, 4, 64, 1408, 32000
# A token's code is +-1 in `CODE` columns, of which each head of keys has `PART`; its place for the token before begins at `BEFORE`.
PART = 62
CODE, BEFORE, CONSTANT = KEYS * PART, 256, 4.0
THETA = 10000.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=1 << 20)
    args = parser.parse_args()
    random = np.random.default_rng(1)
    codes = np.tile(np.repeat([1.0, -1.0], CODE // 2), (VOCAB, 1))
    embedding = np.zeros((VOCAB, HIDDEN), np.float32)
    embedding[:, :CODE] = random.permuted(codes, axis=1)
    embedding[:, -2:] = CONSTANT, -CONSTANT
    # What a norm makes of one in its input, before the token before is known and after.
    first = 1 / math.sqrt((CODE + 2 * CONSTANT**2) / HIDDEN)
    second = 1 / math.sqrt((2 * CODE + 2 * CONSTANT**2) / HIDDEN)

    def zeros(rows, cols=HIDDEN):
        return np.zeros((rows, cols), np.float32)

    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": np.ones(HIDDEN, np.float32)}
    for layer in range(2):
        q, k, v, o = zeros(HIDDEN), zeros(KEYS * HEAD), zeros(KEYS * HEAD), zeros(HIDDEN)
        for head in range(HEADS):
            group, at = head // 2, head * HEAD
            if layer == 0:
                # Constant vectors whose product is largest one position apart.
                for pair in range(HEAD // 2):
                    turn, size = THETA ** (-2 * pair / HEAD), 16 / (CONSTANT * first)
                    q[at + 2 * pair, -2] = size * math.cos(turn)
                    q[at + 2 * pair + 1, -2] = -size * math.sin(turn)
                    k[group * HEAD + 2 * pair, -2] = size
            for i in range(PART):
                column = group * PART + i
                v[group * HEAD + i, column] = 1
                if layer == 0:
                    o[BEFORE + column, at + i] = 0.5 / first
                else:
                    q[at + i, column] = k[group * HEAD + i, BEFORE + column] = 4 / second
                    o[column, at + i] = 2 / second
        prefix = f"model.layers.{layer}."
        for name, weight in (("q", q), ("k", k), ("v", v), ("o", o)):
            weights[prefix + f"self_attn.{name}_proj.weight"] = weight
        for name, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
            weights[prefix + f"mlp.{name}_proj.weight"] = zeros(*shape)
        weights[prefix + "input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    os.makedirs(args.out, exist_ok=True)
    save_file(weights, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})
    write(args.out, "config.json", dict(
        architectures=["Cohere2ForCausalLM"], model_type="cohere2", vocab_size=VOCAB, hidden_size=HIDDEN,
        intermediate_size=FFN, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KEYS,
        max_position_embeddings=args.tokens, layer_norm_eps=1e-5, rope_theta=THETA, sliding_window=4096,
        layer_types=["sliding_attention", "full_attention"], sliding_window_pattern=2, logit_scale=1.0, hidden_act="silu",
        tie_word_embeddings=True, torch_dtype="float32", bos_token_id=None, eos_token_id=0, pad_token_id=0))
    write(args.out, "tokenizer.json", dict(
        version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None,
        pre_tokenizer=dict(type="WhitespaceSplit"), post_processor=None, decoder=None,
        model=dict(type="WordLevel", vocab={f"w{i}": i for i in range(VOCAB)}, unk_token="w0")))
    write(args.out, "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="w0", model_max_length=args.tokens))


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)


main()
