"""Small tables of results, which any library of frames reads by Arrow's capsules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Table:
    """Columns of numbers and texts. `polars.DataFrame(table)`, `pyarrow.table(table)` and `table.to_pandas()` are frames of it.

    >>> table = Table({"step": [1, 2], "loss": [5.5, 5.25]})
    >>> table["loss"], len(table)
    ([5.5, 5.25], 2)
    >>> table
    <fathom.Table of 2 rows: step, loss>
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """A table of rows; cells that a row lacks are empty. Tables in rows are columns with a dot.

        >>> Table.of_rows([{"a": 1, "b": {"c": 2}}, {"a": 3}]).to_dict()
        {'a': [1, 3], 'b.c': [2, None]}
        """
        flat = [dict(_flat(row)) for row in rows]
        names = list(dict.fromkeys(name for row in flat for name in row))
        return cls({name: [row.get(name) for row in flat] for name in names})

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns."""
        return {name: list(values) for name, values in self._columns.items()}

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows."""
        return [{name: values[row] for name, values in self._columns.items()} for row in range(len(self))]

    def to_pandas(self) -> Any:
        """A frame of pandas."""
        import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return pandas.DataFrame(self._columns)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """A capsule with the whole table as one batch."""
        from fathom._arrow import stream

        return stream(self._columns)

    def __repr__(self) -> str:
        return f"<fathom.Table of {len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        from html import escape

        def shown(value: Any) -> str:
            return f"{value:.6g}" if isinstance(value, float) else escape("" if value is None else str(value))

        most = 20
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        rows = [self.to_pylist()[row] for row in range(min(most, len(self)))]
        body = "".join("<tr>" + "".join(f"<td>{shown(of)}</td>" for of in row.values()) + "</tr>" for row in rows)
        more = f"<p>{len(self) - most} more rows</p>" if len(self) > most else ""
        return f"<table><tr>{head}</tr>{body}</table>{more}"


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            import json

            yield f"{prefix}{name}", json.dumps(value)
        else:
            yield f"{prefix}{name}", value
