"""Text and vocabularies for the tokenizing bench, all from what lies on this machine.

    python oracle/curate/vocabularies.py OUT [MEGABYTES]

writes OUT/{prose,code,world,broken,mixed}.txt and OUT/{gpt2,llama3}.json: vocabularies of 50,257 and 128,000 tokens,
trained on the mixed text in the two styles. `cargo run --release -p fathom-text --example tokenize_bench OUT` then
compares both engines.
"""

import gettext, gzip, html, pathlib, random, re, sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def files(roots, suffixes):
    for root in roots:
        root = pathlib.Path(root).expanduser()
        yield from sorted(p for p in root.rglob("*") if p.name.endswith(suffixes) and p.is_file())


def take(paths, read, limit):
    parts, size, seen = [], 0, set()
    for path in paths:
        try:
            text = read(path)
        except (OSError, UnicodeDecodeError, EOFError):
            continue
        if not text or hash(text) in seen:
            continue
        seen.add(hash(text))
        parts.append(text)
        size += len(text.encode())
        if size > limit:
            break
    return "\n".join(parts)


def plain(path):
    return path.read_text("utf-8")


def page(path):
    text = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", "", path.read_text("utf-8"))
    return re.sub(r"\n\s*\n+", "\n\n", html.unescape(text))


def manual(path):
    lines = gzip.open(path, "rt", encoding="utf-8").read().split("\n")
    return re.sub(r"\\f[A-Z]|\\&", "", "\n".join(l for l in lines if not l.startswith((".", "'")))).replace("\\-", "-")


def translations(path):
    with open(path, "rb") as file:
        catalog = gettext.GNUTranslations(file)._catalog
    return "\n".join(v for v in catalog.values() if isinstance(v, str))


def broken(rng, limit):
    parts, size = [], 0
    while size < limit:
        kind = rng.randrange(6)
        if kind == 0:
            part = rng.randbytes(300).decode("utf-8", "replace")
        elif kind == 1:
            part = rng.randbytes(300).decode("latin-1")
        elif kind == 2:
            part = "".join(rng.choice(" \t\n\r\u00a0\u3000\u2028\x0b\x85") for _ in range(rng.randrange(1, 60)))
        elif kind == 3:
            part = "".join(chr(rng.choice((rng.randrange(0x1F300, 0x1FAFF), 0x200D, 0xFE0F, 32))) for _ in range(80))
        elif kind == 4:
            numbers = (rng.randrange(0x11_0000) for _ in range(100))
            part = "".join(chr(n) for n in numbers if not 0xD800 <= n < 0xE000)
        else:
            part = rng.choice("'\"-=#/.!<{") * rng.randrange(1, 200) + rng.choice(("s", "'S", "LL'll", "\n", "9" * 40))
        parts.append(part)
        size += len(part.encode())
    return "".join(parts)


def mix(rng, texts):
    """Blocks of some kilobytes of all texts in random order."""
    blocks = [text[at : at + 4000] for text in texts for at in range(0, len(text), 4000)]
    rng.shuffle(blocks)
    return "\n".join(blocks)


def train(words, size, special, text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False, max_token_length=64
    )
    lines = text.splitlines(keepends=True)
    tokenizer.train_from_iterator(("".join(lines[i : i + 200]) for i in range(0, len(lines), 200)), trainer)
    return tokenizer


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    limit = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 100_000_000
    rng = random.Random(7)
    rust = sorted(pathlib.Path("~/.rustup/toolchains").expanduser().glob("*/share/doc/rust/html"))
    book = [rust[0] / name for name in ("book", "reference", "rust-by-example", "nomicon", "cargo", "std", "core")]
    third = limit // 3
    prose = take(files(book, (".html",)), page, third // 2)
    prose += take(files(["/usr/share/man"], (".1.gz", ".3.gz", ".7.gz", ".8.gz")), manual, third // 2)
    prose += take(files(["/usr/share/doc", "~/.cargo/registry/src"], (".md", ".rst", ".txt", "README")), plain, third // 2)
    code = take(files([p for p in sys.path if p.endswith("site-packages")], (".py",)), plain, third // 2)
    code += take(files(["~/.cargo/registry/src"], (".rs",)), plain, third // 2)
    catalogs = [p for p in files(["/usr/share/locale"], (".mo",))]
    rng.shuffle(catalogs)
    asian = [p for p in catalogs if any(f"/{l}" in str(p) for l in ("zh", "ja", "ko", "ru", "ar", "hi", "th"))]
    world = take(asian, translations, limit // 8) + take(catalogs, translations, limit // 8)
    texts = {"prose": prose, "code": code, "world": world, "broken": broken(rng, limit // 20)}
    texts["mixed"] = mix(rng, texts.values())
    for name, text in texts.items():
        data = text.encode("utf-8", "ignore")
        (out / f"{name}.txt").write_bytes(data)
        print(name, len(data))
    sample = texts["mixed"]
    gpt2 = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 50_257, ["<|endoftext|>"], sample)
    gpt2.save(str(out / "gpt2.json"))
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    llama3 = train(pre_tokenizers.Sequence([split, level]), 128_000, special, sample)
    llama3.model.ignore_merges = True
    llama3.save(str(out / "llama3.json"))


if __name__ == "__main__":
    main()
