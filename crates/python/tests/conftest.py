"""A tiny model, trained once, and folders for what the tests write."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("FATHOM_THREADS", "1")

import fathom

WORDS = ["river", "stone", "carries", "the", "old", "light", "under", "every", "bridge", "slowly"]


def write_text(folder: Path, files: int = 40) -> Path:
    """Documents of generated sentences."""
    folder.mkdir()
    draw = random.Random(7)
    for file in range(files):
        words = (draw.choice(WORDS) + (".\n" if draw.random() < 0.12 else " ") for _ in range(300))
        (folder / f"{file:02}.txt").write_text("".join(words))
    return folder


TINY: dict[str, Any] = {
    "machine.kind": "cpu",
    "machine.threads": 1,
    "model.hidden": 64,
    "model.layers": 2,
    "model.heads": 2,
    "model.kv_heads": 1,
    "model.head_dim": 32,
    "model.ffn": 128,
    "model.vocab": 384,
    "data.held_out_share": 0.2,
    "data.document_bytes": 4096,
    "data.curate": "none",
    "stage.0.steps": 12,
    "stage.0.samples_per_micro_batch": 2,
    "stage.0.seq_tokens": 64,
    "stage.1.steps": 2,
    "stage.1.seq_tokens": 128,
    "stage.2.steps": 1,
    "stage.2.seq_tokens": 256,
    "stage.2.tile_rows": 128,
    "stage.2.min_doc_tokens": 0,
    "run.minutes": None,
    "eval.needle_trials": 0,
}


def tiny_recipe(text: Path, out: Path) -> Any:
    """The quickstart with small stages."""
    recipe = fathom.recipes.quickstart()
    for path, value in TINY.items():
        recipe.set(path, value)
    return recipe.set("data.paths", [str(text)]).set("run.out", str(out))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="session")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fathom.train(tiny_recipe(text, tmp_path_factory.mktemp("runs") / "tiny"))


@pytest.fixture(scope="session")
def path(run: Any) -> str:
    return str(run.folder)


@pytest.fixture
def model(path: str) -> Any:
    with fathom.Model.from_pretrained(path, threads=1, sequences=4) as opened:
        yield opened
