"""Arrow's C data interface (https://arrow.apache.org/docs/format/CStreamInterface.html) for columns of Python values."""

from __future__ import annotations

import array
import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VOID = ctypes.c_void_p
_RELEASE = ctypes.CFUNCTYPE(None, _VOID)


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", _VOID),
    ("release", _RELEASE),
    ("private_data", _VOID),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(_VOID)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", _VOID),
    ("release", _RELEASE),
    ("private_data", _VOID),
]

_GET_SCHEMA = ctypes.CFUNCTYPE(ctypes.c_int, _VOID, ctypes.POINTER(_Schema))
_GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, _VOID, ctypes.POINTER(_Array))
_GET_ERROR = ctypes.CFUNCTYPE(_VOID, _VOID)


class _Stream(ctypes.Structure):
    _fields_ = [
        ("get_schema", _GET_SCHEMA),
        ("get_next", _GET_NEXT),
        ("get_last_error", _GET_ERROR),
        ("release", _RELEASE),
        ("private_data", _VOID),
    ]


_NULLABLE = 2

# Whatever a structure points to, by its number, until it is released.
_HELD: dict[int, Any] = {}
_next = 1


def _hold(of: Any) -> int:
    global _next
    number, _next = _next, _next + 1
    _HELD[number] = of
    return number


@_RELEASE  # type: ignore[untyped-decorator]
def _release_schema(address: int) -> None:
    of = _Schema.from_address(address)
    for index in range(of.n_children):
        child = of.children[index].contents
        # A reader may have moved it away.
        if ctypes.cast(child.release, _VOID).value:
            _release_schema(ctypes.addressof(child))
    _HELD.pop(of.private_data, None)
    ctypes.memset(address + _Schema.release.offset, 0, ctypes.sizeof(_VOID))


@_RELEASE  # type: ignore[untyped-decorator]
def _release_array(address: int) -> None:
    of = _Array.from_address(address)
    for index in range(of.n_children):
        child = of.children[index].contents
        # A reader may have moved it away.
        if ctypes.cast(child.release, _VOID).value:
            _release_array(ctypes.addressof(child))
    _HELD.pop(of.private_data, None)
    ctypes.memset(address + _Array.release.offset, 0, ctypes.sizeof(_VOID))


class _Column:
    """A column as Arrow's buffers."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name, self.length = name.encode(), len(values)
        present = [value is not None for value in values]
        self.nulls = present.count(False)
        self.validity = _bits(present) if self.nulls else None
        kinds = {type(value) for value in values if value is not None}
        self.buffers: list[Any]
        if kinds <= {bool} and kinds:
            self.format, self.buffers = b"b", [_bits([bool(value) for value in values])]
        elif kinds <= {int} and kinds and all(-(1 << 63) <= v < 1 << 63 for v in values if v is not None):
            self.format, self.buffers = b"l", [array.array("q", [0 if v is None else v for v in values])]
        elif kinds <= {int, float}:
            self.format, self.buffers = b"g", [array.array("d", [0.0 if v is None else float(v) for v in values])]
        else:
            texts = [b"" if value is None else str(value).encode() for value in values]
            ends = array.array("q", [0])
            for text in texts:
                ends.append(ends[-1] + len(text))
            self.format, self.buffers = b"U", [ends, array.array("B", b"".join(texts))]


def _bits(values: Sequence[bool]) -> array.array[int]:
    found = array.array("B", bytes((len(values) + 7) // 8))
    for index, value in enumerate(values):
        if value:
            found[index // 8] |= 1 << index % 8
    return found


def _fill_schema(to: _Schema, format: bytes, name: bytes, children: list[_Schema], flags: int) -> None:
    pointers = (ctypes.POINTER(_Schema) * max(1, len(children)))(*(ctypes.pointer(child) for child in children))
    to.format, to.name, to.metadata, to.flags = format, name, None, flags
    to.n_children, to.children = len(children), ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(_Schema)))
    to.dictionary, to.release = None, _release_schema
    to.private_data = _hold((format, name, children, pointers))


def _fill_array(to: _Array, length: int, nulls: int, buffers: list[Any], children: list[_Array], held: Any) -> None:
    addresses = [None if of is None else of.buffer_info()[0] or None for of in buffers]
    table = (_VOID * max(1, len(addresses)))(*addresses)
    pointers = (ctypes.POINTER(_Array) * max(1, len(children)))(*(ctypes.pointer(child) for child in children))
    to.length, to.null_count, to.offset = length, nulls, 0
    to.n_buffers, to.buffers = len(buffers), ctypes.cast(table, ctypes.POINTER(_VOID))
    to.n_children, to.children = len(children), ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(_Array)))
    to.dictionary, to.release = None, _release_array
    to.private_data = _hold((table, pointers, buffers, children, held))


class _State:
    """The columns of a stream, and whether they have been given out."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = [_Column(name, values) for name, values in columns.items()]
        self.length = max((column.length for column in self.columns), default=0)
        self.given = False


@_GET_SCHEMA  # type: ignore[untyped-decorator]
def _get_schema(stream: int, to: Any) -> int:
    state: _State = _HELD[_Stream.from_address(stream).private_data]
    children = []
    for column in state.columns:
        child = _Schema()
        _fill_schema(child, column.format, column.name, [], _NULLABLE)
        children.append(child)
    _fill_schema(to.contents, b"+s", b"", children, 0)
    return 0


@_GET_NEXT  # type: ignore[untyped-decorator]
def _get_next(stream: int, to: Any) -> int:
    state: _State = _HELD[_Stream.from_address(stream).private_data]
    if state.given:
        ctypes.memset(ctypes.addressof(to.contents), 0, ctypes.sizeof(_Array))
        return 0
    state.given = True
    children = []
    for column in state.columns:
        child = _Array()
        _fill_array(child, column.length, column.nulls, [column.validity, *column.buffers], [], column)
        children.append(child)
    _fill_array(to.contents, state.length, 0, [None], children, state)
    return 0


@_GET_ERROR  # type: ignore[untyped-decorator]
def _get_error(_: int) -> None:
    return None


@_RELEASE  # type: ignore[untyped-decorator]
def _release_stream(address: int) -> None:
    of = _Stream.from_address(address)
    _HELD.pop(of.private_data, None)
    ctypes.memset(address + _Stream.release.offset, 0, ctypes.sizeof(_VOID))


_CAPSULE = ctypes.CFUNCTYPE(None, _VOID)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [_VOID, ctypes.c_char_p, _CAPSULE]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = _VOID, [_VOID, ctypes.c_char_p]
_NAME = b"arrow_array_stream"
_STREAMS: dict[int, _Stream] = {}


@_CAPSULE  # type: ignore[untyped-decorator]
def _unused(capsule: int) -> None:
    """Ends the stream of a capsule, unless its reader has moved it away."""
    address = _pointer(capsule, _NAME)
    made = _STREAMS.pop(address, None)
    if made is not None and ctypes.cast(made.release, _VOID).value:
        _release_stream(address)


def stream(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A capsule with the columns as a stream of one batch."""
    made = _Stream(_get_schema, _get_next, _get_error, _release_stream, _hold(_State(columns)))
    address = ctypes.addressof(made)
    _STREAMS[address] = made
    return _new(address, _NAME, _unused)
