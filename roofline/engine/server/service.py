"""The HTTP side: who may ask, how much, and what happens when a client goes away or says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count

from aiohttp import web

from roofline import __version__
from roofline.engine.server import asked
from roofline.engine.server.answer import Answer, error_event
from roofline.engine.server.errors import Refusal
from roofline.engine.server.metrics import CONTENT_TYPE, Life, Metrics
from roofline.engine.server.text import Text
from roofline.engine.server.worker import Job, Update, Worker, clock

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Bounds:
    """What a client may take up. most: answers in the making, of all clients; body_bytes: of a request.

    body_s: until a body is whole; linger_s: for the rest of one that was refused; write_s: until a client has taken what was sent;
    idle_s: until a connection without a request in it is closed, which is also how long a header may take.
    """

    most: int = 1024
    body_bytes: int = 4 << 20
    body_s: float = 30.0
    linger_s: float = 5.0
    write_s: float = 60.0
    idle_s: float = 60.0


class Service:
    """The API on one engine. key: without it in the Authorization header /v1 is closed ("" = open to all)."""

    def __init__(self, worker: Worker, text: Text, limits: asked.Limits, bounds: Bounds, key: str = "") -> None:
        self.worker, self.text, self.limits, self.bounds = worker, text, limits, bounds
        self.draining = False
        self.active = 0
        self._key = f"Bearer {key}".encode() if key else b""
        self._numbers = count()
        self._began = int(time.time())

    @property
    def metrics(self) -> Metrics:
        """Of the engine."""
        return self.worker.metrics

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=self.bounds.body_bytes, middlewares=[self._answer_errors])
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors in the API's shape, whoever raised them."""
        try:
            if request.path.startswith("/v1/"):
                self._check_key(request)
            return await handler(request)
        except Refusal as refusal:
            found = refusal
        except web.HTTPException as error:
            if error.status < 400:
                raise
            found = Refusal(error.status, f"{request.method} {request.path}: {error.reason}", headers=_kept(error))
        return web.json_response(found.body, status=found.status, headers=found.headers)

    def _check_key(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._key and not hmac.compare_digest(given, self._key):
            raise Refusal(401, "this server wants an API key: Authorization: Bearer KEY", code="invalid_api_key")

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self.limits.name, "object": "model", "created": self._began, "owned_by": "roofline"}
        return web.json_response({"object": "list", "data": [model | {"max_model_len": self.limits.max_model_len}]})

    async def _health(self, request: web.Request) -> web.Response:
        if self.worker.failure or self.draining:
            raise Refusal(503, self.worker.failure or "shutting down")
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        arrival = clock()
        wanted = asked.read(await self._body(request), request.path.endswith("/chat/completions"), self.text, self.limits)
        self._admit(len(wanted.samplings))
        self.active += len(wanted.samplings)
        number = next(self._numbers)
        updates: asyncio.Queue[Update] = asyncio.Queue()
        jobs = [self._job(index, number, wanted, arrival, updates) for index in range(len(wanted.samplings))]
        answer = Answer(wanted, self.text, self.limits.name, f"{'chatcmpl' if wanted.chat else 'cmpl'}-{number}")
        try:
            for job in jobs:
                self.worker.submit(job)
            return await (self._stream if wanted.stream else self._whole)(request, answer, updates, jobs)
        finally:
            self.active -= len(jobs)
            for job in jobs:
                self.worker.abort(job.request_id)  # a client that went away; for one that has all it does nothing

    async def _body(self, request: web.Request) -> bytes:
        if request.content_type != "application/json":
            raise Refusal(415, f"Content-Type is {request.content_type}: send application/json")
        if (request.content_length or 0) > self.bounds.body_bytes:
            raise Refusal(413, f"the body has {request.content_length} bytes: at most {self.bounds.body_bytes}")
        try:
            async with asyncio.timeout(self.bounds.body_s):
                return await request.read()
        except TimeoutError:
            raise Refusal(408, f"the body was not here after {self.bounds.body_s:g} s", headers={"Connection": "close"}) from None
        except web.RequestPayloadError as error:
            raise Refusal(400, f"the body cannot be read: {error}", headers={"Connection": "close"}) from None

    def _admit(self, answers: int) -> None:
        """Raises Refusal where there is no room for so many more answers."""
        if self.worker.failure:
            raise Refusal(500, f"the engine has failed: {self.worker.failure}")
        if self.draining:
            self.metrics.rejected("draining")
            raise Refusal(503, "the server is shutting down", headers={"Retry-After": "5", "Connection": "close"})
        if self.active + answers > self.bounds.most:
            self.metrics.rejected("max_concurrent_requests")
            raise Refusal(429, f"{self.active} answers are in the making: at most {self.bounds.most}", headers={"Retry-After": "1"})

    def _job(self, index: int, number: int, wanted: asked.Asked, arrival: float, updates: asyncio.Queue[Update]) -> Job:
        at = index // wanted.n
        prompt, most = wanted.prompts[at], wanted.max_tokens[at]
        life = Life(arrival, len(prompt), most, wanted.n)
        return Job(f"{number}-{index}", index, prompt, most, wanted.samplings[index], life, updates.put_nowait)

    async def _whole(self, request: web.Request, answer: Answer, updates: asyncio.Queue[Update], jobs: list[Job]) -> web.StreamResponse:
        while not answer.done:
            for update in await _all(updates):
                answer.gather(update)
                self._cut(answer, update, jobs)
        if refusal := _failed(answer):
            raise refusal
        return web.json_response(answer.whole())

    async def _stream(self, request: web.Request, answer: Answer, updates: asyncio.Queue[Update], jobs: list[Job]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
        with contextlib.suppress(ConnectionError):  # the client has gone
            await response.prepare(request)
            async for said in self._said(answer, updates, jobs):
                try:
                    async with asyncio.timeout(self.bounds.write_s):
                        await response.write(said)
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
                    break
            else:
                await response.write_eof()
        return response

    async def _said(self, answer: Answer, updates: asyncio.Queue[Update], jobs: list[Job]) -> AsyncIterator[bytes]:
        """The pieces of a stream as they come; those that are there at the same time in one."""
        if opening := answer.opening():
            yield opening
        while not answer.done:
            said = b""
            for update in await _all(updates):
                said += answer.chunk(update)
                self._cut(answer, update, jobs)
            if refusal := _failed(answer):
                yield error_event(refusal.body)
                return
            if said := said + (answer.closing() if answer.done else b""):
                yield said

    def _cut(self, answer: Answer, update: Update, jobs: list[Job]) -> None:
        """Stops the engine where a stop string has ended the text."""
        if answer.choices[update.choice].finish == "stop" and update.finish is None:
            self.worker.abort(jobs[update.choice].request_id, "stop")


async def _all(updates: asyncio.Queue[Update]) -> list[Update]:
    """At least one, and whatever else is there."""
    found = [await updates.get()]
    while not updates.empty():
        found.append(updates.get_nowait())
    return found


def _failed(answer: Answer) -> Refusal | None:
    reasons = {choice.finish for choice in answer.choices}
    if "error" in reasons:
        return Refusal(500, "the engine has failed; the server's log says why")
    if "abort" in reasons:
        return Refusal(503, "the server is shutting down and had no time to finish this answer", headers={"Connection": "close"})
    return None


def _kept(error: web.HTTPException) -> dict[str, str]:
    """Headers of an error that mean something beside its status."""
    return {name: error.headers[name] for name in ("Allow",) if name in error.headers}
