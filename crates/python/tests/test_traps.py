"""What a library with threads may do to a program in Python: locks, signals, forks, ends, logging, floats, pickles."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import pickle
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_recipe
from test_run import QUESTIONS, SMALL, bits, has, lessons, policy

import fathom

# A program that takes a part of a second, by its verb.
VERBS = {
    "open": "fathom.Model.from_pretrained(path, threads=1).close()",
    "generate": "model.generate('the old', max_new_tokens=200, ignore_eos=True)",
    "stream": "list(model.stream('the old', max_new_tokens=200, ignore_eos=True))",
    "logits": "model.logits([5] * 120)",
    "embed": "model.embed(['the old river'] * 50)",
    "encode": "tokenizer.encode_batch(['the old river carries'] * 5000)",
    "tokenizer": "fathom.Tokenizer.train(['the old river carries a stone ' * 50] * 100, vocab_size=400)",
    "plan": "fathom.plan('llama3-1b', memory='80GiB')",
    "train": "fathom.train(recipe)",
    "evaluate": "fathom.evaluate(path, seconds=0.5, threads=1)",
    "score": "fathom.score(path, pairs, precision='f32')",
    "export": "fathom.export(path, folder + '/e', precision='f32')",
    "quantize": "fathom.quantize(path, folder + '/q.gguf', format='q8_0')",
    "index": "fathom.index(texts, folder + '/index')",
}


@pytest.mark.parametrize("verb", VERBS)
def test_another_thread_runs_during_a_verb(verb: str, path: str, text: Path, model: Any, tmp_path: Path) -> None:
    """No verb holds the interpreter's lock while it computes: another thread has no gap of half its time."""
    recipe = tiny_recipe(text, tmp_path / "run")
    pairs = [{"prompt": "the", "chosen": " old river", "rejected": " xyz"}] * 50
    given = {"fathom": fathom, "path": path, "model": model, "tokenizer": model.tokenizer, "recipe": recipe, "pairs": pairs, "texts": str(text), "folder": str(tmp_path)}
    going, last, gap = True, time.monotonic(), 0.0

    def look() -> None:
        nonlocal last, gap
        while going:
            now = time.monotonic()
            gap, last = max(gap, now - last), now
            time.sleep(0.001)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    began = time.monotonic()
    gap = 0.0
    eval(VERBS[verb], given)
    took, longest = time.monotonic() - began, gap
    going = False
    thread.join()
    assert longest < max(0.15, took / 2), (longest, took)


CTRL_C = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import fathom
from conftest import tiny_recipe
path, folder = sys.argv[1], sys.argv[2]
curation = fathom.CurationRecipe.from_toml('[[stage]]\\nuse = "clean"\\n[[stage]]\\nuse = "exact"\\n')
texts = Path(folder, "texts")
texts.mkdir()
for index in range(40):
    (texts / f"{index}.txt").write_text(f"the old river {index} carries a stone\\n" * 2000)
count = 0
def out():
    global count
    count += 1
    return os.path.join(folder, str(count))
VERBS = {
    "evaluate": lambda: fathom.evaluate(path, seconds=20.0, threads=1),
    "quantize": lambda: fathom.quantize(path, out() + ".gguf", format="q8_0"),
    "export": lambda: fathom.export(path, out(), precision="f32"),
    "score": lambda: fathom.score(path, [{"prompt": "the", "chosen": " old river", "rejected": " xyz"}] * 200, precision="f32"),
    "curate": lambda: fathom.curate(curation, input=str(texts), out=out()),
    "index": lambda: fathom.index(str(texts), out()),
}
sent = []
def send():
    time.sleep(0.5)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
most = float(os.environ.get("FATHOM_TEST_LATE_S", "0.5"))
for name, work in VERBS.items():
    threading.Thread(target=send, daemon=True).start()
    try:
        while True:
            work()
    except KeyboardInterrupt:
        late = time.monotonic() - sent[-1]
        print(f"{name} {1000 * late:.0f} ms", flush=True)
        assert late < most, (name, late)

# The first Ctrl-C says that it saves and stops after the step, the second returns at once.
heard, times = [], []
class Notice:
    def write(self, text):
        if "saving" in text: heard.append(time.monotonic())
    def flush(self): pass
    def isatty(self): return False
sys.stderr, shown = Notice(), sys.stderr
recipe = tiny_recipe(texts, Path(out())).set("stage.0.steps", 100000).set("stage.0.samples_per_micro_batch", 2048)
run = fathom.train(recipe, wait=False)
def twice():
    time.sleep(0.5)
    for _ in range(2):
        times.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
        while not heard:
            time.sleep(0.005)
threading.Thread(target=twice, daemon=True).start()
try:
    run.wait()
except KeyboardInterrupt:
    ended = time.monotonic()
sys.stderr = shown
print(f"train {1000 * (heard[0] - times[0]):.0f} ms, again {1000 * (ended - times[1]):.0f} ms", flush=True)
assert heard[0] - times[0] < most and ended - times[1] < most
run.wait()
assert run.outcome == "interrupted", run.outcome
with fathom.Model.from_pretrained(path, threads=1) as model:
    print(len(model.generate("the", max_new_tokens=3, ignore_eos=True).ids))
"""


def test_ctrl_c_ends_each_verb(path: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CTRL_C, path, str(tmp_path), os.path.dirname(__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "3", done.stdout
    print(done.stdout)


def test_the_stop_of_a_notebook_ends_a_verb_and_not_the_kernel(path: str) -> None:
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(kernel_name="python3", startup_timeout=60)
    try:
        def run(code: str, stop: bool = False) -> dict[str, Any]:
            asked = client.execute(code)
            if stop:
                time.sleep(0.5)
                kernel.interrupt_kernel()
            while True:
                found = client.get_shell_msg(timeout=30)
                if found["parent_header"].get("msg_id") == asked:
                    content: dict[str, Any] = found["content"]
                    return content

        opened = run(f"import fathom; model = fathom.Model.from_pretrained({path!r}, threads=1)")
        assert opened["status"] == "ok", opened
        stopped = run("while True: model.generate(['the'] * 64, max_new_tokens=200, ignore_eos=True)", stop=True)
        assert (stopped["status"], stopped["ename"]) == ("error", "KeyboardInterrupt"), stopped
        assert run("assert len(model.generate('the', max_new_tokens=3, ignore_eos=True).ids) == 3")["status"] == "ok"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_a_stage_may_ask_a_model_and_a_tokenizer(path: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"the old river {n}"}) + "\n" for n in range(30)))
    with fathom.Model.from_pretrained(path, threads=1) as judge:
        tokenizer = judge.tokenizer

        @fathom.keep(version="1", after="clean")
        def asked(text: str) -> bool:
            judge.generate(text, max_new_tokens=1)
            return len(tokenizer.encode_batch([text])[0]) > 0

        recipe = fathom.CurationRecipe.from_toml('[[stage]]\nuse = "clean"\n')
        done = fathom.curate(recipe, input=str(tmp_path / "a.jsonl"), out=tmp_path / "out", stages=[asked])
    assert any(row["name"] == "asked" for row in done.stats)


def test_callbacks_of_many_steps_all_come_while_the_run_is_waited_for(text: Path, tmp_path: Path) -> None:
    """`FATHOM_TEST_CALLBACKS` is the number of steps: 10,000 by hand, fewer here."""
    count = int(os.environ.get("FATHOM_TEST_CALLBACKS", "200"))
    seen = []

    class Count(fathom.Callback):
        def on_step(self, step: Any, control: Any) -> None:
            seen.append(step.step)

    recipe = tiny_recipe(text, tmp_path / "run").set("stage.0.steps", count - 3)
    run = fathom.train(recipe, callbacks=[Count])
    assert run.outcome == "finished" and seen == list(range(1, count + 1))


def test_a_damaged_model_is_an_error_of_the_package(path: str, tmp_path: Path) -> None:
    for name, damage in (("hidden_size", 96), ("num_key_value_heads", 3), ("vocab_size", 7)):
        folder = tmp_path / name
        shutil.copytree(Path(path) / "model", folder)
        config = json.loads((folder / "config.json").read_text())
        config[name] = damage
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(fathom.Error, match="model|shape|heads|vocab|hidden"):
            fathom.Model.from_pretrained(folder)
    folder = tmp_path / "cut"
    shutil.copytree(Path(path) / "model", folder)
    [weights] = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(fathom.Error):
        fathom.Model.from_pretrained(folder)


def test_a_panic_is_an_error_and_nothing_is_printed(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    opened = fathom.Model.from_pretrained(path, threads=1)
    with pytest.raises(fathom.Bug) as caught:
        opened._inner.look([[5, 6]], "top", k=1 << 60)
    assert isinstance(caught.value, RuntimeError) and "report" in caught.value.__notes__[0]
    assert capfd.readouterr() == ("", "")


ENDS = {
    "a server": "server = fathom.serve(path, threads=1)\nprint('end')",
    "an open stream": "model = fathom.Model.from_pretrained(path)\nstream = iter(model.stream('the', max_new_tokens=200))\nnext(stream)\nprint('end')",
    "a thread that generates": (
        "import threading, time\nmodel = fathom.Model.from_pretrained(path, threads=1)\n"
        "threading.Thread(target=lambda: model.generate(['the'] * 200, max_new_tokens=200, ignore_eos=True), daemon=True).start()\n"
        "time.sleep(0.2)\nprint('end')"
    ),
    "arrays and tables of other libraries": (
        "model = fathom.Model.from_pretrained(path)\nlogits, table, held = model.logits('the old'), fathom.Table({'a': [1, None], 'b': ['x', None]}), []\n"
        "for made in ('import numpy; held.append(numpy.from_dlpack(logits))', 'import torch; held.append(torch.from_dlpack(logits))',\n"
        "        'import pyarrow; held.append(pyarrow.table(table))', 'import polars; held.append(polars.DataFrame(table))'):\n"
        "    try: exec(made)\n    except ImportError: pass\nprint('end')"
    ),
    "records": "import logging\nlogging.basicConfig(level=10)\nmodel = fathom.Model.from_pretrained(path)\nprint('end')",
}


@pytest.mark.parametrize("name", ENDS)
def test_the_interpreter_ends_in_the_middle(name: str, path: str) -> None:
    script = f"import sys, fathom\npath = sys.argv[1]\n{ENDS[name]}"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


LOGS = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import fathom
from conftest import tiny_recipe
tokenizer = fathom.Tokenizer.train(["the old river carries a stone " * 50] * 100, vocab_size=400)
assert len(tokenizer.encode_batch(["the old river"] * 20000)) == 20000
fathom.train(tiny_recipe(Path(sys.argv[1]), Path(sys.argv[2])).set("machine.threads", 2))
logging.getLogger("fathom").info("mine")
"""


def test_logging_at_debug_does_not_hang(text: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOGS, str(text), str(tmp_path / "run"), os.path.dirname(__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "fathom INFO mine" in done.stdout, done.stderr


_FLUSH = 0x8040


def flush_subnormals(on: bool) -> None:
    """Sets how this thread treats subnormal numbers, as a library that is compiled for speed may do."""
    libm, state = ctypes.CDLL("libm.so.6"), ctypes.create_string_buffer(32)
    assert libm.fegetenv(state) == 0
    control = ctypes.c_uint32.from_buffer(state, 28)
    control.value = control.value | _FLUSH if on else control.value & ~_FLUSH
    assert libm.fesetenv(state) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the place of the control word is x86-64's")
def test_subnormal_numbers_stay_the_programs_and_bits_the_runs(run: Any, text: Path, model: Any, tmp_path: Path) -> None:
    tiny = float.fromhex("0x1p-1070")
    model.generate("the old", max_new_tokens=20)
    model.logits("the old")
    assert tiny * 0.5 > 0.0
    flush_subnormals(True)
    try:
        assert tiny * 0.5 == 0.0
        again = fathom.train(tiny_recipe(text, tmp_path / "run"))
        assert tiny * 0.5 == 0.0
    finally:
        flush_subnormals(False)
    assert bits(again.folder) == bits(run.folder)


SEEDS = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from test_run import QUESTIONS, has, policy
import fathom
fathom.train(policy(sys.argv[1], Path(sys.argv[2]), **{"stage.0.steps": 2}), rows=QUESTIONS, rewards=has)
"""


def test_the_seed_of_hashes_changes_no_bit(path: str, tmp_path: Path) -> None:
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", SEEDS, path, str(tmp_path / seed), os.path.dirname(__file__)]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        found.append(bits(tmp_path / seed))
        [begun] = [event for event in fathom.Run.open(tmp_path / seed).events if event["event"] == "run"]
        assert f"PYTHONHASHSEED={seed} python" in begun["command"]
    assert found[0] == found[1]


def test_runs_of_impure_rewards_need_not_agree_and_diff_says_so(path: str, tmp_path: Path) -> None:
    @fathom.reward(pure=False)
    def judged(answers: list[str], **_: Any) -> list[float | None]:
        return [float(len(text)) for text in answers]

    for name, reward in (("a", judged), ("b", has)):
        fathom.train(policy(path, tmp_path / name, **{"stage.0.steps": 1}), rows=QUESTIONS, rewards=reward)
    command = [sys.executable, "-m", "fathom", "diff", str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "not pure: judged; the runs need not agree" in done.stdout, done.stdout + done.stderr


def echo(values: list[Any]) -> list[str]:
    return [repr(value) for value in values]


def test_values_go_to_another_process_and_handles_name_their_path(path: str, run: Any, model: Any) -> None:
    values = [
        model.generate("the", max_new_tokens=2),
        fathom.recipes.sft(lr=1e-4),
        fathom.plan("llama3-1b", memory="80GiB"),
        fathom.RecipeError("no", key="a", place="b", hint="c"),
        fathom.NotFinite("no", step=3, saved="x"),
        model.tokenizer,
        run.metrics,
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(echo, (values,)) == echo(values)
    for handle, named in ((model, path), (run, run.folder)):
        with pytest.raises(TypeError, match=str(named)):
            pickle.dumps(handle)


class Words:
    """A data set as PyTorch's loaders take one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return len(self.tokenizer.encode(f"the old river {index}"))


def test_a_loader_of_pytorch_with_two_workers(model: Any) -> None:
    torch = pytest.importorskip("torch")
    model.tokenizer.encode_batch(["the"] * 100)
    words = Words(model.tokenizer)
    loader = torch.utils.data.DataLoader(words, batch_size=2, num_workers=2, timeout=30)
    assert [int(n) for batch in loader for n in batch] == [words[index] for index in range(8)]


def test_tables_are_rows_without_a_library(path: str, tmp_path: Path) -> None:
    """Arrow's capsules are read by the package itself, whatever their types."""
    pa = pytest.importorskip("pyarrow")
    import datetime as dt

    from fathom import _arrow_rows

    day, time = [dt.date(2020, 1, 2), None, dt.date(1960, 3, 4)], [dt.datetime(2020, 1, 2, 3, 4, 5, 678901), None, dt.datetime(1960, 1, 1)]
    texts, lists = ["a", None, "é" * 20], [[1], None, [2, 3]]
    table = pa.table(
        {
            **{kind: pa.array(texts, kind) for kind in ("string", "large_string", "string_view")},
            **{kind: pa.array([1, None, 3], kind) for kind in ("int8", "uint16", "int64", "uint64", "float32", "float16", "double")},
            "bool": [True, None, False],
            "null": pa.nulls(3),
            "words": pa.array(texts).dictionary_encode(),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "large_list": pa.array(lists, pa.large_list(pa.int64())),
            "list_view": pa.array(lists, pa.list_view(pa.int64())),
            "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "messages": [[{"role": "user", "content": "hi"}], None, [{"role": "a", "content": None}]],
            "date32": day,
            "date64": pa.array(day, pa.date64()),
            **{f"time {unit}": pa.array([t and t.replace(microsecond=0) for t in time], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
            "zone": pa.array(time, pa.timestamp("us", tz="Europe/Berlin")),
            "offset": pa.array(time, pa.timestamp("us", tz="-05:30")),
        }
    )
    for of in (table, table.slice(1), pa.concat_tables([table, table.slice(2), table.slice(0, 0)]), *table.slice(1, 1).to_batches()):
        assert list(_arrow_rows.rows(of)) == of.to_pylist()
    with pytest.raises(fathom.Error, match="column `b.*cast"):
        list(_arrow_rows.rows(pa.table({"b": [b"x"]})))

    class Capsules:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.Table.from_pylist(lessons()).__arrow_c_stream__()

    recipe = fathom.recipes.sft(model_from=path, out=str(tmp_path / "run"), steps=1, epochs=None)
    for key, value in SMALL.items():
        recipe.set(key, value)
    fathom.train(recipe, rows=Capsules())
    assert [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()] == lessons()
