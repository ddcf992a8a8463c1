"""Writes tests/fasttext/: small models that the fastText library trained, and what it says of a few texts.

    python oracle/fasttext_models.py
"""
import importlib.metadata
import json
import random
import tempfile
from pathlib import Path

import fasttext

OUT = Path(__file__).resolve().parent.parent / "tests" / "fasttext"
LABELS = ["hq", "cc", "de"]
WORDS = [
    "theorem lemma proof measure effect sample model river stone winter music",
    "click here win prize cheap pills buy now subscribe share free",
    "der die das und ist nicht straße über wörter haus zeit",
]
SHARED = "the of a in and to 12 2024 é 数字 ."
BASE = dict(dim=6, epoch=20, lr=0.5, minCount=1, thread=1, verbose=0, seed=7)
# Where n-grams, of words or of letters, are used, their table is small: many collide, and the files stay small.
CASES = {
    "words": dict(wordNgrams=1, loss="softmax"),
    "pairs": dict(wordNgrams=2, bucket=120, loss="softmax"),
    "triples": dict(wordNgrams=3, bucket=97, loss="softmax"),
    "subwords": dict(wordNgrams=1, minn=2, maxn=4, bucket=150, loss="softmax"),
    "subwords_pairs": dict(wordNgrams=2, minn=3, maxn=3, bucket=150, loss="softmax"),
    "hierarchical": dict(wordNgrams=2, bucket=120, loss="hs"),
    "negatives": dict(wordNgrams=2, bucket=120, loss="ns"),
    "one_against_all": dict(wordNgrams=2, bucket=120, loss="ova"),
    # Lines are fewer than the least count, so the mark of a line's end is no word of the model.
    "no_end": dict(wordNgrams=2, bucket=120, loss="softmax", minCount=400),
}
# The same of models that were quantised then, with what `quantize` was given. It needs 256 rows of a matrix, and as many
# labels where it quantises the output too: LABELS and numbers.
MANY = 260
QUANTISED = {
    "quantised": (dict(wordNgrams=2, bucket=300, loss="softmax"), 3, dict()),
    # As `lid.176.ftz` was made; parts of two numbers of six, then one of four and one of two.
    "quantised_pruned": (
        dict(minn=2, maxn=4, bucket=600, loss="hs"), 3, dict(cutoff=270, retrain=True, qnorm=True),
    ),
    "quantised_negatives": (dict(wordNgrams=2, bucket=300, loss="ns"), 3, dict(qnorm=True, dsub=4)),
    "quantised_output": (dict(wordNgrams=2, bucket=300, loss="ova"), MANY, dict(qout=True)),
    "quantised_tree": (dict(wordNgrams=2, bucket=300, loss="hs"), MANY, dict(qout=True, qnorm=True, cutoff=280)),
}
TEXTS = [
    "the theorem of the lemma",
    "click here to win",
    "das haus ist nicht die zeit",
    "theorem click haus",
    "theorem",
    "pills",
    "unheardof",
    "some quite unknown words of nobody",
    "theorem unheardof lemma",
    "",
    "   ",
    ".",
    "Theorem LEMMA",
    "straße über wörter 数字 é",
    "a\ttab\x0band\x0ba\x0cfeed\rand\x00nothing to win",
    "win </s> theorem lemma proof",
    "</s>",
    "the theorem of the lemma and the proof of a model in 2024 . " * 30,
    "buy cheap pills now and share the river music of winter",
]


def lines(rng, labels=len(LABELS)):
    """Labelled lines, mostly of a label's own words; further labels have a word each."""
    for number in range(max(300, 2 * labels)):
        if number % labels >= len(LABELS):
            extra = number % labels
            yield f"__label__{extra} {rng.choice(SHARED.split())} word{extra} {rng.choice(WORDS[extra % 3].split())}"
            continue
        label = number % labels
        own, shared = WORDS[label].split(), SHARED.split()
        words = [rng.choice(own if rng.random() < 0.6 else shared) for _ in range(rng.randint(4, 14))]
        if rng.random() < 0.1:
            words.append(rng.choice(WORDS[(label + 1) % len(LABELS)].split()))
        yield f"__label__{LABELS[label]} {' '.join(words)}"


def predictions(model, text):
    """The first labels of a text by falling probability; what `model.predict` does, which this numpy stops."""
    return [[label, round(score, 7)] for score, label in model.f.predict(text + "\n", len(LABELS), 0.0, "strict")]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(11)
    vocabulary = [*" ".join(WORDS).split(), *SHARED.split(), "word7", "word200", "unheardof"]
    texts = TEXTS + [" ".join(rng.choices(vocabulary, k=rng.randint(1, 12))) for _ in range(100)]
    golden = {"fasttext-wheel": importlib.metadata.version("fasttext-wheel"), "texts": texts, "models": {}}

    def make(name, options, labels, quantise):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("".join(f"{line}\n" for line in lines(random.Random(5), labels)))
            file.flush()
            model = fasttext.train_supervised(file.name, **{**BASE, **options})
            if quantise is not None:
                model.quantize(file.name, thread=1, verbose=0, **quantise)
            model.save_model(str(OUT / name))
            golden["models"][name] = [predictions(model, text) for text in texts]

    for name, options in CASES.items():
        make(f"{name}.bin", options, len(LABELS), None)
    for name, (options, labels, quantise) in QUANTISED.items():
        make(f"{name}.ftz", options, labels, quantise)
    rows = json.dumps(golden, ensure_ascii=True).replace("]], [[", "]],\n[[").replace(": [[[", ": [\n[[")
    (OUT / "golden.json").write_text(rows + "\n")


if __name__ == "__main__":
    main()
