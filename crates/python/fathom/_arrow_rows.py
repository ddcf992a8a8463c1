"""Rows of tables with Arrow's capsules (https://arrow.apache.org/docs/format/CDataInterface.html), read without a library."""

from __future__ import annotations

import ctypes
import datetime
import struct
from typing import TYPE_CHECKING, Any

from fathom._arrow import _Array, _Schema, _Stream
from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS: dict[str, Any] = {
    "c": ctypes.c_int8,
    "C": ctypes.c_uint8,
    "s": ctypes.c_int16,
    "S": ctypes.c_uint16,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "l": ctypes.c_int64,
    "L": ctypes.c_uint64,
    "f": ctypes.c_float,
    "g": ctypes.c_double,
}

# The pointer of a capsule, by its name.
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

_EPOCH = datetime.datetime(1970, 1, 1)
_PARTS = {"s": 1, "m": 1_000, "u": 1_000_000, "n": 1_000_000_000}


def rows(table: Any) -> Iterator[dict[str, Any]]:
    """The rows of a table with `__arrow_c_stream__` or `__arrow_c_array__`, batch by batch."""
    if hasattr(table, "__arrow_c_stream__"):
        # The capsule ends the stream when it goes.
        capsule = table.__arrow_c_stream__()
        stream = _Stream.from_address(_address(capsule, b"arrow_array_stream"))
        schema = _Schema()
        _asked(stream, stream.get_schema, schema)
        try:
            while True:
                batch = _Array()
                _asked(stream, stream.get_next, batch)
                if not _is_held(batch):
                    break
                try:
                    yield from _table(schema, batch)
                finally:
                    batch.release(ctypes.addressof(batch))
        finally:
            schema.release(ctypes.addressof(schema))
        del capsule
    else:
        of_schema, of_batch = table.__arrow_c_array__()
        schema = _Schema.from_address(_address(of_schema, b"arrow_schema"))
        batch = _Array.from_address(_address(of_batch, b"arrow_array"))
        yield from _table(schema, batch)
        del of_schema, of_batch


def _is_held(of: Any) -> bool:
    return ctypes.cast(of.release, ctypes.c_void_p).value is not None


def _asked(stream: _Stream, ask: Callable[..., int], to: Any) -> None:
    if ask(ctypes.addressof(stream), ctypes.byref(to)) != 0:
        text = stream.get_last_error(ctypes.addressof(stream))
        raise Error(f"the table cannot be read: {ctypes.string_at(text).decode(errors='replace') if text else 'its stream failed'}")


def _table(schema: _Schema, batch: _Array) -> Iterator[dict[str, Any]]:
    if schema.format != b"+s":
        raise Error(f"rows are a table with named columns, not an array of Arrow's type {schema.format.decode()!r}")
    return _dicts(schema, batch, "")


def _dicts(schema: _Schema, of: _Array, path: str) -> Iterator[dict[str, Any]]:
    """The values of each row of a table by their names."""
    names = [_name(schema.children[index].contents) for index in range(schema.n_children)]
    columns = [_child(schema, of, index, path)[of.offset : of.offset + of.length] for index in range(schema.n_children)]
    cells = zip(*columns, strict=True) if columns else iter([()] * of.length)
    return (dict(zip(names, row, strict=True)) for row in cells)


def _name(schema: _Schema) -> str:
    return (schema.name or b"").decode()


def _values(schema: _Schema, of: _Array, path: str) -> list[Any]:
    """The values of an array."""
    kind = schema.format.decode()
    found: list[Any]
    if schema.dictionary:
        words = _values(_Schema.from_address(schema.dictionary), _Array.from_address(of.dictionary), path)
        found = [words[index] if 0 <= index < len(words) else None for index in _numbers(of, _NUMBERS[kind])]
    elif kind == "n":
        return [None] * of.length
    elif kind in _NUMBERS:
        found = _numbers(of, _NUMBERS[kind])
    elif kind == "e":
        found = list(struct.unpack(f"={of.length}e", _bytes(of, 1, 2 * of.offset, 2 * of.length)))
    elif kind == "b":
        found = _bits(of, 1)
    elif kind in ("u", "U"):
        found = _texts(of, ctypes.c_int32 if kind == "u" else ctypes.c_int64)
    elif kind == "vu":
        found = _views(of)
    elif kind in ("tdD", "tdm"):
        days = 1 if kind == "tdD" else 86_400_000
        found = [(_EPOCH + datetime.timedelta(value // days)).date() for value in _numbers(of, ctypes.c_int32 if days == 1 else ctypes.c_int64)]
    elif kind[:2] == "ts":
        found = _times(of, _PARTS[kind[2]], kind[4:])
    elif kind == "+s":
        found = list(_dicts(schema, of, path))
    elif kind in ("+l", "+L"):
        ends = _numbers(of, ctypes.c_int32 if kind == "+l" else ctypes.c_int64, 1)
        inner = _child(schema, of, 0, path)
        found = [inner[first:end] for first, end in zip(ends, ends[1:], strict=False)]
    elif kind in ("+vl", "+vL"):
        width = ctypes.c_int32 if kind == "+vl" else ctypes.c_int64
        inner, sizes = _child(schema, of, 0, path), _numbers(of, width, buffer=2)
        found = [inner[first : first + size] for first, size in zip(_numbers(of, width), sizes, strict=True)]
    elif kind.startswith("+w:"):
        inner, size = _child(schema, of, 0, path), int(kind[3:])
        found = [inner[size * index : size * (index + 1)] for index in range(of.offset, of.offset + of.length)]
    else:
        raise Error(
            f"column `{path or _name(schema)}` has Arrow's type {kind!r}; rows are texts, numbers, dates, lists and tables of these: cast it, or leave it out"
        )
    if of.null_count != 0 and of.buffers[0]:
        return [value if valid else None for value, valid in zip(found, _bits(of, 0), strict=True)]
    return found


def _child(schema: _Schema, of: _Array, index: int, path: str) -> list[Any]:
    inner = schema.children[index].contents
    return _values(inner, of.children[index].contents, f"{path}.{_name(inner)}" if path else _name(inner))


def _bytes(of: _Array, buffer: int, first: int, size: int) -> bytes:
    return ctypes.string_at(of.buffers[buffer] + first, size) if size else b""


def _numbers(of: _Array, kind: Any, more: int = 0, buffer: int = 1) -> list[Any]:
    count = of.length + more
    if not of.buffers[buffer]:
        return [0] * count
    found: list[Any] = (kind * count).from_address(of.buffers[buffer] + of.offset * ctypes.sizeof(kind))[:]
    return found


def _bits(of: _Array, buffer: int) -> list[bool]:
    first = of.offset // 8
    found = _bytes(of, buffer, first, (of.offset + of.length + 7) // 8 - first)
    return [bool(found[index >> 3] >> (index & 7) & 1) for index in range(of.offset % 8, of.offset % 8 + of.length)]


def _texts(of: _Array, width: Any) -> list[str]:
    ends = _numbers(of, width, 1)
    start = ends[0]
    text = _bytes(of, 2, start, ends[-1] - start)
    return [text[first - start : end - start].decode() for first, end in zip(ends, ends[1:], strict=False)]


def _views(of: _Array) -> list[str]:
    found = []
    for view in struct.iter_unpack("=i12s", _bytes(of, 1, 16 * of.offset, 16 * of.length)):
        size, inline = view
        if size <= 12:
            found.append(inline[:size].decode())
        else:
            buffer, first = struct.unpack("=4x2i", inline)
            found.append(_bytes(of, 2 + buffer, first, size).decode())
    return found


def _times(of: _Array, parts: int, zone: str) -> list[datetime.datetime]:
    def time(value: int) -> datetime.datetime:
        return _EPOCH + datetime.timedelta(seconds=value // parts, microseconds=value % parts * 1_000_000 // parts)

    found = [time(value) for value in _numbers(of, ctypes.c_int64)]
    if not zone:
        return found
    import zoneinfo

    def at() -> datetime.tzinfo:
        if zone[0] in "+-":
            hours, minutes = int(zone[1:3]), int(zone[-2:])
            offset = datetime.timedelta(hours=hours, minutes=minutes)
            return datetime.timezone(-offset if zone[0] == "-" else offset)
        return zoneinfo.ZoneInfo(zone)

    return [time.replace(tzinfo=datetime.timezone.utc).astimezone(at()) for time in found]
