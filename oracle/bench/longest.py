"""The longest training step of Transformers (SDPA, gradient checkpointing) within a memory limit, by interval search.

Each length is one whole step in a process of its own; what counts is the largest anonymous resident memory seen.
Memory grows linearly with the length, so the line through the two nearest lengths proposes the next one.
    oracle/bench/rival.sh longest.py --memory-gib 20
"""
import json
import subprocess
import sys

import torch
from rival_model import FLAGS, build
from timing import PeakAnonymous, arguments, row

STEP = 512  # tokens: the search ends when the next step is known to be too long


def one(args):
    """Peak anonymous memory of one step; the optimizer's state exists before it, from a short step."""
    model = build(args, args.tokens).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for tokens in [128, args.tokens]:
        ids = torch.randint(0, args.vocab, (1, tokens))
        with PeakAnonymous() as memory:
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    row(bench="longest", tokens=args.tokens, peak_rss_bytes=memory.peak)


def peak_of(args, tokens):
    """Runs this script for one length; a process that the kernel kills or that cannot allocate counts as too large."""
    flags = [f"--{key.replace('_', '-')}={getattr(args, key)}" for key in FLAGS]
    done = subprocess.run([sys.executable, __file__, f"--tokens={tokens}", *flags], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-300:], file=sys.stderr)
        return float("inf")
    peak = json.loads(done.stdout.strip().splitlines()[-1])["peak_rss_bytes"]
    print(f"{tokens} tokens: {peak / 2**30:.2f} GiB", file=sys.stderr, flush=True)
    return peak


def main():
    args = arguments(tokens=0, memory_gib=20, **FLAGS)
    if args.tokens:
        return one(args)
    limit = args.memory_gib * 2**30
    below, above = (4096, peak_of(args, 4096)), (8192, peak_of(args, 8192))
    longest, shortest_failing = 0, float("inf")
    while True:
        slope = (above[1] - below[1]) / (above[0] - below[0])
        tokens = int((above[0] + (limit - above[1]) / slope) // STEP * STEP)
        tokens = max(min(tokens, shortest_failing - STEP, 2 * above[0]), longest + STEP)
        if tokens >= shortest_failing:
            break
        peak = peak_of(args, tokens)
        if peak <= limit:
            longest = tokens
        else:
            shortest_failing = tokens
        if peak < float("inf"):
            below, above = above, (tokens, peak)
    row(bench="longest", dtype=args.dtype, memory_gib=args.memory_gib, tokens=longest, too_long=shortest_failing)


main()
