"""Events come out whole, however the bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.loadtest import sse
from roofline.loadtest.failures import Failure
from roofline.loadtest.sse import EventParser

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=12)


def fed(data: bytes, cuts: list[int]) -> list[bytes]:
    parser, found, last = EventParser(), [], 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        found += parser.feed(data[last:cut])
        last = cut
    return found + parser.finish()


@given(st.lists(TEXT, min_size=1, max_size=6), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_and_line_ending(texts: list[str], newline: str, cuts: list[int]) -> None:
    events = [f": ping{newline}{newline}" if number % 3 == 2 else "" for number in range(len(texts))]
    data = "".join(f"{comment}data: {text}{newline}{newline}" for comment, text in zip(events, texts, strict=True)).encode()
    assert fed(data, cuts) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data:x\n\n", [b"x"]),
        (b"data: x\n\ndata: y\n\n", [b"x", b"y"]),
        (b"event: token\nid: 7\ndata: x\n\n", [b"x"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": a comment\n\n", []),
        (b"retry: 10\n\n\n\ndata: x\n\n", [b"x"]),
        (b"data: [DONE]\n", [b"[DONE]"]),
        (b"data: [DONE]", [b"[DONE]"]),
    ],
)
def test_forms(data: bytes, events: list[bytes]) -> None:
    assert fed(data, []) == events
    assert fed(data, list(range(len(data)))) == events


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 1000)
    parser = EventParser()
    with pytest.raises(Failure, match="without the end of an event"):
        _ = [parser.feed(b"data: " + 100 * b"x") for _ in range(11)]
