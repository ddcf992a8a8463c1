"""The blocks of the chapter, and what a stranger types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

CHAPTER = Path(__file__).parents[3] / "docs" / "python.md"


def test_blocks_of_the_chapter_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python test\n(.*?)^```", CHAPTER.read_text(), re.S | re.M)
    assert len(blocks) >= 3
    for block in blocks:
        names: dict[str, Any] = {}
        exec(compile(block, str(CHAPTER), "exec"), names)
    for block in re.findall(r"^```python\n(.*?)^```", CHAPTER.read_text(), re.S | re.M):
        compile(block, str(CHAPTER), "exec")
