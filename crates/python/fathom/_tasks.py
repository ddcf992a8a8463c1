"""Results of tasks in lm-evaluation-harness's format."""

from __future__ import annotations

from typing import Any

from fathom._table import Table


class TaskResults:
    """Figures of tasks, by the names that the harness gives them."""

    __slots__ = ("_table", "figures", "model")

    def __init__(self, model: str, found: dict[str, Any]) -> None:
        self.model = model
        self.figures: dict[str, Any] = found["found"]
        """The object that the harness writes: `results`, `groups`, `configs` and so on."""
        self._table: str = found["table"]

    def __getitem__(self, task: str) -> dict[str, Any]:
        """Figures of a task or group: `results["hellaswag"]["acc,none"]`."""
        found: dict[str, Any] = self.figures["results"][task]
        return found

    @property
    def table(self) -> Table:
        """A row for each task, metric and filter, with its standard error."""
        rows: list[dict[str, Any]] = []
        for task, of in self.figures["results"].items():
            for key, value in of.items():
                metric, comma, filtered = key.partition(",")
                if comma and not metric.endswith("_stderr"):
                    error = of.get(f"{metric}_stderr,{filtered}")
                    error = error if isinstance(error, float) else None
                    rows.append({"task": task, "metric": metric, "filter": filtered, "value": value, "stderr": error})
        return Table.of_rows(rows)

    def to_dict(self) -> dict[str, Any]:
        """All that the harness writes."""
        return self.figures

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<fathom.TaskResults of {self.model}>\n{self._table}"
