"""Servers in this process: OpenAI's protocol over models."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from fathom import _edge, _fathom
from fathom._model import resolved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Server:
    """A server on a thread of its own; a context manager that stops it."""

    __slots__ = ("__weakref__", "_channel", "_inner", "_stopped", "address", "models")

    def __init__(self, inner: Any, channel: Any, models: list[str]) -> None:
        self._inner, self._channel, self._stopped = inner, channel, False
        self.address: str = inner.address
        """Host and port."""
        self.models = models
        """The models' paths."""
        _edge.keep(self)

    @property
    def url(self) -> str:
        """The base of OpenAI's protocol: `openai.OpenAI(base_url=server.url)`."""
        return f"http://{self.address}/v1"

    def stop(self) -> None:
        """Ends open requests, stops, and frees the models' memory."""
        if self._stopped:
            return
        self._stopped = True
        self._inner.stop()
        while not self._inner.wait(0.05):
            pass
        self._channel.end()

    def wait(self) -> None:
        """Serves until Ctrl-C."""
        try:
            while not self._inner.wait(0.1):
                pass
        except KeyboardInterrupt:
            self.stop()
            raise

    def _end(self) -> None:
        self.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a server cannot be pickled; pass its url")

    def __repr__(self) -> str:
        return f"<fathom.Server at {self.url}{', stopped' if self._stopped else ''}>"


def serve(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    precision: str | None = None,
    threads: int = 0,
    memory: int | str | None = None,
    device: str = "auto",
    guard: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Server:
    """Serves models over HTTP in this process; returns once it listens. Port 0 takes a free one. `settings` are keys of
    `serve`, such as `context_tokens=8192`. `guard` is a folder of guardrails around every model."""
    paths = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    where = [resolved(path) for path in paths]
    beside = os.path.join(os.path.dirname(sys.executable), "fathom")
    compiler = beside if os.path.exists(beside) else shutil.which("fathom")
    options = {
        "names": list(names),
        "adapters": [(name, os.fspath(path)) for name, path in (adapters or {}).items()],
        "precision": precision,
        "threads": threads,
        "memory_bytes": _edge.bytes_of(memory),
        "settings": [f"serve.{name}={value}" for name, value in settings.items()],
        "host": host,
        "port": port,
        "device": device,
        "compiler": compiler,
        "guard": None if guard is None else os.fspath(guard),
    }
    _edge.record()
    channel = _fathom.Channel()
    return Server(_fathom.Server.start(where, options, channel), channel, where)
