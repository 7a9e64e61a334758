"""What the user points at, as observations: a /metrics page twice, saved pages, logs, a load test."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from roofline.diagnosis import exposition, families
from roofline.diagnosis.logs import read_log
from roofline.diagnosis.observations import Observations
from roofline.diagnosis.results import read_result
from roofline.errors import InputError, RooflineError

_TIMEOUT_S = 10.0
_HEAD_LINES = 400


def observe(
    sources: Sequence[str], interval_s: float | None, sleep: Callable[[float], None] = time.sleep
) -> tuple[Observations, list[str]]:
    """(what the sources say together, notes on how they were read). Two saved pages are one observation, the earlier one first.

    interval_s: between the two scrapes of a URL, or between the two saved pages. Raises InputError for what cannot be read.
    """
    seen, notes = Observations(), []
    pages: list[str] = []
    for source in sources:
        if "://" in source:
            seen.update(_watch(source, interval_s or 10.0, sleep))
        elif _is_page(source):
            pages.append(source)
        else:
            seen.update(_read_file(source))
    if len(pages) == 1:
        notes.append(f"{pages[0]} is a single page: counters and histograms in it are of the server's whole life; give two, a minute apart")
        seen.update(_state_alone(pages[0]))
    elif pages:
        if len(pages) > 2:
            raise InputError(f"{len(pages)} saved /metrics pages: give two, the earlier one first")
        seen.update(families.observe(_scrape(pages[0]), _scrape(pages[1]), interval_s))
    return seen, notes


def _lines(path: str) -> Iterator[str]:
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{path}: is a folder; give a log, two saved /metrics pages or a load test's JSON")
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from lines
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None


def _is_page(path: str) -> bool:
    """Whether a file looks like a Prometheus page: a TYPE or HELP comment, or samples, at its beginning."""
    head = [line for line, _ in zip(_lines(path), range(_HEAD_LINES), strict=False)]
    return any(line.startswith(("# TYPE ", "# HELP ", "vllm:", "sglang:", "trtllm_")) for line in head)


def _scrape(path: str) -> exposition.Scrape:
    return families.read(_lines(path), path)


def _state_alone(path: str) -> Observations:
    """The gauges of a single page; counters without an earlier page say nothing about now."""
    page = _scrape(path)
    page.histograms.clear()
    for names in families.COUNTERS.values():
        for name in names:
            page.values.pop(name, None)
    state = families.observe(page, page)
    only = Observations()
    for fact in state:
        if not fact.name.endswith("_before"):
            only.add(fact.name, fact.value, fact.source)
    return only


def _read_file(path: str) -> Observations:
    lines = _lines(path)
    first = next(lines, "")
    if first.lstrip().startswith(("{", "[")):
        text = "".join(chain([first], lines))
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return read_log(text.splitlines(), path)
        if not isinstance(data, dict):
            raise InputError(f"{path}: not a result of `roofline loadtest --json`")
        return read_result(data, path)
    return read_log(chain([first], lines), path)


def scrape(url: str) -> exposition.Scrape:
    """A server's /metrics now. Raises RooflineError if it does not answer, InputError for a page without known families."""
    return families.read(_fetch(url), url)


def _watch(url: str, interval_s: float, sleep: Callable[[float], None]) -> Observations:
    before = scrape(url)
    began = time.monotonic()
    sleep(interval_s)
    return families.observe(before, scrape(url), time.monotonic() - began or interval_s)


def _fetch(url: str) -> list[str]:
    """The lines of a page. A URL without a path is a server's root."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(f"{url}: a URL is http://HOST:PORT/metrics")
    if parts.path in ("", "/", "/v1", "/v1/"):
        url = f"{parts.scheme}://{parts.netloc}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as page:  # noqa: S310 - the scheme was checked
            body: bytes = page.read(exposition.LARGEST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise RooflineError(f"{url}: status {error.code}; is this the server's /metrics? SGLang needs --enable-metrics") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RooflineError(f"{url}: cannot be read: {getattr(error, 'reason', error)}") from None
    if len(body) > exposition.LARGEST_BYTES:
        raise InputError(f"{url}: more than {exposition.LARGEST_BYTES >> 20} MiB; is this /metrics?")
    return body.decode("utf-8", errors="replace").splitlines()
