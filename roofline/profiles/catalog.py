"""Finds profiles by name, alias or path: hardware and models, in the same places and by the same rules.

Order: an explicit path → the folders of `--profile-dir` and ROOFLINE_PROFILE_PATH → the checkout → the data of the package.
A name that is a file's stem is found without opening any other file; only a miss scans the aliases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.errors import ProfileError, UnknownNameError
from roofline.profiles import yamlfile
from roofline.profiles.hardware import Hardware
from roofline.profiles.hardware import load as _load_hardware_file

if TYPE_CHECKING:
    from roofline.profiles.model import Model

ENVIRONMENT = "ROOFLINE_PROFILE_PATH"
_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Shelf:
    """One kind of profile: its folder, what to call it in messages, the keys of a file that hold other names, what paths may name."""

    folder: str
    noun: str
    option: str
    name_keys: tuple[str, ...]
    paths: str


HARDWARE = Shelf("hwprofiles", "device", "roofline hardware list", ("name", "aliases"), "a YAML file")
MODELS = Shelf("modelprofiles", "model", "roofline models list", ("name", "aliases", "hf_ids"), "a YAML file, a config.json or its folder")


def load_hardware(name_or_path: str | Path, *, profile_dirs: Sequence[Path] = ()) -> Hardware:
    """The device called `name_or_path`: a profile's name or alias (case, spaces, hyphens do not matter), or a YAML path.

    profile_dirs: folders to look in before all others. "auto" is this machine's first device. Raises UnknownNameError with
    the candidates for an unknown or ambiguous name, ProfileError for a file that cannot be used.
    """
    if str(name_or_path).strip().lower() == "auto":
        from roofline.profiles.detect import hardware_from_this_machine

        return hardware_from_this_machine()
    return _load_hardware_file(find(HARDWARE, name_or_path, profile_dirs))


def load_model(name_or_path: str | Path, *, profile_dirs: Sequence[Path] = ()) -> Model:
    """The model called `name_or_path`: a profile's name, alias or hub id, a path that modelfile reads, or "hf:" and a
    hub id to fetch from the hub. Raises as load_hardware does.
    """
    from roofline.profiles import modelfile

    if str(name_or_path).startswith("hf:"):
        from roofline.profiles import hub

        return hub.load(str(name_or_path))
    return modelfile.load(find(MODELS, name_or_path, profile_dirs))


def list_hardware(*, profile_dirs: Sequence[Path] = ()) -> list[Hardware]:
    """All devices, sorted by id; a file in an earlier folder hides one of the same name in a later one."""
    return [_load_hardware_file(path) for path in files(HARDWARE, profile_dirs).values()]


def find(shelf: Shelf, name_or_path: str | Path, profile_dirs: Sequence[Path] = ()) -> Path:
    """The file of a profile. Raises UnknownNameError for a name that no or several profiles have."""
    text = str(name_or_path).strip()
    if _is_path(name_or_path):
        return _expanded(shelf, text)
    known = files(shelf, profile_dirs)
    if text in known:
        return known[text]
    wanted = normal(text)
    if not wanted:
        raise UnknownNameError(f"{text!r} is no name of a {shelf.noun}; `{shelf.option}` shows all")
    by_stem = [stem for stem in known if normal(stem) == wanted]
    found = by_stem or [stem for stem, names in _names(shelf, known) if wanted in names]
    if len(found) == 1:
        return known[found[0]]
    if not found and Path(text).exists():
        return Path(text)
    raise UnknownNameError(_candidates(shelf, text, wanted, found, known))


def files(shelf: Shelf, profile_dirs: Sequence[Path] = ()) -> dict[str, Path]:
    """Profile files by stem, sorted; the first folder that has a stem wins."""
    found: dict[str, Path] = {}
    for folder in folders(shelf, profile_dirs):
        for entry in os.scandir(folder):
            stem, suffix = os.path.splitext(entry.name)
            if suffix in _SUFFIXES and stem[:1] not in "_.":
                found.setdefault(stem, folder / entry.name)
    return dict(sorted(found.items()))


def folders(shelf: Shelf, profile_dirs: Sequence[Path] = ()) -> list[Path]:
    """The folders that are searched, first to last. A folder given by the user may hold the profiles or a subfolder of them."""
    given = [*profile_dirs, *(Path(p) for p in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if p)]
    for folder in given:
        if not folder.is_dir():
            raise ProfileError(f"is not a folder (--profile-dir, {ENVIRONMENT})", path=folder)
    theirs = [sub if (sub := folder / shelf.folder).is_dir() else folder for folder in given]
    ours = [_PACKAGE.parent / shelf.folder, _PACKAGE / "_data" / shelf.folder]
    return theirs + [folder for folder in ours if folder.is_dir()]


def sources() -> dict[str, str]:
    """Source key of hardware figures → the document it stands for."""
    found: dict[str, str] = {}
    for folder in reversed(folders(HARDWARE)):
        if (path := folder / "_sources.yaml").is_file():
            found |= yamlfile.read(path).data
    return found


def normal(name: str) -> str:
    """The form in which names are compared: lower case, letters, digits and dots only; a hub id's owner counts."""
    return re.sub(r"[^a-z0-9./]", "", name.lower())


def scan(shelf: Shelf, key: str, known: dict[str, Path]) -> Iterator[tuple[str, Any]]:
    """(stem, value) of one top-level key of each file that has it, without reading the rest as YAML.

    A file that cannot be read is passed over: it must not hide the others, and it will say so when it is asked for.
    """
    block = re.compile(rf"^{key}:.*(?:\n(?:[ \t#-].*)?)*", re.MULTILINE)
    for stem, path in known.items():
        try:
            match = block.search(yamlfile.read_text(path))
            if match:
                yield stem, yamlfile.parse(match[0], path).data[key]
        except ProfileError:
            continue


def _expanded(shelf: Shelf, text: str) -> Path:
    """The path with ~ and ~user written out."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        home = Path(text).parts[0]
        raise UnknownNameError(f"{text!r} is no {shelf.noun}: there is no home folder {home!r}; write ./{text} for a file here") from None


def _is_path(name: str | Path) -> bool:
    text = str(name)
    if isinstance(name, Path) or text.endswith(_SUFFIXES) or text.startswith((".", "~", os.sep)):
        return True
    return os.sep in text and Path(text).exists()  # a hub id has a slash too


def _names(shelf: Shelf, known: dict[str, Path]) -> Iterator[tuple[str, set[str]]]:
    """(stem, other names in normal form) of each profile."""
    names: dict[str, set[str]] = {}
    for key in shelf.name_keys:
        for stem, value in scan(shelf, key, known):
            listed = value if isinstance(value, list) else [value]
            names.setdefault(stem, set()).update(normal(str(item)) for item in listed)
    yield from names.items()


def _candidates(shelf: Shelf, text: str, wanted: str, found: list[str], known: dict[str, Path]) -> str:
    """What to say about a name that is not exactly one profile."""
    fits = found or [stem for stem in known if normal(stem).startswith(wanted)]
    if fits:
        several = len(fits) > 1
        return f"{text!r} is ambiguous; write one of: {', '.join(fits)}" if several else f"{text!r} is not known; did you mean {fits[0]!r}?"
    inside = [stem for stem in known if wanted in normal(stem)]
    hint = f"did you mean {' or '.join(map(repr, inside[:6]))}?" if inside else yamlfile.nearest(text.lower(), list(known))
    nowhere = ", and there is no such file or folder" if os.sep in text else ""
    if shelf is HARDWARE and wanted == "cpu":
        hint = "measure this machine: `roofline bench all --profile this-machine.yaml`, then -H this-machine.yaml;"
    return f"unknown {shelf.noun} {text!r}{nowhere}; {hint} `{shelf.option}` shows all; the path of {shelf.paths} works too"
