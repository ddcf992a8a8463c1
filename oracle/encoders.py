"""Writes tests/encoders/<case>/ with Transformers: tiny random encoders with classification heads, their tokenizers, and the
logits of a few texts.

    python oracle/encoders.py [CASE ...]
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)
from transformers.utils import logging

OUT = Path(__file__).resolve().parent.parent / "tests" / "encoders"
LINES = [
    "The plan is the program: a step runs without data and tells what it will need.",
    "Rivers carry sand and salt to the sea; winds carry some of it back.",
    "def add(a, b):\n    return a + b  # Ünïcode, 数字 and ١٢٣",
    "One two three four five six seven eight nine ten eleven twelve.",
]
TEXTS = LINES + ["", "short", "again and again " * 12]
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=64)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False)
    return framed(tokenizer, trainer)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
    )
    return framed(tokenizer, trainer)


def framed(tokenizer, trainer):
    tokenizer.train_from_iterator(LINES * 3, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return tokenizer


def deberta_sizes(vocab, **more):
    return dict(
        SIZES,
        vocab_size=vocab,
        relative_attention=True,
        position_buckets=8,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type="p2c|c2p",
        position_biased_input=False,
        pooler_hidden_size=32,
        **more,
    )


class Custom(torch.nn.Module):
    """The layout of NVIDIA's domain and quality classifiers: a bare model and one projection of its first token."""

    def __init__(self, config, labels):
        super().__init__()
        self.config = config
        self.model = DebertaV2Model(config)
        self.fc = torch.nn.Linear(config.hidden_size, labels)

    def forward(self, input_ids):
        return self.fc(self.model(input_ids).last_hidden_state)[:, 0, :]


def cases():
    words, pieces = wordpiece(), unigram()
    of_words, of_pieces = words.get_vocab_size(), pieces.get_vocab_size()
    bert = BertConfig(vocab_size=of_words, num_labels=3, **SIZES)
    number = BertConfig(vocab_size=of_words, num_labels=1, problem_type="regression", **SIZES)
    roberta = RobertaConfig(vocab_size=of_words, num_labels=2, problem_type="multi_label_classification", **SIZES)
    multilingual = XLMRobertaConfig(vocab_size=of_pieces, num_labels=5, type_vocab_size=1, layer_norm_eps=1e-5, **SIZES)
    deberta = DebertaV2Config(num_labels=4, **deberta_sizes(of_pieces))
    own = deberta_sizes(of_pieces, type_vocab_size=2, attention_head_size=8)
    own.update(share_att_key=False, pos_att_type=["c2p", "p2c"], position_buckets=-1, position_biased_input=True)
    own.update(max_relative_positions=16, norm_rel_ebd="none")
    return {
        "bert": (BertForSequenceClassification, bert, words),
        "bert_number": (BertForSequenceClassification, number, words),
        "roberta": (RobertaForSequenceClassification, roberta, words),
        "xlm_roberta": (XLMRobertaForSequenceClassification, multilingual, pieces),
        "deberta": (DebertaV2ForSequenceClassification, deberta, pieces),
        "deberta_own_keys": (DebertaV2ForSequenceClassification, DebertaV2Config(num_labels=2, **own), pieces),
        "deberta_custom": (lambda config: Custom(config, 5), DebertaV2Config(**deberta_sizes(of_pieces)), pieces),
    }


def randomise(model, generator):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = "norm" in name.lower()
            weight.copy_(0.1 * noise + (1.0 if is_norm and name.endswith("weight") else 0.0) if weight.dim() == 1 else 0.2 * noise)


def write(name, make, config, tokenizer):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    model = make(config).eval()
    randomise(model, torch.Generator().manual_seed(len(name)))
    if isinstance(model, Custom):
        save_file(model.state_dict(), folder / "model.safetensors")
        labels = {str(i): label for i, label in enumerate(["Arts", "Science", "Games", "Law", "News"])}
        custom = {"base_model": "base", "fc_dropout": 0.2, "id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}
        (folder / "config.json").write_text(json.dumps(custom, indent=2) + "\n")
        (folder / "base").mkdir()
        config.save_pretrained(folder / "base")
    else:
        model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    rows = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        ids = ids if len(ids) <= 40 else ids[:39] + ids[-1:]
        with torch.no_grad():
            out = model(torch.tensor([ids]))
        logits = (out if isinstance(model, Custom) else out.logits)[0]
        rows.append({"text": text, "ids": ids, "logits": [float(x) for x in logits]})
    (folder / "golden.json").write_text(json.dumps({"max_tokens": 40, "texts": rows}, indent=1) + "\n")


def main():
    logging.set_verbosity_error()
    wanted = sys.argv[1:]
    for name, (make, config, tokenizer) in cases().items():
        if not wanted or name in wanted:
            write(name, make, config, tokenizer)
            print(name)


if __name__ == "__main__":
    main()
