"""`roofline mock`: a server that knows the truth, for whoever tests a client."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import fields
from typing import Any

import typer

from roofline.cli.shell import new_app
from roofline.loadtest.mock import MockOptions, serve

app = new_app()


def mock(**options: Any) -> None:
    """A streaming server with the OpenAI API on a fixed schedule, for this machine only.

    GET /mock/truth: when each request came and when its tokens were written, on the machine's monotonic clock.
    A request changes any option for itself: model name "mock?ttft_ms=50&itl_ms=5" or header x-mock.
    """
    asyncio.run(serve(MockOptions(**options)))


def _parameter(field: Any) -> inspect.Parameter:
    """A field of MockOptions as an option."""
    option = typer.Option(field.default, help=field.metadata["help"])
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=type(field.default))


mock.__signature__ = inspect.Signature([_parameter(field) for field in fields(MockOptions)])  # type: ignore[attr-defined]
app.command()(mock)
