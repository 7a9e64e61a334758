"""Prompts: exact lengths, unique beginnings, shared ones, data sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InputError, RecordError
from roofline.loadtest.prompts import WORDS, Tokenizer, WordPrompts, load_dataset, shared_prefixes

tokenizers = pytest.importorskip("tokenizers")


def said(content: str) -> list[str]:
    text = json.loads(content)
    assert isinstance(text, str)
    return text.split(" ")


def test_words_are_alike() -> None:
    assert len(set(WORDS)) == len(WORDS) == 64
    assert {len(word) for word in WORDS} == {4}


@given(st.integers(1, 40_000), st.integers(0, 1 << 41))
def test_a_word_is_a_token(tokens: int, index: int) -> None:
    words = said(WordPrompts().content(index, tokens))
    assert len(words) == tokens
    assert set(words) <= set(WORDS)


def test_no_two_prompts_begin_alike() -> None:
    prompts = WordPrompts()
    beginnings = {tuple(said(prompts.content(index, 100))[:8]) for index in range(5000)}
    assert len(beginnings) == 5000
    assert prompts.content(7, 100) == WordPrompts().content(7, 100)
    assert prompts.content(7, 100) != WordPrompts(seed=1).content(7, 100)


def test_shared_beginnings() -> None:
    prompts = WordPrompts()
    groups = shared_prefixes(50, 3, 60, np.random.default_rng(0))
    texts = [said(prompts.content(index, 100, segments)) for index, segments in enumerate(groups)]
    assert {len(text) for text in texts} == {100}
    assert len({tuple(text[:60]) for text in texts}) == 3
    assert len({tuple(text[60:68]) for text in texts}) == 50


@pytest.mark.parametrize(("per_word", "offset"), [(1.0, 0), (1.0, 17), (1.5, 4), (2.0, 0)])
def test_calibration_by_the_servers_count(per_word: float, offset: int) -> None:
    def server(words: int) -> int:
        return round(words * per_word) + offset

    prompts = WordPrompts().calibrated([128, 64], [server(128), server(64)])
    for tokens in (100, 128, 1000):
        assert abs(server(len(said(prompts.content(0, tokens)))) - tokens) <= per_word - 1 + 1e-9


def test_a_count_that_makes_no_sense() -> None:
    with pytest.raises(InputError, match="counts 50 and 60 tokens"):
        WordPrompts().calibrated([128, 64], [50, 60])


LETTERS = tuple("abcdefghijklmnopqrstuvwxyz") + tuple(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")


def make_tokenizer(path: Path, words: tuple[str, ...]) -> Path:
    vocabulary = {word: number for number, word in enumerate(("[UNK]", *words))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, max_input_chars_per_word=9))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_chooses_the_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tokenizer(tmp_path / "tokenizer.json", (*WORDS[::2], *LETTERS)))
    prompts = tokenizer.prompts(0)
    assert set(prompts.words) == set(WORDS[::2])  # the others fall into letters
    for tokens in (1, 50, 777):
        assert tokenizer.count(json.loads(prompts.content(3, tokens))) == tokens


def test_tokenizers_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        Tokenizer(tmp_path)
    with pytest.raises(InputError, match="common words are single tokens"):
        Tokenizer(
            make_tokenizer(tmp_path / "other.json", ("a", "b", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), *"cdefgh"))
        ).prompts(0)


def test_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "[1] \\"quoted\\" ü", "output_tokens": 5}\n\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    dataset = load_dataset(path)
    assert json.loads(dataset.prompts.content(0, 0)) == '[1] "quoted" ü'
    assert json.loads(dataset.prompts.content(3, 0))[0]["content"] == "hi"
    assert dataset.output_tokens == (5, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no prompts"),
        ('{"text": "x"}', ":1: needs prompt"),
        ('{"prompt": "x", "output_tokens": -1}', ":1:output_tokens"),
        ("nope", ":1: not JSON"),
    ],
)
def test_data_sets_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match=message):
        load_dataset(path)
