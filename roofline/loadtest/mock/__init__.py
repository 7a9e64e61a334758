"""A streaming server that knows the truth: it speaks the OpenAI API on a fixed schedule and says when it wrote what."""

from roofline.loadtest.mock.options import MockOptions
from roofline.loadtest.mock.server import MockServer, serve

__all__ = ["MockOptions", "MockServer", "serve"]
