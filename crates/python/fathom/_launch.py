"""Scripts as jobs of a cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Slurm:
    """A job of Slurm."""

    nodes: int = 1
    gpus: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    name: str = "fathom"
    options: tuple[str, ...] = ()

    def text(self, script: str, arguments: Sequence[str]) -> str:
        """The batch file. A run that was asked to stop has saved, and the job is queued again."""
        lines = ["#!/bin/bash", f"#SBATCH --job-name={self.name}", f"#SBATCH --nodes={self.nodes}"]
        lines += ["#SBATCH --ntasks-per-node=1", "#SBATCH --requeue", "#SBATCH --signal=INT@120"]
        given = {"gpus-per-node": self.gpus, "time": self.time, "partition": self.partition, "account": self.account}
        lines += [f"#SBATCH --{name}={value}" for name, value in given.items() if value is not None]
        lines += [f"#SBATCH {option}" for option in self.options]
        words = shlex.join([sys.executable, os.path.abspath(script), *arguments])
        return "\n".join([*lines, "set -euo pipefail", f"srun {words}", ""])


@dataclass(frozen=True)
class Local:
    """A process of this machine."""

    def command(self, script: str, arguments: Sequence[str]) -> list[str]:
        """The command line."""
        return [sys.executable, os.path.abspath(script), *arguments]


def launch(
    script: str | os.PathLike[str],
    *arguments: str,
    on: Slurm | Local | None = None,
    submit: bool = True,
) -> str:
    """Submits a script, with the interpreter and the environment of this program. Returns what the scheduler says, or,
    without `submit`, what it would be given."""
    path = os.fspath(script)
    if not os.path.isfile(path):
        raise Error(f"{path}: no such script; a job runs a file, not objects of this session")
    if on is None or isinstance(on, Local):
        command = (on or Local()).command(path, arguments)
        if not submit:
            return shlex.join(command)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = on.text(path, arguments)
    if not submit:
        return text
    try:
        return subprocess.run(["sbatch"], input=text, check=True, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        raise Error("sbatch is not installed here; submit=False returns the batch file") from None
