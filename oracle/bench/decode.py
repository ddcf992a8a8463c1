"""Transformers' greedy `generate`, batch 1: tokens/s after the prompt. Rows as `fathom bench decode --json`."""
import torch
from rival_model import FLAGS, build
from timing import arguments, measure, row


def main():
    args = arguments(prompt=128, new=64, **FLAGS)
    model = build(args, args.prompt + args.new).eval()
    ids = torch.randint(0, args.vocab, (1, args.prompt))
    mask = torch.ones_like(ids)

    def generate(count):
        return lambda: model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count,
                                      min_new_tokens=count, pad_token_id=0)

    first, _, _ = measure(generate(1), args)
    median, best, waited = measure(generate(args.new + 1), args)
    row(bench="decode", dtype=args.dtype, prompt_tokens=args.prompt, new_tokens=args.new, threads=args.threads,
        tokens_per_s=args.new / (median - first), ms_per_token=1e3 * (median - first) / args.new,
        first_token_ms=first * 1e3, waited=waited)


main()
