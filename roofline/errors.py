"""Every exception that the package raises on purpose, and the exit code that the command line gives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RooflineError(Exception):
    """Base of all expected failures: the message is one that a user can act on. Exit code 1."""

    exit_code = 1


class InputError(RooflineError):
    """Wrong usage or wrong input: the message names file, line, key and the fix. Exit code 2."""

    exit_code = 2


class UnitError(InputError):
    """A quantity whose number or unit cannot be read ("80 Gb", "3.35 tb/s")."""


class ProfileError(InputError):
    """A hardware or model file that cannot be used, with the place in it.

    path: the file; line: 1-based line in it; key: dotted path of the offending key. Each may be unknown (None).
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None, key: str | None = None) -> None:
        self.message, self.path, self.line, self.key = message, path, line, key
        place = ":".join(str(part) for part in (path, line, key) if part is not None)
        super().__init__(f"{place}: {message}" if place else message)


class UnknownNameError(InputError):
    """A model or device name that the catalogue does not have, or that fits several: the candidates are in the message."""


class ShardError(InputError):
    """A parallel layout that does not divide the model: the message names the field and the sizes that would."""


class RecordError(InputError):
    """A table or records file with a missing column, a bad value or mixed units."""


class DoesNotFitError(RooflineError):
    """The configuration does not fit the device, or a service level cannot be met. Exit code 3."""

    exit_code = 3


class UntrustworthyError(RooflineError):
    """A measurement that cannot be trusted (load, throttling, spread). Exit code 4."""

    exit_code = 4


class MissingDependencyError(InputError):
    """A command needs a package of an extra that is not installed: the message is the line that installs it."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'roofline[{extra}]'")


@contextmanager
def well_formed(where: str, writer: str) -> Iterator[None]:
    """Inside it, what a missing or misshapen key raises is a RecordError: the document at `where` is not as `writer` writes it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise RecordError(f"{where}: not as {writer} writes it ({type(error).__name__}: {error})") from None
