"""Scaling laws: a ladder of runs within a budget, the laws that they follow, and a larger run that they predict."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from fathom import _edge, _fathom, _recipe
from fathom._run import _command
from fathom._table import Table
from fathom.errors import Error

if TYPE_CHECKING:
    from fathom._recipe import Recipe

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Scaling:
    """A ladder and, once its rungs are trained, the laws that they follow."""

    __slots__ = ("found",)

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        """Everything, as `scale.json` has it."""

    @property
    def ladder(self) -> Table:
        """The rungs in the order in which they are trained, with tokens, FLOPs and expected seconds; the last is held out."""
        of = self.found.get("ladder", self.found)
        sizes = of["sizes"]
        return Table.of_rows([{**rung, "params": sizes[rung["size"]]["params"]} for rung in of["rungs"]])

    @property
    def trained(self) -> Table:
        """The trained rungs with their losses on held-out text, in nats per token."""
        rows = self.found.get("trained", [])
        return Table.of_rows([{name: value for name, value in row.items() if name != "curve"} for row in rows])

    @property
    def expected(self) -> dict[str, Any] | None:
        """The prediction of the held-out rung, made before it was trained: loss and interval."""
        found: dict[str, Any] | None = self.found.get("expected")
        return found

    @property
    def gpus(self) -> Table:
        """Hours of a GPU, and the size, the tokens and the loss that they would buy."""
        return Table.of_rows(self.found.get("gpus", []))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `scale.json` has it."""
        return dict(self.found)

    def __repr__(self) -> str:
        state = f"{len(self.trained)} trained" if "trained" in self.found else "not trained"
        return f"<fathom.Scaling of {len(self.ladder)} rungs, {state}>"

    def _repr_html_(self) -> str:
        return "".join(of._repr_html_() for of in (self.ladder, self.trained, self.gpus) if len(of))


def _seconds(budget: float | str) -> float:
    """Seconds of `"2h"`.

    >>> _seconds("2h"), _seconds("1.5m"), _seconds(30)
    (7200.0, 90.0, 30.0)
    """
    if not isinstance(budget, str):
        return float(budget)
    unit = _SECONDS.get(budget[-1:])
    try:
        return float(budget if unit is None else budget[:-1]) * (unit or 1.0)
    except ValueError:
        raise Error(f"{budget!r} is no time: write seconds, or 300s, 90m, 2h, 1.5d") from None


def scale(
    recipe: Recipe | str | os.PathLike[str] = "ladder",
    *,
    budget: float | str,
    out: str | os.PathLike[str] | None = None,
    train: bool = True,
) -> Scaling:
    """Trains a ladder of sizes within `budget` (seconds, or `"2h"`), fits laws of the loss, predicts a larger run and
    then trains it. The same call goes on after an interruption. With `train=False` it returns the ladder alone.

    Raises `fathom.Error` for a budget in which a rung would have too few steps."""
    of = _recipe.of(recipe).copy()
    if out is not None:
        of._set("run.out", os.fspath(out))
    with _edge.Told("scale") as channel:
        options = {"budget_s": _seconds(budget), "only_ladder": not train, "command": _command()}
        return Scaling(json.loads(_fathom.scale(of._base, of._settings, options, channel)))
