"""llama.cpp over a GGUF file, batch 1. Rows as `fathom bench decode` and `fathom bench prefill`.

    python oracle/bench/rival_gguf.py MODEL.gguf decode|prefill [--prompt 64] [--new 32] [--threads 2] [--repeat 1] [--serve]

With --serve the model stays loaded, and each line on the input is a turn. Needs llama-cpp-python, built from source for this machine.
"""
import argparse
import json
import statistics
import sys
import time

import numpy as np
from llama_cpp import Llama


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("phase", choices=["decode", "prefill"])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    llama = Llama(args.model, n_ctx=args.prompt + args.new + 8, n_threads=args.threads, n_threads_batch=args.threads,
                  n_batch=512, verbose=False)
    ids = np.random.default_rng(1).integers(1, llama.n_vocab(), args.prompt).tolist()
    llama.eval(ids[:8])

    def once():
        llama.reset()
        begin = time.perf_counter()
        llama.eval(ids)
        first = time.perf_counter()
        if args.phase == "prefill":
            return args.prompt / (first - begin)
        for at in range(args.new):
            llama.eval([ids[at % len(ids)]])
        return args.new / (time.perf_counter() - first)

    for _ in sys.stdin if args.serve else [None]:
        rates = [once() for _ in range(args.repeat)]
        print(json.dumps(dict(bench=args.phase, prompt_tokens=args.prompt, new_tokens=args.new, threads=args.threads,
                              tokens_per_s=statistics.median(rates), tokens_per_s_best=max(rates))), flush=True)


main()
