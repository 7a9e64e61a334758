"""Where labels go, how numbers on axes read, and how long texts are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from roofline.charts import style
from roofline.charts.labels import Label, box_of, place, spread, together


def _axes() -> Axes:
    figure = Figure(figsize=(8, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    axes.set(xlim=(0, 100), ylim=(0, 100))
    return axes


def test_the_heaviest_label_is_written_first() -> None:
    crowd = [Label(50, 50, f"name {i}", weight=i) for i in range(200)]
    written = place(_axes(), crowd, most=5)
    assert [label.weight for label in written] == [199, 198, 197, 196, 195]


def test_a_crowd_thins_out_without_overlap() -> None:
    with style.applied():
        axes = _axes()
        crowd = [Label(20 + i % 25, 20 + i // 25 * 2, f"operation {i}", weight=500 - i) for i in range(500)]
        written = place(axes, crowd, most=500)
        assert 0 < len(written) < 500
        axes.figure.canvas.draw()  # only then do annotations know their places
        renderer = axes.figure.canvas.get_renderer()
        boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_labels_keep_clear_of_what_is_taken() -> None:
    axes = _axes()
    assert place(axes, [Label(50, 50, "x")], taken=[box_of(axes, 0, 0, 100, 100)]) == []


def test_no_labels_is_no_trouble() -> None:
    assert place(_axes(), []) == []


def test_names_at_one_point_become_one_label() -> None:
    joined = together(_axes(), [Label(10, 10, name, weight) for name, weight in (("a", 3), ("b", 2), ("c", 1), ("a", 1))])
    assert [(label.text, label.weight) for label in joined] == [("a, b +1", 7)]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (512, "512"), (1024, "1k"), (131072, "128k"), (1 << 20, "1M"), (2034, "2.03k"), (3000, "3k"), (999.6, "1k"),
     (0.5, "0.5"), (1.5e6, "1.5M"), (3e9, "3G"), (3 << 19, "1.5M"), (12345, "12.3k")],
)  # fmt: skip
def test_counts_in_few_characters(value: float, text: str) -> None:
    assert style.compact(value) == text


@given(st.floats(1e-3, 1e12))
def test_compact_is_right_to_three_digits(value: float) -> None:
    text = style.compact(value)
    binary = {"k": 1 << 10, "M": 1 << 20}
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1])
    number = float(text.rstrip("kMG"))
    assert number * (unit or 1) == pytest.approx(value, rel=5.1e-3) or number * binary.get(text[-1], 1) == value


@given(st.text(max_size=200), st.floats(60, 600))
def test_a_shortened_text_is_no_wider_than_asked(text: str, width: float) -> None:
    short = style.shortened(text, width, 9)
    assert short == text or style.text_width(short, 9) <= width


@given(st.text(alphabet="ab c通\n", max_size=120), st.floats(40, 400))
def test_wrapping_keeps_every_character_and_the_width(text: str, width: float) -> None:
    lines = style.wrapped(text, width, 9)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(style.text_width(line, 9) <= width for line in lines)


@given(st.floats(1, 1e7), st.floats(1.01, 1e6))
def test_log_axes_of_counts_have_ticks_inside(low: float, ratio: float) -> None:
    axes = _axes()
    style.log_counts(axes.xaxis, low, low * ratio)
    assert len(axes.xaxis.get_majorticklocs()) <= 9


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(5, 30)), max_size=6))
def test_stacked_boxes_lie_apart_and_below_the_top(boxes: list[tuple[float, float]]) -> None:
    boxes.sort()
    heights = [height for _, height in boxes]
    found = spread([centre for centre, _ in boxes], heights, 0, 300)
    assert all(b - a >= (h + i) / 2 - 1e-6 for a, b, h, i in zip(found, found[1:], heights, heights[1:], strict=False))
    assert all(height / 2 - 1e-6 <= centre <= 300 - height / 2 + 1e-6 for centre, height in zip(found, heights, strict=True))


def test_boxes_with_room_stay_where_they_are() -> None:
    assert spread([20, 100], [10, 10], 0, 300) == [20, 100]
