"""Requests as bytes: bodies of the OpenAI API and the HTTP around them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from roofline import __version__
from roofline.errors import InputError
from roofline.loadtest.http import Target

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True)
class Wire:
    """How this run's requests are written.

    fixed_length: ask for exactly the output length (ignore_eos and min_tokens, as vLLM and SGLang know them).
    extra: further keys of the body. key: an API key, which only `head` sees; it is in no repr and no record.
    """

    target: Target
    endpoint: Endpoint
    model: str
    fixed_length: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    key: str = field(default="", repr=False)

    @property
    def path(self) -> str:
        """Path of the endpoint on the server."""
        return self.target.api + PATHS[self.endpoint]

    def post(self, content: str, output_tokens: int, request_id: str) -> bytes:
        """The request for one streamed answer. content: as Prompts gives it."""
        if self.endpoint == "completions":
            said = f'"prompt":{content}'
        elif content.startswith("["):
            said = f'"messages":{content}'
        else:
            said = f'"messages":[{{"role":"user","content":{content}}}]'
        body = f"{{{said},{self._asked % {'tokens': output_tokens}}".encode()
        return self._head("POST", self.path, f"Content-Length: {len(body)}\r\nX-Request-Id: {request_id}\r\n") + body

    @cached_property
    def _asked(self) -> str:
        """The rest of a body, with %(tokens)d for the output length."""
        mark = "%(tokens)d"
        asked: dict[str, Any] = {
            "model": self.model,
            "max_tokens": mark,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.fixed_length:
            asked |= {"ignore_eos": True, "min_tokens": mark}
        text = json.dumps(asked | self.extra)[1:].replace("%", "%%")
        return text.replace('"%%(tokens)d"', mark)

    def get(self, path: str) -> bytes:
        """A request for another page of the server."""
        return self._head("GET", path, "")

    def _head(self, method: str, path: str, more: str) -> bytes:
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        lines = f"Content-Type: application/json\r\nAccept: text/event-stream, */*\r\nAccept-Encoding: identity\r\n{key}{more}\r\n"
        agent = f"User-Agent: roofline/{__version__}\r\n"
        return f"{method} {path} HTTP/1.1\r\nHost: {self.target.authority}\r\n{agent}{lines}".encode("latin-1")


def key_from_environment(name: str) -> str:
    """The API key in the environment variable `name`; "" if it is not set. Raises InputError for one that no header can carry."""
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable():
        raise InputError(f"${name} has characters that no HTTP header can carry")
    return key
