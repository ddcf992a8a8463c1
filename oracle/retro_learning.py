"""Learning check of `fathom train retro`: does a decoder read the neighbours of its text?

    python oracle/retro_learning.py FATHOM OUT [SEED ...]

Passages are of sentences, each of which repeats few words of its own out of many; documents have two passages, and each passage is in
two documents. So the continuation of a neighbour has the words of the sentences to come, which nothing else says. A twentieth of
the documents is held out. Prints bits per byte of those with their neighbours and without, for three seeds.
"""
import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

PASSAGES, WORDS, SENTENCES, OWN, LENGTH = 600, 400, 6, 6, 24
SETTINGS = """model.hidden=64 model.layers=2 model.retro_layers=[1,2] model.heads=2 model.kv_heads=2 model.head_dim=32 model.ffn=176
model.vocab=1024 model.precision=f32 model.init_std=0.1 data.held_out_share=0.05 optimizer.lr=5e-3 schedule.warmup_steps=10
stage.0.seq_tokens=256 stage.0.samples_per_micro_batch=2 stage.0.micro_batches=1 stage.0.steps=600 stage.0.max_docs=32""".split()


def texts(folder, rng):
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = rng.sample([a + b + c for a in syllables for b in syllables for c in syllables], WORDS)
    passages = []
    for _ in range(PASSAGES):
        sets = [rng.sample(words, OWN) for _ in range(SENTENCES)]
        passages.append(" ".join(rng.choice(own) for own in sets for _ in range(LENGTH)))
    order = list(range(PASSAGES))
    rng.shuffle(order)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "documents.jsonl", "w") as out:
        for at in range(PASSAGES):
            pair = [passages[order[at]], passages[order[(at + 1) % PASSAGES]]]
            out.write(json.dumps({"text": "\n".join(pair)}) + "\n")


def run(fathom, out, seed):
    text, place = out / f"text{seed}", out / f"run{seed}"
    texts(text, random.Random(seed))
    began = time.time()
    command = [fathom, "train", "retro", f"data.paths={text}", f"run.out={place}", f"run.seed={seed}", *SETTINGS]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in open(place / "metrics.jsonl")]
    bits = {line["name"]: line["bits_per_byte"] for line in lines if line["event"] == "eval_bits"}
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    found = [bits[f"held-out, {how} neighbours"] for how in ["with", "without"]]
    print(f"seed {seed}: {found[0]:.4f} bits per byte with neighbours, {found[1]:.4f} without "
          f"(perplexity without over with: {math.exp((found[1] - found[0]) * math.log(2) * BYTES):.2f} per word of {BYTES} bytes), "
          f"last loss {losses[-1]:.3f}, {time.time() - began:.0f} s", flush=True)
    return found[0] < found[1]


BYTES = 7  # Six letters and a space.

if __name__ == "__main__":
    fathom, out, seeds = sys.argv[1], Path(sys.argv[2]), [int(seed) for seed in sys.argv[3:]] or [1, 2, 3]
    sys.exit(0 if all([run(fathom, out, seed) for seed in seeds]) else 1)
