"""Verbs over models in folders: measure, convert, compress, score."""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any, overload

from fathom import _edge, _fathom, _rows
from fathom._model import Card, Model, _base_of, resolved
from fathom._table import Table
from fathom._tasks import TaskResults
from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import Sequence

    Path = str | os.PathLike[str]


class Written:
    """A model that a verb wrote."""

    __slots__ = ("figures", "path")

    def __init__(self, figures: dict[str, Any]) -> None:
        self.path = str(figures["path"])
        """Where it is."""
        self.figures = figures
        """What the verb found: weights, losses, and so on."""

    @property
    def model(self) -> Model:
        """The model, opened."""
        return Model.from_pretrained(self.path)

    def __fspath__(self) -> str:
        return self.path

    def to_dict(self) -> dict[str, Any]:
        """The figures."""
        return dict(self.figures)

    def __repr__(self) -> str:
        return f"<fathom.Written {self.path}>"


def _path(of: Path | None) -> str | None:
    return None if of is None else os.fspath(of)


class Evaluation:
    """What a model was measured to be."""

    __slots__ = ("context_tokens", "figures", "model", "trained_tokens")

    def __init__(self, model: str, found: dict[str, Any]) -> None:
        self.model = model
        self.figures: dict[str, Any] = found["figures"]
        """All figures."""
        self.context_tokens: int = found["context_tokens"]
        """Context of the bits per byte."""
        self.trained_tokens: int = found["trained_tokens"]
        """Context of the model itself."""

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text."""
        bits = self.figures.get("bits") or {}
        for name in ("bits_per_byte", "bits"):
            if isinstance(bits.get(name), (int, float)):
                return float(bits[name])
        return None

    @property
    def positions(self) -> Table:
        """Loss by position."""
        return _rows_of(self.figures.get("position"))

    @property
    def needles(self) -> Table:
        """Retrieval of a planted fact by length and depth."""
        return _rows_of(self.figures.get("needles"))

    def to_dict(self) -> dict[str, Any]:
        """All figures."""
        return {
            "model": self.model,
            "context_tokens": self.context_tokens,
            "trained_tokens": self.trained_tokens,
            **self.figures,
        }

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return Table.of_rows([self.to_dict()]).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        bits = self.bits_per_byte
        return f"<fathom.Evaluation of {self.model}: {'no text' if bits is None else f'{bits:.4f} bits per byte'}>"

    def _repr_html_(self) -> str:
        from fathom._notebook import needles_html

        bits = self.bits_per_byte
        head = f"<p>{self.model}: {'' if bits is None else f'{bits:.4f} bits per byte'}</p>"
        return head + needles_html(self.needles) + self.positions._repr_html_()


def _rows_of(of: Any) -> Table:
    """The table in a part of the figures: its first list of objects."""
    if isinstance(of, dict):
        for value in of.values():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                return Table.of_rows(value)
    if isinstance(of, list) and of and isinstance(of[0], dict):
        return Table.of_rows(of)
    return Table({})


@overload
def evaluate(
    model: Path | Written,
    *,
    adapter: Path | None = None,
    data: Sequence[Path] | Path = (),
    tokens: int | None = None,
    seconds: float | None = None,
    needle_trials: int = 0,
    device: str = "auto",
    threads: int = 0,
) -> Evaluation: ...


@overload
def evaluate(
    model: Path | Written,
    *,
    tasks: Sequence[str] | str,
    tasks_dir: Path | None = None,
    data_dir: Path | None = None,
    lengths: Sequence[int] = (),
    precision: str | None = None,
    limit: float | None = None,
    num_fewshot: int | None = None,
    bootstrap_iters: int = 100_000,
    apply_chat_template: bool = False,
    out: Path | None = None,
    adapter: Path | None = None,
    tokens: int | None = None,
    device: str = "auto",
    threads: int = 0,
) -> TaskResults: ...


def evaluate(
    model: Path | Written,
    *,
    tasks: Sequence[str] | str = (),
    tasks_dir: Path | None = None,
    data_dir: Path | None = None,
    lengths: Sequence[int] = (),
    precision: str | None = None,
    limit: float | None = None,
    num_fewshot: int | None = None,
    bootstrap_iters: int = 100_000,
    apply_chat_template: bool = False,
    out: Path | None = None,
    adapter: Path | None = None,
    data: Sequence[Path] | Path = (),
    tokens: int | None = None,
    seconds: float | None = None,
    needle_trials: int = 0,
    device: str = "auto",
    threads: int = 0,
) -> Evaluation | TaskResults:
    """Measures bits per byte, loss by position and, with `needle_trials`, needles; on `data`, or on the documents that
    the model's run held out. With `tasks`, runs tasks in lm-evaluation-harness's format over local sets instead."""
    where = resolved(os.fspath(model))
    if adapter is None:
        where, adapter = _base_of(where)
    if tasks:
        if data or seconds is not None or needle_trials:
            raise Error("data, seconds and needle_trials are of an evaluation without tasks")
        options = {
            "adapter": _path(adapter),
            "tasks": [tasks] if isinstance(tasks, str) else list(tasks),
            "tasks_dir": _path(tasks_dir),
            "data_dir": _path(data_dir),
            "lengths": list(lengths),
            "precision": precision,
            "limit": limit,
            "num_fewshot": num_fewshot,
            "bootstrap_iters": bootstrap_iters,
            "tokens": tokens,
            "apply_chat_template": apply_chat_template,
            "out": _path(out),
            "device": device,
            "threads": threads,
        }
        with _edge.Told("evaluate") as channel:
            found = _fathom.evaluate_tasks(where, options, channel)
        return TaskResults(os.fspath(model), json.loads(found))
    texts = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    with _edge.Told("evaluate") as channel:
        found = _fathom.evaluate(
            where,
            {
                "adapter": None if adapter is None else os.fspath(adapter),
                "data": [os.fspath(path) for path in texts],
                "tokens": tokens,
                "seconds": seconds,
                "needle_trials": needle_trials,
                "device": device,
                "threads": threads,
            },
            channel,
        )
    return Evaluation(os.fspath(model), json.loads(found))


def export(
    model: Path,
    to: Path,
    *,
    format: str | None = None,
    precision: str | None = None,
    gguf_type: str = "bf16",
    quantization: str = "none",
    adapter: bool = False,
    adapters: Sequence[tuple[Path, float]] = (),
) -> Written:
    """Writes the model of a run, a checkpoint or a Hugging Face folder as a Hugging Face folder, or as a GGUF file for
    llama.cpp (`format="gguf"`, or a path that ends so). `adapter` writes a run's adapter alone."""
    path = os.fspath(to)
    options = {
        "format": format or ("gguf" if path.endswith(".gguf") else "huggingface"),
        "precision": precision,
        "gguf_type": gguf_type,
        "quantization": quantization,
        "adapter": adapter,
        "adapters": [(os.fspath(folder), float(weight)) for folder, weight in adapters],
    }
    with _edge.Told("export") as channel:
        return Written(json.loads(_fathom.export(resolved(os.fspath(model)), path, options, channel)))


def merge(model: Path, to: Path, *, adapters: Sequence[Path | tuple[Path, float]] = ()) -> Written:
    """Writes a model with its adapter merged into it: a run that trained one, or a folder with `adapters` and their
    weights."""
    if not adapters and _base_of(os.fspath(model))[1] is None:
        raise Error(f"{os.fspath(model)} has no adapter to merge; name some (adapters=[..]), or write it as it is (fathom.export)")
    weighted = [of if isinstance(of, tuple) else (of, 1.0) for of in adapters]
    return export(model, to, adapters=weighted)


def quantize(
    model: Path,
    to: Path,
    *,
    format: str = "q4_k_m",
    data: Path | None = None,
    samples: int = 128,
    sample_tokens: int = 2048,
    device: str = "auto",
) -> Written:
    """Writes a model in few bits: a GGUF file (`q8_0`, `q4_k_m`, ..), or a folder for other servers (`int4`, `nvfp4`,
    `fp8`, `gptq`, `awq`, ..). `data` judges, and measures what is lost."""
    options = {
        "format": format,
        "data": None if data is None else os.fspath(data),
        "samples": samples,
        "sample_tokens": sample_tokens,
        "device": device,
    }
    with _edge.Told("quantize") as channel:
        found = _fathom.quantize(resolved(os.fspath(model)), os.fspath(to), options, channel)
    return Written(json.loads(found))


def prune(
    model: Path,
    to: Path,
    *,
    data: Path,
    layers: int | None = None,
    hidden: int | None = None,
    ffn: int | None = None,
    heads: int | None = None,
    samples: int = 256,
    sample_tokens: int = 2048,
    precision: str = "bf16",
    device: str = "auto",
) -> Written:
    """Makes a smaller model by removing the parts that matter least for a text; distillation recovers what is lost."""
    with _edge.Told("prune") as channel:
        found = _fathom.prune(
            resolved(os.fspath(model)),
            os.fspath(to),
            {
                "data": os.fspath(data),
                "sizes": [layers, hidden, ffn, heads],
                "samples": samples,
                "sample_tokens": sample_tokens,
                "precision": precision,
                "device": device,
            },
            channel,
        )
    return Written(json.loads(found))


def score(
    model: Path,
    rows: Any,
    *,
    out: Path | None = None,
    adapter: Path | None = None,
    precision: str = "bf16",
    top_k: int | None = None,
    temperature: float = 1.0,
    labels: Sequence[str] = (),
    device: str = "auto",
) -> Table:
    """Adds a model's scores to rows: log-probabilities of answers, the rewards of a reward model, or, with `top_k`, the
    most likely tokens, for distillation. Returns the rows; `out` is a file of JSON lines for them."""
    with tempfile.TemporaryDirectory() as folder:
        [data] = _rows.paths(rows, folder)
        to = os.path.join(folder, "scored.jsonl") if out is None else os.fspath(out)
        best = None if top_k is None else (top_k, temperature)
        with _edge.Told("score") as channel:
            _fathom.score(
                resolved(os.fspath(model)),
                data,
                to,
                {
                    "adapter": None if adapter is None else os.fspath(adapter),
                    "precision": precision,
                    "best": best,
                    "labels": list(labels),
                    "device": device,
                },
                channel,
            )
        with open(to, encoding="utf-8") as file:
            return Table.of_rows([json.loads(line) for line in file])


def inspect(model: Path) -> Card:
    """Facts about a model."""
    with Model.from_pretrained(model, sequences=0) as opened:
        return opened.card
