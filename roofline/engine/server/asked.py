"""What a client may ask for: the bodies of the two endpoints, checked, as sequences for the engine.

Keys that would change the answer and that this engine does not have are refused unless they say what it does anyway; keys that
nobody here knows are ignored, as other servers ignore them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from roofline.engine.sampler import Sampling
from roofline.engine.server.errors import Refusal
from roofline.engine.server.text import Text
from roofline.errors import InputError

MAX_CHOICES = 128
COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions where it is not given. Source: OpenAI API reference."""
_PROMPT = "prompt: not valid; give a text, a list of token ids, or a list of either"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0,),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "prompt_embeds": (),
    "modalities": (["text"],),
    "priority": (0,),
}


class StreamOptions(BaseModel):
    """Usage in a chunk of its own at the end, or in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Part(BaseModel):
    """A piece of a message; only text."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        list[Part], BeforeValidator(lambda given: [{"type": "text", "text": given}] if isinstance(given, str) else given)
    ] = []

    def plain(self) -> dict[str, str]:
        """As a chat template takes it."""
        return {"role": self.role, "content": "".join(part.text for part in self.content)}


StopText = Annotated[str, Field(min_length=1, max_length=1000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    temperature: float = Field(1.0, ge=0, le=1000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[StopText], BeforeValidator(lambda given: [given] if isinstance(given, str) else given), Field(max_length=16)] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    return_token_ids: bool = False

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most."""
        return self.max_tokens


class CompletionBody(_Body):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]

    def prompts(self, text: Text) -> list[list[int]]:
        """The token ids of each prompt."""
        if isinstance(self.prompt, str):
            return [text.encode(self.prompt)]
        first = self.prompt[0] if self.prompt else 0
        several: list[Any] = [self.prompt] if isinstance(first, int) else list(self.prompt)
        return [text.encode(each) if isinstance(each, str) else each for each in several]


class ChatBody(_Body):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @property
    def limit(self) -> int | None:
        """See above; max_tokens is the older name."""
        return self.max_completion_tokens or self.max_tokens

    def prompts(self, text: Text) -> list[list[int]]:
        """The conversation as one prompt."""
        return [text.chat([message.plain() for message in self.messages])]


@dataclass(frozen=True)
class Asked:
    """A checked request. prompts: token ids; samplings: of each answer, prompt by prompt, n for each; max_tokens: of each prompt."""

    chat: bool
    prompts: list[list[int]]
    samplings: list[Sampling]
    max_tokens: list[int]
    n: int
    stop: tuple[str, ...]
    stream: bool
    usage: StreamOptions
    token_ids: bool


@dataclass(frozen=True)
class Limits:
    """What the server offers. refusal: why a prompt with so many tokens to generate can never run here, or None."""

    name: str
    max_model_len: int
    refusal: Callable[[list[int], int], str | None]


def read(raw: bytes, chat: bool, text: Text, limits: Limits) -> Asked:
    """Checks the body of a request. Raises Refusal, with the field that is wrong."""
    body = _parse(raw, ChatBody if chat else CompletionBody)
    if body.model is not None and body.model != limits.name:
        raise Refusal(404, f"the model {body.model!r} does not exist; {limits.name!r} does", param="model", code="model_not_found")
    field = "messages" if chat else "prompt"
    try:
        prompts = body.prompts(text)  # type: ignore[attr-defined]
    except InputError as error:
        raise Refusal(400, str(error), param=field) from None
    if len(prompts) * body.n > MAX_CHOICES:
        raise Refusal(400, f"{len(prompts)} prompts with n = {body.n}: at most {MAX_CHOICES} answers in one request", param="n")
    counts = [_max_tokens(prompt, body, chat, field, limits) for prompt in prompts]
    seed = random.getrandbits(63) if body.seed is None else body.seed
    ends = (*(() if body.ignore_eos else text.eos), *body.stop_token_ids)
    samplings = [Sampling(body.temperature, body.top_p, seed + index, ends, body.min_tokens) for _ in prompts for index in range(body.n)]
    return Asked(chat, prompts, samplings, counts, body.n, tuple(body.stop), body.stream, body.stream_options, body.return_token_ids)


def _parse(raw: bytes, kind: type[_Body]) -> _Body:
    try:
        found = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is not a JSON object")
    given = {key: value for key, value in found.items() if value is not None}
    for key in given.keys() & _NEUTRAL.keys():
        if not any(given[key] == value and isinstance(given[key], bool) == isinstance(value, bool) for value in _NEUTRAL[key]):
            raise Refusal(400, f"{key}: this server does not have it; leave it out", param=key, code="unsupported_parameter")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(str(part) for part in wrong["loc"])
        param = str(wrong["loc"][0]) if wrong["loc"] else None
        raise Refusal(400, _PROMPT if param == "prompt" else f"{place}: {wrong['msg']}", param=param) from None


def _max_tokens(prompt: list[int], body: _Body, chat: bool, field: str, limits: Limits) -> int:
    """How many tokens may be generated after this prompt. Raises Refusal where it can never run."""
    if not prompt:
        raise Refusal(400, f"{field}: there is no token in it", param=field)
    room = limits.max_model_len - len(prompt)
    asked = body.limit or max(1, room if chat else min(room, COMPLETION_TOKENS))
    if asked > room:
        raise Refusal(
            400,
            f"the maximum context length is {limits.max_model_len} tokens; {len(prompt)} in the {field} and {asked} to generate are "
            f"{len(prompt) + asked}",
            param=field if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    if body.min_tokens > asked:
        raise Refusal(400, f"min_tokens {body.min_tokens} is more than max_tokens {asked}", param="min_tokens")
    if reason := limits.refusal(prompt, asked):
        raise Refusal(400, reason, param=field)
    return asked
