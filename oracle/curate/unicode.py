"""ftfy as the oracle and the rival of Unicode repair.

    python oracle/curate/unicode.py golden crates/curate/tests/it/golden/unicode.jsonl
    python oracle/curate/unicode.py bench FILE [MAX_MB]

`golden` breaks sentences in the ways that ftfy repairs and writes what ftfy makes of them, with NeMo Curator's options and
with ftfy's own. `bench` runs ftfy on the JSON lines that `unicode_bench MB FILE` wrote and prints a JSON row.
"""

import json
import random
import sys
import time

import ftfy
from ftfy import TextFixerConfig

CURATOR = TextFixerConfig(
    unescape_html="auto", fix_latin_ligatures=False, fix_character_width=False, uncurl_quotes=False,
    fix_line_breaks=False, normalization=None,
)
OWN = TextFixerConfig(explain=True)

SENTENCES = [
    "The café’s menu — “daily soup” — costs £4.50…",
    "Él dijo: «¿dónde está el niño?» y salió corriendo.",
    "Größe und Maße der Straße stehen in § 5 (Änderungen möglich).",
    "À la carte, l’œuvre complète coûte 20 € à l’hôtel.",
    "Não há maçãs às terças; só à noite.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Zażółć gęślą jaźń, powiedział kot.",
    "Сегодня вечером дождь, а завтра — солнце.",
    "Η γρήγορη καφέ αλεπού πηδάει.",
    "日本語のテキストです。",
    "Ürün çok güzel, fiyatı ₺30 değil mi?",
    "Smile 😀 and a heart ❤️ for ½ × 3 ÷ 2 ± 1°C ™ ®",
    "naïve coöperation, résumé, façade",
    "plain ASCII only, nothing to see",
    "Tom &amp; Jerry &lt;3 caf&eacute; P&EACUTE;REZ &#x2019; &#8230; &nbsp;x &notreal; &#59;",
    "ﬁne ﬂuﬃness　ＷＩＤＥ ｶﾀｶﾅ ŉ",
    "\x1b[31mred\x1b[0m \x07bell\ufeff end\u2028next\r\nline",
    "Ã la mode and â€œquotesâ€\x9d with voilÃ  le travail",
    "lossy â€œquoteâ€� and Ã\ufffd here",
    "doppelt â\x80\x9cgemischtâ\x80\x9d und normal ü",
]
READ_AS = ["latin-1", "windows-1252", "sloppy-windows-1252", "sloppy-windows-1251", "sloppy-windows-1250",
           "sloppy-windows-1253", "sloppy-windows-1254", "sloppy-windows-1257", "iso-8859-2", "macroman", "cp437"]


def broken():
    rng = random.Random(1)
    for sentence in SENTENCES:
        yield sentence
        for encoding in READ_AS:
            for text in (sentence, sentence[: len(sentence) // 2]):
                try:
                    once = text.encode("utf-8").decode(encoding)
                except UnicodeDecodeError:
                    continue
                yield once
                yield once.replace("\xa0", " ")
                yield once + " " + rng.choice(SENTENCES)
                yield rng.choice(SENTENCES) + "\n" + once
                try:
                    yield once.encode("utf-8").decode(encoding)
                except UnicodeDecodeError:
                    pass
                chars = list(once)
                for i in range(len(chars)):
                    if ord(chars[i]) > 127 and rng.random() < 0.15:
                        chars[i] = rng.choice(["\ufffd", "?", " ", ""])
                yield "".join(chars)
    high = "ÃÂâ€™œ“”é ñ\xa0\x80\x99ðŸ˜°²½¼ĂŁšžÐÑ‚Ä√àáíïß«»¿¡£¥©®°ŒØÙ–—…ΒΓΞβ›·"
    for _ in range(1500):
        yield "".join(rng.choice(high + " abc. ") for _ in range(rng.randint(2, 12)))


def golden(path):
    seen = set()
    with open(path, "w") as out:
        for text in broken():
            if text in seen:
                continue
            seen.add(text)
            curator, own = ftfy.fix_text(text, CURATOR), ftfy.fix_text(text, OWN)
            out.write(json.dumps([text, curator, own], ensure_ascii=False) + "\n")
    print(len(seen), "cases")


def bench(path, limit):
    texts, size = [], 0
    for line in open(path):
        texts.append(json.loads(line)["text"])
        size += len(texts[-1].encode())
        if size > limit:
            break
    start = time.perf_counter()
    for text in texts:
        ftfy.fix_text(text, CURATOR)
    seconds = time.perf_counter() - start
    print(json.dumps({"bench": "curate", "stage": "ftfy_unicode", "mb_per_s": size / 1e6 / seconds,
                      "docs_per_s": len(texts) / seconds, "threads": 1}))


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        golden(sys.argv[2])
    else:
        bench(sys.argv[2], float(sys.argv[3]) * 1e6 if len(sys.argv) > 3 else float("inf"))
