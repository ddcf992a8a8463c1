"""Main content of labelled pages by Python trafilatura and jusText: precision, recall, F1, MB/s, one thread.

    cargo run --release -p fathom-prose --example extract_bench -- write /tmp/pages.jsonl
    python3 oracle/curate/extract.py /tmp/pages.jsonl
    cargo run --release -p fathom-prose --example extract_bench -- run /tmp/pages.jsonl

A set from elsewhere takes the place of the generated one by `gather FOLDER even|odd|all FILE` instead of `write FILE`.

A line of the file is {"html": str, "with": [str], "without": [str], "body": str}. A segment counts if it stands in the
text, white space aside, as in trafilatura's own evaluation. Pages with the whole text in `body` are measured by runs of
four words, every page of the same weight, as in Scrapinghub's benchmark.
"""

import json
import re
import sys
import time
from collections import Counter

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


def shingles(text):
    words = re.findall(r"\w+", text)
    return Counter(tuple(words[i : i + 4]) for i in range(max(1, len(words) - 3)) if words)


class Segments:
    """Counts of segments over all pages."""

    def __init__(self):
        self.hits = self.misses = self.false = 0

    def add(self, page, text):
        text = joined(text)
        found = sum(joined(s) in text for s in page["with"])
        self.hits += found
        self.misses += len(page["with"]) - found
        self.false += sum(joined(s) in text for s in page["without"])

    def precision(self):
        return self.hits / max(self.hits + self.false, 1)

    def recall(self):
        return self.hits / max(self.hits + self.misses, 1)


class Overlap:
    """Shares of shingles, the mean over pages."""

    def __init__(self):
        self.precisions, self.recalls = [], []

    def add(self, page, text):
        truth, found = shingles(page["body"]), shingles(text)
        both = (truth & found).total()
        if found:
            self.precisions.append(both / found.total())
        if truth:
            self.recalls.append(both / truth.total())

    def precision(self):
        return sum(self.precisions) / max(len(self.precisions), 1)

    def recall(self):
        return sum(self.recalls) / max(len(self.recalls), 1)


def main(path, only=None):
    pages = [json.loads(line) for line in open(path, encoding="utf-8")]
    megabytes = sum(len(p["html"].encode()) for p in pages) / 1e6
    for name, method in METHODS.items():
        if only and name not in only:
            continue
        method("<html><body><p>warm</p></body></html>")
        score = Overlap() if any(page.get("body") for page in pages) else Segments()
        seconds = 0.0
        for page in pages:
            start = time.process_time()
            try:
                text = method(page["html"]) or ""
            except Exception:  # a crash is a miss, as in production
                text = ""
            seconds += time.process_time() - start
            score.add(page, text)
        precision, recall = score.precision(), score.recall()
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
