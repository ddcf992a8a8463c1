"""Measures what the package costs: `python examples/bars.py MODEL [FATHOM]`, with a model of any run and the binary of the
same tree. Each line is a figure and its bar."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import fathom


def line(number: str, what: str, found: str, bar: str) -> None:
    print(f"{number:>4}  {what:<58} {found:>16}  (bar {bar})", flush=True)


def median(work: Any, times: int = 5) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def imports() -> None:
    def script(text: str) -> float:
        return median(lambda: subprocess.run([sys.executable, "-I", "-c", text], check=True, env=environment))

    path = os.path.dirname(os.path.dirname(fathom.__file__))
    environment = {**os.environ}
    empty = script("pass")
    full = script(f"import sys; sys.path.insert(0, {path!r}); import fathom")
    line("1", "import fathom in a fresh process", f"{1000 * full:.0f} ms", "100")
    line("1", "the same above an empty process", f"{1000 * (full - empty):.0f} ms", "40")


def generation(path: str, binary: str | None) -> None:
    with fathom.Model.from_pretrained(path, threads=1, sequences=16) as model:
        settings = {"max_new_tokens": 200, "ignore_eos": True}
        usages = [model.generate("the old", **settings).usage for _ in range(5)]
        rate = statistics.median((of.answer_tokens - 1) / of.decode_s for of in usages)
        whole = median(lambda: model.generate("the old", **settings))
        inside = statistics.median(of.prefill_s + of.decode_s + of.queue_s for of in usages)
        line("3", "generate: tokens a second in the engine", f"{rate:.0f}", "of the binary")
        line("3", "generate: time outside the engine", f"{100 * (whole - inside) / whole:.2f} %", "1 %")
        pieces = 0

        def stream() -> None:
            nonlocal pieces
            pieces = sum(1 for _ in model.stream("the old", **settings))

        each = median(stream)
        line("3", "stream: a piece more than generate", f"{1e6 * (each - whole) / pieces:.1f} us", "20")
        if binary is not None:
            command = [binary, "generate", path, "the old", "--max-tokens", "200", "--threads", "1"]
            said = [subprocess.run(command, capture_output=True, text=True).stderr for _ in range(5)]
            rates = [float(text.split(" new tokens at ")[1].split()[0]) for text in said]
            line("3", "fathom generate: tokens a second", f"{statistics.median(rates):.0f}", "-")


def rewards() -> None:
    from fathom import _fathom, _functions

    @fathom.reward
    def trivial(answers: list[str], **_: Any) -> list[float]:
        return [1.0] * len(answers)

    import json

    caller = _functions.call_reward(trivial, lambda: None)
    texts = ["an answer of a few words " * 4] * 64
    question = json.dumps(
        {"prompts": texts, "answers": texts, "messages": [[]] * 64, "tokens": [20] * 64, "ended": [True] * 64,
         "columns": {"solution": texts}}
    )
    del _fathom

    class Probe:
        def numbers(self, number: int, numbers: list[float | None]) -> None:
            pass

    batches = 400
    began = time.perf_counter()
    for number in range(batches):
        caller._answer(Probe(), number, question)
    took = time.perf_counter() - began
    caller.close()
    line("6", "answers a second of a trivial reward, Python's side", f"{64 * batches / took:,.0f}", "10,000")


def arrays(path: str) -> None:
    import numpy

    with fathom.Model.from_pretrained(path, threads=1) as model:
        ids = [5] * min(2000, model.card.context_tokens - 8)
        model.logits(ids[:64])
        gc.collect()
        before = resident()
        logits = model.logits(ids)
        size = 4 * len(ids) * model.card.vocabulary
        shared = numpy.asarray(logits).__array_interface__["data"][0] == logits.__array_interface__["data"][0]
        line("7", f"logits of {size >> 20} MiB: resident memory of one copy", f"{(resident() - before) / size:.2f}", "1.02")
        line("7", "numpy.asarray shares its address", str(shared), "True")


def threads(path: str) -> None:
    counts, going = [0], [True]

    def count() -> None:
        while going[0]:
            counts[0] += 1

    thread = threading.Thread(target=count, daemon=True)
    thread.start()

    def rate(work: Any) -> float:
        before, began = counts[0], time.perf_counter()
        work()
        return (counts[0] - before) / (time.perf_counter() - began)

    with fathom.Model.from_pretrained(path, threads=1) as model:
        idle = rate(lambda: time.sleep(1.0))
        busy = rate(lambda: [model.generate("the old", max_new_tokens=200, ignore_eos=True) for _ in range(5)])
    going[0] = False
    line("9", "another Python thread while a model answers", f"{100 * busy / idle:.0f} %", "90 %")


def memory(path: str) -> None:
    with fathom.Model.from_pretrained(path, threads=1) as opened:
        opened.generate("the", max_new_tokens=4)
    before, most = resident(), 0
    for _ in range(10):
        model = fathom.Model.from_pretrained(path, threads=1)
        model.generate("the", max_new_tokens=4)
        model.close()
        gc.collect()
        most = max(most, resident() - before)
    line("10", "resident memory after close, ten times", f"{most / 2**20:.1f} MiB", "32")


def plans() -> None:
    recipe = fathom.recipes.sft()

    def assign() -> None:
        recipe.optimizer.lr = 1e-5

    line("-", "an assignment to a recipe", f"{1000 * median(assign):.1f} ms", "-")


if __name__ == "__main__":
    model_path, program = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    imports()
    generation(model_path, program)
    rewards()
    arrays(model_path)
    threads(model_path)
    memory(model_path)
    plans()
