"""Answers as they grow: tokens become text, stop strings end it, and both become the objects of the API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from roofline.engine.server.asked import Asked
from roofline.engine.server.text import Detokenizer, Text
from roofline.engine.server.worker import Update


class Choice:
    """One of the answers of a request.

    finish: how it ended (stop, length, abort, error), None while it goes on; stopped_by: the stop string or token that ended it.
    """

    def __init__(self, text: Text, stops: tuple[str, ...], stop_tokens: Iterable[int]) -> None:
        self._detokenizer, self._stops, self._stop_tokens = Detokenizer(text), stops, frozenset(stop_tokens) - frozenset(text.eos)
        self._held = ""
        self.tokens: list[int] = []
        self.cached = 0
        self.finish: str | None = None
        self.stopped_by: str | int | None = None

    def push(self, update: Update) -> str:
        """Takes in an update and returns the text that may be shown: what could become a stop string is held back."""
        if self.finish is not None:
            return ""
        self.finish, self.cached = update.finish, update.cached or self.cached
        self.tokens += update.tokens
        spoken = update.tokens
        if self.finish == "stop":  # the token that ends a text is no part of it
            spoken = update.tokens[:-1]
            self.stopped_by = update.tokens[-1] if update.tokens[-1] in self._stop_tokens else None
        self._held += self._detokenizer.push(spoken, last=self.finish is not None)
        return self._released()

    def _released(self) -> str:
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self.finish = "stop"
        else:
            at = len(self._held) - (0 if self.finish else self._could_become_a_stop())
        shown, self._held = self._held[:at], self._held[at:]
        return shown

    def _could_become_a_stop(self) -> int:
        """How many of the last characters are the beginning of a stop string."""
        longest = min(max(map(len, self._stops), default=1) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if any(stop.startswith(self._held[-n:]) for stop in self._stops)), 0)


class Answer:
    """The choices of one request, and how they are written."""

    def __init__(self, asked: Asked, text: Text, model: str, request_id: str) -> None:
        self.asked = asked
        self.choices = [Choice(text, asked.stop, sampling.stop) for sampling in asked.samplings]
        self._prompt_tokens = sum(len(prompt) for prompt in asked.prompts)
        kind = "chat.completion" if asked.chat else "text_completion"
        self._head = {"id": request_id, "object": kind, "created": int(time.time()), "model": model}
        self._chunk_head = self._head | {"object": f"{kind}.chunk" if asked.chat else kind}
        self._texts = [""] * len(self.choices)

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish is not None for choice in self.choices)

    def gather(self, update: Update) -> None:
        """Takes an update into the whole answer."""
        self._texts[update.choice] += self.choices[update.choice].push(update)

    def whole(self) -> dict[str, Any]:
        """The answer of a request that is not streamed."""
        choices = []
        for index, (choice, text) in enumerate(zip(self.choices, self._texts, strict=True)):
            said = {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
            choices.append(self._choice(index, said, choice.tokens, choice))
        return self._head | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens so far. A prompt counts once, however many answers it gets."""
        generated = sum(len(choice.tokens) for choice in self.choices)
        cached = sum(choice.cached for choice in self.choices[:: self.asked.n])
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self._prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def opening(self) -> bytes:
        """What a stream begins with: the role, in a chat."""
        if not self.asked.chat:
            return b""
        return b"".join(self._event(index, "", [], role=True) for index in range(len(self.choices)))

    def chunk(self, update: Update) -> bytes:
        """The event of an update; nothing if it has nothing to show."""
        choice = self.choices[update.choice]
        if choice.finish is not None:
            return b""
        text = choice.push(update)
        if not text and choice.finish is None and not self.asked.token_ids:
            return b""
        return self._event(update.choice, text, update.tokens)

    def closing(self) -> bytes:
        """What a stream ends with."""
        usage = _event(self._chunk_head | {"choices": [], "usage": self.usage()}) if self.asked.usage.include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _event(self, index: int, text: str, tokens: list[int], *, role: bool = False) -> bytes:
        said: dict[str, Any] = {"text": text}
        if self.asked.chat:
            said = {"delta": ({"role": "assistant"} if role else {}) | {"content": text}}
        body = self._chunk_head | {"choices": [self._choice(index, said, tokens, self.choices[index])]}
        if self.asked.usage.continuous_usage_stats and self.asked.usage.include_usage:
            body |= {"usage": self.usage()}
        return _event(body)

    def _choice(self, index: int, said: dict[str, Any], tokens: list[int], choice: Choice) -> dict[str, Any]:
        ids = {"token_ids": tokens} if self.asked.token_ids else {}
        return {"index": index, **said, "logprobs": None, "finish_reason": choice.finish, "stop_reason": choice.stopped_by, **ids}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_event(body: dict[str, Any]) -> bytes:
    """An error inside a stream, and its end."""
    return _event(body) + b"data: [DONE]\n\n"
