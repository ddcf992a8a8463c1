"""datatrove's Gopher, C4 and FineWeb filters on the text that `heuristics_bench MB FILE` wrote.

    python oracle/curate/filters.py FILE [MAX_MB]

Prints one JSON row per filter and one for the chain (a document that is dropped is not asked further), in MB/s of one
thread, with the documents that each keeps.
"""

import json
import sys
import time

# This folder holds scripts with the names of standard modules (tokenize), which packages must not import.
sys.path.pop(0)

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import split_into_parts


def keeps(verdict):
    return verdict is True or (isinstance(verdict, tuple) and verdict[0])


def row(stage, size, documents, seconds, kept):
    print(json.dumps({
        "bench": "curate", "stage": f"datatrove_{stage}", "mb_per_s": size / 1e6 / seconds,
        "docs_per_s": documents / seconds, "threads": 1, "documents": documents, "kept": kept,
    }), flush=True)


def main():
    limit = float(sys.argv[2]) * 1e6 if len(sys.argv) > 2 else float("inf")
    texts, size = [], 0
    for line in open(sys.argv[1]):
        text = json.loads(line)["text"]
        texts.append(text)
        size += len(text.encode())
        if size > limit:
            break
    filters = {
        "gopher_repetition": GopherRepetitionFilter(),
        "gopher_quality": GopherQualityFilter(),
        "fineweb": FineWebQualityFilter(),
        "c4": C4QualityFilter(),
    }
    for f in filters.values():  # loads the tokenizer
        f.filter(Document(text="Some words. And more.", id="0"))
    verdicts = {name: [] for name in filters}
    split_into_parts.cache_clear()
    start = time.perf_counter()
    kept = 0
    for i, text in enumerate(texts):
        document = Document(text=text, id=str(i))
        kept += all(keeps(f.filter(document)) for f in filters.values())
    row("gopher_c4_fineweb", size, len(texts), time.perf_counter() - start, kept)
    part = texts[: max(1, len(texts) // 4)]
    part_size = sum(len(t.encode()) for t in part)
    for name, f in filters.items():
        split_into_parts.cache_clear()
        start = time.perf_counter()
        kept = sum(keeps(f.filter(Document(text=t, id=str(i)))) for i, t in enumerate(part))
        row(name, part_size, len(part), time.perf_counter() - start, kept)


if __name__ == "__main__":
    main()
