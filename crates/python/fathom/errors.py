"""Exceptions of the package. Each says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Base class of all exceptions of this package."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in fields.items():
            setattr(self, name, value)
        self._fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.message, self._fields)


def _rebuilt(cls: type[Error], message: str, fields: dict[str, Any]) -> Error:
    return cls(message, **fields)


class RecipeError(Error, ValueError):
    """A recipe that cannot be run: which key, where it was set, and what it may be."""

    key: str = ""
    place: str = ""
    hint: str = ""


class OutOfMemory(Error, MemoryError):
    """There is no memory for this."""


class NotFinite(Error, ArithmeticError):
    """A loss or a number is NaN or infinite."""

    def __init__(self, message: str = "", step: str | int | None = None, **fields: Any) -> None:
        if step is not None:
            fields["step"] = int(step)
        super().__init__(message, **fields)


class InUse(Error):
    """A run's folder belongs to another process."""


class NotBuilt(Error):
    """This build lacks the part that was asked for."""


class RewardError(Error):
    """A reward, an environment or a stage written in Python failed; its exception is the cause."""


class ForkedError(Error, RuntimeError):
    """A handle was used in a process that was forked from its own."""


class Bug(Error, RuntimeError):
    """An error of Fathom itself."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message, **fields)
        self.add_note("This is an error of Fathom. Please report it with this message and the call that led to it.")


class FileError(Error, OSError):
    """The file system refused."""

    def __init__(self, message: str = "", errno: str | int | None = None, **fields: Any) -> None:
        if errno is not None:
            fields["errno"] = int(errno)
        super().__init__(message, **fields)

    def __str__(self) -> str:
        return self.message


__all__ = [
    "Bug",
    "Error",
    "FileError",
    "ForkedError",
    "InUse",
    "NotBuilt",
    "NotFinite",
    "OutOfMemory",
    "RecipeError",
    "RewardError",
]

