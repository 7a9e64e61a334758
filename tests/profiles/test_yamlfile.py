"""The strict YAML reader: what it accepts, and that every refusal names the place and the fix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from roofline.errors import ProfileError
from roofline.profiles import yamlfile


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    heads: int
    kind: str = ""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    layers: list[Inner] = []
    inner: Inner | None = None


def parse(text: str) -> yamlfile.Document:
    return yamlfile.parse(text, Path("some.yaml"))


def test_values_are_what_is_written() -> None:
    text = 'a: 1\nb: 1e3\nc: 4.8e12\nd: true\ne: ~\nf: "no"\ng: 2026-04-01\nh: [x, 2, -3.5]\ni: {k: "12"}\nj: 0123\nk: 1:30\n'
    assert parse(text).data == {
        "a": 1, "b": 1000.0, "c": 4.8e12, "d": True, "e": None, "f": "no", "g": "2026-04-01", "h": ["x", 2, -3.5],
        "i": {"k": "12"}, "j": "0123", "k": "1:30",
    }  # fmt: skip


def test_both_loaders_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'a: 1\nb: "1"\nc: {x: plain, y: 2.5}\n'
    fast = parse(text)
    monkeypatch.setattr(yamlfile, "_Loader", yaml.SafeLoader)
    assert parse(text) == fast


def test_lines_of_keys_and_items() -> None:
    lines = parse("a: 1\nb:\n  c: 2\n  d:\n    - 3\n    - e: 4\n").lines
    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "d"): 4, ("b", "d", 0): 5, ("b", "d", 1): 6, ("b", "d", 1, "e"): 6}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\na: 2\n", 2, "appears twice"),
        ("a: {b: 1, b: 2}\n", 1, "appears twice"),
        ("a: &x 1\nb: *x\n", 2, "anchors"),
        ("a: &x [*x]\n", 1, "anchors"),
        ("a: yes\n", 1, "quote it"),
        ("a: 1\nb: Off\n", 2, "quote it"),
        ("a: !!binary aGk=\n", 1, "tag"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        ("a: .inf\n", 1, "finite"),
        ("a: 1e999\n", 1, "finite"),
        ("a: " + "9" * 40, 1, "too many digits"),
        ("? [a]\n: b\n", 1, "plain text"),
        ("<<: {a: 1}\n", 1, "plain text"),
        ("a: 1\nb: {c: 1 d: 2}\n", 2, "missing comma"),
        ("a: [1, 2\nb: 3\n", 2, "not valid YAML"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("- a\n- b\n", 1, "must be a mapping"),
        ("just text\n", 1, "must be a mapping"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: " + "[" * 5000, 1, "nesting"),
        ("a: " + "[" * 200 + "]" * 200, 1, "too deeply"),
        ("a: \x00\n", None, "not valid YAML"),
        ("", None, "empty"),
        ("# only a comment\n", None, "empty"),
    ],
)
def test_refusals_name_the_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        parse(text)
    assert caught.value.line == line
    assert "some.yaml" in str(caught.value)


def test_an_alias_bomb_is_refused_at_once() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    with pytest.raises(ProfileError, match="anchors"):
        parse(bomb)


def test_unknown_key_suggests_the_known_one() -> None:
    with pytest.raises(ProfileError, match="did you mean 'heads'") as caught:
        parse("name: x\nlayers:\n  - heads: 1\n  - {heads: 2, head: 3}\n").validate(Outer)
    assert (caught.value.line, caught.value.key) == (4, "layers[1].head")


def test_unknown_key_far_from_all_lists_them() -> None:
    with pytest.raises(ProfileError, match="known: heads, kind"):
        parse("name: x\ninner: {heads: 1, zzz: 3}\n").validate(Outer)


def test_all_errors_are_told_the_first_with_its_place() -> None:
    with pytest.raises(ProfileError) as caught:
        parse("inner:\n  heads: many\n  kind: 3\n").validate(Outer)
    text = str(caught.value)
    assert "the key 'name' is missing" in text
    assert "some.yaml:2:inner.heads" in text
    assert "found 'many'" in text
    assert "some.yaml:3:inner.kind" in text


def test_a_place_that_the_file_does_not_have_falls_back_to_its_parent() -> None:
    error = parse("inner:\n  heads: 1\n").error("no good", ("inner", "tag-of-a-union", "heads"))
    assert (error.line, error.key) == (2, "inner.heads")


class TestFiles:
    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="folder"):
            yamlfile.read(tmp_path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="no such file"):
            yamlfile.read(tmp_path / "none.yaml")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "e.yaml"
        path.touch()
        with pytest.raises(ProfileError, match="empty"):
            yamlfile.read(path)

    def test_two_gigabytes_are_refused_unread(self, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        with path.open("wb") as file:
            file.truncate(2 * 2**30)  # sparse: reading it would show in the memory of this test
        with pytest.raises(ProfileError, match="at most 4,194,304"):
            yamlfile.read(path)

    def test_a_pipe_does_not_block(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        with pytest.raises(ProfileError, match="not a regular file"):
            yamlfile.read(path)

    def test_binary(self, tmp_path: Path) -> None:
        path = tmp_path / "b.yaml"
        path.write_bytes(b"a: 1\nb: \xff\xfe\x00\n")
        with pytest.raises(ProfileError, match="not UTF-8") as caught:
            yamlfile.read(path)
        assert caught.value.line == 2

    def test_a_byte_order_mark_is_no_content(self, tmp_path: Path) -> None:
        path = tmp_path / "bom.yaml"
        path.write_bytes(b"\xef\xbb\xbfa: 1\n")
        assert yamlfile.read(path).data == {"a": 1}

    def test_an_unreadable_name(self) -> None:
        with pytest.raises(ProfileError, match="cannot be read"):
            yamlfile.read("a\0b")


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_read_or_raise_a_profile_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(raw)
    try:
        data = yamlfile.read(path).data
    except ProfileError:
        return
    assert isinstance(data, dict)


@given(st.text(alphabet="ab:-{}[]&*!,?|>#%@`'\"\n 1.\t", max_size=60))
def test_any_yaml_like_text_parses_or_raises_a_profile_error(text: str) -> None:
    told = "some.yaml"
    try:
        parse(text)
    except ProfileError as error:
        told = str(error)
    assert "some.yaml" in told
