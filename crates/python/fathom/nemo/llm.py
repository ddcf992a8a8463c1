"""Recipes of NeMo's `nemo.collections.llm`: `llm.nemotron3_4b.pretrain_recipe(dir=.., name=.., tensor_parallelism=2)` makes
Fathom's recipe of the same model. Attributes by NeMo's names can be set on it; those without an equivalent are refused."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from fathom import _fathom
from fathom._keys import TrainRecipe
from fathom.errors import Error, RecipeError

if TYPE_CHECKING:
    from fathom._run import Run

# Arguments of NeMo's recipes, and the keys that they are.
_ARGUMENTS = {
    "name": "run.name",
    "tensor_parallelism": "mesh.tp",
    "tensor_model_parallel_size": "mesh.tp",
    "pipeline_parallelism": "mesh.pp",
    "pipeline_model_parallel_size": "mesh.pp",
    "context_parallelism": "mesh.cp",
    "context_parallel_size": "mesh.cp",
    "expert_parallelism": "mesh.ep",
    "virtual_pipeline_parallelism": "mesh.virtual_stages",
    "max_lr": "optimizer.lr",
    "warmup_steps": "schedule.warmup_steps",
    "seq_length": "stage.*.seq_tokens",
    "max_steps": "stage.*.steps",
    "micro_batch_size": "stage.*.samples_per_micro_batch",
}

# Attributes of NeMo's recipes.
_ATTRIBUTES = {
    "trainer.max_steps": "stage.*.steps",
    "trainer.val_check_interval": "eval.every_steps",
    "trainer.strategy.tensor_model_parallel_size": "mesh.tp",
    "trainer.strategy.pipeline_model_parallel_size": "mesh.pp",
    "trainer.strategy.context_parallel_size": "mesh.cp",
    "trainer.strategy.expert_model_parallel_size": "mesh.ep",
    "data.seq_length": "stage.*.seq_tokens",
    "data.micro_batch_size": "stage.*.samples_per_micro_batch",
    "data.paths": "data.paths",
    "optim.config.lr": "optimizer.lr",
    "optim.config.weight_decay": "optimizer.weight_decay",
    "optim.config.adam_beta1": "optimizer.beta1",
    "optim.config.adam_beta2": "optimizer.beta2",
    "optim.config.clip_grad": "optimizer.clip",
    "optim.lr_scheduler.warmup_steps": "schedule.warmup_steps",
    "log.name": "run.name",
    "log.log_dir": "run.out",
}
_TABLES = {path.rsplit(".", count)[0] for path in _ATTRIBUTES for count in range(1, path.count(".") + 1)}


class _Part:
    """A table of NeMo's recipe, such as `recipe.trainer`."""

    __slots__ = ("_of", "_path")

    def __init__(self, of: NemoRecipe, path: str) -> None:
        object.__setattr__(self, "_of", of)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._of._nemo_get(f"{self._path}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._of._nemo_set(f"{self._path}.{name}", value)


class NemoRecipe(TrainRecipe):
    """A recipe that also takes attributes by NeMo's names."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in ("trainer", "optim", "log", "data"):
            return _Part(self, name)
        if name in ("resume", "model_config"):
            raise RecipeError(f"`recipe.{name}` of NeMo has no equivalent here", key=name, place="", hint="")
        return super().__getattr__(name)  # type: ignore[misc]

    def _nemo_get(self, path: str) -> Any:
        if path in _TABLES and path not in _ATTRIBUTES:
            return _Part(self, path)
        of = _ATTRIBUTES.get(path)
        if of is None:
            return self._own(path)
        return self._values(of.replace("*", "0"))

    def _own(self, path: str) -> Any:
        """A key by Fathom's own name."""
        try:
            return self._get(path)
        except AttributeError:
            raise AttributeError(_unknown(path)) from None

    def _nemo_set(self, path: str, value: Any) -> None:
        if path == "data.global_batch_size":
            self._global_batch(value)
            return
        of = _ATTRIBUTES.get(path)
        if of is None:
            try:
                self._set(path, value)
            except RecipeError as error:
                if "unknown key" in error.message:
                    raise RecipeError(_unknown(path), key=path, place=error.place, hint=error.hint) from None
                raise
            return
        self._at(of, value)

    def _global_batch(self, samples: int) -> None:
        """Sequences of a step: micro batches of each replica."""
        replicas = int(self._values("mesh.dp"))
        for index, stage in enumerate(self._values("stage")):
            each = int(stage["samples_per_micro_batch"]) * replicas
            if samples % each:
                raise RecipeError(
                    f"`global_batch_size`: {samples} sequences are no whole number of micro batches of {each}",
                    key="global_batch_size",
                    place="",
                    hint=f"give a multiple of {each}",
                )
            self._set(f"stage.{index}.micro_batches", samples // each)


def _unknown(path: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(path, _ATTRIBUTES, 1)
    hint = f"did you mean `recipe.{near[0]}`?" if near else "see docs/python.md for the names that have one"
    return f"`recipe.{path}` of NeMo has no equivalent here; {hint}"


class _Model:
    """A module of NeMo's recipes, such as `llm.llama3_8b`."""

    def __init__(self, module: str, recipe: str) -> None:
        self.module, self.recipe = module, recipe

    def pretrain_recipe(
        self,
        dir: str | os.PathLike[str] | None = None,
        name: str = "default",
        num_nodes: int = 1,
        num_gpus_per_node: int = 1,
        global_batch_size: int | None = None,
        **settings: Any,
    ) -> NemoRecipe:
        """The recipe that trains the model from its first weights."""
        made = NemoRecipe(("name", self.recipe, ""))
        made._set("run.out", os.path.join(os.fspath(dir) if dir is not None else "out", name))
        made._set("run.name", name)
        for setting, value in settings.items():
            key = _ARGUMENTS.get(setting)
            if key is None:
                raise RecipeError(
                    f"{self.module}.pretrain_recipe: the argument `{setting}` has no equivalent here",
                    key=setting,
                    place="",
                    hint=f"there are {', '.join(_ARGUMENTS)}",
                )
            if value is None:
                continue
            made._at(key, value)
        ranks = num_nodes * num_gpus_per_node
        of = made._values("mesh")
        model = int(of["tp"]) * int(of["pp"]) * int(of["cp"])
        if ranks % model:
            raise RecipeError(
                f"{self.module}.pretrain_recipe: {ranks} ranks ({num_nodes} nodes of {num_gpus_per_node}) are no whole number of "
                f"replicas of {model} (tensor, pipeline and context parallel ranks)",
                key="num_gpus_per_node",
                place="",
                hint="change the parallelism or the number of ranks",
            )
        made._set("mesh.dp", ranks // model)
        if global_batch_size is not None:
            made._global_batch(global_batch_size)
        return made

    def finetune_recipe(self, dir: str | os.PathLike[str] | None = None, name: str = "default", **_: Any) -> NemoRecipe:
        """Fine-tuning begins from a model's folder here."""
        raise Error(
            f"{self.module}.finetune_recipe: begin from a folder instead: fathom.lora(model, rows=..) or fathom.sft(model, rows=..)"
        )


def _names() -> dict[str, str]:
    found = json.loads(_fathom.recipe_names())
    return {of["name"].replace("-", "_").replace(".", "_"): of["name"] for of in found if not of["curation"]}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    names = _names()
    if name not in names:
        from difflib import get_close_matches

        near = get_close_matches(name, names, 3)
        raise AttributeError(f"no recipe is called {name}; there are {', '.join(near) or 'those of fathom.recipes'}")
    return _Model(name, names[name])


def pretrain(recipe: NemoRecipe, **given: Any) -> Run:
    """Trains a recipe."""
    from fathom._run import train

    return train(recipe, **given)


__all__ = ["NemoRecipe", "pretrain"]
