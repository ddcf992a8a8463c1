"""Words of Chinese, Japanese and Thai as jieba, MeCab and PyThaiNLP count them, and at which speed.

    python -P oracle/curate/words.py OUT

writes OUT/{zh,ja,th}.txt, translations that lie on this machine, and prints a row for each. `cargo run --release -p
fathom-prose --example words_bench OUT/*.txt` counts the same texts. White space is no word on either side.
"""

import json, pathlib, sys, time

import fugashi
import jieba
import pythainlp

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from vocabularies import files, translations

LIMIT = 1_000_000


def text_of(language):
    """Translations whose letters are mostly not ASCII, in documents of some kilobytes."""
    lines, size, seen = [], 0, set()
    for path in files(["/usr/share/locale", "/usr/share/vim"], (".mo",)):
        if not any(part.startswith(language) for part in path.parts):
            continue
        try:
            found = translations(path).split("\n")
        except (OSError, UnicodeDecodeError):
            continue
        for line in found:
            line = line.strip()
            foreign = sum(ord(c) > 0x2FF for c in line)
            if len(line) > 10 and 2 * foreign > len(line) and line not in seen:
                seen.add(line)
                lines.append(line)
                size += len(line.encode())
        if size > LIMIT:
            break
    return "\n\n".join("\n".join(lines[at : at + 40]) for at in range(0, len(lines), 40))


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    jieba.setLogLevel(60)
    tagger = fugashi.Tagger("-Owakati")
    rivals = {
        "zh": ("jieba", jieba.cut),
        "ja": ("MeCab, UniDic", lambda text: tagger.parse(text).split()),
        "th": ("PyThaiNLP newmm", pythainlp.word_tokenize),
    }
    for language, (name, cut) in rivals.items():
        text = text_of(language)
        (out / f"{language}.txt").write_text(text)
        list(cut(text[:200]))
        begun = time.monotonic()
        words = sum(bool(word.strip()) for document in text.split("\n\n") for word in cut(document))
        seconds = time.monotonic() - begun
        size = len(text.encode())
        print(json.dumps({"language": language, "rival": name, "bytes": size, "words": words, "mb_per_s": size / 1e6 / seconds}))


if __name__ == "__main__":
    main()
