"""Learning check of `fathom train embed`: does an embedder from nothing find the function that a comment describes?

    python oracle/embedder.py FATHOM OUT [SEED ...]

Functions are drawn from 12 filters x 12 maps x 12 folds of a list, with several spellings of each in words and in code; their
names say one of the three. A tenth of the combinations is held out: its comments search among the functions of all. Prints
recall@10 of BM25 (`fathom eval --retrieval`) and of the embedder's vectors, and the largest difference between the vectors that
`fathom serve` and Sentence-Transformers give for texts of the folder. The bar: 15 points above BM25, and 1e-5.
"""
import json
import random
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

FILTERS = [
    (["even numbers", "multiples of two"], ["x % 2 == 0", "x & 1 == 0"], "even"),
    (["odd numbers", "numbers that two does not divide"], ["x % 2 != 0", "x & 1 == 1"], "odd"),
    (["positive numbers", "numbers above zero"], ["x > 0", "0 < x"], "positive"),
    (["negative numbers", "numbers below zero"], ["x < 0", "0 > x"], "negative"),
    (["multiples of three", "numbers that three divides"], ["x % 3 == 0", "0 == x % 3"], "thirds"),
    (["multiples of ten", "round numbers"], ["x % 10 == 0", "0 == x % 10"], "round"),
    (["numbers of one digit", "single digits"], ["x > -10 && x < 10", "x.abs() < 10"], "digits"),
    (["large numbers", "numbers over a thousand"], ["x > 1000", "1000 < x"], "large"),
    (["powers of two", "numbers with one bit"], ["x.count_ones() == 1", "x > 0 && x & (x - 1) == 0"], "powers"),
    (["perfect squares", "squares of integers"], ["is_square(x)", "root(x) * root(x) == x"], "squares"),
    (["primes", "numbers without divisors"], ["is_prime(x)", "(2..x).all(|d| x % d != 0)"], "primes"),
    (["all numbers", "every number"], ["true", "x == x"], "all"),
]
MAPS = [
    (["squares", "second powers"], ["x * x", "x.pow(2)"], "squared"),
    (["cubes", "third powers"], ["x * x * x", "x.pow(3)"], "cubed"),
    (["doubles", "twofold values"], ["2 * x", "x + x"], "doubled"),
    (["halves", "half values"], ["x / 2", "x >> 1"], "halved"),
    (["negations", "opposite values"], ["-x", "0 - x"], "negated"),
    (["absolute values", "magnitudes"], ["x.abs()", "x.max(-x)"], "magnitude"),
    (["successors", "next integers"], ["x + 1", "1 + x"], "next"),
    (["predecessors", "integers before"], ["x - 1", "x + (-1)"], "previous"),
    (["last digits", "units"], ["x % 10", "x - x / 10 * 10"], "units"),
    (["bit lengths", "numbers of binary places"], ["64 - x.leading_zeros()", "bits(x)"], "bits"),
    (["signs", "directions from zero"], ["x.signum()", "(x > 0) as i64 - (x < 0) as i64"], "sign"),
    (["values themselves", "values as they are"], ["x", "(x)"], "plain"),
]
FOLDS = [
    (["the sum", "the total"], ["sum::<i64>()", "fold(0, |a, b| a + b)"], "sum"),
    (["the product", "the factors multiplied together"], ["product::<i64>()", "fold(1, |a, b| a * b)"], "product"),
    (["the largest", "the maximum"], ["max()", "reduce(|a, b| if a > b { a } else { b })"], "largest"),
    (["the smallest", "the minimum"], ["min()", "reduce(|a, b| if a < b { a } else { b })"], "smallest"),
    (["how many there are", "the number"], ["count()", "fold(0, |a, _| a + 1)"], "count"),
    (["the first", "the one at the front"], ["next()", "nth(0)"], "first"),
    (["the last", "the one at the end"], ["last()", "fold(None, |_, b| Some(b))"], "last"),
    (["a list", "a vector"], ["collect::<Vec<i64>>()", "to_vec()"], "list"),
    (["a set without duplicates", "the distinct ones"], ["collect::<BTreeSet<i64>>()", "unique()"], "distinct"),
    (["the list in reverse", "a list from back to front"], ["rev().collect::<Vec<_>>()", "reversed()"], "reverse"),
    (["the exclusive or", "the parity of each bit"], ["fold(0, |a, b| a ^ b)", "reduce(BitXor::bitxor)"], "xor"),
    (["whether any is zero", "if one of them vanishes"], ["any(|x| x == 0)", "position(|x| x == 0).is_some()"], "zero"),
]


def function(r, chosen):
    (filters, wheres, one), (maps, values, two), (folds, ends, three) = chosen
    doc = r.choice([
        "Returns {fold} of the {map} of the {filter}.", "Computes {fold}, of {filter} in the {map}.",
        "Of the {filter}, takes the {map} and gives {fold}.",
    ]).format(fold=r.choice(folds), map=r.choice(maps), filter=r.choice(filters))
    list_, name = r.choice(["xs", "values", "items", "list", "row"]), r.choice([one, two, three])
    code = f"fn {name}({list_}: &[i64]) {{ {list_}.iter().filter(|x| {r.choice(wheres)}).map(|x| {r.choice(values)}).{r.choice(ends)} }}"
    return doc, code


def base(folder, texts, hidden=128):
    """A small BERT with random weights and a tokenizer of these texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=800, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names).save_pretrained(folder)
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=hidden, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=3 * hidden, max_position_embeddings=128)
    BertModel(config).save_pretrained(folder)


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def recall(fathom, *args):
    out = subprocess.run([fathom, "eval", *args, "--json", "-q"], check=True, capture_output=True, text=True).stdout
    return next(row["recall"] for row in map(json.loads, out.strip().splitlines()) if row["k"] == 10)


def run(fathom, out, seed):
    out.mkdir(parents=True)
    r = random.Random(seed)
    torch.manual_seed(seed)
    combinations = [(a, b, c) for a in FILTERS for b in MAPS for c in FOLDS]
    r.shuffle(combinations)
    held_out, learned = combinations[:172], combinations[172:]
    rows = [function(r, chosen) for chosen in learned for _ in range(4)]
    lines(out / "pairs.jsonl", [dict(anchor=doc, positive=code) for doc, code in rows])
    beir = out / "beir"
    (beir / "qrels").mkdir(parents=True)
    asked = [function(r, chosen) for chosen in combinations]
    lines(beir / "corpus.jsonl", [dict(_id=f"f{at}", title="", text=code) for at, (_, code) in enumerate(asked)])
    lines(beir / "queries.jsonl", [dict(_id=f"q{at}", text=doc) for at, (doc, _) in enumerate(asked[: len(held_out)])])
    (beir / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\tf{at}\t1\n" for at in range(len(held_out))))
    base(out / "base", [text for pair in rows for text in pair])
    settings = [f"model.from={out}/base", f"data.paths={out}/pairs.jsonl", f"run.out={out}/run", f"run.seed={seed}", "data.max_text_tokens=96",
                "data.held_out_share=0", "optimizer.lr=1e-3", "stage.0.seq_tokens=4096", "stage.0.micro_batches=4", "stage.0.epochs=3"]
    subprocess.run([fathom, "train", "embed", "-q", *settings], check=True)
    sparse, dense = recall(fathom, "--retrieval", str(beir)), recall(fathom, f"{out}/run/model", "--retrieval", str(beir), "--mode", "dense")
    print(f"seed {seed}: recall@10 of BM25 {sparse:.3f}, of vectors {dense:.3f}; largest difference of vectors {difference(fathom, out):.1e}",
          flush=True)


def difference(fathom, out):
    """The largest difference between a number of Sentence-Transformers' vectors and Fathom's."""
    from sentence_transformers import SentenceTransformer
    texts = [text for line in (out / "pairs.jsonl").read_text().splitlines()[:64] for text in json.loads(line).values()]
    wanted = np.array(SentenceTransformer(f"{out}/run/model", device="cpu").encode(texts, normalize_embeddings=True))
    server = subprocess.Popen([fathom, "serve", f"{out}/run/model", "--port", "0", "--precision", "f32"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    try:
        url = next(word.rstrip(".,;") for line in server.stdout for word in line.split() if word.startswith("http://"))
        body = json.dumps(dict(input=texts)).encode()
        request = urllib.request.Request(url.rstrip("/") + "/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            found = np.array([row["embedding"] for row in json.load(answer)["data"]])
    finally:
        server.terminate()
        server.wait()
    return np.abs(found - wanted).max()


if __name__ == "__main__":
    for seed in map(int, sys.argv[3:] or ["1"]):
        run(sys.argv[1], Path(sys.argv[2]) / str(seed), seed)
