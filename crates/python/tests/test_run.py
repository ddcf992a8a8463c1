"""Runs: the binary's numbers, callbacks, rows of any table, rewards in Python, and kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, tiny_recipe

import fathom


def bits(folder: str | Path) -> list[int]:
    run = fathom.Run.open(folder)
    by_step = {event["step"]: event["loss_bits"] for event in run.events if event.get("event") == "step"}
    return [by_step[step] for step in sorted(by_step)]


def test_a_run_has_metrics_a_model_and_a_report(run: Any) -> None:
    assert run.outcome == "finished" and not run.is_running
    metrics = run.metrics.to_dict()
    assert metrics["step"] == list(range(1, 16)) and metrics["loss"][-1] < metrics["loss"][0]
    assert os.path.exists(run.report)
    with run.model as model:
        assert model.card.layers == 2
    assert "svg" in run._repr_html_()
    opened = fathom.Run.open(run.folder)
    assert opened.outcome == "finished" and opened.metrics.to_dict() == metrics
    assert not opened.recipe.diff(run.recipe)


def test_tables_are_read_by_polars_and_pyarrow(run: Any) -> None:
    table = run.metrics
    pyarrow = pytest.importorskip("pyarrow")
    read = pyarrow.table(table)
    assert read.column("loss").to_pylist() == table["loss"] and read.column("step").to_pylist() == table["step"]
    texts = fathom.Table({"a": ["x", None, "yz"], "b": [1, None, 3], "c": [True, False, None], "d": [1.5, None, 2]})
    assert pyarrow.table(texts).to_pylist() == texts.to_pylist()
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(texts).rows() == [("x", 1, True, 1.5), (None, None, False, None), ("yz", 3, None, 2.0)]
    assert fathom.Table({})._repr_html_()


def test_buffers_of_a_table_are_not_copied(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from fathom import _arrow

    made: list[Any] = []

    class Column(_arrow._Column):
        def __init__(self, name: str, values: Any) -> None:
            super().__init__(name, values)
            made.append(self)

    monkeypatch.setattr(_arrow, "_Column", Column)
    read = pyarrow.table(run.metrics)
    own = {column.name.decode(): column.buffers[-1].buffer_info()[0] for column in made}
    for name in ("step", "loss", "lr"):
        assert read.column(name).chunk(0).buffers()[-1].address == own[name]


def test_losses_are_those_of_the_binary(run: Any, text: Path, tmp_path: Path) -> None:
    binary = os.environ.get("FATHOM_BINARY")
    if binary is None:
        pytest.skip("FATHOM_BINARY is not set")
    recipe = tiny_recipe(text, tmp_path / "binary")
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    subprocess.run([binary, "-q", "train", str(tmp_path / "recipe.toml")], check=True, capture_output=True)
    assert bits(tmp_path / "binary") == bits(run.folder)


def test_callbacks_observe_and_stop_and_the_same_call_goes_on(run: Any, text: Path, tmp_path: Path) -> None:
    recipe, seen = tiny_recipe(text, tmp_path / "run"), []

    class Watch(fathom.Callback):
        def on_step(self, step: Any, control: Any) -> None:
            seen.append(("step", step.step))
            if step.step == 4:
                control.stop()

        def on_stage(self, stage: Any, control: Any) -> None:
            seen.append(("stage", stage.name))

        def on_checkpoint(self, checkpoint: Any, control: Any) -> None:
            seen.append(("checkpoint", checkpoint.step))

        def on_end(self, run: Any, control: Any) -> None:
            seen.append(("end", run.outcome))

    first = fathom.train(recipe, callbacks=[Watch])
    assert first.outcome == "interrupted" and seen[-1] == ("end", "interrupted")
    assert ("step", 4) in seen and seen[0][0] == "stage" and any(kind == "checkpoint" for kind, _ in seen)
    steps = [step.step for step in fathom.train(recipe, wait=False)]
    assert steps[-1] == 15 and steps[0] > 4
    assert bits(tmp_path / "run") == bits(run.folder)


CALLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from conftest import tiny_recipe
import fathom

class Watch(fathom.Callback):
    def on_step(self, step, control):
        if step.step == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
    def on_checkpoint(self, checkpoint, control):
        print(checkpoint.step, flush=True)

recipe = tiny_recipe(Path(sys.argv[1]), Path(sys.argv[2]))
recipe.set("checkpoint.every_steps", 4)
fathom.train(recipe, callbacks=[Watch])
"""


def test_callbacks_of_a_resumed_run_hear_what_is_new(text: Path, tmp_path: Path) -> None:
    """The log is cut to the checkpoint, so that it is shorter than it was when the run was started again."""

    def process(kill_at: int) -> tuple[int, list[int]]:
        command = [sys.executable, "-W", "error", "-c", CALLED, str(text), str(tmp_path / "run"), os.path.dirname(__file__), str(kill_at)]
        done = subprocess.run(command, timeout=120, capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, [int(line) for line in done.stdout.split()]

    assert process(7)[0] == -signal.SIGKILL
    code, heard = process(11)
    assert code == -signal.SIGKILL and set(heard) <= {4, 8}
    code, heard = process(0)
    assert code == 0 and heard[-1] == 15 and heard == sorted(set(heard))


def test_a_changed_reward_is_recorded_and_said(tmp_path: Path) -> None:
    from fathom._functions import Reward, write_rewards

    def length(answers: list[str]) -> list[float]:
        return [float(len(text)) for text in answers]

    first = Reward(length)
    file = Path(write_rewards([first], str(tmp_path), False))
    write_rewards([first], str(tmp_path), True)
    assert "#" not in file.read_text()
    changed = Reward(lambda answers: [-1.0 for _ in answers], "length")
    with pytest.warns(UserWarning, match="length.*changed"):
        write_rewards([changed], str(tmp_path), True)
    assert first.source in file.read_text() and changed.source in file.read_text()
    write_rewards([changed], str(tmp_path), True)
    assert file.read_text().count("# length had") == 1


def test_missing_cells_and_numbers_that_are_none(tmp_path: Path) -> None:
    from fathom._rows import _is_missing, _rows, paths

    assert _is_missing(float("nan")) and not _is_missing(0.0) and not _is_missing("x")
    with pytest.raises(fathom.Error, match="row 1"):
        paths([{"text": "a"}, {"text": float("nan")}], str(tmp_path))
    with pytest.raises(fathom.Error, match="list of dicts"):
        _rows({"prompt": ["a"], "completion": ["b"]})


def test_a_checkpoint_is_saved_when_it_is_asked_for(run: Any, text: Path, tmp_path: Path) -> None:
    saved = []

    class Watch(fathom.Callback):
        def on_checkpoint(self, checkpoint: Any, control: Any) -> None:
            saved.append(checkpoint.step)

    going_on = fathom.train(tiny_recipe(text, tmp_path / "run"), callbacks=[Watch], wait=False)
    going_on.save()
    going_on.wait()
    assert saved[0] == 1 and bits(tmp_path / "run") == bits(run.folder)


def test_a_callback_that_fails_stops_the_run_with_its_exception(text: Path, tmp_path: Path) -> None:
    class Fails(fathom.Callback):
        def on_step(self, step: Any, control: Any) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fathom.train(tiny_recipe(text, tmp_path / "run"), callbacks=[Fails()])


def lessons() -> list[dict[str, str]]:
    return [{"prompt": f"say {word}", "completion": f" {word} {word}"} for word in ("river", "stone", "light", "old")] * 6


SMALL: dict[str, Any] = {"machine.kind": "cpu", "machine.threads": 1, "stage.0.seq_tokens": 128, "stage.0.tile_rows": 128, "stage.0.max_docs": 32}


def small(recipe: Any, **settings: Any) -> Any:
    for path, value in {**SMALL, **settings}.items():
        recipe.set(path, value)
    return recipe


def test_rows_of_any_table_are_the_same_rows(path: str, tmp_path: Path) -> None:
    rows = lessons()
    tables: list[Any] = [rows, (row for row in rows)]
    try:
        import polars
        import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]

        tables += [polars.DataFrame(rows), pyarrow.Table.from_pylist(rows)]
    except ImportError:
        pass
    found = []
    for index, table in enumerate(tables):
        recipe = small(fathom.recipes.sft(model_from=path, out=str(tmp_path / str(index)), steps=3, epochs=None))
        found.append(bits(fathom.train(recipe, rows=table).folder))
    assert len(found[0]) == 3 and all(of == found[0] for of in found)
    with pytest.raises(fathom.Error, match="other rows"):
        fathom.train(recipe, rows=rows[:5])


def test_a_recipe_by_one_call(path: str, tmp_path: Path) -> None:
    run = fathom.lora(path, rows=lessons(), out=str(tmp_path / "lora"), steps=2, epochs=None, seq_tokens=128, stage_tile_rows=128, threads=1)
    assert len(run.metrics) == 2
    with run.model as model:
        assert model.generate("say river", max_new_tokens=4).ids


QUESTIONS = [{"prompt": f"the {word}", "solution": word[0], "weight": 2} for word in ("river", "stone", "light", "old")]


@fathom.reward(version="2")
def has(answers: list[str], solution: list[str], **_: Any) -> list[float | None]:
    return [float(text.count(letter)) for text, letter in zip(answers, solution, strict=True)]


@fathom.reward(weight=0.5, version="1")
async def short(prompts: list[str], answers: list[str]) -> list[float | None]:
    return [None if not text else -len(text) / 100 for text in answers]


def policy(path: str, out: Path, **more: Any) -> Any:
    return small(
        fathom.recipes.grpo(model_from=path, out=str(out), steps=4, epochs=None),
        **{"rl.prompts": 2, "rl.answers": 4, "rl.max_answer_tokens": 12, "stage.0.samples_per_micro_batch": 2, **more},
    )


def test_rewards_in_python_are_those_of_a_run(path: str, tmp_path: Path) -> None:
    run = fathom.train(policy(path, tmp_path / "a"), rows=QUESTIONS, rewards=[has, short])
    assert run.outcome == "finished" and len(run.metrics) == 4
    rollouts = run.rollouts
    assert len(rollouts) > 0 and {"rewards.has", "rewards.short"} <= set(rollouts.columns)
    assert has(["rr"], ["r"]) == [2.0]
    text = (tmp_path / "a" / "rewards.toml").read_text()
    assert 'version = "2"' in text and "weight = 0.5" in text
    again = fathom.train(policy(path, tmp_path / "b"), rows=iter(QUESTIONS), rewards=[has, short])
    assert bits(again.folder) == bits(run.folder)
    with pytest.raises(fathom.RecipeError, match="function of the program"):
        fathom.train(policy(path, tmp_path / "c").set("rl.reward", str(tmp_path / "a" / "rewards.toml")), rows=QUESTIONS)


def test_a_reward_that_fails_is_the_cause(path: str, tmp_path: Path) -> None:
    def wrong(answers: list[str], **_: Any) -> list[float]:
        return [1.0 / (len(answers) - len(answers))] * len(answers)

    with pytest.raises(fathom.RewardError, match="wrong") as caught:
        fathom.train(policy(path, tmp_path / "a"), rows=QUESTIONS, rewards=wrong)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def few(answers: list[str], **_: Any) -> list[float]:
        return [1.0]

    with pytest.raises(fathom.RewardError, match="1 numbers for"):
        fathom.train(policy(path, tmp_path / "b"), rows=QUESTIONS, rewards=few)


def test_a_reward_may_ask_a_model(path: str, tmp_path: Path) -> None:
    with fathom.Model.from_pretrained(path, threads=1) as judge:
        tokenizer = judge.tokenizer

        @fathom.reward
        def asked(answers: list[str], **_: Any) -> list[float]:
            judge.generate(answers[0] or "the", max_new_tokens=2)
            return [float(len(ids)) for ids in tokenizer.encode_batch(answers)]

        run = fathom.train(policy(path, tmp_path / "a", **{"stage.0.steps": 2}), rows=QUESTIONS, rewards=asked)
    assert len(run.metrics) == 2


def test_an_environment_replies(path: str, tmp_path: Path) -> None:
    turns_seen = []

    @fathom.environment(version="1")
    def game(answers: list[str], turns: list[int], solution: list[str]) -> list[Any]:
        turns_seen.extend(turns)
        return [" again" if turn == 0 else fathom.Reply(reward=float(letter in text)) for text, turn, letter in zip(answers, turns, solution, strict=True)]

    recipe = policy(path, tmp_path / "a", **{"rl.turns": 2, "stage.0.steps": 2})
    run = fathom.train(recipe, rows=QUESTIONS, environment=game)
    # Answers that do not end by themselves are the last of their episode.
    assert run.outcome == "finished" and 0 in turns_seen


KILLED = """
import json, sys
sys.path.insert(0, sys.argv[4])
from pathlib import Path
from test_run import QUESTIONS, has, policy, short
import fathom
fathom.train(policy(sys.argv[1], Path(sys.argv[2]), **{"stage.0.steps": 8, "checkpoint.every_steps": 1}), rows=iter(QUESTIONS), rewards=[has, short])
"""


def test_a_killed_run_with_rewards_goes_on_with_the_same_bits(path: str, tmp_path: Path) -> None:
    def process(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", KILLED, path, str(out), "", os.path.dirname(__file__)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    whole = process(tmp_path / "whole")
    assert whole.wait(60) == 0, whole.stderr and whole.stderr.read()
    draw = random.Random(int(os.environ.get("FATHOM_TEST_SEED", "5")))
    for _ in range(int(os.environ.get("FATHOM_TEST_KILLS", "3"))):
        child = process(tmp_path / "killed")
        time.sleep(draw.uniform(0.3, 1.5))
        child.send_signal(signal.SIGKILL)
        child.wait()
    last = process(tmp_path / "killed")
    assert last.wait(60) == 0, last.stderr and last.stderr.read()
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


def test_ctrl_c_saves_and_the_same_call_goes_on(text: Path, tmp_path: Path) -> None:
    script = (
        "import sys, threading, time, os, signal; sys.path.insert(0, sys.argv[3]); from pathlib import Path; import fathom; "
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from conftest import tiny_recipe\n"
        "class Send(fathom.Callback):\n"
        "    def on_step(self, step, control):\n"
        "        if step.step == 3: os.kill(os.getpid(), signal.SIGINT)\n"
        "recipe = tiny_recipe(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "try: fathom.train(recipe, callbacks=[Send()])\n"
        "except KeyboardInterrupt as interrupt: print('saved' in str(interrupt))\n"
    )
    command = [sys.executable, "-c", script, str(text), str(tmp_path / "run"), os.path.dirname(__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr
    assert "Ctrl-C again" in done.stderr
    assert fathom.train(tiny_recipe(text, tmp_path / "run")).outcome == "finished"


def test_the_interpreters_end_saves_a_run(text: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[3]); from pathlib import Path; import fathom; from conftest import tiny_recipe\n"
        "run = fathom.train(tiny_recipe(Path(sys.argv[1]), Path(sys.argv[2])), wait=False); print(next(iter(run)).step)\n"
    )
    command = [sys.executable, "-c", script, str(text), str(tmp_path / "run"), os.path.dirname(__file__)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
    assert os.path.exists(tmp_path / "run" / "checkpoints")


def test_a_folder_of_another_recipe_is_refused(run: Any, text: Path) -> None:
    recipe = tiny_recipe(text, Path(run.folder)).set("optimizer.lr", 0.5)
    with pytest.raises(fathom.RecipeError, match="optimizer.lr"):
        fathom.train(recipe)
    assert json.dumps(fathom.Run.open(run.folder).outcome) == '"finished"'


def test_an_embedder_learns_from_a_table(tmp_path: Path) -> None:
    base = Path(__file__).parents[3] / "tests" / "encoders" / "embed_bert"
    rows = [{"anchor": f"the {word}", "positive": f"{word} old"} for word in ("river", "stone", "light", "bridge")] * 8
    recipe = fathom.recipes.embed(model_from=str(base), out=str(tmp_path / "embed"), steps=3, epochs=None, threads=1)
    for key, value in {"stage.0.max_docs": 64, "data.held_out_share": 0.0, "data.max_text_tokens": 64, "model.precision": "f32", "machine.kind": "cpu"}.items():
        recipe.set(key, value)
    run = fathom.train(recipe, rows=rows)
    assert run.outcome == "finished" and len(run.metrics) == 3
    assert os.path.exists(tmp_path / "embed" / "model" / "modules.json")


def test_nemos_slide_is_planned_and_a_small_one_is_trained(text: Path, tmp_path: Path) -> None:
    from fathom import nemo

    recipe = nemo.llm.nemotron3_4b.pretrain_recipe(
        dir=str(tmp_path), name="small", tensor_parallelism=1, num_nodes=1, num_gpus_per_node=1, max_steps=2, seq_length=64
    )
    recipe.trainer.max_steps = 3
    recipe.optim.config.lr = 1e-3
    for key in ("machine.kind", "machine.threads", "data.held_out_share", "data.document_bytes", "data.curate"):
        recipe.set(key, TINY[key])
    for key in ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
        recipe.set(f"model.{key}", TINY[f"model.{key}"])
    recipe.data.paths = [str(text)]
    run = fathom.train(recipe)
    assert run.outcome == "finished" and len(run.metrics) == 3 and run.folder == str(tmp_path / "small")
    with run.model as model:
        assert model.card.family == "nemotron" and model.generate("the", max_new_tokens=2, ignore_eos=True).ids
