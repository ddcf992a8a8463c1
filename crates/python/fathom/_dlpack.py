"""DLPack capsules of arrays (https://dmlc.github.io/dlpack/latest/c_api.html), made with `ctypes`."""

from __future__ import annotations

import atexit
import ctypes
from typing import Any


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_FLOAT = 2
_READ_ONLY = 1

# Whatever a capsule points to, by its address, until its deleter is called.
_HELD: dict[int, Any] = {}


@_DELETER  # type: ignore[untyped-decorator]
def _delete(address: int) -> None:
    _HELD.pop(address, None)


def _leave() -> None:
    """Leaves what other libraries still hold to the process: some free it when there is no interpreter to call."""
    for made, *_ in _HELD.values():
        made.deleter = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, _DELETER)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_HELD))


atexit.register(_leave)

_CAPSULE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _CAPSULE]
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]

_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}


@_CAPSULE  # type: ignore[untyped-decorator]
def _unused(capsule: int) -> None:
    """Frees a tensor that nobody took from its capsule."""
    for name in _NAMES.values():
        if _valid(capsule, name):
            _HELD.pop(_pointer(capsule, name), None)


def capsule(array: Any, versioned: bool) -> Any:
    """A capsule over an array, which it keeps alive."""
    shape = array.shape
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    strides = (ctypes.c_int64 * len(shape))(*steps)
    tensor = _Tensor(
        array._inner.address, _Device(1, 0), len(shape), _DataType(_FLOAT, 32, 1), sizes, strides, 0
    )
    made: Any
    if versioned:
        made = _Versioned(1, 0, None, _delete, _READ_ONLY, tensor)
    else:
        made = _Managed(tensor, None, _delete)
    address = ctypes.addressof(made)
    _HELD[address] = (made, sizes, strides, array)
    return _new(address, _NAMES[versioned], _unused)
