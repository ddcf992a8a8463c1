"""Models: opened once, on a thread of their own, and asked from any thread."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fathom import _edge, _fathom
from fathom._array import Array
from fathom._tokenizer import Tokenizer
from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    Prompt = str | Sequence[int]
    Message = Mapping[str, Any]


@dataclass(frozen=True)
class Usage:
    """Tokens and seconds of a request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class Answer:
    """An answer. It prints as its text."""

    text: str
    ids: list[int]
    stop: str
    """Why it ended: `end_of_text`, `stop_token`, `stop_text`, `length`, `structure`, `deadline`, `receiver`, `refused`."""
    logprobs: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """Of each token: `id`, `logprob`, `rank`, and the `top` tokens."""
    prompt_ids: list[int] = field(default_factory=list, repr=False)
    usage: Usage = field(default_factory=Usage, repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Piece:
    """The next piece of an answer."""

    text: str
    ids: list[int]
    logprobs: list[dict[str, Any]] = field(default_factory=list, repr=False)
    answer: int = 0
    """Index of the answer that it belongs to, where several were asked for."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Card:
    """Facts about a model."""

    name: str
    family: str
    folder: str
    context_tokens: int
    vocabulary: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    scores: int
    generates: bool
    converses: bool
    embedding: int
    labels: list[str]


def _stop(stop: Any) -> str:
    return stop if isinstance(stop, str) else next(iter(stop), "") if stop else ""


# New tokens of an answer if none are asked for.
_TOKENS = 256

# Names of settings: Transformers', vLLM's where it has others, and the core's.
_SAMPLING = {
    "max_new_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "min_tokens": "min_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
    "stop_strings": "stop",
    "stop_token_ids": "stop_ids",
    "ignore_eos": "ignore_eos",
}

_STRUCTURES = ("json_schema", "regex", "choice", "grammar")


def _request(prompt: dict[str, Any], settings: dict[str, Any]) -> str:
    """A request as JSON."""
    sampling: dict[str, Any] = {}
    request: dict[str, Any] = {"prompt": prompt, "sampling": sampling}
    structures = [name for name in _STRUCTURES if settings.get(name) is not None]
    if len(structures) > 1:
        raise Error(f"an answer has one structure, not {' and '.join(structures)}")
    for name, value in settings.items():
        if value is None:
            continue
        if name in _SAMPLING:
            sampling[_SAMPLING[name]] = [value] if name in ("stop", "stop_strings") and isinstance(value, str) else value
        elif name == "do_sample":
            continue
        elif name in ("answers", "n", "num_return_sequences"):
            request["answers"] = value
        elif name in ("logprobs", "prompt_logprobs"):
            request[name] = int(value)
        elif name in ("beams", "num_beams"):
            request["beams"] = {"width": value, "length_penalty": 1.0, "early_stopping": "likely"}
        elif name == "deadline_s":
            request["deadline_s"] = value
        elif name == "json_schema":
            request["structure"] = {"json_schema": value if isinstance(value, str) else json.dumps(value)}
        elif name == "regex":
            request["structure"] = {"regex": value}
        elif name == "choice":
            request["structure"] = {"choice": list(value)}
        elif name == "grammar":
            request["structure"] = {"grammar": value}
        else:
            from difflib import get_close_matches

            near = get_close_matches(name, [*_SAMPLING, "answers", "logprobs", "json_schema", "regex", "choice"], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Error(f"generation has no setting `{name}`{hint}")
    if (sampled := settings.get("do_sample")) is not None:
        sampling["temperature"] = sampling.get("temperature", 1.0) if sampled else 0.0
    if sampling.get("temperature") and "seed" not in sampling:
        sampling["seed"] = int.from_bytes(os.urandom(4), "little")
    return json.dumps(request)


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": prompt}
    try:
        return {"ids": [int(token) for token in prompt]}
    except (TypeError, ValueError):
        raise Error(f"a prompt is a text, token ids or a list of them, not {prompt!r:.80}") from None


def _is_many(prompt: Any) -> bool:
    """Whether this is a list of prompts rather than one."""
    return hasattr(prompt, "__getitem__") and not isinstance(prompt, str) and len(prompt) > 0 and not hasattr(prompt[0], "__index__")


def _conversation(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, variables: dict[str, Any], end: bool
) -> dict[str, Any]:
    return {
        "conversation": {
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in tools or []],
            "add_generation_prompt": end,
            "continue_final_message": False,
            "variables": variables,
        }
    }


class Stream:
    """The pieces of an answer as they come, by `for` and by `async for`. Leaving the loop cancels the request."""

    __slots__ = ("_request", "answer")

    def __init__(self, request: Any) -> None:
        self._request = request
        self.answer: Answer | None = None
        """The whole answer, once the last piece has come; a list where several were asked for."""

    def __iter__(self) -> Iterator[Piece]:
        try:
            while (found := self._request.next()) is not None:
                for answer, text, ids, logprobs in found:
                    yield Piece(text, ids, json.loads(logprobs) if logprobs else [], answer)
            output = self._request.answer()
            self.answer = None if output is None else _answered(json.loads(output))
        finally:
            self._request.cancel()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        import asyncio

        loop, pieces, end = asyncio.get_running_loop(), iter(self), object()
        try:
            while (piece := await loop.run_in_executor(None, next, pieces, end)) is not end:
                assert isinstance(piece, Piece)
                yield piece
        finally:
            self._request.cancel()

    def close(self) -> None:
        """Cancels the request."""
        self._request.cancel()


def resolved(path: str | os.PathLike[str]) -> str:
    """A path to a model. A name on a hub is resolved by `huggingface_hub` (the extra `hub`)."""
    text = os.fspath(path)
    if os.path.exists(text) or text.count("/") > 1 or text.startswith((".", "/")):
        return text
    try:
        from huggingface_hub import snapshot_download  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return text
    try:
        return str(snapshot_download(text))
    except Exception:
        return text


class Model:
    """A language model, an embedding model or a reward model, on a thread of its own.

    It is a context manager: its memory returns at `close`, and also when the last reference to it goes."""

    __slots__ = ("__weakref__", "_card", "_inner", "_process", "path")

    def __init__(self, inner: Any, path: str) -> None:
        self._inner = inner
        self._process = os.getpid()
        self.path = path
        """Where it was opened."""
        self._card: Card | None = None
        _edge.keep(self)

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        precision: str | None = None,
        threads: int = 0,
        memory: int | str | None = None,
        context: int | None = None,
        sequences: int = 16,
        draft_tokens: int = 8,
        device: str = "auto",
    ) -> Model:
        """Opens a model: a run's folder, a Hugging Face folder or a GGUF file; a name on the hub with the extra `hub`.

        `adapter` is the folder of one over it, or of its run; a run that trained an adapter opens its base with it.
        `precision` is `"bf16"` or `"f32"`, by default that of the files. `memory` bounds what the model takes (`"8GiB"`),
        `context` the tokens of prompt and answer, `sequences` the answers that are computed at once. `draft_tokens` that
        are guessed from repetitions are read in one step, as a server does; they change no answer."""
        _edge.record()
        where = resolved(path)
        if adapter is None:
            where, adapter = _base_of(where)
        inner = _fathom.Model.open(
            where,
            {
                "adapter": None if adapter is None else os.fspath(adapter),
                "precision": precision,
                "threads": threads,
                "memory_bytes": _edge.bytes_of(memory),
                "context": context,
                "sequences": sequences,
                "draft_tokens": draft_tokens,
                "device": device,
            },
        )
        return cls(inner, os.fspath(path))

    # Text.

    def generate(self, prompt: Any, **settings: Any) -> Any:
        """Continues a prompt (text or token ids), or each of a list, which are computed together.

        Settings have Transformers' names, and Fathom's defaults, with which the most likely tokens are taken:
        `max_new_tokens` (256), `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `seed`, `stop`,
        `logprobs`, `answers`, `beams`, `json_schema`, `regex`, `choice`, `grammar`. Answers that are drawn without a `seed`
        have a new one each."""
        if isinstance(prompt, (list, tuple)) and not prompt:
            return []
        if not _is_many(prompt):
            return self._answers([_prompt(prompt)], settings)[0]
        return self._answers([_prompt(of) for of in prompt], settings)

    def chat(
        self,
        messages: Sequence[Message] | str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        template: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Answer:
        """Answers a conversation, rendered with the model's own chat template; `template` has variables for it."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        found: Answer = self._answers([_conversation(messages, tools, dict(template or {}), True)], settings)[0]
        return found

    def stream(
        self, prompt: Prompt | Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **settings: Any
    ) -> Stream:
        """The answer to a prompt or a conversation in pieces, as they come: `for piece in model.stream(..)`, and
        `async for`."""
        is_talk = not isinstance(prompt, str) and len(prompt) > 0 and hasattr(prompt[0], "keys")
        of = _conversation(prompt, tools, {}, True) if is_talk else _prompt(prompt)  # type: ignore[arg-type]
        return Stream(self._inner.submit(_request(of, self._room(of, settings))))

    def _answers(self, prompts: list[dict[str, Any]], settings: dict[str, Any]) -> list[Any]:
        outputs = self._inner.generate([_request(prompt, self._room(prompt, settings)) for prompt in prompts])
        return [_answered(json.loads(output)) for output in outputs]

    def _room(self, prompt: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """The settings with as many tokens as the context has room for, up to the usual number, if none are asked for."""
        if settings.get("max_new_tokens") is not None or settings.get("max_tokens") is not None:
            return settings
        context = self.card.context_tokens
        text = prompt.get("text", prompt.get("ids"))
        # A text has at most a token a byte, and a few that the tokenizer adds.
        most = 4 * len(text) + 8 if text is not None else context
        if context - _TOKENS < most:
            most = len(self._inner.ids(json.dumps(prompt)))
        return {**settings, "max_new_tokens": max(1, min(_TOKENS, context - most))}

    # Numbers.

    def logits(self, text: Prompt, last: int | None = None) -> Array:
        """Logits of the whole vocabulary at each token of a text, or at the last ones: `[tokens, vocabulary]`."""
        [found] = self._inner.look([self._ids(text)], "logits", *([] if last is None else [last]))
        return Array(found)

    def logprobs(self, text: Prompt) -> list[float]:
        """The natural log-probability of each token given those before it; the first has none, which is NaN."""
        ids = self._ids(text)
        [found] = self._inner.look([ids], "logprobs")
        return [float("nan"), *(found.row(index)[0] for index in range(len(ids) - 1))]

    def hidden_states(self, text: Prompt) -> Array:
        """Hidden states of each token behind the final norm: `[tokens, hidden]`."""
        [found] = self._inner.look([self._ids(text)], "hidden")
        return Array(found)

    def embed(self, texts: str | Sequence[str]) -> Any:
        """A unit vector of a text, or of each of a list."""
        if isinstance(texts, str):
            return Array(self._inner.embed([texts])[0])
        return [Array(found) for found in self._inner.embed(list(texts))]

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """The relevance of each document to a query."""
        return list(self._inner.rerank(query, list(documents)))

    def score(self, text: Prompt) -> list[float]:
        """The scores of a reward model at a text's last token."""
        [found] = self._inner.look([self._ids(text)], "scores")
        return [found.row(index)[0] for index in range(len(found))]

    def _ids(self, text: Prompt) -> list[int]:
        if isinstance(text, str):
            found: list[int] = self._inner.ids(json.dumps({"text": text}))
            return found
        return [int(token) for token in text]

    # The handle.

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self._inner.tokenizer())

    @property
    def card(self) -> Card:
        """Facts about it."""
        if self._card is None:
            of = json.loads(self._inner.card())
            card = of.pop("card")
            names = ("name", "context_tokens", "vocabulary", "generates", "converses", "embedding", "labels")
            self._card = Card(**of, **{name: card[name] for name in names})
        return self._card

    def close(self) -> None:
        """Takes no more requests, and frees its memory once those in progress have ended. In a process that was forked it
        does nothing: the model is its parent's."""
        if os.getpid() == self._process:
            self._inner.close()

    def _end(self) -> None:
        self.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a model cannot be pickled; pass its path, {self.path!r}, and open it there")

    def __repr__(self) -> str:
        if not self._inner.is_open:
            return f"<fathom.Model {self.path}, closed>"
        card = self.card
        return f"<fathom.Model {self.path}: {card.family}, {card.layers} layers of {card.hidden}>"


def _answered(output: dict[str, Any]) -> Any:
    usage = Usage(**output["usage"])
    answers = [
        Answer(of["text"], of["ids"], _stop(of["stop"]), of["logprobs"], output["prompt"], usage)
        for of in output["answers"]
    ]
    return answers[0] if len(answers) == 1 else answers


def _base_of(path: str) -> tuple[str, str | None]:
    """A run that trained an adapter, as its base and its folder."""
    adapter = os.path.join(path, "adapter")
    if os.path.exists(os.path.join(path, "model")) or not os.path.isdir(adapter):
        return path, None
    try:
        with open(os.path.join(adapter, "adapter_config.json"), encoding="utf-8") as file:
            base = json.load(file).get("base_model_name_or_path")
    except OSError:
        return path, None
    return (str(base), path) if base else (path, None)
