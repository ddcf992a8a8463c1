"""The Python package beside the binary of the same tree: rates of answers, cost of callbacks and rewards, and of tables.

    FATHOM_THREADS=2 python oracle/bench/python.py target/release/fathom MODEL [PART ..]

with the package's folder in PYTHONPATH. Each figure is a median over repeats in which both sides take turns."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
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
        for _ in range(3 * REPEATS):
            alone = timed(lambda: opened.generate(PROMPT, **settings))
            own.append(256 / alone)
            streamed = timed(lambda: list(opened.stream(PROMPT, **settings)))
            pieces.append((streamed - alone) / 256 * 1e6)
        other = [of_binary() for _ in range(REPEATS)]
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
    """Share of its idle rate that another Python thread keeps while a model answers on one thread of two cores; and the
    share that it keeps while another process does so, which is what this machine's second core leaves."""
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

    code = (
        "import sys, fathom; m = fathom.Model.from_pretrained(sys.argv[1], threads=1); print(1, flush=True)\n"
        "while True: m.generate(sys.argv[2], max_new_tokens=256, ignore_eos=True)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, model, PROMPT], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with fathom.Model.from_pretrained(model, threads=1) as opened:
        shares, apart = [], []
        for _ in range(2 * REPEATS):
            other.send_signal(signal.SIGSTOP)
            idle = rate(lambda: time.sleep(0.5))
            busy = rate(lambda: [opened.generate(PROMPT, max_new_tokens=256, ignore_eos=True) for _ in range(3)])
            other.send_signal(signal.SIGCONT)
            apart.append(rate(lambda: time.sleep(0.5)) / idle)
            shares.append(busy / idle)
    other.kill()
    other.wait()
    going[0] = False
    thread.join()
    print(f"another thread keeps {median(shares):.3f} of its idle rate (bar 0.90); {median(apart):.3f} next to another process that answers")


def callbacks(model: str) -> None:
    """The time of a step under a callback that sleeps a second, next to one without."""
    class Sleeps(fathom.Callback):
        def on_step(self, step: Any, control: Any) -> None:
            time.sleep(1.0)

    rows = [{"prompt": f"say {n}", "completion": " the old river carries a stone"} for n in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        ratios = []
        for turn in range(3):
            seconds = []
            for name, used in (("with", [Sleeps()]), ("without", [])):
                recipe = fathom.recipes.sft(model_from=model, out=os.path.join(folder, f"{name}{turn}"), steps=8, epochs=None)
                recipe.set("stage.0.seq_tokens", 256).set("machine.kind", "cpu").set("data.held_out_share", 0.0)
                run = fathom.train(recipe, rows=rows, callbacks=used)
                seconds.append(median(run.metrics["step_s"][2:]))
            ratios.append(seconds[0] / seconds[1])
        print(f"a step of {seconds[1]:.2f} s under a callback that sleeps 1 s: {median(ratios):.4f} of its time without (bar 1.01)")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wide(model: str, folder: str, vocabulary: int) -> str:
    """A copy of a model with a larger vocabulary, whose further embeddings are zero."""
    source = Path(fathom.Run.open(model).folder) / "model" if (Path(model) / "metrics.jsonl").exists() else Path(model)
    to = Path(folder) / "wide"
    shutil.copytree(source, to)
    config = json.loads((to / "config.json").read_text())
    config["vocab_size"] = vocabulary
    (to / "config.json").write_text(json.dumps(config))
    [file] = to.glob("*.safetensors")
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    written, parts, at = {}, [], 0
    for name, of in header.items():
        if name == "__metadata__":
            written[name] = of
            continue
        first, end = of["data_offsets"]
        part = body[first:end]
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            rows, columns = of["shape"]
            part = part + bytes(len(part) // rows * (vocabulary - rows))
            of["shape"] = [vocabulary, columns]
        of["data_offsets"] = [at, at + len(part)]
        at += len(part)
        written[name] = of
        parts.append(part)
    head = json.dumps(written).encode()
    head += b" " * (-len(head) % 8)
    file.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))
    return str(to)


def arrays(model: str) -> None:
    """Peak of resident memory for 250 MiB of logits, in copies of them."""
    import numpy

    with tempfile.TemporaryDirectory() as folder, fathom.Model.from_pretrained(wide(model, folder, 32_000)) as opened:
        ids = [5 + n % 200 for n in range(2048)]
        # The model's own memory for a text of this length.
        opened.logits(ids, last=64)
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = resident()
        logits = opened.logits(ids)
        with open("/proc/self/status") as file:
            peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
        size = 4 * 2048 * 32_000
        array = numpy.asarray(logits)
        assert array.shape == (2048, 32_000) and not array.flags.writeable
        print(f"logits of {size >> 20} MiB: peak resident memory {(peak - before) / size:.4f} of one copy (bar 1.02)")


def memory(model: str) -> None:
    """Resident memory that is left after a model closes, ten times."""
    with fathom.Model.from_pretrained(model) as opened:
        opened.generate(PROMPT, max_new_tokens=4)
    gc.collect()
    before, most = resident(), 0
    for _ in range(10):
        opened = fathom.Model.from_pretrained(model)
        opened.generate(PROMPT, max_new_tokens=4)
        held = resident() - before
        opened.close()
        del opened
        gc.collect()
        most = max(most, resident() - before)
    print(f"after close, ten times: at most {most / 2**20:.1f} MiB above before, {held / 2**20:.1f} while it is open (bar 32)")


def rewards() -> None:
    """Answers a second that a trivial reward scores, in batches of 64, from a question as the run asks it to its numbers."""
    from fathom import _functions

    @fathom.reward(version="1")
    def trivial(answers: list[str], **_: Any) -> list[float | None]:
        return [1.0] * len(answers)

    class Numbers:
        def numbers(self, number: int, numbers: list[float | None]) -> None:
            assert len(numbers) == 64

    texts = ["an answer of some words"] * 64
    of = {"prompts": texts, "answers": texts, "messages": [[]] * 64, "tokens": [20] * 64, "ended": [True] * 64}
    question = json.dumps({**of, "columns": {"solution": texts}})
    caller = _functions.call_reward(trivial, lambda: None)
    own = median([64 * 500 / timed(lambda: [caller._answer(Numbers(), n, question) for n in range(500)]) for _ in range(REPEATS)])
    caller.close()
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
    parts: dict[str, Any] = {
        "imports": imports,
        "answers": lambda: answers(binary, model),
        "thread": lambda: another_thread(model),
        "callbacks": lambda: callbacks(model),
        "arrays": lambda: arrays(model),
        "memory": lambda: memory(model),
        "rewards": rewards,
        "tables": tables,
    }
    for name in sys.argv[3:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
