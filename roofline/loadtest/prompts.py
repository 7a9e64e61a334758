"""Prompts: words whose number is the number of tokens, beginnings that are shared or unique on purpose, or a data set's texts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from roofline.errors import InputError, MissingDependencyError, RecordError
from roofline.records import read_jsonl
from roofline.serving.workloads import Segment, own_id

WORDS = tuple(
    re.findall(
        r"\w+",
        "able area army away baby back ball bank base bear bill body book born both call came card care case city club cold come cost "
        "dark data date dead deal door down draw east else even ever face fact fair fall farm fast fear feel fire fish five food foot "
        "form four free full game girl give goal gold good half hall hand hard",
    )
)
"""64 words of four letters: each is one token, with the blank before it, in every common vocabulary, and all are equally long, so
that a prompt is cut out of a prepared text instead of being put together."""
_WIDTH = 5
_HEADER = 8
_POOL_WORDS = 1 << 14
_MASK = (1 << 64) - 1


class Prompts(Protocol):
    """Gives the text of a request."""

    def content(self, index: int, tokens: int, segments: Sequence[Segment]) -> str:
        """What request `index` says, in JSON: a string, or an array of messages."""


@dataclass(frozen=True)
class WordPrompts:
    """Synthetic prompts. A prompt begins with words that spell its request's number, so that no prefix cache knows it.

    words: the vocabulary; tokens_per_word and offset: tokens that the server counts = offset + tokens_per_word · words (offset:
    the chat template's own). seed: another seed, other prompts.
    """

    seed: int = 0
    words: tuple[str, ...] = WORDS
    tokens_per_word: float = 1.0
    offset: int = 0
    _pool: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)  # noqa: S311 - any words will do
        object.__setattr__(self, "_pool", "".join(f" {word}" for word in rng.choices(self.words, k=_POOL_WORDS)))

    def calibrated(self, sent: Sequence[int], counted: Sequence[int]) -> WordPrompts:
        """These prompts after the server counted `counted` tokens in prompts of `sent` words (one count: a word is a token)."""
        slope = (counted[1] - counted[0]) / (sent[1] - sent[0]) if len(sent) > 1 and sent[1] != sent[0] else 1.0
        if slope <= 0:
            raise InputError(f"the server counts {counted[0]} and {counted[1]} tokens in prompts of {sent[0]} and {sent[1]} words")
        return replace(self, tokens_per_word=slope, offset=round(counted[0] - slope * sent[0]))

    def content(self, index: int, tokens: int, segments: Sequence[Segment] = ()) -> str:
        """As many words as make `tokens` tokens; those up to a segment's end are the same for all requests that name its id."""
        words = max(1, round((tokens - self.offset) / self.tokens_per_word))
        parts, first = [], 0
        for end, identity in (*segments, (words, own_id(index))):
            stop = min(end, words)
            if stop > first:
                parts.append(self._text(identity, stop - first))
                first = stop
        return f'"{"".join(parts)[1:]}"'

    def _text(self, identity: int, count: int) -> str:
        """`count` words that only this identity has: its number spelt in words, then a stretch of the prepared text."""
        digits = _scrambled(identity ^ self.seed << 32)
        parts, rest = [], digits
        for _ in range(min(count, _HEADER)):
            rest, word = divmod(rest, len(self.words))
            parts.append(f" {self.words[word]}")
        left, at = count - len(parts), digits % _POOL_WORDS
        while left > 0:
            take = min(left, _POOL_WORDS - at)
            parts.append(self._pool[_WIDTH * at : _WIDTH * (at + take)])
            left, at = left - take, 0
        return "".join(parts)


def _scrambled(number: int) -> int:
    """64 bits in which every bit of `number` (64 bits) counts; different numbers, different results. Source: splitmix64's finaliser."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _MASK
    return number ^ number >> 31


@dataclass(frozen=True)
class DatasetPrompts:
    """The prompts of a file, in its order, from the start again when it ends. contents: as the protocol gives them."""

    contents: tuple[str, ...]

    def content(self, index: int, tokens: int, segments: Sequence[Segment] = ()) -> str:
        """The text of row `index`; lengths are the data's own."""
        return self.contents[index % len(self.contents)]


@dataclass(frozen=True)
class Dataset:
    """Prompts with their output lengths (0: not told)."""

    prompts: DatasetPrompts
    output_tokens: tuple[int, ...]


def load_dataset(path: Path) -> Dataset:
    """JSON lines with `prompt` (text) or `messages` (chat), and optionally `output_tokens`. Raises RecordError with the line."""
    contents, outputs = [], []
    for line, row in read_jsonl(path):
        messages, prompt = row.get("messages"), row.get("prompt")
        if isinstance(messages, list) and messages:
            contents.append(json.dumps(messages))
        elif isinstance(prompt, str) and prompt:
            contents.append(json.dumps(prompt))
        else:
            raise RecordError(f"{path}:{line}: needs prompt (text) or messages (a list); found {', '.join(row) or 'nothing'}")
        length = row.get("output_tokens", 0)
        if not isinstance(length, int) or length < 0:
            raise RecordError(f"{path}:{line}:output_tokens: {length!r} is not a number of tokens")
        outputs.append(length)
    if not contents:
        raise RecordError(f"{path}: no prompts in the file")
    return Dataset(DatasetPrompts(tuple(contents)), tuple(outputs))


class Tokenizer:
    """A tokenizer.json of Hugging Face's `tokenizers`, from a local file or folder."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise MissingDependencyError("tokenizers", "hub", "counting with a tokenizer") from None
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise InputError(f"{file}: there is no such file; --tokenizer takes a tokenizer.json or the folder with it")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise InputError(f"{file}: not a tokenizer: {error}") from None

    def count(self, text: str) -> int:
        """Tokens of `text`, special ones left out."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prompts(self, seed: int) -> WordPrompts:
        """Prompts of words that are one token each for this tokenizer; checked on whole texts. Raises InputError if there are few."""
        single = tuple(word for word in WORDS if self.count(f"{WORDS[0]} {word}") - self.count(WORDS[0]) == 1)
        if len(single) < 16:
            raise InputError(f"only {len(single)} of {len(WORDS)} common words are single tokens here: give --dataset instead")
        prompts = WordPrompts(seed, single)
        lengths = (64, 256)
        counts = [self.count(prompts.content(0, length)[1:-1]) for length in lengths]
        return prompts if counts == list(lengths) else prompts.calibrated(lengths, counts)


def shared_prefixes(count: int, groups: int, tokens: int, rng: np.random.Generator) -> list[tuple[Segment, ...]]:
    """Segments that give each of `count` prompts one of `groups` common beginnings of `tokens` tokens."""
    return [((tokens, 2 * int(group)),) for group in rng.integers(0, groups, count)]
