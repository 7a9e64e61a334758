"""Before the load: is there a server, does it take these requests, how does it count words? Each "no" is one line that says why."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from time import monotonic

from roofline.errors import InputError, RooflineError
from roofline.loadtest import failures
from roofline.loadtest.exchange import error_message
from roofline.loadtest.failures import Failure
from roofline.loadtest.http import Connection, Head, Target
from roofline.loadtest.lane import Job, Lane, Shop
from roofline.loadtest.wire import Wire
from roofline.records import RequestRecord

PAGE_TIMEOUT_S = 5.0


@dataclass
class Page:
    """A receiver that keeps a whole answer."""

    status: int = 0
    body: bytes = b""
    failure: Failure | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def on_head(self, head: Head, now: float) -> None:
        """See http.Receiver."""
        self.status = head.status

    def on_body(self, data: bytes, now: float) -> None:
        """See http.Receiver."""
        self.body += data

    def on_end(self, failure: Failure | None, now: float) -> None:
        """See http.Receiver."""
        self.failure = failure
        self.done.set()


async def fetch(wire: Wire, path: str) -> Page:
    """GET a page. Raises Failure if there is no complete answer."""
    connection = await Connection.open(wire.target, PAGE_TIMEOUT_S)
    page = Page()
    try:
        connection.send(wire.get(path), page)
        await asyncio.wait_for(page.done.wait(), PAGE_TIMEOUT_S)
    except TimeoutError:
        raise Failure(failures.TIMEOUT, path) from None
    finally:
        connection.close()
    if page.failure is not None:
        raise page.failure
    return page


async def only_model(wire: Wire) -> str:
    """The model that the server has, if it has one. Raises InputError that lists them, or says that it does not tell."""
    path = f"{wire.target.api}/models"
    try:
        page = await fetch(wire, path)
        names = [str(model["id"]) for model in json.loads(page.body)["data"]] if page.status == 200 else []
    except Failure as failure:
        raise explained(failure, wire) from None
    except (ValueError, KeyError, TypeError):
        names = []
    if page.status in (401, 403):
        raise explained(Failure(str(page.status), error_message(page.body)), wire)
    if len(names) == 1:
        return names[0]
    if not names:
        answered = "" if page.status == 200 else f" (HTTP {page.status})"
        where = f"{wire.target.url}{'' if wire.target.prefix else '/v1'}/models"
        raise InputError(f"{where} names no model{answered}: check the path of the URL, or give --model NAME")
    raise InputError(f"the server has several models, give --model: {', '.join(names[:10])}")


def explained(failure: Failure, wire: Wire) -> RooflineError:
    """The one line for a server that cannot be tested at all."""
    target, said = wire.target, f": {failure.detail}" if failure.detail else ""
    kind = failure.kind
    if kind == failures.REFUSED:
        return RooflineError(f"no server at {target.url}: connection refused; is it running, and is the port right?")
    if kind == failures.UNREACHED:
        return RooflineError(f"{target.url}: no connection in time; is the host up, the port open, and https:// right?")
    if kind == failures.NO_NAME:
        return InputError(f"{target.host}: no such host{said}")
    if kind == failures.TLS:
        plain = any(sign in said.lower() for sign in ("wrong_version", "wrong version", "handshake", "record layer"))
        hint = "is it plain HTTP? then write http://" if plain else "to trust its certificate, see SSL_CERT_FILE"
        return RooflineError(f"{target.url}: TLS does not work{said}; {hint}")
    if kind in ("401", "403"):
        return InputError(f"{target.url}: the server wants another API key ({kind}{said}); set it in the environment, see --api-key-env")
    if kind == "404":
        wrong_model = "model" in failure.detail.lower()
        fix = f"`--model {wire.model}` is not there; GET {target.api}/models lists what is" if wrong_model else _path_hint(target, wire)
        return InputError(f"{target.url}: 404{said}; {fix}")
    if kind in _MOVED:
        return InputError(f"{target.url}: the server redirects ({kind}{said}): give the address that it names")
    if kind in ("400", "413", "422"):
        fix = "shorten --input-len or --output-len" if _about_length(failure.detail) else "for a server without ignore_eos: --no-ignore-eos"
        return InputError(f"{target.url}: the server refuses the request ({kind}{said}); {fix}")
    if kind in (failures.NO_CONTENT, failures.NOT_A_STREAM, failures.BAD_HTTP, failures.BAD_EVENT):
        return RooflineError(f"{target.url}: no usable answer: {kind}{said}")
    return RooflineError(f"{target.url}: {kind}{said}")


def _path_hint(target: Target, wire: Wire) -> str:
    return f"there is no {wire.path}; give the server's root or its /v1, and --endpoint chat or completions"


def _about_length(text: str) -> bool:
    return any(word in text.lower() for word in ("length", "context", "too long", "max_tokens", "maximum"))


_MOVED = ("301", "302", "307", "308")
FATAL = failures.NO_CONNECTION | {
    *_MOVED,
    *("400", "401", "403", "404", "405", "413", "422"),
    failures.NO_CONTENT,
    failures.NOT_A_STREAM,
    failures.BAD_HTTP,
    failures.BAD_EVENT,
}
"""A first request that fails so will fail again: there is nothing to load."""


async def first_request(shop: Shop, input_tokens: int, output_tokens: int, number: int) -> RequestRecord:
    """One request alone. Raises the explained error if it shows that the run is pointless; other failures are in the record."""
    lane = Lane(shop)
    record = await lane.run(Job(-1, number, (1 << 40) + number, "warmup", input_tokens, output_tokens, (), monotonic()))
    lane.close()
    if record.error in FATAL:
        raise explained(Failure(record.error, record.detail), shop.wire)
    return record
