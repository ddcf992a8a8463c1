"""What guessing ahead gains while one sequence is written, by `fathom serve` in turns with and without: tokens a second and ratios.

    python oracle/bench/speculation.py FATHOM MODEL OUT [--layers 40] [--rounds 3]

MODEL is a small model (the quickstart's). Its large one is made here: the same layers, and `--layers` more whose outputs are zero, so
that it says what the small one says and takes its time for it. That is the best that a draft can be: one that is always right.

- look-up, text that repeats its prompt: the prompt is a text whose end begins the text again.
- draft, text that is new: the small model guesses for the large one.
- neither: tokens drawn at a temperature that makes them nearly random, where guesses are wrong and have to stop.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import time
import urllib.request

import torch
from safetensors.torch import load_file, save_file
from serving import wait_ready

TOKENS = 192


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fathom")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    large = os.path.join(args.out, "large")
    lengthen(args.model, large, args.layers)
    with open(os.path.join(args.model, "config.json")) as file:
        vocabulary = json.load(file)["vocab_size"]
    drawn = random.Random(1)
    passage = [drawn.randrange(300, vocabulary - 300) for _ in range(TOKENS + 8)]
    servers = [Server(args.fathom, large, 8130, ["serve.draft_tokens=0"]), Server(args.fathom, large, 8131, []),
               Server(args.fathom, large, 8132, ["--draft", args.model])]
    plain, guessing, drafting = servers
    cases = [("look-up, repeated", guessing, dict(prompt=passage + passage[:16], temperature=0)),
             ("draft, new text", drafting, dict(prompt=passage[:64], temperature=0.8, seed=3)),
             ("look-up, noise", guessing, dict(prompt=passage[:64], temperature=8.0, seed=3)),
             ("draft, noise", drafting, dict(prompt=passage[:64], temperature=8.0, seed=3))]
    for name, server, request in cases:
        ratios, rates = [], []
        for _ in range(args.rounds + 1):
            (slow, before), (fast, after) = plain.write(request), server.write(request)
            assert before == after, f"{name}: guessing changed the answer"
            ratios.append(slow / fast)
            rates.append((TOKENS - 1) / fast)
        # The first round warms both.
        print(json.dumps(dict(case=name, ratio=round(statistics.median(ratios[1:]), 3), ratios=[round(r, 3) for r in ratios[1:]],
                              tokens_per_s=round(statistics.median(rates[1:]), 1))), flush=True)
    for server in servers:
        server.process.terminate()


class Server:
    """`fathom serve` of a model."""

    def __init__(self, fathom, model, port, more):
        self.at = f"http://127.0.0.1:{port}"
        command = [fathom, "serve", model, "--port", str(port), "--name", "m", "--memory", "2GiB", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_ready(self.at)

    def write(self, request):
        """Seconds from the first token to the last, and the tokens."""
        body = dict(request, model="m", max_tokens=TOKENS, stream=True, return_token_ids=True, ignore_eos=True)
        ask = urllib.request.Request(self.at + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        stamps, tokens = [], []
        for line in urllib.request.urlopen(ask, timeout=600):
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:]).get("choices", []):
                    if choice.get("token_ids"):
                        stamps.append(time.perf_counter())
                        tokens += choice["token_ids"]
        return stamps[-1] - stamps[0], tokens


def lengthen(model, out, layers):
    """The model with layers behind its own that add nothing."""
    shutil.copytree(model, out, dirs_exist_ok=True)
    with open(os.path.join(out, "config.json")) as file:
        config = json.load(file)
    own = config["num_hidden_layers"]
    path = os.path.join(out, "model.safetensors")
    weights = load_file(path)
    torch.manual_seed(1)
    for name in [name for name in weights if f".layers.{own - 1}." in name]:
        for layer in range(own, own + layers):
            like = weights[name]
            silent = "o_proj." in name or "down_proj." in name
            copy = torch.zeros_like(like) if silent else like.clone()
            weights[name.replace(f".layers.{own - 1}.", f".layers.{layer}.")] = copy
    save_file(weights, path, metadata={"format": "pt"})
    config["num_hidden_layers"] = own + layers
    if "layer_types" in config:
        config["layer_types"] += [config["layer_types"][-1]] * layers
    with open(os.path.join(out, "config.json"), "w") as file:
        json.dump(config, file)


main()
