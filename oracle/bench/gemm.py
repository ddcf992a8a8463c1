"""PyTorch's bf16 matrix product x W^T, weights as given. Rows as `fathom bench gemm`."""
import torch
from timing import arguments, measure, row, turns

SHAPES = [
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (4096, 3072, 768),
    (4096, 768, 3072), (768, 3072, 4096), (2048, 1408, 512), (2048, 32000, 512), (128, 4096, 4096),
]


def main():
    args = arguments(shape=None, dtype="bf16")
    dtype = dict(bf16=torch.bfloat16, f32=torch.float32)[args.dtype]
    shapes = [tuple(map(int, args.shape.split(",")))] if args.shape else SHAPES
    for m, n, k in shapes:
        x, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
        work = 2e-9 * m * n * k
        # Small products are repeated inside a sample so that the clock sees at least some milliseconds.
        inner = max(1, round(10 / work))

        def run():
            with torch.no_grad():
                for _ in range(inner):
                    torch.nn.functional.linear(x, w)

        for _ in turns(args):
            median, best, waited = measure(run, args, warm=2)
            row(bench="gemm", dtype=args.dtype, m=m, n=n, k=k, packed=False, threads=args.threads,
                gflops=inner * work / median, gflops_best=inner * work / best, waited=waited)


main()
