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


def lines(rng):
    """Labelled lines, mostly of a label's own words."""
    for number in range(300):
        label = number % len(LABELS)
        own, shared = WORDS[label].split(), SHARED.split()
        words = [rng.choice(own if rng.random() < 0.6 else shared) for _ in range(rng.randint(4, 14))]
        if rng.random() < 0.1:
            words.append(rng.choice(WORDS[(label + 1) % len(LABELS)].split()))
        yield f"__label__{LABELS[label]} {' '.join(words)}"


def predictions(model, text):
    """All labels of a text by falling probability; what `model.predict` does, which this numpy stops."""
    return [[label, score] for score, label in model.f.predict(text + "\n", len(LABELS), 0.0, "strict")]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    golden = {"fasttext-wheel": importlib.metadata.version("fasttext-wheel"), "texts": TEXTS, "models": {}}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{line}\n" for line in lines(random.Random(5))))
        file.flush()
        for name, options in CASES.items():
            model = fasttext.train_supervised(file.name, **{**BASE, **options})
            model.save_model(str(OUT / f"{name}.bin"))
            golden["models"][name] = [predictions(model, text) for text in TEXTS]
    (OUT / "golden.json").write_text(json.dumps(golden, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
