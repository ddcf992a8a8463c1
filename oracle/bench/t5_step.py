"""One training step of Transformers' T5 1.1 small: forward, backward, fused AdamW. Rows as `fathom bench step t5-small`.

`--tokens` counts tokens of text: span corruption makes a source of 0.9 and a target of 0.2 of them.
"""
import torch
from rival_model import step_of
from timing import PeakAnonymous, arguments, measure, row
from transformers import T5Config, T5ForConditionalGeneration

SMALL = dict(vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6,
             feed_forward_proj="gated-gelu", dropout_rate=0.0, tie_word_embeddings=False, decoder_start_token_id=0)


def main():
    args = arguments(tokens=2048, dtype="f32")
    dtype = dict(f32=torch.float32, bf16=torch.bfloat16)[args.dtype]
    model = T5ForConditionalGeneration(T5Config(**SMALL)).to(dtype).train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    source, target = [torch.randint(2, 32000, (1, round(share * args.tokens))) for share in (0.9, 0.2)]
    step = step_of(model, optimizer, source, target)

    with PeakAnonymous() as memory:
        median, best, waited = measure(step, args)
    row(bench="step", model="t5-small", dtype=args.dtype, tokens=args.tokens, machine="cpu", threads=args.threads,
        tokens_per_s=args.tokens / median, tokens_per_s_best=args.tokens / best, peak_rss_bytes=memory.peak, waited=waited)


main()
