"""Writes tests/encoders/<case>/ with Transformers: tiny random encoders with classification heads, their tokenizers, and the
logits of a few texts. With Sentence-Transformers: encoders that give vectors (`embed_*`) and that rank (`rank_*`), their folders,
and vectors and scores of texts and pairs.

    python oracle/encoders.py [CASE ...]
"""
import json
import shutil
import sys
from pathlib import Path

import sentence_transformers
import torch
import transformers
from masked import randomise
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2Model,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
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
    modern = dict(SIZES, num_hidden_layers=3, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
    mean = ModernBertConfig(vocab_size=of_words, num_labels=3, classifier_pooling="mean", **modern)
    return {
        "bert": (BertForSequenceClassification, bert, words),
        "bert_number": (BertForSequenceClassification, number, words),
        "roberta": (RobertaForSequenceClassification, roberta, words),
        "mpnet": (MPNetForSequenceClassification, MPNetConfig(vocab_size=of_words, num_labels=3, **SIZES), words),
        "xlm_roberta": (XLMRobertaForSequenceClassification, multilingual, pieces),
        "modernbert_mean": (ModernBertForSequenceClassification, mean, words),
        "deberta": (DebertaV2ForSequenceClassification, deberta, pieces),
        "deberta_own_keys": (DebertaV2ForSequenceClassification, DebertaV2Config(num_labels=2, **own), pieces),
        "deberta_custom": (lambda config: Custom(config, 5), DebertaV2Config(**deberta_sizes(of_pieces)), pieces),
    }


def made(name, make, config):
    """An empty folder, and a model with weights of its own."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    model = make(config).eval()
    randomise(model, torch.Generator().manual_seed(len(name)))
    return folder, model


def write(name, make, config, tokenizer):
    folder, model = made(name, make, config)
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


def pairs_of(tokenizer, pair):
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    single = "[CLS] $A [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return tokenizer


def folder_of(name, make, config, tokenizer):
    """A folder of Transformers, as the hub has it."""
    folder, model = made(name, make, config)
    model.save_pretrained(folder)
    names = dict(cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]")
    names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=48, **names).save_pretrained(folder)
    return folder


BERT_PAIR = "[CLS] $A [SEP] $B:1 [SEP]:1"
ROBERTA_PAIR = "[CLS] $A [SEP] [SEP] $B [SEP]"
PAIRS = [(LINES[0], LINES[1]), ("short", LINES[2]), ("what falls?", ""), (LINES[0] + LINES[3], "again and again " * 12), (LINES[1] * 3, "x")]


def versions():
    return {"transformers": transformers.__version__, "sentence_transformers": sentence_transformers.__version__}


def embedders():
    words, pieces = pairs_of(wordpiece(), BERT_PAIR), pairs_of(unigram(), ROBERTA_PAIR)
    bert = BertConfig(vocab_size=words.get_vocab_size(), **SIZES)
    xlm = XLMRobertaConfig(vocab_size=pieces.get_vocab_size(), type_vocab_size=1, pad_token_id=0, **SIZES)
    deberta = DebertaV2Config(**deberta_sizes(pieces.get_vocab_size()))
    yield "embed_bert", BertModel, bert, words, lambda: [Pooling(32, "cls"), Normalize()], {}
    prompts = dict(prompts={"query": "short ", "document": ""}, default_prompt_name="query")
    dense = lambda: [Pooling(32, ("mean", "max")), Dense(64, 24), Normalize()]
    yield "embed_xlm_roberta", XLMRobertaModel, xlm, pieces, dense, prompts
    yield "embed_deberta", DebertaV2Model, deberta, pieces, None, {}
    # As all-mpnet-base-v2.
    mpnet = MPNetConfig(vocab_size=words.get_vocab_size(), layer_norm_eps=1e-5, **SIZES)
    yield "embed_mpnet", MPNetModel, mpnet, words, lambda: [Pooling(32, "mean"), Normalize()], {}


def write_embedder(name, make, config, tokenizer, modules, prompts):
    folder = folder_of(name, make, config, tokenizer)
    if modules:
        torch.manual_seed(1)
        model = SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=40), *modules()], **prompts)
        shutil.rmtree(folder)
        model.save(str(folder), create_model_card=False)
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    rows = [{"text": text, "vector": [float(x) for x in vector]} for text, vector in zip(TEXTS, vectors)]
    golden = {"versions": versions(), "max_tokens": model.max_seq_length, "texts": rows}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def rankers():
    words, pieces = pairs_of(wordpiece(), BERT_PAIR), pairs_of(unigram(), ROBERTA_PAIR)
    bert = BertConfig(vocab_size=words.get_vocab_size(), num_labels=1, **SIZES)
    xlm = XLMRobertaConfig(vocab_size=pieces.get_vocab_size(), num_labels=1, type_vocab_size=1, pad_token_id=0, **SIZES)
    identity = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}
    xlm.sentence_transformers = identity
    yield "rank_bert", BertForSequenceClassification, bert, words
    yield "rank_xlm_roberta", XLMRobertaForSequenceClassification, xlm, pieces


def write_ranker(name, make, config, tokenizer):
    folder = folder_of(name, make, config, tokenizer)
    model = CrossEncoder(str(folder), device="cpu", max_length=40)
    found = model.predict(PAIRS)
    rows = []
    for (first, second), score in zip(PAIRS, found):
        # In a list, as the model reads it: an empty second text by itself would be none.
        read = model.tokenizer([[first, second]], truncation=True, max_length=40)
        ids, types = read["input_ids"][0], read["token_type_ids"][0]
        rows.append({"pair": [first, second], "ids": ids, "types": types, "score": float(score)})
    golden = {"versions": versions(), "max_tokens": 40, "pairs": rows}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def main():
    logging.set_verbosity_error()
    wanted = sys.argv[1:]
    for name, (make, config, tokenizer) in cases().items():
        if not wanted or name in wanted:
            write(name, make, config, tokenizer)
            print(name)
    for (name, *how), writes in [(it, write_embedder) for it in embedders()] + [(it, write_ranker) for it in rankers()]:
        if not wanted or name in wanted:
            writes(name, *how)
            print(name)


if __name__ == "__main__":
    main()
