"""Which load a simulated figure shows, whether it keeps the levels that were asked for, and that both are said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roofline.charts import build
from roofline.planning.load import Load, operate
from tests.charts.conftest import Ask
from tests.cli.conftest import Cli

CASE = "llama-3.1-70b tp 4 on H100"
COMMAND = ("chart", "chunk", "llama-3.1-8b", "-H", "h100-sxm", "--isl", "2048", "--osl", "64")


@pytest.mark.parametrize(("asked", "drawn"), [((), 32), (("--batch", "1"), 1), (("--batch", "4"), 4), (("--concurrency", "1"), 1)])
def test_the_requests_in_flight_are_those_asked_for(asked: tuple[str, ...], drawn: int, cli: Cli) -> None:
    done = cli(*COMMAND, *asked, "--json")
    assert done.code == 0, done.err
    assert f"{drawn} request{'s' * (drawn > 1)} in flight" in done.json["subtitle"]
    assert any("--batch" in text for text in done.json["assumptions"]) == (not asked)


def test_one_request_in_flight_has_gaps_of_a_lone_decode_step(cli: Cli) -> None:
    """Nobody else's prompt is computed in between: every budget has the same gaps."""
    gaps = [row["itl_p99_s"] for row in cli(*COMMAND, "--batch", "1", "--json").json["rows"]]
    assert max(gaps) == pytest.approx(min(gaps), rel=1e-9)


@pytest.mark.parametrize("levels", [{"tpot_s": 0.05}, {"ttft_s": 0.6}, {"ttft_s": 1.0, "tpot_s": 0.1}, {"ttft_s": 1e-3, "tpot_s": 0.05}])
def test_the_finding_names_the_budgets_that_keep_every_level(levels: dict[str, float], ask: Ask) -> None:
    """Both levels are held against the drawn P99: of the gaps between tokens, and of TTFT."""
    chart = build("chunk", ask(CASE, load=Load(2048, 256, concurrency=32, **levels)))
    columns = {"tpot_s": "itl_p99_s", "ttft_s": "ttft_p99_s"}
    kept = [row["chunk"] for row in chart.rows if all(row[columns[name]] <= limit for name, limit in levels.items())]
    assert len(kept) < len(chart.rows)
    said = chart.title.replace(",", "").split(" keep")[0]
    ends = {chart.rows[0]["chunk"], chart.rows[-1]["chunk"]}
    assert {int(number) for number in re.findall(r"\d+", said)} == {*kept[:1], *kept[-1:]} - ends
    assert said.startswith("No token budget") == (not kept)
    for name, words in {"tpot_s": "of the gaps within", "ttft_s": "of TTFT within"}.items():
        assert (words in chart.title) == (name in levels)


def test_a_timeline_says_where_its_load_comes_from(cli: Cli, ask: Ask, tmp_path: Path) -> None:
    chart = build("timeline", ask(CASE))
    server = ask(CASE)
    held = min(server.memory().max_sequences(server.load.longest), server.memory().settings.max_num_seqs)
    rate = 0.8 * operate(server.setup, server.load, held).request_rate
    assert f"{rate:.3g} requests/s, 80 % of what the closed form" in chart.subtitle
    done = cli("chart", "timeline", "llama-3.1-8b", "-H", "l40s", "-o", tmp_path / "x.svg", columns=400)
    assert "80 % of what the closed form" in done.out
    assert "roofline simulate" in done.out
    assert "--chart" in done.out


@pytest.mark.parametrize("count", [1, 4])
def test_a_timeline_of_requests_in_flight(count: int, ask: Ask) -> None:
    chart = build("timeline", ask(CASE, load=Load(512, 64, concurrency=count)))
    assert f"{count} request{'s' * (count > 1)} in flight" in chart.subtitle
    assert max(row["running"] for row in chart.rows) <= count
    assert chart.notes == ()
