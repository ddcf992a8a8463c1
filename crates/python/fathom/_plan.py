"""Plans: what a run needs, before it runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from fathom import _edge, _fathom, _recipe
from fathom._table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fathom._recipe import Recipe


class Plan:
    """The plan of a recipe, stage by stage."""

    __slots__ = ("stages",)

    def __init__(self, stages: list[dict[str, Any]]) -> None:
        self.stages = stages
        """Figures of each stage, as `fathom plan --json` prints them."""

    @property
    def fits(self) -> bool:
        """Whether all stages fit into the memory."""
        return all(stage["fits"] for stage in self.stages)

    @property
    def peak(self) -> int:
        """Bytes at the peak of the stage that needs most."""
        return max(int(stage["peak_bytes"]) for stage in self.stages)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence that fits in every stage."""
        found = [stage.get("max_tokens_auto") or stage["max_tokens"] for stage in self.stages]
        known = [tokens for tokens in found if tokens is not None]
        return min(known) if known else None

    @property
    def why(self) -> str:
        """What is at the peak, and the change that lowers it most."""
        stage = max(self.stages, key=lambda of: of["peak_bytes"])
        text = f"stage {stage['stage']} needs {_size(stage['peak_reserved_bytes'])} of {_size(stage['memory_bytes'])}"
        text += f"; the peak is in {stage['peak_op']}"
        why = stage.get("why") or {}
        if why.get("largest"):
            text += ", where " + ", ".join(f"{of['name']} has {_size(of['bytes'])}" for of in why["largest"])
        if why.get("edit"):
            text += f"; {why['edit']} lowers it most, to {_size(why['edit_peak_bytes'])}"
        return text

    def to_dict(self) -> dict[str, list[Any]]:
        """The figures as columns."""
        return self._table().to_dict()

    def _table(self) -> Table:
        return Table.of_rows(self.stages)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"<fathom.Plan of {len(self)} stages: {verdict}, peak {_size(self.peak)}>"

    def _repr_html_(self) -> str:
        most = max(stage["memory_bytes"] for stage in self.stages)
        rows = []
        for stage in self.stages:
            parts, at = [], 0.0
            scale = 600.0 / max(most, stage["peak_bytes"], 1)
            for index, (name, size) in enumerate(sorted(stage["by_category"].items(), key=lambda of: -of[1])):
                if size:
                    width = size * scale
                    colour = f"hsl({index * 47 % 360} 55% 60%)"
                    title = f"<title>{name}: {_size(size)}</title>"
                    parts.append(f'<rect x="{at:.1f}" width="{width:.1f}" height="18" fill="{colour}">{title}</rect>')
                    at += width
            edge = stage["memory_bytes"] * scale
            parts.append(f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="0" y2="18" stroke="black"/>')
            verdict = "fits" if stage["fits"] else "<b>does not fit</b>"
            rows.append(
                f"<tr><td>{stage['stage']}</td><td>{stage['seq_tokens']}</td><td>{_size(stage['peak_bytes'])}</td>"
                f"<td>{verdict}</td><td><svg width='620' height='18'>{''.join(parts)}</svg></td></tr>"
            )
        head = "<tr><th>stage</th><th>tokens</th><th>peak</th><th></th><th>memory</th></tr>"
        return f"<table>{head}{''.join(rows)}</table>"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def plan(
    recipe: Recipe | str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    gpus: int | None = None,
    solve: bool = False,
    html: str | os.PathLike[str] | None = None,
) -> Plan:
    """Plans a recipe without data, for this machine or a `memory` such as `"80GiB"`. `solve` looks for the longest
    sequence under the best table of places; `html` is a page to write."""
    _edge.record()
    of = _recipe.of(recipe)
    found = _fathom.plan(
        of._base,
        of._settings,
        {
            "memory": None if memory is None else str(memory),
            "gpus": gpus,
            "longest": solve,
            "page": None if html is None else os.fspath(html),
        },
    )
    return Plan(json.loads(found))
