"""One training step of Transformers with SDPA: forward, backward, fused AdamW. Rows as `fathom bench step`.

`peak_rss_bytes` is the largest anonymous resident memory of the process seen while stepping (sampled every 5 ms),
Python and torch included; `peak_hwm_bytes` is the kernel's high-water mark with files. `places`: `none` keeps all
activations, `full` is Transformers' gradient checkpointing. With `--lora 16` PEFT trains an adapter of that rank of every linear layer
but the head, in place of the model.
"""
import torch
from rival_model import FLAGS, build, step_of
from timing import PeakAnonymous, arguments, measure, row, status_bytes, turns


def model_flops(args):
    """Forward and backward of one step: 6 per weight and token, attention counted once under the causal mask."""
    head = args.hidden // args.heads
    weights = args.hidden * head * (2 * args.heads + 2 * args.kv_heads) + 3 * args.hidden * args.ffn
    linear = 6 * args.tokens * (args.layers * weights + args.hidden * args.vocab)
    attention = 3 * args.layers * 2 * args.heads * head * args.tokens * (args.tokens + 1)
    return linear + attention


def main():
    args = arguments(tokens=2048, places="none", lora=0, **FLAGS)
    model = build(args, args.tokens).train()
    if args.lora:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear"))
        if args.places == "full":
            model.enable_input_require_grads()
    if args.places == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-4, fused=True)
    ids = torch.randint(0, args.vocab, (1, args.tokens))
    step = step_of(model, optimizer, ids, ids)

    for _ in turns(args):
        with PeakAnonymous() as memory:
            median, best, waited = measure(step, args)
        row(bench="step", dtype=args.dtype, scores=args.scores, tokens=args.tokens, places=args.places, lora=args.lora, machine="cpu",
            threads=args.threads, tokens_per_s=args.tokens / median, tokens_per_s_best=args.tokens / best,
            model_tflops=model_flops(args) / median * 1e-12, peak_rss_bytes=memory.peak,
            peak_hwm_bytes=status_bytes("VmHWM"), waited=waited)


main()
