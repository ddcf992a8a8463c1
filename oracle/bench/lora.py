"""One training step of LoRA by PEFT on Transformers with SDPA: forward, backward, AdamW of the adapter. Rows as `fathom bench step
adapter.method=lora adapter.rank=16 adapter.targets=all-linear`.

`peak_rss_bytes` and `places` are those of step.py. `adapter_dtype`: PEFT keeps adapters of a bf16 base in f32 unless it is told not to.
    oracle/bench/rival.sh lora.py --tokens 16384 --places full
"""
import peft
import torch
from rival_model import FLAGS, build, step_of
from timing import PeakAnonymous, arguments, measure, row, status_bytes, turns


def main():
    args = arguments(tokens=2048, places="none", rank=16, adapter_dtype="f32", **FLAGS)
    config = peft.LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    base = build(args, args.tokens)
    base.config.use_cache = False
    model = peft.get_peft_model(base, config, autocast_adapter_dtype=args.adapter_dtype == "f32").train()
    if args.places == "full":
        # Without this no gradient would reach the adapter of the first layer.
        base.enable_input_require_grads()
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    ids = torch.randint(0, args.vocab, (1, args.tokens))
    step = step_of(model, optimizer, ids, ids)

    for _ in turns(args):
        with PeakAnonymous() as memory:
            median, best, waited = measure(step, args)
        row(bench="lora", dtype=args.dtype, adapter_dtype=args.adapter_dtype, rank=args.rank, trained=sum(w.numel() for w in trained),
            scores=args.scores, tokens=args.tokens, places=args.places, machine="cpu", threads=args.threads,
            tokens_per_s=args.tokens / median, tokens_per_s_best=args.tokens / best, peak_rss_bytes=memory.peak,
            peak_hwm_bytes=status_bytes("VmHWM"), waited=waited)


main()
