"""Does curated text train a better model than raw text, at equal tokens?

    python -P oracle/curate/matters.py target/release/fathom OUT [STEPS]

Takes the English text of this machine (pages of the Rust books, manuals, documentation of crates and packages), keeps a
part of it apart as clean held-out text, and damages the rest as crawls are damaged: navigation and cookie banners, near
and exact copies, wrong decodings, spam, remains of markup, other languages. Both the raw and the curated text become token
stores by `fathom curate`, with one tokenizer, trained on the raw text. A small model is trained on each with `fathom
train`, three seeds, the same recipe and steps, and `fathom eval` measures it on the held-out text. Prints a row a run
and the difference with its standard error.
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from vocabularies import files, manual, page, plain, translations

SEEDS = (1, 2, 3)
CLEAN_BYTES = 12_000_000
HELD_OUT_BYTES = 300_000
NAV = ["Home", "About us", "Products", "Login", "Register", "Cart (0)", "Contact", "Blog", "FAQ", "Sitemap", "Press"]
BANNERS = [
    "We use cookies to give you the best experience on our website. By continuing you accept our cookie policy.",
    "Subscribe to our newsletter and never miss an update! Enter your e-mail address below.",
    "Share this on Facebook | Tweet | Pin it | E-mail this page | Print",
    "Copyright 2009-2024 Example Media Group. All rights reserved. Terms of use. Privacy policy.",
    "Advertisement. Scroll to continue reading. Sponsored links you may like from around the web.",
    "You have 3 free articles left this month. Sign in or subscribe to continue reading without limits.",
]
SPAM = "cheap buy online best price discount viagra casino bonus loans insurance replica watches free shipping click here now \
win poker slots mortgage credit deal offer seo backlinks followers crypto pills weight loss miracle singles dating hot".split()


def gather(rng):
    """Clean documents by the folder they belong to."""
    rust = sorted(pathlib.Path("~/.rustup/toolchains").expanduser().glob("stable*/share/doc/rust/html"))
    books = [rust[0] / name for name in ("book", "reference", "rust-by-example", "nomicon", "cargo", "rustc", "rustdoc", "clippy")]
    kinds = [
        (files(books, (".html",)), page),
        (files(["/usr/share/man"], (".1.gz", ".3.gz", ".5.gz", ".7.gz", ".8.gz")), manual),
        (files(["~/.cargo/registry/src"], (".md",)), plain),
        (files(["/usr/share/doc"], (".md", ".rst", ".txt", "README")), plain),
    ]
    documents, seen = [], set()
    for paths, read in kinds:
        size = 0
        paths = list(paths)
        rng.shuffle(paths)
        for path in paths:
            try:
                text = read(path).strip()
            except (OSError, UnicodeDecodeError, EOFError):
                continue
            if not 400 <= len(text) <= 60_000 or text[:400] in seen:
                continue
            seen.add(text[:400])
            documents.append((path.parent.name.rsplit("-", 1)[0], text))
            size += len(text)
            if size > CLEAN_BYTES // 2:
                break
    rng.shuffle(documents)
    return documents


def edited(rng, text):
    share = 0.03 * rng.random()
    return " ".join(word for word in text.split(" ") if rng.random() >= share)


def damaged(rng, text):
    """What an extractor that fails leaves of a page."""
    if rng.random() < 0.15:
        text = text.replace("'", "\u2019").replace(" - ", " \u2013 ").encode().decode("latin-1")
        text = text.encode().decode("cp1252", "replace") if rng.random() < 0.3 else text
    paragraphs = text.split("\n\n")
    if rng.random() < 0.2:
        paragraphs = [f'<div class="c{rng.randrange(99)}"><p style="margin:0">{p}</p></div>&nbsp;' for p in paragraphs]
    if rng.random() < 0.6:
        nav = "\n".join(rng.sample(NAV, rng.randrange(5, len(NAV))))
        paragraphs = [nav, rng.choice(BANNERS), *paragraphs, rng.choice(BANNERS), rng.choice(BANNERS), nav]
    return "\n\n".join(paragraphs)


def spam(rng):
    kind = rng.randrange(3)
    if kind == 0:
        return " ".join(rng.choice(SPAM) for _ in range(rng.randrange(100, 900)))
    if kind == 1:
        line = " ".join(rng.choice(SPAM) for _ in range(9)) + "!"
        return "\n".join(line for _ in range(rng.randrange(10, 120)))
    return "\n".join(f"{rng.choice(SPAM)}-{rng.randrange(9999)} | ${rng.randrange(99)}.99 | in stock" for _ in range(200))


def foreign(rng):
    catalogs = list(files(["/usr/share/locale"], (".mo",)))
    rng.shuffle(catalogs)
    for path in catalogs:
        if not any(f"/{code}" in str(path) for code in ("/en", "/sr", "/ast")):
            try:
                text = translations(path)
            except (OSError, UnicodeDecodeError):
                continue
            yield from (text[at : at + 6000] for at in range(0, min(len(text), 60_000), 6000))


def raw(rng, clean):
    others = foreign(rng)
    kept = []
    for text in clean:
        kept.append(damaged(rng, text))
        draw = rng.random()
        if draw < 0.15:
            kept += [damaged(rng, edited(rng, text)) for _ in range(rng.randrange(1, 5))]
        elif draw < 0.2:
            kept += [kept[-1]] * rng.randrange(1, 4)
        if rng.random() < 0.5:
            kept.append(spam(rng))
        if rng.random() < 0.15:
            kept.append(next(others, ""))
    rng.shuffle(kept)
    return kept


RAW = """
[[stage]]
use = "shuffle"

[[stage]]
use = "tokenize"
vocab = 4096
sample_bytes = 8000000
"""

CURATED = """
[[stage]]
use = "clean"
boilerplate = true

[[stage]]
use = "language"
languages = ["en"]

[[stage]]
use = "heuristics"
sets = ["gopher_repetition", "gopher_quality"]
# Documentation has code and lists between its sentences.
without = ["gopher_letters", "gopher_bullets", "gopher_hashes", "gopher_duplicated_5_n_grams", "gopher_duplicated_6_n_grams"]

[[stage]]
use = "exact"

[[stage]]
use = "fuzzy"

[[stage]]
use = "paragraphs"

[[stage]]
use = "shuffle"

[[stage]]
use = "tokenize"
tokenizer = "{tokenizer}"
"""

TRAIN = """
[run]
name = "{name}"
out = "{out}"
seed = {seed}

[model]
hidden = 256
layers = 4
heads = 4
kv_heads = 2
head_dim = 64
ffn = 704
vocab = 4096
tied = true
init_std = 0.06

[data]
tokenizer = "{tokenizer}"
held_out_share = 0.0
blend = [{{ source = "{store}", weight = 1.0 }}]

[optimizer]
lr = 2.5e-3
weight_decay = 0.05

[schedule]
decay = "wsd"
warmup_steps = 10
decay_share = 0.3
final_share = 0.02

[eval]
enabled = false

[[stage]]
seq_tokens = 512
samples_per_micro_batch = 8
micro_batches = 1
steps = {steps}
"""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr[-3000:]}")
    return done.stdout + done.stderr


def tokens(store):
    return json.loads((store / "train.json").read_text())["tokens"]


def main():
    fathom, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 400
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(4)
    documents = gather(rng)
    # A folder is on one side only: held-out text has no sibling in training.
    folders = sorted({folder for folder, _ in documents})
    apart = set(rng.sample(folders, len(folders) // 12))
    held_out = []
    for folder, text in documents:
        if folder in apart and sum(map(len, held_out)) < HELD_OUT_BYTES:
            held_out.append(text)
    clean = [text for folder, text in documents if folder not in apart]
    size = 0
    clean = [text for text in clean if (size := size + len(text)) < CLEAN_BYTES]

    def write(name, texts):
        with open(out / name, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts if text)

    write("heldout.jsonl", held_out)
    write("raw.jsonl", raw(rng, clean))
    # Behind reading and the shuffle.
    tokenizer = out / "raw" / "02-tokenize" / "tokenizer"
    for name, stages in (("raw", RAW), ("curated", CURATED)):
        recipe = out / f"{name}.toml"
        recipe.write_text(f'about = "{name}"\n' + stages.format(tokenizer=tokenizer))
        print(run(fathom, "curate", recipe, f"input.paths=raw={out / 'raw.jsonl'}", f"out={out / name}"))
    stores = {name: sorted((out / name).glob("*-tokenize"))[-1] for name in ("raw", "curated")}
    print(json.dumps({"tokens": {name: tokens(store) for name, store in stores.items()}, "trained": steps * 4096}))
    bits = {name: [] for name in stores}
    for seed in SEEDS:
        for name, store in stores.items():
            folder = out / f"{name}-{seed}"
            settings = {"name": name, "out": folder, "seed": seed, "store": store / "train", "steps": steps}
            recipe = out / f"{name}-{seed}.toml"
            recipe.write_text(TRAIN.format(tokenizer=tokenizer / "tokenizer.json", **settings))
            begun = time.monotonic()
            run(fathom, "train", recipe)
            seconds = time.monotonic() - begun
            said = run(fathom, "eval", folder, "--data", out / "heldout.jsonl", "--tokens", 512, "--needle-trials", 0, "--json")
            row = next(json.loads(line) for line in said.splitlines() if "bits_per_byte" in line)
            bits[name].append(row["bits_per_byte"])
            print(json.dumps({"text": name, "seed": seed, "train_s": round(seconds), **row}), flush=True)
    differences = [raw - curated for raw, curated in zip(bits["raw"], bits["curated"])]
    means = {name: statistics.mean(values) for name, values in bits.items()}
    error = statistics.stdev(differences) / len(differences) ** 0.5
    print(json.dumps({"bits_per_byte": means, "difference": statistics.mean(differences), "standard_error": error}))


if __name__ == "__main__":
    main()
