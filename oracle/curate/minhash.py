"""Signatures of datatrove's MinHash against ours, on the same text in one run.

    cargo build --release -p fathom-curate --example minhash_bench
    python -P oracle/curate/minhash.py target/release/examples/minhash_bench

Writes generated text with our example, hashes it with both, five rounds in turn, and prints each rate
and the ratio of medians. datatrove's own preset: 5 words, 14 buckets of 8, 32-bit xxhash. -P keeps the
scripts of this folder from standing for Python's own modules.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature


def rival(texts):
    """Seconds that datatrove takes for the signatures of all texts."""
    with tempfile.TemporaryDirectory() as folder:
        step = MinhashDedupSignature(output_folder=folder, config=MinhashConfig())
        step.get_signature(step.get_shingles(texts[0]))  # loads the tokenizer
        start = time.perf_counter()
        for text in texts:
            shingles = step.get_shingles(text)
            if shingles.size:
                step.get_signature(shingles)
        return time.perf_counter() - start


def main():
    binary = sys.argv[1]
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([binary, "--documents", "400", "--write", file.name], check=True)
        texts = open(file.name, encoding="utf-8").read().split("\0")[:-1]
        mb = sum(len(text.encode()) for text in texts) / 1e6
        ours, theirs = [], []
        for _ in range(5):
            theirs.append(mb / rival(texts))
            row = subprocess.run(
                [binary, "--text", file.name, "--shape", "datatrove"], check=True, capture_output=True
            )
            ours.append(json.loads(row.stdout)["mb_per_s"])
    row = {"bench": "curate", "stage": "minhash", "shape": "datatrove", "threads": 1}
    print(json.dumps(row | {"by": "datatrove", "mb_per_s": round(statistics.median(theirs), 3)}))
    print(json.dumps(row | {"by": "fathom", "mb_per_s": statistics.median(ours)}))
    print(json.dumps({"ratio": round(statistics.median(ours) / statistics.median(theirs), 1)}))


if __name__ == "__main__":
    main()
