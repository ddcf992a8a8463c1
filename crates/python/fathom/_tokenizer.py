"""Tokenizers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, overload

from fathom import _fathom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_in_child = False


def _forked() -> None:
    global _in_child
    _in_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Tokenizer:
    """Text to token ids and back, with the chat template of its model. It has no thread: it goes on in forked
    processes, and pickles."""

    __slots__ = ("_inner",)

    def __init__(self, inner: _fathom.Tokenizer) -> None:
        self._inner = inner

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Opens the tokenizer of a run, a Hugging Face folder or a GGUF file, or a `tokenizer.json`."""
        from fathom._model import resolved

        return cls(_fathom.Tokenizer.open(resolved(path)))

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int = 32_000, special_tokens: Sequence[str] = ("<s>", "</s>")
    ) -> Tokenizer:
        """Trains a byte-level BPE.

        >>> tokenizer = Tokenizer.train(["the old river " * 20], vocab_size=300)
        >>> tokenizer.decode(tokenizer.encode("old river", add_special_tokens=False))
        'old river'
        """
        return cls(_fathom.Tokenizer.train(list(texts), vocab_size, list(special_tokens)))

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of a text. With `add_special_tokens` as Transformers' `tokenizer(text)`; otherwise nothing is added, and
        spellings of special tokens are ordinary text unless `parse_special`."""
        return self._inner.encode(text, parse_special, add_special_tokens)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of many texts; on all threads, except in forked processes, where there is one."""
        return self._inner.encode_batch(list(texts), add_special_tokens, _in_child)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        return self._inner.decode([int(token) for token in ids], skip_special_tokens)

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = ...,
        *,
        add_generation_prompt: bool = ...,
        tokenize: Literal[False],
        **variables: Any,
    ) -> str: ...
    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = ...,
        *,
        add_generation_prompt: bool = ...,
        tokenize: Literal[True] = ...,
        **variables: Any,
    ) -> list[int]: ...
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """Renders a conversation with the chat template, as ids or, without `tokenize`, as text."""
        text = self._inner.render(
            json.dumps(list(messages)), json.dumps(list(tools or [])), add_generation_prompt, json.dumps(variables)
        )
        return self.encode(text, add_special_tokens=False, parse_special=True) if tokenize else text

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """Ids under `input_ids`, as Transformers' tokenizers."""
        if isinstance(text, str):
            return {"input_ids": self.encode(text, add_special_tokens)}
        return {"input_ids": self.encode_batch(text, add_special_tokens)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes its files into a folder."""
        self._inner.save(os.fspath(folder))

    def token(self, id: int) -> str | None:
        """Spelling of a token."""
        return self._inner.token(id)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its spelling."""
        return self._inner.token_id(token)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self._inner.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """Id that begins a text."""
        return self._inner.bos

    @property
    def eos_token_id(self) -> int | None:
        """Id that ends a text."""
        return self._inner.eos

    @property
    def chat_template(self) -> str | None:
        """Source of the chat template."""
        return self._inner.template

    def __len__(self) -> int:
        return self.vocab_size

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (self._inner.json(), self._inner.template)

    def __repr__(self) -> str:
        return f"<fathom.Tokenizer of {self.vocab_size} tokens>"


def _read(text: str, template: str | None) -> Tokenizer:
    return Tokenizer(_fathom.Tokenizer.read(text, template))
