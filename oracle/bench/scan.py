"""Transformers' convolution, scan and gated norm of a Mamba-2 layer on PyTorch, forward and backward, f32. Sizes as
`cargo run --release -p fathom-cpu --example scan_bench`.

    python oracle/bench/scan.py [--threads 1] [--tokens 2048,8192]
"""
import argparse
import time

import torch
from torch.nn import functional
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", default="2048,8192")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--state", type=int, default=128)
    parser.add_argument("--groups", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for tokens in map(int, args.tokens.split(",")):
        seconds = min(layer(args, tokens) for _ in range(3))
        print(f"{tokens:8} tokens: {tokens / seconds / args.threads:8.0f} token-layers/s a core")


def layer(args, tokens):
    """CPU seconds of one pass of both kinds."""
    inner, columns = args.heads * args.width, args.groups * args.state
    torch.manual_seed(1)
    conv = torch.nn.Conv1d(inner + 2 * columns, inner + 2 * columns, 4, groups=inner + 2 * columns, padding=3)
    u = torch.randn(1, tokens, inner + 2 * columns, requires_grad=True)
    z = torch.randn(1, tokens, inner, requires_grad=True)
    dt = torch.randn(1, tokens, args.heads, requires_grad=True)
    a_log, d = (torch.randn(args.heads, requires_grad=True) for _ in range(2))
    bias = torch.full((args.heads,), -2.0, requires_grad=True)
    weight = torch.ones(inner, requires_grad=True)
    start = time.process_time()
    c = functional.silu(conv(u.transpose(1, 2))[..., :tokens].transpose(1, 2))
    x, b, c = torch.split(c, [inner, columns, columns], dim=-1)
    groups = (1, tokens, args.groups, args.state)
    y = mamba2_chunk_scan(x.reshape(1, tokens, args.heads, args.width), dt, -a_log.exp(), b.reshape(groups),
                          c.reshape(groups), chunk_size=256, D=d, dt_bias=bias, dt_softplus=True)
    y = y[0] if isinstance(y, tuple) else y
    y = y.reshape(1, tokens, inner) * functional.silu(z)
    y = weight * y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
    y.sum().backward()
    return (time.process_time() - start) / args.threads


if __name__ == "__main__":
    main()
