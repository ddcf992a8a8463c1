"""Fathom: curates, trains, adapts and serves language models.

    import fathom
    with fathom.Model.from_pretrained("out/quickstart") as model:
        print(model.generate("fn main() {", max_new_tokens=40))

A model, a run and a server each live on a thread of their own; the objects here are handles. See `docs/python.md`."""

from __future__ import annotations

from importlib import import_module

from fathom import _edge

# The module `typing` alone would double the time of an import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fathom import errors as errors
    from fathom import nemo as nemo
    from fathom import recipes as recipes
    from fathom import transformers as transformers
    from fathom import trl as trl
    from fathom._array import Array
    from fathom._curate import Curated, curate, keep, stage
    from fathom._functions import Environment, Reply, Reward
    from fathom._launch import Local, Slurm, launch
    from fathom._model import Answer, Card, Model, Piece, Stream, Usage
    from fathom._plan import Plan, plan
    from fathom._recipe import CurationRecipe, Recipe
    from fathom._retrieval import Guard, Hit, Index, Verdict, index
    from fathom._run import Callback, Control, Happening, Run, Step, train
    from fathom._scale import Scaling, scale
    from fathom._serve import Server, serve
    from fathom._table import Table
    from fathom._teach import (
        classify,
        dapo,
        distill,
        dora,
        dpo,
        embed,
        environment,
        extend,
        grpo,
        kto,
        lora,
        mlm,
        orpo,
        ppo,
        qlora,
        rerank,
        reward,
        rloo,
        rpo,
        sft,
        simpo,
        t5,
    )
    from fathom._tasks import TaskResults
    from fathom._tokenizer import Tokenizer
    from fathom._verbs import Evaluation, Written, evaluate, export, inspect, merge, prune, quantize, score
    from fathom.errors import (
        Bug,
        Error,
        FileError,
        ForkedError,
        InUse,
        NotBuilt,
        NotFinite,
        OutOfMemory,
        RecipeError,
        RewardError,
    )

__version__ = "0.1.0"

_WHERE = {
    "_array": "Array",
    "_curate": "Curated curate keep stage",
    "_functions": "Environment Reply Reward",
    "_launch": "Local Slurm launch",
    "_model": "Answer Card Model Piece Stream Usage",
    "_plan": "Plan plan",
    "_recipe": "CurationRecipe Recipe",
    "_retrieval": "Guard Hit Index Verdict index",
    "_run": "Callback Control Happening Run Step train",
    "_scale": "Scaling scale",
    "_serve": "Server serve",
    "_table": "Table",
    "_tasks": "TaskResults",
    "_teach": "classify dapo distill dora dpo embed environment extend grpo kto lora mlm orpo ppo qlora rerank reward rloo rpo sft simpo t5",
    "_tokenizer": "Tokenizer",
    "_verbs": "Evaluation Written evaluate export inspect merge prune quantize score",
    "errors": "Bug Error FileError ForkedError InUse NotBuilt NotFinite OutOfMemory RecipeError RewardError",
}
_MODULES = ("errors", "nemo", "recipes", "transformers", "trl")
_NAMES = {name: module for module, names in _WHERE.items() for name in names.split()}

# The same names, literally: type checkers read no other list.
# fmt: off
__all__ = [
    "Answer", "Array", "Bug", "Callback", "Card", "Control", "Curated", "CurationRecipe", "Environment", "Error",
    "Evaluation", "FileError", "ForkedError", "Guard", "Happening", "Hit", "InUse", "Index", "Local", "Model",
    "NotBuilt", "NotFinite", "OutOfMemory", "Piece", "Plan", "Recipe", "RecipeError", "Reply", "Reward",
    "RewardError", "Run", "Scaling", "Server", "Slurm", "Step", "Stream", "Table", "TaskResults", "Tokenizer",
    "Usage", "Verdict", "Written", "classify", "curate", "dapo", "distill", "dora", "dpo", "embed", "environment",
    "errors", "evaluate", "export", "extend", "grpo", "index", "inspect", "keep", "kto", "launch", "lora", "merge",
    "mlm", "nemo", "orpo", "plan", "ppo", "prune", "qlora", "quantize", "recipes", "rerank", "reward", "rloo",
    "rpo", "scale", "score", "serve", "sft", "simpo", "stage", "t5", "train", "transformers", "trl",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """What is used is imported when it is first used: `import fathom` loads the library alone."""
    if name in _MODULES:
        return import_module(f"fathom.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    found = getattr(import_module(f"fathom.{_NAMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


_edge.begin()
