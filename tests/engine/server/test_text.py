"""Tokens and text: pieces of a stream are the whole; what the model said can be sent back; a folder's own tokenizer and template."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.engine.server.asked import Limits, read
from roofline.engine.server.errors import Refusal
from roofline.engine.server.text import Detokenizer, FileText, WordText, load_text
from roofline.errors import InputError

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }} {{ m.content }}{% endfor %}{% if add_generation_prompt %} go{% endif %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer: no character beyond ASCII is a token of its own."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat", "go on then"], trainer)
    path: Path = tmp_path_factory.mktemp("model")
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": TEMPLATE}))
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    return path


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(1, 4), min_size=1))
def test_pieces_are_the_whole(folder: Path, text: str, cuts: list[int]) -> None:
    file = load_text(300, None, folder)
    tokens = file.encode(text)
    detokenizer, said, at = Detokenizer(file), "", 0
    while at < len(tokens):
        step = cuts[at % len(cuts)]
        piece = detokenizer.push(tokens[at : at + step], last=at + step >= len(tokens))
        assert at + step >= len(tokens) or not piece.endswith("\ufffd") or "\ufffd" in text
        said, at = said + piece, at + step
    assert said == file.decode(tokens) == text


def test_a_folder(folder: Path) -> None:
    file = load_text(300, None, folder)
    assert (file.name, file.eos) == ("tokenizer.json", (1, 2))
    assert file.chat([{"role": "user", "content": "the cat"}]) == [0, *file.encode("user the cat go")]
    assert load_text(300, folder / "tokenizer.json", None).eos == ()


def test_wrong_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        load_text(300, tmp_path, None)
    with pytest.raises(InputError, match="no such file"):
        load_text(300, tmp_path / "other.json", None)
    with pytest.raises(InputError, match="another model's tokenizer"):
        load_text(100, folder, None)


def test_a_template_that_refuses(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('users only') }}")
    with pytest.raises(InputError, match="users only"):
        FileText(tmp_path / "tokenizer.json", 300).chat([{"role": "system", "content": "x"}])


@given(st.lists(st.integers(0, 60)))
def test_words_can_be_sent_back(tokens: list[int]) -> None:
    words = WordText(61)
    assert words.encode(words.decode(tokens)) == tokens


@given(TEXTS)
def test_any_text_is_words_of_the_vocabulary(text: str) -> None:
    tokens = WordText(61).encode(text)
    assert len(tokens) == len(text.split())
    assert all(0 <= token < 61 for token in tokens)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "n", "temperature", "top_p", "seed", "stop",
     "stop_token_ids", "stream", "stream_options", "ignore_eos", "return_token_ids", "logprobs", "top_k", "tools"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(KEYS, VALUES, max_size=6), sane=st.booleans(), chat=st.booleans())
def test_any_body_is_taken_or_refused(body: dict[str, object], sane: bool, chat: bool) -> None:
    if sane:
        body |= {"prompt": [1, 2, 3], "messages": [{"role": "user", "content": "a b"}], "model": "tiny"}
    limits = Limits("tiny", 256, lambda prompt, most: None)
    asked = None
    with contextlib.suppress(Refusal):
        asked = read(json.dumps(body).encode(), chat, WordText(61), limits)
    if asked is not None:
        assert len(asked.samplings) == len(asked.prompts) * asked.n <= 128
        assert all(len(prompt) + most <= 256 for prompt, most in zip(asked.prompts, asked.max_tokens, strict=True))
