"""Vectors of texts by `fathom serve` and by Sentence-Transformers, in turns: tokens a second.

    python oracle/bench/encoders.py FATHOM OUT [--shape minilm|base] [--tokens 128] [--texts 64] [--rounds 5]

A random model of a known shape (all-MiniLM-L6's, or BERT base's) is written to OUT with a tokenizer of words. Each round embeds the same
texts by one and then by the other, both with all cores; a row has the medians, their ratio, and the largest difference of vectors.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SHAPES = {
    "minilm": dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
}
WORDS = 30000
PORT = 8170


def make(folder, shape):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *[f"w{n}" for n in range(WORDS)]]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                             special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]")
    bare = folder / "bare"
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words), **SHAPES[shape])).save_pretrained(bare)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(bare)
    size = SHAPES[shape]["hidden_size"]
    model = SentenceTransformer(modules=[Transformer(str(bare)), Pooling(size, "mean"), Normalize()])
    model.save(str(folder / shape), create_model_card=False)
    return folder / shape


def embed(texts):
    body = json.dumps({"input": texts, "encoding_format": "float"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/embeddings", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fathom")
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", default="minilm", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="f32")
    args = parser.parse_args()
    folder = make(args.out, args.shape)
    drawn = random.Random(1)
    # Lengths spread by half on both sides, as texts have them.
    lengths = [round(args.tokens * drawn.uniform(0.5, 1.5)) - 2 for _ in range(args.texts)]
    texts = [" ".join(f"w{drawn.randrange(WORDS)}" for _ in range(max(1, min(n, 510)))) for n in lengths]
    rival = SentenceTransformer(str(folder), device="cpu")
    command = [args.fathom, "serve", str(folder), "--name", "m", "--port", str(PORT), "--precision", args.precision]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/ready", timeout=5)
                break
            except OSError:
                time.sleep(0.2)
        own, other, tokens = [], [], 0
        for _ in range(args.rounds + 1):
            began = time.monotonic()
            answer = embed(texts)
            own.append(time.monotonic() - began)
            began = time.monotonic()
            vectors = rival.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
            other.append(time.monotonic() - began)
            tokens = answer["usage"]["prompt_tokens"]
        # The first of each warms up.
        own, other = statistics.median(own[1:]), statistics.median(other[1:])
        far = max(abs(x - float(y)) for row, wanted in zip(answer["data"], vectors) for x, y in zip(row["embedding"], wanted))
        print(json.dumps(dict(shape=args.shape, tokens=tokens, texts=len(texts), precision=args.precision, fathom=round(tokens / own),
                              sentence_transformers=round(tokens / other), ratio=round(other / own, 3), furthest=far,
                              threads=torch.get_num_threads(), load=os.getloadavg()[0])))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
