"""Refusals in the OpenAI API's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error", 503: "overloaded_error"}


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault of this program
    """An answer other than 200. param: the field of the request that is wrong; code: a word for programs; headers: further ones."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """As clients of the API read it."""
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
