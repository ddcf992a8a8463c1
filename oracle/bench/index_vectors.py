"""Vectors of passages by `fathom index --encoder` and by Sentence-Transformers' `encode`, in one run on the same cores.

    python oracle/bench/index_vectors.py FATHOM OUT [--passages 10000] [--tokens 128] [--rounds 1]

A random model of all-MiniLM-L6's shape is written to OUT. Prints passages a second of wall time and of processor time (reading, chunks
and BM25 of `index` included), both ratios, and the least cosine of the vectors of both.
"""
import argparse
import json
import random
import resource
import shutil
import subprocess
import time
from pathlib import Path

import numpy
from encoders import WORDS, make
from sentence_transformers import SentenceTransformer


def vectors(index, size):
    """All vectors of an index of one segment, in the order of its rows."""
    parts = sorted((index / "vectors").iterdir(), key=lambda part: int(part.suffix[1:]))
    return numpy.concatenate([numpy.frombuffer(part.read_bytes()[64:], "<f4").reshape(-1, size) for part in parts])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fathom")
    parser.add_argument("out", type=Path)
    parser.add_argument("--passages", type=int, default=10000)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = make(args.out, "minilm")
    drawn = random.Random(1)
    lengths = [round(args.tokens * drawn.uniform(0.5, 1.5)) - 2 for _ in range(args.passages)]
    texts = [" ".join(f"w{drawn.randrange(WORDS)}" for _ in range(count)) for count in lengths]
    rows = args.out / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rival = SentenceTransformer(str(folder), device="cpu")
    rival.encode(texts[:64])
    for _ in range(args.rounds):
        shutil.rmtree(args.out / "index", ignore_errors=True)
        spent, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [args.fathom, "index", str(rows), str(args.out / "index"), "--encoder", str(folder), "--chunk-bytes", "100000"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        own, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        own_cpu = after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime
        began, spent = time.perf_counter(), time.process_time()
        other_vectors = rival.encode(texts, normalize_embeddings=True)
        other, other_cpu = time.perf_counter() - began, time.process_time() - spent
        found = vectors(args.out / "index", 384)
        least = float((found * other_vectors).sum(1).min())
        print(f"fathom index: {len(texts) / own:.0f} passages/s, {len(texts) / own_cpu:.0f} a core-second;"
              f" Sentence-Transformers: {len(texts) / other:.0f}, {len(texts) / other_cpu:.0f};"
              f" {other / own:.2f} x, {other_cpu / own_cpu:.2f} x of processor time; least cosine 1 - {1 - least:.1e}", flush=True)


if __name__ == "__main__":
    main()
