"""Rows of any table or iterator, written once below a run's folder: plans, resumes and the order of training need a file."""

from __future__ import annotations

import hashlib
import json
import numbers
import os
from typing import TYPE_CHECKING, Any

from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAME = "rows.jsonl"


def paths(rows: Any, folder: str) -> list[str]:
    """The files of rows: those that were named, or one that is written below the folder.

    A run that goes on reads what it wrote, and asks an iterator nothing."""
    if isinstance(rows, (str, os.PathLike)):
        return [os.fspath(rows)]
    if isinstance(rows, (list, tuple)) and rows and all(isinstance(of, (str, os.PathLike)) for of in rows):
        return [os.fspath(path) for path in rows]
    to, known = os.path.join(folder, _NAME), os.path.join(folder, "rows.sha256")
    had = _read(known) if os.path.exists(to) else None
    if had is not None and iter_is_once(rows):
        return [to]
    os.makedirs(folder, exist_ok=True)
    part = f"{to}.part"
    _write(rows, part)
    found = _hash(part)
    if had is not None and had != found:
        os.remove(part)
        raise Error(
            f"{folder} was begun with other rows (their hash is {had[:12]}, and now {found[:12]}); give the same ones to go on, or another "
            "folder (out=..)"
        )
    os.replace(part, to)
    with open(f"{known}.part", "w", encoding="utf-8") as file:
        file.write(found + "\n")
    os.replace(f"{known}.part", known)
    return [to]


def iter_is_once(rows: Any) -> bool:
    """Whether rows can be read only once, as a generator's."""
    return hasattr(rows, "__next__")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(rows: Any, path: str) -> None:
    if hasattr(rows, "collect") and not hasattr(rows, "__arrow_c_stream__"):
        rows = rows.collect()
    if hasattr(rows, "write_ndjson"):
        rows.write_ndjson(path)
        return
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        write = file.write
        encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode
        for row in _rows(rows):
            if not isinstance(row, dict):
                row = dict(row) if hasattr(row, "keys") else {"text": row} if isinstance(row, str) else _refused(row)
            try:
                write(encode(row))
            except ValueError as error:
                raise Error(f"row {count}: {error}") from error
            write("\n")
            count += 1
    if count == 0:
        raise Error("there are no rows: the iterator or table is empty")


def _refused(row: Any) -> dict[str, Any]:
    raise Error(f"a row is a dict with the keys that the recipe reads, not {type(row).__name__}: {row!r:.80}")


def _plain(value: Any) -> Any:
    for name in ("tolist", "item", "isoformat", "as_py"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"a row holds numbers, texts, lists and dicts, not {type(value).__name__}")


def _rows(rows: Any) -> Iterable[Any]:
    """The rows of a table or an iterator as dicts."""
    if isinstance(rows, dict):
        raise Error("rows are a list of dicts, one for each row, not one dict; a dict of columns is a table: pyarrow.table(rows)")
    if isinstance(rows, (list, tuple)) or iter_is_once(rows):
        same: Iterable[Any] = rows
        return same
    if hasattr(rows, "to_dict") and hasattr(rows, "columns") and hasattr(rows, "itertuples"):
        return _of_pandas(rows)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        from fathom import _arrow_rows

        return _arrow_rows.rows(rows)
    if hasattr(rows, "__iter__"):
        found: Iterable[Any] = rows
        return found
    raise Error(f"rows are a path, a list of dicts, an iterator, or a table, not {type(rows).__name__}")


def _of_pandas(rows: Any) -> Iterator[dict[str, Any]]:
    names = [str(name) for name in rows.columns]
    for row in rows.itertuples(index=False, name=None):
        yield {name: None if _is_missing(value) else value for name, value in zip(names, row, strict=True)}


def _is_missing(value: Any) -> bool:
    """Whether a cell is one of pandas' marks of nothing: NaN, NA, NaT."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real) and bool(value != value)
