"""What every handle of this process shares: forks, the interpreter's end, records of libraries, and progress."""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from fathom import _fathom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from typing import Any, Protocol

    class Handle(Protocol):
        """What lives on a thread of its own."""

        def _end(self) -> None: ...


_HANDLES: weakref.WeakSet[Any] = weakref.WeakSet()


def keep(handle: Handle) -> None:
    """Ends a handle with the interpreter: runs save, models and servers close."""
    _HANDLES.add(handle)


def _end_all() -> None:
    for handle in list(_HANDLES):
        try:
            handle._end()
        except Exception as error:
            sys.stderr.write(f"fathom: {error}\n")
    # A thread that the interpreter ends while it waits in native code would be unwound through it.
    if _end_records is not None:
        _end_records()


def begin() -> None:
    """Watches for forks and for the interpreter's end."""
    atexit.register(_end_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    _HANDLES.clear()
    _fathom.forked()


_recording = False
_end_records: Callable[[], None] | None = None


def record() -> None:
    """Passes records of the core to `logging.getLogger("fathom")`, once `logging` is in use."""
    global _recording, _end_records
    if _recording or "logging" not in sys.modules:
        return
    _recording = True
    import logging
    import threading

    logger = logging.getLogger("fathom")
    records = _fathom.Records(logger.getEffectiveLevel())

    def drain() -> None:
        while (found := records.next(1.0)) is not None:
            for level, target, message in found:
                name = {"WARN": "WARNING", "TRACE": "DEBUG"}.get(level, level)
                logging.getLogger(target.replace("fathom_", "fathom.", 1)).log(getattr(logging, name), message)

    thread = threading.Thread(target=drain, name="fathom records", daemon=True)
    thread.start()

    def end() -> None:
        records.end()
        thread.join(2.0)

    _end_records = end


def drain(channel: Any, heard: Callable[[dict[str, Any]], None]) -> Thread:
    """Starts a thread that passes the events of a channel to a function until the channel ends."""
    import json
    import threading

    def work() -> None:
        while (events := channel.next(0.5)) is not None:
            for text in events:
                heard(json.loads(text))

    thread = threading.Thread(target=work, name="fathom events", daemon=True)
    thread.start()
    return thread


def event(of: Any) -> tuple[str, Any]:
    """Kind and contents of an event."""
    if isinstance(of, str):
        return of, {}
    kind, contents = next(iter(of.items()))
    return kind, contents


class Told:
    """The channel of a verb, whose lines appear on standard error if that is a terminal, or as `logging` records."""

    def __init__(self, verb: str) -> None:
        self.channel = _fathom.Channel()
        self.verb = verb

    def __enter__(self) -> Any:
        record()
        self.thread = drain(self.channel, self._heard)
        return self.channel

    def __exit__(self, *_: object) -> None:
        self.channel.end()
        self.thread.join(2.0)

    def _heard(self, of: dict[str, Any]) -> None:
        kind, contents = event(of)
        if kind == "warning":
            import warnings

            warnings.warn(str(contents), stacklevel=2)
        elif kind in ("note", "line") and sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"{contents}\n")


def bytes_of(size: int | str | None) -> int | None:
    """A number of bytes from `80GiB`.

    >>> bytes_of("80GiB") == 80 << 30, bytes_of("1.5k")
    (True, 1500)
    """
    if size is None or isinstance(size, int):
        return size
    text = size.strip().lower().removesuffix("b")
    powers = {"k": 1, "m": 2, "g": 3, "t": 4}
    base = 1024 if text.endswith("i") else 1000
    text = text.removesuffix("i")
    power = powers.get(text[-1:], 0)
    try:
        return int(float(text[:-1] if power else text) * base**power)
    except ValueError:
        from fathom.errors import Error

        raise Error(f"{size!r} is no size: write bytes, or 80GiB, 512MiB, 24GB") from None
