"""Types: strict, and the stub of the native module is what the module has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]


CHECKS = {"package": ["mypy"], "programs": ["mypy", "tests", "../../oracle/bench/python.py"], "stub": ["mypy.stubtest", "fathom._fathom"]}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_types(check: list[str]) -> None:
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", *check], cwd=PACKAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
