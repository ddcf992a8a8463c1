"""The Python package beside the binary of the same tree: rates of answers, cost of callbacks and rewards, and of tables.

    FATHOM_THREADS=2 python oracle/bench/python.py target/release/fathom MODEL

with the package's folder in PYTHONPATH. Each figure is a median over repeats in which both sides take turns."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import fathom

REPEATS = 5
PROMPT = "the old river carries"


def median(values: list[float]) -> float:
    return statistics.median(values)


def timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def imports() -> None:
    """Milliseconds of an import above an empty interpreter."""
    def start(code: str) -> float:
        return timed(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    start("import fathom")
    pairs = [(start("import fathom"), start("pass")) for _ in range(11)]
    print(f"import: {median([a - b for a, b in pairs]) * 1e3:.1f} ms above an empty interpreter (bar 40)")


def answers(binary: str, model: str) -> None:
    """Tokens a second of one answer, next to `fathom generate`, which says its own."""
    def of_binary() -> float:
        command = [binary, "generate", model, PROMPT, "--max-tokens", "256"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        found = re.findall(r"([\d.,]+) tokens/s", said)
        return float(found[-1].replace(",", "")) if found else float("nan")

    with fathom.Model.from_pretrained(model) as opened:
        settings: dict[str, Any] = {"max_new_tokens": 256, "ignore_eos": True, "temperature": 0.0}
        opened.generate(PROMPT, **settings)
        own, other, pieces = [], [], []
        for _ in range(REPEATS):
            alone = timed(lambda: opened.generate(PROMPT, **settings))
            own.append(256 / alone)
            other.append(of_binary())
            streamed = timed(lambda: list(opened.stream(PROMPT, **settings)))
            pieces.append((streamed - alone) / 256 * 1e6)
        print(f"generate: {median(own):.1f} tokens/s with its prompt, the binary {median(other):.1f}")
        print(f"stream: {median(pieces):.1f} us more a piece (bar 20)")
        batch(opened, model)


def batch(opened: Any, model: str) -> None:
    """Sixteen prompts in one call, next to sixteen requests to a server."""
    from concurrent.futures import ThreadPoolExecutor
    from urllib.request import Request, urlopen

    prompts = [f"{PROMPT} {number}" for number in range(16)]
    settings: dict[str, Any] = {"max_new_tokens": 64, "ignore_eos": True, "temperature": 0.0}
    binary = sys.argv[1]
    server = subprocess.Popen([binary, "serve", model, "--port", "18765"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def ask(prompt: str) -> None:
            body = {"model": name, "prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True}
            request = Request("http://127.0.0.1:18765/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urlopen(request, timeout=120) as response:
                response.read()

        def together() -> None:
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(ask, prompts))

        wait_for("http://127.0.0.1:18765/v1/models")
        with urlopen("http://127.0.0.1:18765/v1/models", timeout=5) as response:
            name = json.load(response)["data"][0]["id"]
        rates = []
        opened.generate(prompts, **settings)
        together()
        for _ in range(REPEATS):
            rates.append((timed(lambda: opened.generate(prompts, **settings)), timed(together)))
        own, other = (median([pair[at] for pair in rates]) for at in (0, 1))
        print(f"16 prompts: one call {own:.2f} s, 16 requests {other:.2f} s, ratio {own / other:.3f} (bar 1.02)")
    finally:
        server.terminate()
        server.wait()


def wait_for(url: str) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    for _ in range(200):
        try:
            urlopen(url, timeout=5).close()
            return
        except (URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def another_thread(model: str) -> None:
    """Share of its idle rate that another Python thread keeps while a model answers on one thread of two cores."""
    going, counts = [True], [0]

    def count() -> None:
        while going[0]:
            for _ in range(1000):
                pass
            counts[0] += 1

    thread = threading.Thread(target=count, daemon=True)
    thread.start()

    def rate(work: Any) -> float:
        before, begun = counts[0], time.perf_counter()
        work()
        return (counts[0] - before) / (time.perf_counter() - begun)

    with fathom.Model.from_pretrained(model, threads=1) as opened:
        shares = []
        for _ in range(REPEATS):
            idle = rate(lambda: time.sleep(1.0))
            busy = rate(lambda: opened.generate(PROMPT, max_new_tokens=256, ignore_eos=True))
            shares.append(busy / idle)
    going[0] = False
    thread.join()
    print(f"another thread keeps {median(shares):.2f} of its idle rate (bar 0.90)")


def rewards() -> None:
    """Answers a second that a trivial reward scores, in batches of 64."""
    @fathom.reward(version="1")
    def trivial(answers: list[str], **_: Any) -> list[float | None]:
        return [1.0] * len(answers)

    texts = ["an answer of some words"] * 64
    own = median([64 * 2000 / timed(lambda: [trivial(texts) for _ in range(2000)]) for _ in range(REPEATS)])
    print(f"rewards: {own:,.0f} answers/s (bar 100,000)")


def tables() -> None:
    """A frame of a million rows as `rows`, next to the same JSON lines."""
    import polars

    from fathom import _rows

    with tempfile.TemporaryDirectory() as folder:
        frame = polars.DataFrame({"prompt": [f"what is {n}" for n in range(1_000_000)], "completion": [f"it is {n}" for n in range(1_000_000)]})
        written = os.path.join(folder, "same.jsonl")
        frame.write_ndjson(written)
        ratios = []
        for turn in range(3):
            to = Path(folder) / str(turn)
            write = timed(lambda: _rows.paths(frame, str(to)))
            read = timed(lambda: fathom_check(written))
            ratios.append((write + read) / read)
        print(f"a frame of 1M rows: {median(ratios):.3f} of the time of the same JSON lines (bar 1.2)")


def fathom_check(path: str) -> None:
    """The least that a run does with rows: to read and tokenize them."""
    subprocess.run([sys.argv[1], "data", "check", path, "--model", sys.argv[2]], check=True, capture_output=True)


def main() -> None:
    binary, model = sys.argv[1:3]
    imports()
    answers(binary, model)
    another_thread(model)
    rewards()
    tables()


if __name__ == "__main__":
    main()
