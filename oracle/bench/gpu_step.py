"""Transformers on a GPU: training steps of the Llama-3.2-1B shape and causal attention alone, in bf16. Rows of JSON as
`fathom bench step` prints them, with `"rival":"torch"`.

Each length is tried in the fastest way first (torch.compile, layer by layer and of the loss, and SDPA, then SDPA alone), with
gradient checkpointing where it does not fit without; from 65 536 tokens on only with checkpointing, and once. Weights, gradients and
moments are bf16, its fastest form; gradients are clipped, as Transformers' Trainer does unless told otherwise. A length that fits
in no way, or for which no time is left, is a row that says so. FLOPs are the model's: attention counted once under the causal mask,
nothing that runs again. Times are the device's, medians of repeats. With `--longest` instead of lengths, the longest step that fits,
with gradient checkpointing, by interval search: memory grows linearly, so two lengths say where to begin.
    python3 oracle/bench/gpu_step.py --tokens 8192,32768,131072 --seconds 140
    python3 oracle/bench/gpu_step.py --longest --attention 0 --seconds 590
"""
import argparse
import functools
import gc
import json
import statistics
import sys
import time

SHAPE = dict(hidden=2048, layers=16, heads=32, kv_heads=8, head=64, ffn=8192, vocab=128256)


def row(**values):
    rounded = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({**rounded, "rival": "torch"}), flush=True)


def model_flops(tokens):
    s = SHAPE
    weights = s["hidden"] * s["head"] * (2 * s["heads"] + 2 * s["kv_heads"]) + 3 * s["hidden"] * s["ffn"]
    linear = 6 * tokens * (s["layers"] * weights + s["hidden"] * s["vocab"])
    return linear + 3 * s["layers"] * 2 * s["heads"] * s["head"] * tokens * (tokens + 1)


def seconds(torch, run, repeat):
    """Median seconds of a run by the device's clock, after one that warms up."""
    run()
    samples = []
    for _ in range(repeat):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        samples.append(begun.elapsed_time(ended) * 1e-3)
    return statistics.median(samples)


# Makes scores of deviation one span 200, as those of trained models do.
SPREAD = 200 / 6


def build(torch, tokens, scores):
    from transformers import LlamaConfig, LlamaForCausalLM
    s = SHAPE
    config = LlamaConfig(
        hidden_size=s["hidden"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], head_dim=s["head"], intermediate_size=s["ffn"], vocab_size=s["vocab"],
        max_position_embeddings=max(131072, tokens), tie_word_embeddings=False, attn_implementation="sdpa",
        bos_token_id=None, eos_token_id=None, use_cache=False)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).bfloat16().train()
    if scores == "peaked":
        for layer in model.model.layers:
            layer.self_attn.scaling *= SPREAD / (s["hidden"] * config.initializer_range**2)
    return model


def loss_of(torch, model, ids, tile_loss, tile=8192):
    """The loss in tiles of the sequence, so that the logits of all tokens need never exist: the rival's best."""
    hidden = model.model(input_ids=ids).last_hidden_state[0]
    labels = torch.cat([ids[0, 1:], ids.new_full((1,), -100)])
    tiles = [tile_loss(hidden[at:at + tile], labels[at:at + tile]) for at in range(0, hidden.shape[0], tile)]
    return sum(tiles) / (ids.shape[1] - 1)


def prepared(torch, tokens, compiled, checkpointed, scores="flat"):
    """One training step, to be called: of all tokens, or of the first `count`."""
    model = build(torch, tokens, scores)

    def tile_loss(h, l):
        return torch.nn.functional.cross_entropy(model.lm_head(h).float(), l, ignore_index=-100, reduction="sum")

    if compiled:
        # All layers share one program, so that it is compiled once and in seconds.
        for layer in model.model.layers:
            layer.compile()
        tile_loss = torch.compile(tile_loss)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        tile_loss = functools.partial(torch.utils.checkpoint.checkpoint, tile_loss, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, SHAPE["vocab"], (1, tokens), device="cuda")

    def run(count=tokens):
        loss_of(torch, model, ids[:, :count], tile_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def step(torch, tokens, ways, scores, repeat):
    run = prepared(torch, tokens, *ways, scores)
    torch.cuda.reset_peak_memory_stats()
    took = seconds(torch, run, repeat)
    return took, torch.cuda.max_memory_allocated()


# From so many tokens on, activations of all layers do not fit, and a step takes long enough to be measured once.
LONG = 65536


def steps(torch, args, begun):
    for tokens in map(int, args.tokens.split(",")):
        failures = []
        ways = ((True, True), (False, True)) if tokens >= LONG else (
            (True, False), (False, False), (True, True), (False, True))
        for compiled, checkpointed in ways:
            if time.perf_counter() - begun > args.seconds:
                failures.append("no time left")
                break
            gc.collect()
            torch.cuda.empty_cache()
            try:
                repeat = 1 if tokens >= LONG else args.repeat
                took, peak = step(torch, tokens, (compiled, checkpointed), args.scores, repeat)
            except Exception as error:  # Out of memory, or a compiler that gives up: the next way.
                failures.append(f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")
                torch._dynamo.reset()
                continue
            row(bench="step", tokens=tokens, dtype="bf16", machine="cuda", scores=args.scores, compiled=compiled,
                places="full" if checkpointed else "none", step_s=took, tokens_per_s=tokens / took,
                model_tflops=model_flops(tokens) / took * 1e-12, peak_bytes=peak, torch=torch.__version__)
            failures = []
            break
        if failures:
            row(bench="step", tokens=tokens, dtype="bf16", machine="cuda", failed="; ".join(failures))


# Lengths of the search are multiples of this, and it ends when the interval is a twentieth.
GRAIN = 8192


def peak_of(torch, tokens):
    """Most bytes reserved by one step after a short one, which makes the optimizer's state; none if it does not fit."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        run = prepared(torch, tokens, False, True)
        run(1024)
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_reserved()


def longest(torch, args, begun):
    """A row for each length that was tried: the longest so far that fits, the shortest so far that does not."""
    limit = torch.cuda.mem_get_info()[0]
    short, long = 4 * GRAIN, 8 * GRAIN
    peaks = [peak_of(torch, short), peak_of(torch, long)]
    if None in peaks:
        return row(bench="longest", tokens=0, too_long=long, dtype="bf16", machine="cuda")
    slope = (peaks[1] - peaks[0]) / (long - short)
    good, bad = long, None
    tokens = int(long + (limit - peaks[1]) / max(slope, 1)) // GRAIN * GRAIN
    while time.perf_counter() - begun < args.seconds and (bad is None or bad - good > max(GRAIN, good // 20)):
        tokens = max(tokens, good + GRAIN)
        if peak_of(torch, tokens) is None:
            bad = tokens
        else:
            good = tokens
        row(bench="longest", tokens=good, too_long=bad, dtype="bf16", machine="cuda", limit_bytes=limit,
            torch=torch.__version__)
        # Beyond the line's end in steps of an eighth, then in the middle of what is known.
        tokens = (good + good // 8 if bad is None else (good + bad) // 2) // GRAIN * GRAIN


def attention(torch, args, scores):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    tokens, heads, kv_heads, dim = args.attention, 32, 8, 128
    q = torch.randn(1, heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, kv_heads, tokens, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    scale = dim**-0.5 * (SPREAD if scores == "peaked" else 1.0)
    work = 2e-12 * heads * dim * tokens * (tokens + 1)
    dout = torch.randn_like(q)
    best = {"forward": {}, "backward": {}}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        def run():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scale, enable_gqa=True)

        def forward():
            with torch.no_grad():
                run()
        try:
            best["forward"][backend.name] = work / seconds(torch, forward, args.repeat)
            inputs = [x.requires_grad_() for x in (q, k, v)]
            out = run()

            def backward():
                torch.autograd.grad(out, inputs, dout, retain_graph=True)
            # Five products where the forward pass has two.
            best["backward"][backend.name] = 2.5 * work / seconds(torch, backward, args.repeat)
        except RuntimeError as error:
            print(f"{backend.name}: {str(error).splitlines()[0]}", file=sys.stderr)
    if best["forward"]:
        names = {way: max(rates, key=rates.get) for way, rates in best.items() if rates}
        row(bench="attention", scores=scores, tokens=tokens, head_dim=dim, heads=heads, kv_heads=kv_heads,
            **{f"{way}_backend": name for way, name in names.items()},
            **{f"{way}_tflops": best[way][name] for way, name in names.items()})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="8192,32768,131072")
    parser.add_argument("--attention", type=int, default=32768, help="tokens of attention alone; 0 for none")
    parser.add_argument("--longest", action="store_true", help="the longest step that fits, instead of lengths")
    parser.add_argument("--scores", default="flat", help="of attention in steps: flat, or peaked as a trained model's are")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no other way after this long")
    args = parser.parse_args()
    begun = time.perf_counter()
    try:
        import torch
        import torch.utils.checkpoint
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU", file=sys.stderr)
        return
    torch.manual_seed(0)
    if args.attention:
        for scores in ("flat", "peaked"):
            attention(torch, args, scores)
    if args.longest:
        longest(torch, args, begun)
    else:
        steps(torch, args, begun)


main()
