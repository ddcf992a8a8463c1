"""torch.save of what `fathom bench save` writes, with fsync: bf16 weights, their f32 masters, and two f32 moments."""
import os
import statistics
import time

import timing
import torch

args = timing.arguments(params=0, bytes=0, folder=".", dtype="bf16")
per_weight = 14 if args.dtype == "bf16" else 12
count = args.params or args.bytes // per_weight
weights = torch.bfloat16 if args.dtype == "bf16" else torch.float32
# As many tensors as a model of some layers has; their values do not matter.
parts = 64
state = {}
for part in range(parts):
    n = count * (part + 1) // parts - count * part // parts
    state[f"model.{part}"] = torch.randn(n).to(weights)
    for name in ["moment1", "moment2"] + (["master"] if args.dtype == "bf16" else []):
        state[f"{name}.{part}"] = torch.randn(n)
path = os.path.join(args.folder, "bench-save.pt")
samples = []
for _ in range(args.repeat):
    begun = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    samples.append(time.perf_counter() - begun)
    size = os.path.getsize(path)
    os.remove(path)
timing.json.dump({"bench": "save", "library": "torch", "bytes": size, "save_s": statistics.median(samples), "best_s": min(samples)}, timing.sys.stdout)
print()
