"""Times whole Python processes as a user of the installed program has them: with the bytecode that pip or a first run leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence


def seconds(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    """Wall times of `python ARGS` by name of the command, one per round.

    The rounds alternate between the commands, so that a busy machine slows all of them. A first round, not counted, writes the
    bytecode, into a folder of its own: neither a checkout nor PYTHONDONTWRITEBYTECODE may decide what is measured.
    """
    samples: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        for number in range(rounds + 1):
            for name, args in commands.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL, env=environment)
                if number:
                    samples[name].append(time.perf_counter() - start)
    return samples
