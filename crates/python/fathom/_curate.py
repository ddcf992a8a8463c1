"""Curations: text from files, cleaned, filtered and deduplicated."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, overload

from fathom import _edge, _fathom
from fathom._functions import Caller, Function
from fathom._recipe import CurationRecipe
from fathom._table import Table
from fathom.errors import Error, RewardError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Curated:
    """What a curation made."""

    __slots__ = ("account", "out")

    def __init__(self, found: dict[str, Any]) -> None:
        self.out = str(found["out"])
        """Its folder."""
        self.account: dict[str, Any] = found["stats"]
        """Its whole account."""

    @property
    def stats(self) -> Table:
        """What each stage read, kept and dropped."""
        return Table.of_rows(self.account["stages"])

    @property
    def tables(self) -> Table:
        """The tables on disk."""
        return Table.of_rows(self.account["tables"])

    @property
    def report(self) -> str:
        """The path of its report."""
        return os.path.join(self.out, "report.html")

    def __fspath__(self) -> str:
        return self.out

    def __repr__(self) -> str:
        return f"<fathom.Curated in {self.out}>"

    def _repr_html_(self) -> str:
        return self.stats._repr_html_()


class Stage(Function):
    """A stage of a curation: a function of a batch of at most 1,024 documents."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        name: str | None,
        version: str,
        after: str | None,
        before: str | None,
        adds: Mapping[str, Any],
    ) -> None:
        super().__init__(function, name, version, True)
        self.after, self.before = after, before
        self.adds = [f"{column}:{_type(of)}" for column, of in adds.items()]

    def table(self) -> dict[str, Any]:
        """Its table in a recipe."""
        of = {"use": "function", "name": self.name, "function": self.name, "version": self.version}
        return {**of, "source": self.source, "adds": self.adds}


_TYPES = {
    "string": "text",
    "utf8": "text",
    "str": "text",
    "text": "text",
    "bool": "bool",
    "int32": "i32",
    "i32": "i32",
    "int64": "i64",
    "i64": "i64",
    "int": "i64",
    "float": "f32",
    "float32": "f32",
    "f32": "f32",
    "double": "f64",
    "float64": "f64",
    "f64": "f64",
}


def _type(of: Any) -> str:
    name = of.__name__ if isinstance(of, type) else str(of)
    if name not in _TYPES:
        raise Error(f"a stage adds columns of text, bool, int32, int64, float32 or float64, not {name}")
    return _TYPES[name]


@overload
def stage(function: Callable[[Any], Any], /) -> Stage: ...
@overload
def stage(
    *,
    name: str | None = ...,
    version: str = ...,
    after: str | None = ...,
    before: str | None = ...,
    adds: Mapping[str, Any] | None = ...,
) -> Callable[[Callable[[Any], Any]], Stage]: ...
def stage(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: str = "",
    after: str | None = None,
    before: str | None = None,
    adds: Mapping[str, Any] | None = None,
) -> Any:
    """Marks a function as a stage of curations. It gets a `pyarrow.RecordBatch` with the columns `id`, `text`, `source`
    and those of earlier stages, and returns the batch, flags of the documents that stay, or both. What it says of a
    document depends on that document alone. `adds` names the columns that it adds, with their types; `after` or
    `before` is the stage next to it; another `version` makes another table."""
    if function is None:
        return lambda found: Stage(found, name, version, after, before, adds or {})
    return Stage(function, name, version, after, before, adds or {})


@overload
def keep(function: Callable[[str], bool], /) -> Stage: ...
@overload
def keep(
    *, name: str | None = ..., version: str = ..., after: str | None = ..., before: str | None = ...
) -> Callable[[Callable[[str], bool]], Stage]: ...
def keep(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: str = "",
    after: str | None = None,
    before: str | None = None,
) -> Any:
    """Marks a function of one text as a filter: the documents for which it is true stay."""

    def made(found: Callable[[str], bool]) -> Stage:
        def run(batch: Any) -> Any:
            return [bool(found(text)) for text in batch.column("text").to_pylist()]

        run.__wrapped__ = found  # type: ignore[attr-defined]
        return Stage(run, name or found.__name__, version, after, before, {})

    return made if function is None else made(function)


def _call(of: Stage) -> Caller:
    try:
        import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise Error(f"stage `{of.name}` gets batches of pyarrow, which is not installed: pip install pyarrow") from None

    def answer(calls: Any, number: int, question: bytes) -> None:
        with pyarrow.ipc.open_stream(question) as reader:
            batch = reader.read_next_batch()
        found = of.function(batch)
        flags = None
        if isinstance(found, tuple):
            made, flags = found
        elif hasattr(found, "column"):
            made = found
        else:
            made, flags = batch, found
        if flags is not None:
            flags = flags if isinstance(flags, pyarrow.Array) else pyarrow.array([bool(flag) for flag in flags])
            made = made.append_column("fathom_keep", flags)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, made.schema) as writer:
            writer.write_batch(made)
        calls.bytes(number, sink.getvalue().to_pybytes())

    return Caller(f"stage {of.name}", answer)


def _with(recipe: CurationRecipe, stages: Sequence[Stage]) -> None:
    """Puts stages where they belong."""
    tables = []
    for of in recipe._values("stage"):
        named = {"name": of["name"]} if of.get("name") else {}
        tables.append({"use": of["use"], **named, **({"save": True} if of["save"] else {}), **of["options"]})
    names = [of.get("name", of["use"]) for of in tables]
    for new in stages:
        beside = new.after or new.before
        if beside is not None and beside not in names:
            raise Error(f"stage `{new.name}`: the recipe has no stage `{beside}`; there are {', '.join(names)}")
        at = len(tables) if beside is None else names.index(beside) + (1 if new.after else 0)
        tables.insert(at, new.table())
        names.insert(at, new.name)
    recipe._set("stage", tables)


def curate(
    recipe: CurationRecipe | str | os.PathLike[str],
    *,
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    out: str | os.PathLike[str] | None = None,
    stages: Sequence[Stage | Callable[[Any], Any]] = (),
    settings: dict[str, Any] | None = None,
) -> Curated:
    """Runs a curation: a shipped recipe, a file or a `CurationRecipe`, with `stages` of Python in it. Ctrl-C stops it,
    and the same call goes on."""
    if not isinstance(recipe, CurationRecipe):
        name = os.fspath(recipe)
        recipe = CurationRecipe(("file" if "/" in name or name.endswith(".toml") else "name", name, ""))
    of = recipe.copy()
    if input is not None:
        of._set("input.paths", [input] if isinstance(input, (str, os.PathLike)) else list(input))
    if out is not None:
        of._set("out", out)
    for path, value in (settings or {}).items():
        of._set(path, value)
    own = [added if isinstance(added, Stage) else Stage(added, None, "", None, None, {}) for added in stages]
    if own:
        _with(of, own)
    callers = [_call(added) for added in own]
    named = [(added.name, caller.calls) for added, caller in zip(own, callers, strict=True)]
    try:
        with _edge.Told("curate") as channel:
            return Curated(json.loads(_fathom.curate(of._base, of._settings, named, channel)))
    except Exception as error:
        cause = next((caller.error for caller in callers if caller.error is not None), None)
        if cause is not None:
            raise RewardError(str(error)) from cause
        raise
    finally:
        for caller in callers:
            caller.close()
