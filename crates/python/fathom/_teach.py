"""Recipes by one call: `fathom.lora("qwen2.5-0.5b", rows=table)` trains the shipped recipe with dials."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar, overload

from fathom import _run
from fathom._functions import Environment, Reward
from fathom._recipe import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol, Unpack

    from fathom._keys import Dials
    from fathom._run import Callback, Run

Path = TypeVar("Path", str, "os.PathLike[str]")


def _go(
    name: str,
    model: str | os.PathLike[str] | None,
    given: dict[str, Any],
    dials: Any,
) -> Run:
    from fathom._model import resolved

    if model is not None:
        dials = {"model_from": resolved(model), **dials}
    return _run.train(shipped(name, dials), **given)


def _given(rows: Any, callbacks: Iterable[Any], wait: bool, **others: Any) -> dict[str, Any]:
    return {"rows": rows, "callbacks": callbacks, "wait": wait, **others}


if TYPE_CHECKING:

    class Teach(Protocol):
        """A recipe that learns from rows."""

        def __call__(
            self,
            model: str | os.PathLike[str],
            *,
            rows: Any = None,
            callbacks: Iterable[Callback | type[Callback]] = (),
            wait: bool = True,
            **dials: Unpack[Dials],
        ) -> Run: ...

    class Learn(Protocol):
        """A recipe that learns from rewards."""

        def __call__(
            self,
            model: str | os.PathLike[str],
            *,
            rows: Any = None,
            rewards: Any = None,
            environment: Any = None,
            callbacks: Iterable[Callback | type[Callback]] = (),
            wait: bool = True,
            allow_processes: bool = False,
            **dials: Unpack[Dials],
        ) -> Run: ...


def _of_rows(name: str, about: str) -> Teach:
    def teach(
        model: str | os.PathLike[str],
        *,
        rows: Any = None,
        callbacks: Iterable[Callback | type[Callback]] = (),
        wait: bool = True,
        **dials: Unpack[Dials],
    ) -> Run:
        return _go(name, model, _given(rows, callbacks, wait), dials)

    teach.__name__ = teach.__qualname__ = name
    teach.__doc__ = f"{about} The recipe `{name}` with dials; `rows` as for `fathom.train`."
    return teach


def _of_rewards(name: str, about: str) -> Learn:
    def learn(
        model: str | os.PathLike[str],
        *,
        rows: Any = None,
        rewards: Any = None,
        environment: Any = None,
        callbacks: Iterable[Callback | type[Callback]] = (),
        wait: bool = True,
        allow_processes: bool = False,
        **dials: Unpack[Dials],
    ) -> Run:
        others = {"rewards": rewards, "environment": environment, "allow_processes": allow_processes}
        return _go(name, model, _given(rows, callbacks, wait, **others), dials)

    learn.__name__ = learn.__qualname__ = name
    learn.__doc__ = f"{about} The recipe `{name}` with dials; `rows` and `rewards` as for `fathom.train`."
    return learn


sft = _of_rows("sft", "Teaches a model from lessons, all of its weights.")
lora = _of_rows("lora", "Teaches a model from lessons by low-rank adapters.")
qlora = _of_rows("qlora", "Teaches a model of few bits from lessons by low-rank adapters.")
dora = _of_rows("dora", "Teaches a model from lessons by DoRA.")
dpo = _of_rows("dpo", "Learns preferences by DPO: rows with `prompt`, `chosen` and `rejected`.")
kto = _of_rows("kto", "Learns preferences by KTO: rows with `prompt`, `completion` and `label`.")
orpo = _of_rows("orpo", "Learns preferences by ORPO.")
simpo = _of_rows("simpo", "Learns preferences by SimPO.")
rpo = _of_rows("rpo", "Learns preferences by RPO.")
distill = _of_rows("distill", "Learns from a larger model (`objective_teacher=`).")
extend = _of_rows("extend", "Trains a model of its own, and extends its context.")
mlm = _of_rows("mlm", "Trains an encoder by masked language modelling on texts (`data_paths=`).")
embed = _of_rows("embed", "Trains an encoder of vectors: rows with `anchor`, `positive` and optionally `negative`.")
rerank = _of_rows("rerank", "Trains a reranker: rows with `query` and passages.")
classify = _of_rows("classify", "Trains a classifier: rows with `text` and `label`.")
t5 = _of_rows("t5", "Trains an encoder-decoder on texts by span corruption, or on rows (`objective_method='seq2seq'`).")
grpo = _of_rewards("grpo", "Learns from rewards by GRPO.")
dapo = _of_rewards("dapo", "Learns from rewards by DAPO.")
rloo = _of_rewards("rloo", "Learns from rewards by RLOO.")
ppo = _of_rewards("ppo", "Learns from rewards by PPO.")

F = TypeVar("F", bound="Callable[..., Any]")


@overload
def reward(function: F, /) -> Reward: ...
@overload
def reward(
    *, name: str | None = ..., version: str = ..., weight: float = ..., pure: bool = ...
) -> Callable[[Callable[..., Any]], Reward]: ...
@overload
def reward(model: str, /, *, rows: Any = ..., **dials: Any) -> Run: ...
def reward(of: Any = None, /, **given: Any) -> Any:
    """As a decorator, marks a function as a reward: `f(prompts, answers, **columns)` returns a number for each answer, or
    None where it says nothing. `version` changes with what it returns, `weight` is its part in the sum, `pure=False`
    says that the same answers may get other numbers.

    With a model, trains a reward model: the recipe `reward`."""
    if of is None:
        return lambda function: Reward(function, **given)
    if callable(of):
        return Reward(of, **given)
    return _of_rows("reward", "Trains a reward model.")(of, **given)


@overload
def environment(function: F, /) -> Environment: ...
@overload
def environment(*, name: str | None = ..., version: str = ...) -> Callable[[Callable[..., Any]], Environment]: ...
def environment(function: Any = None, /, *, name: str | None = None, version: str = "") -> Any:
    """Marks a function as an environment: `f(prompts, answers, messages, turns, **columns)` returns, for each answer, a
    text with which the conversation goes on, None at its end, or a `fathom.Reply` with a reward."""
    if function is None:
        return lambda found: Environment(found, name, version, True)
    return Environment(function, name, version, True)
