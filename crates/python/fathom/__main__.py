"""The command `fathom`, and `python -m fathom`."""

from __future__ import annotations

import os
import shutil
import sys

from fathom import _fathom


def program() -> str:
    """The path of this command."""
    name = sys.argv[0]
    if not os.path.basename(name).startswith("__main__"):
        return os.path.abspath(name) if os.path.exists(name) else shutil.which(name) or name
    return shutil.which("fathom") or os.path.join(os.path.dirname(sys.executable), "fathom")


def main() -> None:
    """Runs the command line, and ends the process with its code."""
    path = program()
    code = _fathom.main(["fathom", *sys.argv[1:]], path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
