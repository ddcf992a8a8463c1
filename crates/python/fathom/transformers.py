"""Transformers' names over Fathom, for programs that load a model and generate from token ids, texts or conversations. Tokenizers
are `fathom.Tokenizer`, which returns lists, and a model is not a module: it has no forward pass, and `fathom.Model` has logits and
hidden states. A setting that has no equivalent is refused by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fathom._model import Model
from fathom._tokenizer import Tokenizer
from fathom.errors import Error

if TYPE_CHECKING:
    import os

_IGNORED = {"device_map", "low_cpu_mem_usage", "trust_remote_code", "attn_implementation", "use_safetensors"}
_TYPES = {"bfloat16": "bf16", "bf16": "bf16", "float32": "f32", "f32": "f32", "auto": None}


class AutoTokenizer:
    """`from_pretrained` opens a `fathom.Tokenizer`."""

    @staticmethod
    def from_pretrained(path: str | os.PathLike[str], **settings: Any) -> Tokenizer:
        """Opens a tokenizer."""
        _refuse("AutoTokenizer.from_pretrained", settings, {"use_fast", "padding_side", *_IGNORED})
        return Tokenizer.from_pretrained(path)


class CausalLM:
    """A model with Transformers' `generate`: token ids in, token ids out."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def generate(self, input_ids: Any, **settings: Any) -> list[list[int]]:
        """Continues token ids; returns them with what follows, a list for each. Tokens that `attention_mask` leaves out
        are not read."""
        mask = settings.pop("attention_mask", None)
        settings.pop("pad_token_id", None)
        ids, kept = _lists(input_ids), None if mask is None else _lists(mask)
        prompts = ids
        if kept is not None:
            if [len(row) for row in kept] != [len(row) for row in ids]:
                raise Error("generate: attention_mask has another shape than input_ids")
            prompts = [[token for token, keep in zip(*rows, strict=True) if keep] for rows in zip(ids, kept, strict=True)]
        settings.setdefault("max_new_tokens", 20)
        found = self.model.generate(prompts, **settings)
        answers = [of if isinstance(of, list) else [of] for of in found]
        return [[*before, *answer.ids] for before, several in zip(ids, answers, strict=True) for answer in several]

    def eval(self) -> CausalLM:
        """Models are ready to be asked."""
        return self

    def to(self, *_: Any, **__: Any) -> CausalLM:
        """A model stays where it was opened (`device=`)."""
        return self

    def close(self) -> None:
        """Frees its memory."""
        self.model.close()


class AutoModelForCausalLM:
    """`from_pretrained` opens a model."""

    @staticmethod
    def from_pretrained(path: str | os.PathLike[str], **settings: Any) -> CausalLM:
        """Opens a model."""
        kind = settings.pop("torch_dtype", settings.pop("dtype", "auto"))
        name = str(kind).removeprefix("torch.")
        if name not in _TYPES:
            raise Error(f"AutoModelForCausalLM.from_pretrained: dtype={name} is not there; bfloat16 and float32 are")
        _refuse("AutoModelForCausalLM.from_pretrained", settings, _IGNORED)
        return CausalLM(Model.from_pretrained(path, precision=_TYPES[name]))


def _lists(ids: Any) -> list[list[int]]:
    """Rows of numbers, from one row or several, of any array."""
    found: Any = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    rows: list[list[int]] = found if found and isinstance(found[0], (list, tuple)) else [found]
    return rows


def pipeline(task: str, model: str | os.PathLike[str], **settings: Any) -> Any:
    """The pipeline `text-generation`: a function of a prompt or a conversation, or of a list of prompts."""
    if task != "text-generation":
        raise Error(f"pipeline: the task {task!r} is not there; 'text-generation' is, and Model.embed and Model.rerank")
    _refuse("pipeline", settings, {*_IGNORED, "torch_dtype", "dtype", "device"})
    opened = Model.from_pretrained(model)

    def ask(inputs: Any, **of: Any) -> list[Any]:
        full = of.pop("return_full_text", True)
        if not isinstance(inputs, str) and inputs and hasattr(inputs[0], "keys"):
            answer = opened.chat(inputs, **of)
            return [{"generated_text": [*inputs, {"role": "assistant", "content": answer.text}]}]
        many = [inputs] if isinstance(inputs, str) else list(inputs)
        found = opened.generate(many, **of)
        rows = [{"generated_text": (text if full else "") + answer.text} for text, answer in zip(many, found, strict=True)]
        return rows if isinstance(inputs, str) else [[row] for row in rows]

    return ask


def _refuse(what: str, settings: dict[str, Any], known: set[str]) -> None:
    for name in settings:
        if name not in known:
            raise Error(f"{what}: the setting `{name}` has no equivalent here; see docs/python.md for what has one")


__all__ = ["AutoModelForCausalLM", "AutoTokenizer", "CausalLM", "pipeline"]
