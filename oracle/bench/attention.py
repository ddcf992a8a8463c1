"""PyTorch's scaled_dot_product_attention, causal, bf16. Rows as `fathom bench attention`.

FLOPs count the causal half; forward and backward together are 3.5 forwards.
"""
import torch
from rival_model import SPREAD
from timing import arguments, measure, row, turns


def main():
    args = arguments(tokens="2048,8192,16384", heads=8, kv_heads=8, head_dim="64,128",
                     passes="forward,forward_backward", dtype="bf16", scores="flat,peaked")
    dtype = dict(bf16=torch.bfloat16, f32=torch.float32)[args.dtype]
    for tokens in map(int, args.tokens.split(",")):
        for dim in map(int, args.head_dim.split(",")):
            for scores in args.scores.split(","):
                case(args, dtype, tokens, dim, scores)


def case(args, dtype, tokens, dim, scores):
    q = torch.randn(1, args.heads, tokens, dim).to(dtype).requires_grad_()
    k, v = (torch.randn(1, args.kv_heads, tokens, dim).to(dtype).requires_grad_() for _ in range(2))
    d_out = torch.randn(1, args.heads, tokens, dim).to(dtype)

    scale = dim**-0.5 * (SPREAD if scores == "peaked" else 1.0)

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=args.heads != args.kv_heads)

    def forward():
        with torch.no_grad():
            attend()

    def forward_backward():
        torch.autograd.grad(attend(), (q, k, v), d_out)

    work = 2e-9 * args.heads * tokens * (tokens + 1) * dim
    for name, run, times in (("forward", forward, 1.0), ("forward_backward", forward_backward, 3.5)):
        if name not in args.passes.split(","):
            continue
        for _ in turns(args):
            median, best, waited = measure(run, args)
            row(bench="attention", **{"pass": name}, dtype=args.dtype, tokens=tokens, heads=args.heads,
                kv_heads=args.kv_heads, head_dim=dim, scores=scores, threads=args.threads, ms=median * 1e3, ms_best=best * 1e3,
                gflops=times * work / median, waited=waited)


main()
