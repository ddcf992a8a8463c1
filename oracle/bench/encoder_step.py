"""One training step of an encoder in PyTorch. Rows as `fathom bench step mlm|embed model.from=FOLDER stages=TOKENS`.

    python oracle/bench/encoder_step.py --write FOLDER --shape modernbert|minilm
    python oracle/bench/encoder_step.py --shape modernbert --tokens 1024
    python oracle/bench/encoder_step.py --shape minilm --tokens 128 --rows 512

`--dtype bf16` casts the weights. `--write` leaves a folder with random weights of that shape for Fathom. `modernbert`: Transformers' ModernBERT base, one
document of `--tokens` tokens, 15 % of them chosen, scaled dot product attention, fused AdamW. `minilm`: MiniLM's six
layers of 384 under Sentence-Transformers' MultipleNegativesRankingLoss, `--rows` pairs of texts of `--tokens` tokens each.
"""
import sys

import torch
import transformers
from timing import PeakAnonymous, arguments, measure, row

MINILM = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
              max_position_embeddings=512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def masked(args):
    config = transformers.ModernBertConfig(attn_implementation="sdpa")
    model = transformers.ModernBertForMaskedLM(config).train()
    ids = torch.randint(1000, 50000, (1, args.tokens))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    return model, lambda: model(input_ids=ids, labels=labels).loss


def minilm():
    return transformers.BertModel(transformers.BertConfig(**MINILM), add_pooling_layer=False)


def pairs(args):
    """The loss over mean-pooled vectors of length 1, as Sentence-Transformers' modules compute them."""
    import sentence_transformers
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    class Ids(torch.nn.Module):
        """A model of token ids: what `Transformer` and `Pooling` do to texts that are tokenized already."""

        def __init__(self):
            super().__init__()
            self.encoder = minilm()

        def forward(self, features):
            states = self.encoder(input_ids=features["input_ids"]).last_hidden_state
            return {"sentence_embedding": states.mean(dim=1)}

    model = Ids().train()
    loss = MultipleNegativesRankingLoss(model)
    sides = [{"input_ids": torch.randint(1000, 30000, (args.rows, args.tokens))} for _ in range(2)]
    print(f"sentence-transformers {sentence_transformers.__version__}", file=sys.stderr)
    return model, lambda: loss(sides, None)


def main():
    args = arguments(tokens=1024, rows=512, shape="modernbert", write=None, dtype="f32")
    if args.write:
        made = (transformers.ModernBertForMaskedLM(transformers.ModernBertConfig()) if args.shape == "modernbert"
                else minilm())
        made.save_pretrained(args.write)
        return
    model, loss = masked(args) if args.shape == "modernbert" else pairs(args)
    model.to(dict(f32=torch.float32, bf16=torch.bfloat16)[args.dtype])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with PeakAnonymous() as memory:
        median, best, waited = measure(step, args)
    tokens = args.tokens if args.shape == "modernbert" else 2 * args.rows * args.tokens
    row(bench="step", model=args.shape, dtype=args.dtype, tokens=tokens, machine="cpu", threads=args.threads,
        tokens_per_s=tokens / median, tokens_per_s_best=tokens / best, peak_rss_bytes=memory.peak, waited=waited)


main()
