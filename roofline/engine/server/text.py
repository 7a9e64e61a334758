"""Text and tokens: a tokenizer file where there is one, else words; how a chat becomes a prompt; tokens that become text one by one."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from roofline.errors import InputError, MissingDependencyError

_NUMBER = re.compile(r"t(\d+)")
_UNFINISHED = "\ufffd"

Message = dict[str, str]


class Text(Protocol):
    """A tokenizer. eos: the tokens that end a text of their own accord; name: for people."""

    name: str
    eos: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""

    def decode(self, tokens: Sequence[int]) -> str:
        """What they say."""

    def chat(self, messages: list[Message]) -> list[int]:
        """The prompt that a conversation is. Raises InputError for one that the template refuses."""


class WordText:
    """For models without a vocabulary of their own: a word is a token. Token 17 is written t17; any other word has the number that
    its CRC-32 gives. What the model says can so be sent back and is the same tokens again."""

    name = "words"

    def __init__(self, vocab: int, eos: tuple[int, ...] = ()) -> None:
        self.vocab, self.eos = vocab, eos

    def encode(self, text: str) -> list[int]:
        """See Text."""
        return [self._token(word) for word in text.split()]

    def _token(self, word: str) -> int:
        own = _NUMBER.fullmatch(word)
        if own and len(own[1]) < 10 and int(own[1]) < self.vocab:
            return int(own[1])
        return zlib.crc32(word.encode("utf-8", "replace")) % self.vocab

    def decode(self, tokens: Sequence[int]) -> str:
        """See Text."""
        return " ".join(f"t{token}" for token in tokens)

    def chat(self, messages: list[Message]) -> list[int]:
        """See Text."""
        return self.encode(_plain(messages))


class FileText:
    """A tokenizer.json of Hugging Face's `tokenizers`, with the chat template that lies beside it, if any."""

    def __init__(self, file: Path, vocab: int, eos: tuple[int, ...] = ()) -> None:
        try:
            import tokenizers
        except ImportError:
            raise MissingDependencyError("tokenizers", "serve", "a tokenizer file") from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise InputError(f"{file}: not a tokenizer: {error}") from None
        size = self._tokenizer.get_vocab_size()
        if size > vocab:
            raise InputError(f"{file}: {size} tokens, and the model has {vocab}: it is another model's tokenizer")
        self.name, self.eos = file.name, eos
        self._special, self._template = _special_tokens(file.parent), _chat_template(file.parent)

    def encode(self, text: str) -> list[int]:
        """See Text; with the special tokens that the file puts around a text."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """See Text; special tokens are left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def chat(self, messages: list[Message]) -> list[int]:
        """See Text; without a template as WordText does it."""
        if self._template is None:
            return self.encode(_plain(messages))
        return list(self._tokenizer.encode(self._rendered(messages), add_special_tokens=False).ids)

    def _rendered(self, messages: list[Message]) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        try:
            template = environment.from_string(self._template or "")
            return template.render(messages=messages, add_generation_prompt=True, **self._special)
        except TemplateError as error:
            raise InputError(f"messages: the chat template refuses them: {error}") from None


class Detokenizer:
    """The text of a growing sequence, piece by piece; the pieces together are the text of the whole.

    What a token says may depend on the one before, so each piece is the difference of two decodings that begin at the same earlier
    token; bytes of a character that is not complete yet are held back.
    """

    def __init__(self, text: Text) -> None:
        self._text, self._tokens = text, list[int]()
        self._begin = self._read = 0

    def push(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that these tokens add; last: also that of an incomplete character."""
        self._tokens += tokens
        told = self._text.decode(self._tokens[self._begin : self._read])
        now = self._text.decode(self._tokens[self._begin :])
        if len(now) <= len(told) or (now.endswith(_UNFINISHED) and not last):
            return ""
        self._begin, self._read = self._read, len(self._tokens)
        return now[len(told) :]


def _plain(messages: list[Message]) -> str:
    """Role and content of each message, then the name of who is to answer."""
    return "\n".join([*(f"{message['role']}: {message['content']}" for message in messages), "assistant:"])


def load_text(vocab: int, tokenizer: Path | None, folder: Path | None) -> Text:
    """The tokenizer given, else that of the model's folder, else words. Raises InputError for a file that is none."""
    eos = _eos(folder) if folder else ()
    place = tokenizer or folder
    if place is None:
        return WordText(vocab)
    file = place / "tokenizer.json" if place.is_dir() else place
    if file.is_file():
        return FileText(file, vocab, eos)
    if tokenizer is not None:
        raise InputError(f"{file}: there is no such file; --tokenizer takes a tokenizer.json or the folder with it")
    return WordText(vocab, eos)


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _eos(folder: Path) -> tuple[int, ...]:
    """eos_token_id of generation_config.json, else of config.json: a number or several."""
    for name in ("generation_config.json", "config.json"):
        found = _json(folder / name).get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def _special_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token, … of tokenizer_config.json: texts, or objects with the text as `content`."""
    config = _json(folder / "tokenizer_config.json")
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: value for key, value in texts.items() if isinstance(value, str)}


def _chat_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None
