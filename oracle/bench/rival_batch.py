"""llama.cpp with several sequences at once, in one process and without a server: prompts are read by batches of 512 tokens, answers are
written a token of every sequence a step.

    python oracle/bench/rival_batch.py MODEL.gguf [--sequences 16] [--prompt 512] [--new 128] [--threads 2]

Prints output tokens a second from the first prompt to the last answer. Needs llama-cpp-python, built from source for this machine.
"""
import argparse
import json
import time

import llama_cpp
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(args.model.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = args.sequences * (args.prompt + args.new)
    params.n_batch = params.n_ubatch = 512
    params.n_seq_max = args.sequences
    params.n_threads = params.n_threads_batch = args.threads
    context = llama_cpp.llama_init_from_model(model, params)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(512, 0, 1)

    def run(rows):
        """Rows of (token, position, sequence, whether its logits are wanted)."""
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")

    prompts = np.random.default_rng(1).integers(1, vocab, [args.sequences, args.prompt]).tolist()
    run([(token, at, 0, False) for at, token in enumerate(prompts[0][:8])])
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    begin = time.perf_counter()
    rows = [(token, at, sequence, at + 1 == args.prompt) for sequence, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
    for first in range(0, len(rows), 512):
        run(rows[first:first + 512])
    read = time.perf_counter() - begin
    for step in range(1, args.new):
        run([(prompts[sequence][step % args.prompt], args.prompt + step - 1, sequence, True) for sequence in range(args.sequences)])
    seconds = time.perf_counter() - begin
    print(json.dumps(dict(bench="batch", sequences=args.sequences, prompt_tokens=args.prompt, new_tokens=args.new, threads=args.threads,
                          read_s=read, seconds=seconds, tokens_per_s=args.sequences * args.new / seconds)), flush=True)


main()
