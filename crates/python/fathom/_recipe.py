"""Recipes as objects: typed tables over a shipped recipe, a file or a text. The core checks each assignment."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from fathom import _fathom
from fathom.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing import Self

    from fathom._keys import TrainRecipe

    T = TypeVar("T", bound="Table")
    Base = tuple[str, str, str]
    Setting = tuple[str, str, str]
else:
    T = TypeVar("T")

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def _place() -> str:
    """The line of the program that called into this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_filename
    if name.startswith("<"):
        return f"{name}:{frame.f_lineno}"
    short = os.path.relpath(name) if os.path.isabs(name) else name
    return f"{short if len(short) < len(name) else name}:{frame.f_lineno}"


def _toml(value: Any) -> str:
    """A value as TOML."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(of)}" for key, of in value.items()) + "}"
    if hasattr(value, "tolist"):
        return _toml(value.tolist())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(of) for of in value) + "]"
    if hasattr(value, "__iter__"):
        return "[" + ", ".join(_toml(of) for of in value) + "]"
    raise _NoValue(type(value).__name__)


class _NoValue(Exception):
    """A type that has no form in TOML."""


def _key(name: str) -> str:
    return name[:-1] if name.endswith("_") else name


class _Node:
    """A place in a recipe."""

    __slots__ = ("_path", "_recipe")
    _path: str
    _recipe: Recipe

    def __init__(self, recipe: Recipe, path: str) -> None:
        object.__setattr__(self, "_recipe", recipe)
        object.__setattr__(self, "_path", path)


class Table(_Node):
    """A table of a recipe. Its attributes are keys; an assignment is checked at once."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self._recipe._get(f"{self._path}.{_key(name)}")

        def __setattr__(self, name: str, value: Any) -> None:
            self._recipe._set(f"{self._path}.{_key(name)}", value)

    def to_dict(self) -> dict[str, Any]:
        """The values of the table."""
        found: dict[str, Any] = self._recipe._values(self._path)
        return found

    def __dir__(self) -> list[str]:
        return sorted([*type(self).__annotations__, "to_dict"])

    def __repr__(self) -> str:
        lines = [f"  {name} = {value!r}" for name, value in self.to_dict().items()]
        return "\n".join([f"[{self._path}]", *lines])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


class Tables(_Node, Generic[T]):
    """The tables of a list, such as the stages of a run."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._recipe._values(self._path))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: str) -> T: ...
    def __getitem__(self, index: int | str) -> T:
        values = self._recipe._values(self._path)
        if isinstance(index, str):
            named = [at for at, of in enumerate(values) if of.get("name") == index]
            if len(named) != 1:
                raise KeyError(index)
            index = named[0]
        if not -len(values) <= index < len(values):
            raise IndexError(f"{self._path} has {len(values)} tables")
        found: Any = self._recipe._table(f"{self._path}.{index % len(values)}")
        return found  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return "\n".join(repr(table) for table in self)


class Recipe:
    """A recipe: where it begins, and the settings over it. It pickles and copies as these.

    >>> from fathom import recipes
    >>> recipe = recipes.quickstart()
    >>> recipe.optimizer.lr = 1e-3
    >>> recipe.optimizer.lr
    0.001
    >>> recipe.diff(recipe.copy())
    []
    """

    __slots__ = ("_base", "_cached", "_settings")
    _base: Base
    _settings: list[Setting]
    _cached: tuple[dict[str, Any], str, list[Setting]] | None

    def __init__(self, base: Base = ("none", "", ""), settings: list[Setting] | None = None) -> None:
        object.__setattr__(self, "_base", base)
        object.__setattr__(self, "_settings", list(settings or []))
        object.__setattr__(self, "_cached", None)

    # The core.

    def _resolved(self) -> tuple[dict[str, Any], str, list[Setting]]:
        if self._cached is None:
            object.__setattr__(self, "_cached", self._load(self._settings))
        assert self._cached is not None
        return self._cached

    def _load(self, settings: list[Setting]) -> tuple[dict[str, Any], str, list[Setting]]:
        values, text, rows = _fathom.recipe_load(self._base, settings, False)
        return json.loads(values), text, rows

    def _values(self, path: str) -> Any:
        found: Any = self._resolved()[0]
        for name in path.split(".") if path else []:
            if isinstance(found, list):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return self._unknown(path)
        return found

    def _unknown(self, path: str) -> Any:
        """Raises the core's error about a key that is not there, unless it is an optional one without a value."""
        try:
            self._load([*self._settings, (_place(), path, "none")])
        except RecipeError as error:
            if "unknown key" in error.message:
                raise AttributeError(error.message) from None
        return None

    def _table(self, path: str) -> Table:
        from fathom._keys import TABLES

        pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
        return TABLES.get(pattern, Table)(self, path)

    def _get(self, path: str) -> Any:
        from fathom._keys import TABLES

        pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
        if f"{pattern}.*" in TABLES:
            return Tables(self, path)
        if pattern in TABLES:
            return self._table(path)
        return self._values(path)

    def _set(self, path: str, value: Any) -> None:
        if path == "data.paths" and isinstance(value, (list, tuple)) and any(
            isinstance(of, (int, float)) for of in value
        ):
            self._blend(value)
            return
        try:
            text = _toml(value)
        except _NoValue as error:
            hint = "a recipe holds numbers, texts and lists"
            raise RecipeError(f"{_place()}: `{path}`: {hint}, not {error}", key=path, place=_place(), hint=hint) from None
        settings = [*self._settings, (_place(), path, text)]
        object.__setattr__(self, "_cached", self._load(settings))
        object.__setattr__(self, "_settings", settings)

    def _blend(self, value: Any) -> None:
        """NeMo's list of weights and prefixes of stores, `[.3, "a", .7, "b"]`."""
        weights, paths = value[::2], value[1::2]
        if len(weights) != len(paths) or any(isinstance(of, (int, float)) for of in paths):
            raise RecipeError(
                f"{_place()}: `data.paths`: a blend alternates weights and stores: [0.3, \"a\", 0.7, \"b\"]",
                key="data.paths",
                place=_place(),
                hint="",
            )
        parts = [{"source": str(path), "weight": float(weight)} for path, weight in zip(paths, weights, strict=True)]
        self._set("data.blend", parts)
        self._set("data.paths", [])

    # Attributes.

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return self._get(_key(name))

        def __setattr__(self, name: str, value: Any) -> None:
            self._set(_key(name), value)

    def __dir__(self) -> list[str]:
        return sorted([*(name for name in type(self).__annotations__ if name[0] != "_"), "diff", "sources", "to_dict", "to_toml", "set", "check"])

    def set(self, path: str, value: Any) -> Self:
        """Sets a key by its dotted path; returns the recipe."""
        self._set(path, value)
        return self

    def dial(self, **dials: Any) -> None:
        """Sets keys given as dials: `_` for `.`, or the last name alone."""
        for name, value in dials.items():
            self._dial(name, value)

    def _dial(self, name: str, value: Any) -> None:
        from fathom._keys import DIALS

        path = DIALS.get(name)
        if path is None:
            from difflib import get_close_matches

            near = get_close_matches(name, DIALS, 1)
            hint = f"did you mean {near[0]}?" if near else "a dial is a key with `_` for `.`"
            raise RecipeError(f"{_place()}: no dial is called `{name}`; {hint}", key=name, place=_place(), hint=hint)
        self._at(path, value)

    def _at(self, path: str, value: Any) -> None:
        """Sets a key, in all tables where the path has a star."""
        if ".*." not in path:
            self._set(path, value)
            return
        of, rest = path.split(".*.", 1)
        for index in range(max(1, len(self._values(of)))):
            self._set(f"{of}.{index}.{rest}", value)

    # The whole.

    def to_toml(self) -> str:
        """The whole recipe as TOML, with the source of each value."""
        return self._resolved()[1]

    @classmethod
    def from_toml(cls, text: str, name: str = "text") -> Self:
        """A recipe from TOML."""
        made = cls(("text", name, text))
        made._resolved()
        return made

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """A recipe from a file."""
        made = cls(("file", os.fspath(path), ""))
        made._resolved()
        return made

    def to_dict(self) -> dict[str, Any]:
        """All values."""
        return dict(self._resolved()[0])

    @property
    def sources(self) -> dict[str, str]:
        """Where each value comes from, by path."""
        return {path: source for path, _, source in self._resolved()[2]}

    def diff(self, other: Recipe) -> list[str]:
        """The keys in which two recipes differ, a line each."""
        return _fathom.recipe_diff((self._base, self._settings), (other._base, other._settings))

    def check(self) -> None:
        """Checks all that a run would, without a run."""
        _fathom.recipe_load(self._base, self._settings, True)

    def copy(self) -> Self:
        """A copy, whose settings are its own."""
        return type(self)(self._base, self._settings)

    __copy__ = copy

    def __deepcopy__(self, _: Any) -> Self:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._base, self._settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._resolved()[0] == other._resolved()[0]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        set_ = [f"  {path} = {value}  # {source}" for path, value, source in self._resolved()[2] if source != "default"]
        return "\n".join([f"<recipe {self._base[1] or 'of settings'}>", *set_])

    def _repr_html_(self) -> str:
        from html import escape

        rows = [
            f"<tr><td>{escape(path)}</td><td>{escape(value)}</td><td>{escape(source)}</td></tr>"
            for path, value, source in self._resolved()[2]
            if source != "default"
        ]
        return f"<table><tr><th>key</th><th>value</th><th>source</th></tr>{''.join(rows)}</table>"


class CurationRecipe(Recipe):
    """A recipe of a curation."""

    __slots__ = ()

    def _load(self, settings: list[Setting]) -> tuple[dict[str, Any], str, list[Setting]]:
        values, text, rows = _fathom.curation_load(self._base, settings)
        return json.loads(values), text, rows

    def _get(self, path: str) -> Any:
        found = self._values(path)
        if isinstance(found, dict):
            return Table(self, path)
        if isinstance(found, list) and found and isinstance(found[0], dict):
            return Tables(self, path)
        return found

    def _dial(self, name: str, value: Any) -> None:
        self._set(name.replace("__", "."), value)


def shipped(name: str, dials: Any) -> TrainRecipe:
    """A shipped recipe with dials."""
    from fathom._keys import TrainRecipe

    recipe = TrainRecipe(("name", name, ""))
    recipe.dial(**dials)
    return recipe


def curation(name: str, dials: Any) -> CurationRecipe:
    """A shipped curation with dials."""
    recipe = CurationRecipe(("name", name, ""))
    recipe.dial(**dials)
    return recipe


def of(recipe: Recipe | str | os.PathLike[str]) -> Recipe:
    """A recipe from an object, a shipped name, or a file."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, (str, os.PathLike)):
        hint = "give a recipe, a shipped recipe's name, or a file"
        raise RecipeError(f"{_place()}: no recipe is of type {type(recipe).__name__}; {hint}", place=_place(), hint=hint)
    from fathom._keys import TrainRecipe

    text = os.fspath(recipe)
    made = TrainRecipe(("file" if "/" in text or text.endswith(".toml") else "name", text, ""))
    made._resolved()
    return made
