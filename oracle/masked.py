"""Writes tests/masked/<case>/ with Transformers: tiny random encoders with the masked-language head, the logits of a text, and the
gradients of the summed cross-entropy of some of its tokens.

    python oracle/masked.py [CASE ...]
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "tests" / "masked"
SIZES = dict(vocab_size=72, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=40)
DROPS = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
TOKENS = 30


def cases():
    t = transformers
    deberta = dict(relative_attention=True, position_buckets=8, max_relative_positions=-1, norm_rel_ebd="layer_norm", share_att_key=True)
    deberta.update(pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0, pooler_hidden_size=32)
    distil = dict(vocab_size=72, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40, dropout=0.0, attention_dropout=0.0)
    modern = dict(SIZES, num_hidden_layers=4, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    return {
        "bert": (t.BertForMaskedLM, t.BertConfig(**SIZES, **DROPS)),
        "bert_pretraining": (t.BertForPreTraining, t.BertConfig(hidden_act="gelu_new", layer_norm_eps=1e-5, **SIZES, **DROPS)),
        "roberta": (t.RobertaForMaskedLM, t.RobertaConfig(**SIZES, **DROPS)),
        "xlm_roberta": (t.XLMRobertaForMaskedLM, t.XLMRobertaConfig(**dict(SIZES, type_vocab_size=1), **DROPS)),
        "mpnet": (t.MPNetForMaskedLM, t.MPNetConfig(**SIZES, **DROPS)),
        "distilbert": (t.DistilBertForMaskedLM, t.DistilBertConfig(**distil)),
        "electra": (t.ElectraForMaskedLM, t.ElectraConfig(embedding_size=32, **SIZES, **DROPS)),
        "electra_narrow": (t.ElectraForMaskedLM, t.ElectraConfig(embedding_size=20, **SIZES, **DROPS)),
        "electra_wide_untied": (t.ElectraForMaskedLM, t.ElectraConfig(embedding_size=48, tie_word_embeddings=False, **SIZES, **DROPS)),
        "deberta": (t.DebertaV2ForMaskedLM, t.DebertaV2Config(**SIZES, **DROPS, **deberta)),
        "deberta_new_head": (t.DebertaV2ForMaskedLM, t.DebertaV2Config(legacy=False, **SIZES, **DROPS, **deberta)),
        "roberta_untied": (t.RobertaForMaskedLM, t.RobertaConfig(tie_word_embeddings=False, **SIZES, **DROPS)),
        "distilbert_untied": (t.DistilBertForMaskedLM, t.DistilBertConfig(tie_word_embeddings=False, **distil)),
        "modernbert": (t.ModernBertForMaskedLM, t.ModernBertConfig(**modern)),
        "modernbert_biased": (
            t.ModernBertForMaskedLM,
            t.ModernBertConfig(**dict(modern, num_hidden_layers=3, global_attn_every_n_layers=2, attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True)),
        ),
    }


def randomise(model, generator):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = "norm" in name.lower()
            weight.copy_(0.1 * noise + (1.0 if is_norm and name.endswith("weight") else 0.0) if weight.dim() == 1 else 0.2 * noise)


def write(name, make, config):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = make(config).eval()
    generator = torch.Generator().manual_seed(len(name))
    randomise(model, generator)
    model.save_pretrained(folder)
    ids = torch.randint(3, SIZES["vocab_size"], (TOKENS,), generator=generator)
    chosen = torch.rand(TOKENS, generator=generator) < 0.3
    labels = torch.where(chosen, torch.randint(3, SIZES["vocab_size"], (TOKENS,), generator=generator), -100)
    out = model(ids[None])
    logits = (out.prediction_logits if hasattr(out, "prediction_logits") else out.logits)[0]
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    loss.backward()
    # The table of a tied head has two names, of which files have the embedding's.
    heads = () if name.endswith("_untied") else ("decoder.weight", "decoder.bias", "vocab_projector.weight", "generator_lm_head.weight")
    named = [(name, weight) for name, weight in model.named_parameters(remove_duplicate=False) if not name.endswith(heads)]
    if name.startswith("modernbert"):
        named.append(("decoder.bias", model.decoder.bias))
    tensors = {f"grad.{name}": weight.grad.contiguous().clone() for name, weight in named if weight.grad is not None}
    save_file({"logits": logits.detach().contiguous(), **tensors}, folder / "golden.safetensors")
    golden = {"transformers": transformers.__version__, "ids": ids.tolist(), "labels": labels.tolist(), "loss": loss.item()}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for name, (make, config) in cases().items():
        if not wanted or name in wanted:
            write(name, make, config)
