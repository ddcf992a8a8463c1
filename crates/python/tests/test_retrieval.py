"""Indexes and guardrails."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import fathom


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "bridges.md").write_text("# Bridges\n\n## Stone\n\nA stone arch carries its weight to the banks.\n")
    (folder / "rivers.md").write_text("# Rivers\n\nA river slows where its bed is wide.\n")
    return folder


def test_documents_are_indexed_and_found(documents: Path, tmp_path: Path) -> None:
    with fathom.index(documents, tmp_path / "index") as index:
        assert index.account["files"] == 2
        first = index.search("stone arch", k=1)[0]
        assert first.path.endswith("bridges.md") and first.rank == 1 and "weight" in first.text
        assert ":" in first.place
    with pytest.raises(fathom.Error, match="closed"):
        index.search("river")
    again = fathom.Index.open(tmp_path / "index", sparse=True)
    assert [hit.path.rsplit("/", 1)[-1] for hit in again.search("river bed", mode="bm25")][0] == "rivers.md"
    with pytest.raises(fathom.Error, match="bm25"):
        again.search("river", mode="best")


def test_what_is_not_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fathom.Error):
        fathom.Index.open(tmp_path)
    with pytest.raises(fathom.Error):
        fathom.index(tmp_path / "nothing", tmp_path / "index")


def test_a_store_needs_vectors_and_an_address_of_a_store(documents: Path, tmp_path: Path) -> None:
    for store, why in [("qdrant://127.0.0.1:1/docs", "encoder"), ("mysql://host/db", "another scheme")]:
        with pytest.raises(fathom.Error, match=why):
            fathom.index(documents, tmp_path / "stored", store=store)


def test_rails_judge_texts(tmp_path: Path) -> None:
    (tmp_path / "guard.toml").write_text(
        '[[rail]]\nuse = "personal_data"\non = ["input"]\naction = "mask"\nkinds = ["email"]\n'
        '[[rail]]\nuse = "regex"\non = ["input"]\naction = "block"\npatterns = ["forbidden"]\n'
    )
    guard = fathom.Guard(tmp_path)
    assert guard.check("hello").status == "passed"
    masked = guard.check("write to ada@example.org")
    assert masked.status == "modified" and masked.content and "ada@" not in masked.content
    assert guard.check([{"role": "user", "content": "a forbidden word"}]).is_blocked
    assert pickle.loads(pickle.dumps(guard)).check("forbidden").is_blocked
    with pytest.raises(fathom.Error):
        fathom.Guard(tmp_path / "nothing")
