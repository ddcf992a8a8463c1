"""Main content of labelled pages by Python trafilatura and jusText: precision, recall, F1, MB/s, one thread.

    cargo run --release -p fathom-prose --example extract_bench -- write /tmp/pages.jsonl
    python3 oracle/curate/extract.py /tmp/pages.jsonl
    cargo run --release -p fathom-prose --example extract_bench -- run /tmp/pages.jsonl

A line of the file is {"html": str, "with": [str], "without": [str]}. A segment counts if it stands in the text,
white space aside, as in trafilatura's own evaluation.
"""

import json
import sys
import time

import justext
from trafilatura import extract

OPTIONS = {"include_comments": False, "include_tables": True, "include_formatting": False}
ENGLISH = justext.get_stoplist("English")


def run_justext(page):
    return "\n".join(p.text for p in justext.justext(page, ENGLISH) if not p.is_boilerplate)


METHODS = {
    "trafilatura_py_fast": lambda page: extract(page, fast=True, **OPTIONS),
    "trafilatura_py": lambda page: extract(page, fast=False, **OPTIONS),
    "justext_py": run_justext,
}


def joined(text):
    return " ".join(text.split())


def main(path, only=None):
    pages = [json.loads(line) for line in open(path, encoding="utf-8")]
    megabytes = sum(len(p["html"].encode()) for p in pages) / 1e6
    for name, method in METHODS.items():
        if only and name not in only:
            continue
        method("<html><body><p>warm</p></body></html>")
        hits = misses = false = 0
        seconds = 0.0
        for page in pages:
            start = time.process_time()
            try:
                text = method(page["html"]) or ""
            except Exception:  # a crash is a miss, as in production
                text = ""
            seconds += time.process_time() - start
            text = joined(text)
            found = sum(joined(s) in text for s in page["with"])
            hits += found
            misses += len(page["with"]) - found
            false += sum(joined(s) in text for s in page["without"])
        precision, recall = hits / max(hits + false, 1), hits / max(hits + misses, 1)
        row = {
            "bench": "curate",
            "stage": "extract",
            "method": name,
            "mb_per_s": round(megabytes / seconds, 2),
            "docs_per_s": round(len(pages) / seconds, 1),
            "threads": 1,
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "f1": round(2 * precision * recall / max(precision + recall, 1e-9), 4),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
