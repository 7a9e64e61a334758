"""Feeds damaged files to every reader: python scripts/fuzz.py [--seconds 20] [--seed 0] [--atheris] [TARGET...]

A reader may accept what it gets or refuse it with a RooflineError (Failure in the load client). Anything else is a finding: another
exception, more than SLOWEST_S seconds, more than MEMORY bytes. Findings are written to build/fuzz/, and the exit code is 1.
Inputs are real files with random damage: bytes flipped, cut, copied, lengths that lie, values of JSON replaced. With --atheris, where
it is installed, coverage guides the damage (one target per process, as libFuzzer wants).
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz_targets import CHECKOUT, TARGETS, Target

FOUND = CHECKOUT / "build" / "fuzz"
SLOWEST_S = 10.0
MEMORY = 4 * 2**30
NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"4294967296", b"18446744073709551615", b"0.1", b"1" + b"0" * 40)
LENGTHS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 4 * 10**9, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 10**40, 0.5, 1e308, "", "x", "1", [], {}, [1, [2, [3]]], {"a": {"b": 1}}, "\u0000", "../..",
)  # fmt: skip


READERS = (
    "profiles.modelfile", "profiles.gguf", "profiles.hf.config", "profiles.hf.headers", "profiles.hardware", "serving.traces",
    "loadtest.prompts", "loadtest.journal", "loadtest.compare", "loadtest.sse", "loadtest.server_metrics", "records.files",
    "diagnosis.sources", "report.results", "calibration.tables", "planning.sweep",
)  # fmt: skip


def damaged(seed: bytes, rng: random.Random) -> bytes:
    """A copy with one to four kinds of damage."""
    if rng.random() < 0.4 and (changed := _damaged_json(seed, rng)) is not None:
        return changed
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + rng.randint(1, 40)]
        elif kind == 3:
            data[at:at] = data[(start := rng.randrange(len(data) + 1)) : start + rng.randint(1, 200)]
        elif kind == 4:
            data[at : at + 8] = struct.pack("<Q", rng.choice(LENGTHS))
        elif kind == 5:
            data[at : at + 4] = struct.pack("<I", rng.choice(LENGTHS) & 0xFFFFFFFF)
        elif kind == 6:
            _other_number(data, at, rng)
        else:
            data[at:at] = rng.choice((b"\n", b"\r\n", b"\x00", b"\xff\xfe", b"{", b"[" * 5000, b'"', b",", b": ", b"&a *a", b"!!python/x "))
        if not data:
            break
    return bytes(data)


def _other_number(data: bytearray, at: int, rng: random.Random) -> None:
    """Replaces the next digits after `at`."""
    start = next((i for i in range(at, len(data)) if 48 <= data[i] <= 57), None)
    if start is not None:
        end = next((i for i in range(start, len(data)) if not 48 <= data[i] <= 57), len(data))
        data[start:end] = rng.choice(NUMBERS)


def _damaged_json(seed: bytes, rng: random.Random) -> bytes | None:
    """The JSON document (or lines of it) with one value replaced; None when it is no JSON."""
    lines = seed.splitlines()
    try:
        document: Any = [json.loads(line) for line in lines] if len(lines) > 1 and lines[0].endswith(b"}") else json.loads(seed)
    except ValueError:
        return None
    places = list(_places(document))
    if not places:
        return None
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = rng.choice(VALUES)
    return "\n".join(map(json.dumps, document)).encode() if isinstance(document, list) else json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    for key, each in list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []:
        yield value, key
        yield from _places(each)


class TooSlow(Exception):  # noqa: N818 - a finding, not an error of this program
    """A reader took longer than SLOWEST_S."""


def outcome(target: Target, path: Path) -> str:
    """ "read", "refused", or the finding: what was raised and where."""
    from roofline.errors import RooflineError
    from roofline.loadtest.failures import Failure

    signal.setitimer(signal.ITIMER_REAL, SLOWEST_S)
    try:
        target.read(path)
    except (RooflineError, Failure):
        return "refused"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        place = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(f.filename).name}:{f.lineno}" for f in place if "roofline" in f.filename]
        return f"{type(error).__name__} at {' < '.join(ours[::-1][:3])}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read"


def _too_slow(*_: Any) -> None:
    raise TooSlow(f"more than {SLOWEST_S:g} s")


def fuzz(name: str, seconds: float, seed: int, *, most: int = sys.maxsize) -> Counter[str]:
    """Outcomes of a target by kind, each finding's first input kept under build/fuzz/; ends after `seconds` or `most` inputs."""
    target, rng, found = TARGETS[name], random.Random(f"{name}-{seed}"), Counter[str]()  # noqa: S311 - no secrets
    seeds = target.seeds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / target.name
        end = time.monotonic() + seconds
        while time.monotonic() < end and found.total() < most:
            data = damaged(rng.choice(seeds), rng)
            path.write_bytes(data)
            result = outcome(target, path)
            found[result] += 1
            if result not in ("read", "refused") and found[result] == 1:
                FOUND.mkdir(parents=True, exist_ok=True)
                (FOUND / f"{name}-{len(found)}{path.suffix}").write_bytes(data)
    return found


def guided(name: str, seconds: float) -> None:
    """The same target under libFuzzer, which ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["roofline"]):
        for module in READERS:
            import_module(f"roofline.{module}")
    target = TARGETS[name]
    folder = tempfile.TemporaryDirectory()
    path, corpus = Path(folder.name) / target.name, Path(folder.name) / "corpus"
    corpus.mkdir()
    for number, data in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        path.write_bytes(data)
        result = outcome(target, path)
        if result not in ("read", "refused"):
            raise RuntimeError(result)

    FOUND.mkdir(parents=True, exist_ok=True)
    atheris.Setup([sys.argv[0], str(corpus), f"-max_total_time={seconds:.0f}", f"-artifact_prefix={FOUND}/{name}-"], one)
    atheris.Fuzz()


def main() -> int:
    """Exit code 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; one target")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_slow)
    if given.atheris:
        guided(given.targets[0], given.seconds)
    bad = 0
    for name in given.targets or TARGETS:
        found = fuzz(name, given.seconds, given.seed)
        findings = {kind: count for kind, count in found.items() if kind not in ("read", "refused")}
        print(
            f"{name:12} {found.total():7,} inputs: {found['read']:,} read, {found['refused']:,} refused, {len(findings)} findings",
            flush=True,
        )
        for kind, count in findings.items():
            print(f"  {count:5} × {kind}", flush=True)
        bad += len(findings)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    sys.exit(main())
