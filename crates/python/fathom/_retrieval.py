"""Indexes of documents, and guardrails that judge texts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fathom import _edge, _fathom

if TYPE_CHECKING:
    from collections.abc import Sequence

    Path = str | os.PathLike[str]


class Hit:
    """A passage that answers a query."""

    __slots__ = ("figures", "headings", "path", "rank", "score", "text", "title")

    def __init__(self, figures: dict[str, Any]) -> None:
        self.rank: int = figures["rank"]
        """Rank, from 1."""
        self.score: float = figures["score"]
        """Score of the ranking."""
        self.path: str = figures["path"]
        """Path of its file."""
        self.title: str = figures.get("title", "")
        """Title of its document."""
        self.headings: list[str] = figures.get("headings", [])
        """Headings that it stands under."""
        self.text: str = figures["text"]
        """Its text."""
        self.figures = figures
        """All fields, as `fathom search --json` prints them: lines, bytes, page, metadata, near-duplicates."""

    @property
    def place(self) -> str:
        """Its place, as compilers print it: `path:line`, or `path, page 3`."""
        if "page" in self.figures:
            return f"{self.path}, page {self.figures['page']}"
        lines = self.figures.get("lines")
        return f"{self.path}:{lines[0]}" if lines else self.path

    def __repr__(self) -> str:
        return f"<fathom.Hit {self.rank}: {self.place}>"


class Index:
    """An index of documents, opened with its encoder; a context manager that closes it."""

    __slots__ = ("__weakref__", "_inner", "account", "folder")

    def __init__(self, inner: Any, folder: str, account: dict[str, Any]) -> None:
        self._inner = inner
        self.folder = folder
        """Its folder."""
        self.account = account
        """What `fathom.index` found: files, documents, chunks, what was skipped and why; empty for an index that was
        only opened."""

    @staticmethod
    def open(
        folder: Path,
        *,
        encoder: Path | None = None,
        reranker: Path | None = None,
        sparse: bool = False,
        device: str = "auto",
        threads: int = 0,
    ) -> Index:
        """Opens an index. Its vectors are asked by the encoder that it was written with, or by `encoder`, a folder of the
        same model; `reranker` is a cross-encoder that orders what is found; `sparse` leaves vectors unused."""
        return _open(os.fspath(folder), encoder, reranker, (sparse, device, threads), {})

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        where: Mapping[str, Any] | Sequence[str] = (),
        mode: str = "auto",
        exact: bool = False,
    ) -> list[Hit]:
        """The `k` passages that answer a query best. `where` are conditions on fields of documents (`{"year": 2026}`, or
        texts as `fathom search --where` has them); `mode` is `auto`, `bm25` or `dense`; `exact` compares with every
        vector."""
        conditions = [f"{name}={value}" for name, value in where.items()] if isinstance(where, Mapping) else list(where)
        return [Hit(json.loads(hit)) for hit in self._inner.search(query, k, conditions, mode, exact)]

    def close(self) -> None:
        """Frees the memory of its models."""
        self._inner.close()

    def _end(self) -> None:
        self.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"an index cannot be pickled; pass its folder, {self.folder!r}, and open it there (Index.open)")

    def __repr__(self) -> str:
        return f"<fathom.Index in {self.folder}>"


def _open(
    folder: str,
    encoder: Path | None,
    reranker: Path | None,
    rest: tuple[bool, str, int],
    account: dict[str, Any],
) -> Index:
    sparse, device, threads = rest
    options = {
        "encoder": None if encoder is None else os.fspath(encoder),
        "reranker": None if reranker is None else os.fspath(reranker),
        "sparse": sparse,
        "device": device,
        "threads": threads,
    }
    index = Index(_fathom.Index.open(folder, options), folder, account)
    _edge.keep(index)
    return index


def index(
    paths: Path | Sequence[Path],
    out: Path,
    *,
    encoder: Path | None = None,
    chunk_bytes: int | None = None,
    personal_data_out: bool = False,
    store: str | None = None,
    device: str = "auto",
    threads: int = 0,
) -> Index:
    """Writes an index of files and folders (Markdown, text, HTML, PDF, JSON lines, source code), or updates what changed,
    and opens it. `encoder` is the folder of a sentence encoder, for vectors; `personal_data_out` masks personal data in
    what is indexed; `store` is the address of a store that searches ask for vectors (`qdrant://..`, `postgres://..`)."""
    texts = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    options = {
        "encoder": None if encoder is None else os.fspath(encoder),
        "chunk_bytes": chunk_bytes,
        "personal_data_out": personal_data_out,
        "store": store,
        "device": device,
        "threads": threads,
    }
    with _edge.Told("index") as channel:
        found = _fathom.index([os.fspath(path) for path in texts], os.fspath(out), options, channel)
    return _open(os.fspath(out), encoder, None, (False, device, threads), json.loads(found))


class Verdict:
    """What rails say of a text."""

    __slots__ = ("answer", "content", "rail", "status")

    def __init__(self, answer: dict[str, Any]) -> None:
        self.status: str = answer["status"]
        """`passed`, `modified` or `blocked`."""
        self.rail: str | None = answer.get("rail")
        """The rail that blocked it."""
        self.content: str | None = answer.get("content")
        """The text as rails let it through."""
        self.answer = answer
        """The whole answer of `/v1/checks`, with the verdict of each rail."""

    @property
    def is_blocked(self) -> bool:
        """Whether a rail blocked it."""
        return self.status == "blocked"

    def __repr__(self) -> str:
        return f"<fathom.Verdict {self.status}{f' by {self.rail}' if self.rail else ''}>"


class Guard:
    """The rails of a folder, which judge texts without a model around them; `fathom.serve(guard=)` puts them around
    models."""

    __slots__ = ("_inner", "folder")

    def __init__(self, folder: Path, *, device: str = "auto") -> None:
        self.folder = os.fspath(folder)
        """The folder of `guard.toml`."""
        self._inner = _fathom.Guard.open(self.folder, device)

    def check(self, text: str | Sequence[Mapping[str, Any]], *, role: str = "user") -> Verdict:
        """Judges a text of a role (`user`, `assistant`, `tool`), or the messages of a conversation."""
        messages = [{"role": role, "content": text}] if isinstance(text, str) else [dict(message) for message in text]
        return Verdict(json.loads(self._inner.check(json.dumps({"messages": messages}))))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Guard, (self.folder,))

    def __repr__(self) -> str:
        return f"<fathom.Guard of {self.folder}>"
