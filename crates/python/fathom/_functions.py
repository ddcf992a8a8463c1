"""Functions of a program that take part in runs and curations: each is called on a thread of its own."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fathom import _fathom
from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = ("prompts", "answers", "completions", "completion_ids", "messages", "tokens", "ended")


def _source(function: Any) -> str:
    """The hash of a function's source, or of its code where there is no source."""
    try:
        text = inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = code.co_code if code is not None else repr(type(function)).encode()
    return hashlib.sha256(text).hexdigest()


class Function:
    """A function with a name and a version. It can still be called."""

    def __init__(self, function: Callable[..., Any], name: str | None, version: str, pure: bool) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.version = str(version)
        self.pure = pure
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    def __repr__(self) -> str:
        return f"<fathom {type(self).__name__.lower()} {self.name}, version {self.version}>"

    @property
    def source(self) -> str:
        """The hash of its source."""
        return _source(self.function)


class Reward(Function):
    """A reward: a number for each answer, or None where it says nothing."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        version: str = "",
        weight: float = 1.0,
        pure: bool = True,
    ) -> None:
        super().__init__(function, name, version, pure)
        self.weight = weight

    def toml(self) -> str:
        """Its table in a file of rewards."""
        of = {"name": self.name, "version": self.version, "source": self.source}
        lines = [f"{name} = {json.dumps(value)}" for name, value in of.items()]
        pure = "true" if self.pure else "false"
        return "\n".join(["[[reward]]", 'rule = "function"', *lines, f"weight = {self.weight!r}", f"pure = {pure}", ""])


class Environment(Function):
    """Replies to answers: a text with which the conversation goes on, or None at its end."""


@dataclass
class Reply:
    """A reply of an environment: a text, or None at the end of the episode, and a reward."""

    text: str | None = None
    reward: float | None = None


class Caller:
    """The thread on which a function is called."""

    def __init__(self, name: str, answer: Callable[[Any, int, Any], None]) -> None:
        self.calls = _fathom.Calls()
        self.error: BaseException | None = None
        self._answer = answer
        self._thread = threading.Thread(target=self._work, name=f"fathom {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self.calls.is_closed:
            asked = self.calls.next(0.5)
            if asked is None:
                continue
            number, question = asked
            try:
                self._answer(self.calls, number, question)
            except BaseException as error:
                self.error = error
                self.calls.fail(number, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Ends the thread, which the interpreter's end would otherwise find waiting in native code."""
        self.calls.close()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)


def _shown(function: Any) -> tuple[set[str], bool]:
    """The parameters of a function, and whether it takes all columns."""
    parameters = inspect.signature(function).parameters.values()
    named = {of.name for of in parameters if of.kind is not of.VAR_KEYWORD and of.kind is not of.VAR_POSITIONAL}
    return named, any(of.kind is of.VAR_KEYWORD for of in parameters)


def _run(function: Any, arguments: dict[str, Any]) -> Any:
    found = function(**arguments)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def call_reward(reward: Reward, tokenizer: Callable[[], Any]) -> Caller:
    """Starts the thread of a reward."""
    named, all_columns = _shown(reward.function)

    def answer(calls: Any, number: int, question: Any) -> None:
        of = json.loads(question)
        columns = of.pop("columns")
        if "completions" in named or all_columns:
            talks = isinstance(next(iter(columns.get("prompt", [])), None), list)
            talk = [[{"role": "assistant", "content": text}] for text in of["answers"]]
            of["completions"] = talk if talks else of["answers"]
        if "completion_ids" in named:
            encode = tokenizer().encode
            of["completion_ids"] = [encode(text, add_special_tokens=False) for text in of["answers"]]
        if all_columns:
            arguments = {**columns, **of}
        else:
            arguments = {name: value for name, value in {**columns, **of}.items() if name in named}
        found = _run(reward.function, arguments)
        if not hasattr(found, "__len__"):
            raise Error(f"reward `{reward.name}` gave {found!r:.80}, not a number for each answer")
        if len(found) != len(of["answers"]):
            raise Error(f"reward `{reward.name}` gave {len(found)} numbers for {len(of['answers'])} answers")
        calls.numbers(number, [None if value is None else float(value) for value in found])

    return Caller(f"reward {reward.name}", answer)


def call_environment(environment: Environment) -> Caller:
    """Starts the thread of an environment."""
    named, all_columns = _shown(environment.function)

    def answer(calls: Any, number: int, question: Any) -> None:
        turns = json.loads(question)
        rows = [turn.pop("row") for turn in turns]
        names = dict.fromkeys(name for row in rows for name in row)
        of: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
        for name in ("prompt", "answer", "turn"):
            of[f"{name}s"] = [turn[name] for turn in turns]
        for name in ("messages", "tokens", "ended"):
            of[name] = [turn[name] for turn in turns]
        found = _run(environment.function, of if all_columns else {k: v for k, v in of.items() if k in named})
        if len(found) != len(turns):
            raise Error(f"environment `{environment.name}` gave {len(found)} replies to {len(turns)} answers")
        calls.text(number, json.dumps([_reply(of) for of in found]))

    return Caller(f"environment {environment.name}", answer)


def _reply(of: Any) -> dict[str, Any]:
    if of is None or isinstance(of, str):
        return {"text": of, "reward": None}
    if isinstance(of, Reply):
        return {"text": of.text, "reward": of.reward}
    if isinstance(of, tuple):
        return {"text": of[0], "reward": None if of[1] is None else float(of[1])}
    if isinstance(of, Exception):
        return {"error": f"{type(of).__name__}: {of}"}
    return {"text": of.get("text"), "reward": of.get("reward")}


def rewards_of(rewards: Any) -> list[Reward]:
    """Rewards from functions, decorated or not."""
    if callable(rewards):
        rewards = [rewards]
    wrong = [rewards] if not isinstance(rewards, Iterable) else [of for of in rewards if not callable(of)]
    if wrong:
        raise Error(f"a reward is a function of answers (@fathom.reward), or the path of a file, not {wrong[0]!r:.80}")
    found = [of if isinstance(of, Reward) else Reward(of) for of in rewards]
    names = [of.name for of in found]
    if len(set(names)) < len(names):
        raise Error(f"two rewards are called {next(n for n in names if names.count(n) > 1)}: give one a name, @fathom.reward(name=..)")
    return found


def write_rewards(rewards: list[Reward], folder: str, begun: bool) -> str:
    """Writes the file of a run's rewards. A run that has begun goes on with the same ones."""
    path, text = os.path.join(folder, "rewards.toml"), "\n".join(reward.toml() for reward in rewards)
    try:
        with open(path, encoding="utf-8") as file:
            had = file.read()
    except OSError:
        had = None
    if had is not None and begun and _versions(had) != _versions(text):
        raise Error(
            f"{path}: the run was begun with other rewards or versions of them; give the same ones to go on, or another folder (out=..)"
        )
    if had is not None and begun:
        text += _changes(had, text)
    if had != text:
        os.makedirs(folder, exist_ok=True)
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    return path


def _changes(had: str, text: str) -> str:
    """Comments for a file of rewards: the earlier sources of functions that were changed without another version."""
    import tomllib
    import warnings

    before, now = ({of.get("name"): of.get("source") for of in tomllib.loads(of)["reward"]} for of in (had, text))
    lines = [line for line in had.splitlines() if line.startswith("# ")]
    for name, source in before.items():
        if source is not None and now.get(name) not in (None, source):
            lines.append(f"# {name} had the source {source} before the run was resumed.")
            warnings.warn(
                f"the source of reward `{name}` has changed since the run was begun: answers from here on are scored by the new "
                "one (@fathom.reward(version=..) makes such a change an error)",
                stacklevel=4,
            )
    return "".join(f"{line}\n" for line in lines)


def _versions(text: str) -> list[tuple[Any, ...]]:
    import tomllib

    tables = tomllib.loads(text).get("reward", [])
    return [(of.get("name"), of.get("version"), of.get("weight"), of.get("rule")) for of in tables]
