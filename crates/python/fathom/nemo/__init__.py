"""NeMo's names over Fathom's recipes."""

from __future__ import annotations

from fathom.nemo import llm

__all__ = ["llm"]
