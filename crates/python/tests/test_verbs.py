"""Verbs over models, curations, the server, and TRL's names."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import fathom
from fathom import _fathom

PACKAGE = Path(fathom.__file__).parent


def test_a_model_is_measured(path: str) -> None:
    found = fathom.evaluate(path, seconds=2.0, threads=1)
    assert found.bits_per_byte and 0 < found.bits_per_byte < 20 and len(found.positions) > 0
    assert "bits per byte" in repr(found) and found.to_dict()["model"] == path


def test_tasks_have_the_figures_of_the_harness(path: str, tmp_path: Path) -> None:
    (tmp_path / "last.yaml").write_text(
        "task: last\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: '{{text}}'\ndoc_to_target: '{{word}}'\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"text": "the old", "word": "river"}\n{"text": "every", "word": "stone"}\n')
    found = fathom.evaluate(path, tasks=["last"], tasks_dir=tmp_path, data_dir=tmp_path, precision="f32", threads=1)
    assert found["last"]["perplexity,none"] > 1 and found.figures["n-samples"]["last"]["effective"] == 2
    assert [row["metric"] for row in found.table] == ["perplexity", "acc"] and "last" in repr(found)
    with pytest.raises(fathom.Error, match="no task, group or tag"):
        fathom.evaluate(path, tasks="none")
    with pytest.raises(fathom.Error, match="without tasks"):
        fathom.evaluate(path, tasks="last", seconds=1.0)  # type: ignore[call-overload]


def test_models_are_converted_and_compressed(path: str, tmp_path: Path) -> None:
    folder = fathom.export(path, tmp_path / "hf", precision="f32")
    assert os.path.exists(tmp_path / "hf" / "config.json") and folder.figures["weights"] > 0
    small = fathom.quantize(folder, tmp_path / "m.gguf", format="q8_0")
    with fathom.Model.from_pretrained(path, threads=1) as own, small.model as other:
        assert own.generate("the", max_new_tokens=4).ids == other.generate("the", max_new_tokens=4).ids
    with pytest.raises(fathom.Error, match="q8_0"):
        fathom.quantize(path, tmp_path / "x", format="q3")
    assert fathom.inspect(path).layers == 2


def test_rows_are_scored(path: str) -> None:
    rows = [{"prompt": "the", "chosen": " old river", "rejected": " xyz"}] * 2
    scored = fathom.score(path, rows, precision="f32")
    assert len(scored) == 2 and len(scored.columns) > 3


def test_a_server_in_the_process_answers(path: str) -> None:
    with fathom.serve(path, threads=1, names=["tiny"]) as server:
        body = json.dumps({"model": "tiny", "prompt": "the old", "max_tokens": 4, "temperature": 0}).encode()
        request = urllib.request.Request(f"{server.url}/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as response:
            text = json.load(response)["choices"][0]["text"]
    with fathom.Model.from_pretrained(path, threads=1) as model:
        assert model.generate("the old", max_new_tokens=4).text == text
    with pytest.raises(fathom.Error):
        fathom.serve("./nothing")


def test_a_stage_in_python_adds_a_column_and_drops_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.compute as pc  # type: ignore[import-not-found, import-untyped, unused-ignore]

    texts = tmp_path / "in"
    texts.mkdir()
    (texts / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in ["QUIET text here", "ALL CAPS", "plain words"]))
    recipe = fathom.CurationRecipe.from_toml('[[stage]]\nuse = "clean"\n[[stage]]\nuse = "shuffle"\n')

    @fathom.stage(version="1", after="clean", adds={"shouting": pyarrow.float32()})
    def shouting(batch: Any) -> Any:
        share = pc.divide(pc.cast(pc.count_substring_regex(batch["text"], "[A-Z]"), "float32"), pc.cast(pc.utf8_length(batch["text"]), "float32"))
        return batch.append_column("shouting", share), pc.less(share, 0.5)

    @fathom.keep
    def lower(text: str) -> bool:
        return "plain" in text or "text" in text

    done = fathom.curate(recipe, input=str(texts / "a.jsonl"), out=tmp_path / "out", stages=[shouting, lower])
    account = {row["name"]: row for row in done.stats}
    assert account["shouting"]["tally.dropped.shouting.documents"] == 1, done.account
    assert any("shuffle" in row["name"] for row in done.tables)

    @fathom.stage(after="clean")
    def fails(batch: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(fathom.RewardError, match="fails") as caught:
        fathom.curate(recipe, input=str(texts / "a.jsonl"), out=tmp_path / "other", stages=[fails])
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_command_of_the_package_is_the_binary(path: str) -> None:
    def said(*args: str) -> str:
        done = subprocess.run([sys.executable, "-m", "fathom", *args], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("--version").startswith("fathom 0.1.0")
    out = said("generate", path, "the old", "--max-tokens", "6", "--threads", "1")
    with fathom.Model.from_pretrained(path, threads=1) as model:
        assert model.generate("the old", max_new_tokens=6).text.strip() in out
    done = subprocess.run([sys.executable, "-m", "fathom", "nothing"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "nothing" in done.stderr


def test_a_ladder_is_planned(text: Path, tmp_path: Path) -> None:
    recipe = fathom.recipes.ladder(out=str(tmp_path / "ladder"), data_paths=[str(text)], scale_widths=[64, 96, 128], scale_budgets=2)
    recipe.set("scale.flops", 1e13).set("machine.kind", "cpu")
    found = fathom.scale(recipe, budget="20m", train=False)
    assert len(found.ladder) >= 4 and found.ladder["name"][-1] and "not trained" in repr(found)
    assert found.ladder["params"][-1] == max(found.ladder["params"])
    with pytest.raises(fathom.Error, match="no time"):
        fathom.scale(recipe, budget="soon")
    with pytest.raises(fathom.Error, match="the ladder would take"):
        fathom.scale(recipe, budget="1s", train=False)


def test_jobs_are_scripts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    text = fathom.launch(script, on=fathom.Slurm(nodes=2, gpus=8, time="1:00:00"), submit=False)
    assert "#SBATCH --nodes=2" in text and str(script) in text
    assert fathom.launch(script, on=fathom.Local()) == "1\n"
    with pytest.raises(fathom.Error, match="no such script"):
        fathom.launch(tmp_path / "none.py")


def test_every_name_is_there_and_documented() -> None:
    assert fathom.__all__ == sorted([*fathom._NAMES, *fathom._MODULES])
    for name in fathom.__all__:
        of = getattr(fathom, name)
        assert of.__doc__, name
        for member, value in vars(of).items() if isinstance(of, type) else ():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, (property, classmethod))):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_every_native_name_is_wrapped() -> None:
    package = "".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    stub = (PACKAGE / "_fathom.pyi").read_text()
    for name in dir(_fathom):
        # Some classes are seen as results alone.
        if not name.startswith("_") and not re.search(rf"\b_fathom\.{name}\b", package):
            assert re.search(rf"-> .*\b{name}\b", stub), name


def test_every_verb_of_the_command_has_a_name() -> None:
    done = subprocess.run([sys.executable, "-m", "fathom", "--help"], capture_output=True, text=True, timeout=60)
    verbs = re.findall(r"^  ([a-z][a-z-]+)  ", done.stdout, re.M)
    # Verbs over the shell, the machine, or what a notebook shows by itself.
    of_shell = {"bench", "board", "completions", "data", "doctor", "editor", "help", "import", "man", "prefixes", "quickstart", "runs", "sql", "supervise", "watch"}
    others = {"chat": "Model", "diff": "Recipe", "eval": "evaluate", "generate": "Model", "embed": "Model", "search": "Index", "guard": "Guard", "report": "Run", "tokenizer": "Tokenizer"}
    missing = [verb for verb in verbs if verb not in of_shell and not hasattr(fathom, others.get(verb, verb))]
    assert verbs and not missing, missing


def test_examples_of_docstrings_hold() -> None:
    tried = 0
    for file in sorted(PACKAGE.glob("*.py")):
        if file.stem not in ("__init__", "__main__"):
            found = doctest.testmod(importlib.import_module(f"fathom.{file.stem}"))
            tried += found.attempted
            assert found.failed == 0, file
    assert tried >= 10
