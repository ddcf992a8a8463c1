"""Learning check of `fathom train mlm`: does a classifier that first restored masked words beat one from nothing?

    python oracle/mlm_classify.py FATHOM OUT [SEED ...]

A text of twelve words has nine or so of one of six topics, and any words besides. 3,000 texts have no label and 18 have one, so that
many words of a topic are in no labelled text: what goes together is learned from the others. Prints the macro F1 on 400 new texts of
the classifier from the trained encoder, and of the same steps from the encoder's first weights.
"""
import json
import random
import subprocess
import sys
from pathlib import Path

import torch

from embedder import base, lines

TOPICS, WORDS, UNLABELLED, LABELLED, NEW = 6, 24, 3000, 18, 300


def text(r, words, topic):
    own = [word for word in words if word[0] == topic]
    return " ".join(r.choice(own if r.random() < 0.75 else words)[1] for _ in range(12))


def rows(r, words, count):
    topics = [at % TOPICS for at in range(count)]
    return [dict(text=text(r, words, topic), label=f"t{topic}") for topic in topics]


def train(fathom, verb, start, data, out, seed, *settings):
    shared = [f"model.from={start}", f"data.paths={data}", f"run.out={out}", f"run.seed={seed}", "data.held_out_share=0", *settings]
    subprocess.run([fathom, "train", verb, "-q", *shared], check=True, stdout=subprocess.DEVNULL)
    return out / "model"


def classified(fathom, start, out, seed):
    labels = json.dumps([f"t{topic}" for topic in range(TOPICS)])
    model = train(fathom, "classify", start, out.parent / "labelled.jsonl", out, seed, f"objective.labels={labels}", "optimizer.lr=5e-4",
                  "data.max_text_tokens=32", "stage.0.seq_tokens=1024", "stage.0.micro_batches=1", "stage.0.epochs=60")
    found = subprocess.run([fathom, "eval", model, "--labels", out.parent / "new.jsonl", "--json", "-q"], check=True, capture_output=True, text=True)
    return json.loads(found.stdout.strip().splitlines()[-1])["macro_f1"]


def run(fathom, out, seed):
    out.mkdir(parents=True)
    r = random.Random(seed)
    torch.manual_seed(seed)
    spelled = set()
    while len(spelled) < TOPICS * WORDS:
        spelled.add("".join(r.choice("bdfgklmnprstvz") + r.choice("aeiou") for _ in range(3)))
    words = [(at % TOPICS, word) for at, word in enumerate(sorted(spelled, key=lambda _: r.random()))]
    texts = [row["text"] for row in rows(r, words, UNLABELLED)]
    lines(out / "texts.jsonl", [dict(text=line) for line in texts])
    lines(out / "labelled.jsonl", rows(r, words, LABELLED))
    lines(out / "new.jsonl", rows(r, words, NEW))
    base(out / "base", texts, 64)
    first = train(fathom, "mlm", out / "base", out / "texts.jsonl", out / "mlm", seed, "optimizer.lr=2e-3", "objective.mask_share=0.3",
                  "stage.0.seq_tokens=128",
                  "stage.0.samples_per_micro_batch=16", "stage.0.micro_batches=1", "stage.0.epochs=30")
    print(f"seed {seed}: macro F1 {classified(fathom, first, out / 'after', seed):.3f} after masked words, "
          f"{classified(fathom, out / 'base', out / 'nothing', seed):.3f} from nothing", flush=True)


if __name__ == "__main__":
    for seed in map(int, sys.argv[3:] or ["1"]):
        run(sys.argv[1], Path(sys.argv[2]) / str(seed), seed)
