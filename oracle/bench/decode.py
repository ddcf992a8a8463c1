"""Transformers' greedy `generate`, batch 1. Rows as `fathom bench decode`.

Tokens/s counts from the first new token to the last, by the clock at each token, so the prompt is not in it.
"""
import statistics
import time

import torch
from rival_model import FLAGS, build
from timing import arguments, measure, row, turns


class Clock:
    """A Transformers streamer that keeps the time of every token."""

    def __init__(self):
        self.times = []

    def put(self, _):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def main():
    args = arguments(prompt=128, new=64, **FLAGS)
    model = build(args, args.prompt + args.new).eval()
    ids = torch.randint(0, args.vocab, (1, args.prompt))
    mask, rates, firsts = torch.ones_like(ids), [], []

    def generate():
        # The streamer is first given the prompt, then each token.
        clock = Clock()
        model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=args.new + 1,
                       min_new_tokens=args.new + 1, pad_token_id=0, streamer=clock)
        rates.append(args.new / (clock.times[-1] - clock.times[1]))
        firsts.append(clock.times[1] - clock.times[0])

    for _ in turns(args):
        _, _, waited = measure(generate, args)
        rate, first = (statistics.median(x[-args.repeat:]) for x in (rates, firsts))
        row(bench="decode", dtype=args.dtype, scores=args.scores, prompt_tokens=args.prompt, new_tokens=args.new, threads=args.threads,
            tokens_per_s=rate, tokens_per_s_best=max(rates), ms_per_token=1e3 / rate, first_token_ms=1e3 * first,
            waited=waited)


main()
