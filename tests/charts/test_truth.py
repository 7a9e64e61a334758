"""Figures say what the ledger says: their data and the places of their marks against `ops --json`, profiles and plain formulas."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from roofline.charts import build
from roofline.charts.save import image, save
from roofline.ledger import Parallel
from roofline.profiles.catalog import load_hardware
from tests.charts.conftest import CASES, Ask
from tests.cli.conftest import process

CHECKOUT = Path(__file__).parents[2]
FLAGS = {
    "llama-2-7b on A100": [],
    "llama-3.1-70b tp 4 on H100": ["--tp", "4"],
    "deepseek-v3 on 8 H200": ["--tp", "8", "--ep", "8"],
    "llama-3.1-8b in 4 bits on RTX 4090": ["--weights", "int4"],
}
SVG = "{http://www.w3.org/2000/svg}"


def ops(case: str, phase: str) -> list[dict[str, object]]:
    """The ledger of a phase of a case, as a process of its own prints it."""
    facts = CASES[case]
    load = facts["load"]
    context = load.input_len if phase == "prefill" else load.input_len + load.output_len // 2
    batch = 1 if phase == "prefill" else facts.get("batch", 1)
    command = [
        "ops",
        facts["model"],
        "-H",
        facts["device"],
        "--phase",
        phase,
        "--batch",
        batch,
        "--context",
        context,
        *FLAGS[case],
        "--json",
    ]
    done: subprocess.CompletedProcess[str] = process(*map(str, command))
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["ops"])


def profile(device: str) -> dict[str, object]:
    """The YAML of a device, read without the package."""
    return dict(yaml.safe_load((CHECKOUT / "hwprofiles" / f"{device}.yaml").read_text()))


def si(text: str) -> float:
    """The number of a text like 1.98 PFLOP/s: 1.98e15."""
    number, unit = text.split(" ")
    return float(number) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[unit[0]]


@pytest.fixture(params=CASES)
def drawn(request: pytest.FixtureRequest, ask: Ask, tmp_path: Path) -> tuple[str, list[dict[str, str]], ET.Element]:
    """(case, rows of the CSV, root of the SVG) of a roofline figure as a user gets them."""
    picture, data = save(build("roofline", ask(request.param, table=None)), tmp_path / "figure.svg")
    return request.param, list(csv.DictReader(data.read_text().splitlines())), ET.parse(picture).getroot()  # noqa: S314  our own file


def test_every_op_of_the_csv_is_that_of_the_ledger(drawn: tuple[str, list[dict[str, str]], ET.Element]) -> None:
    case, rows, _ = drawn
    for phase in ("prefill", "decode"):
        own = [row for row in rows if row["series"] == "op" and row["phase"] == phase]
        expected = ops(case, phase)
        assert [row["name"] for row in own] == [op["name"] for op in expected]
        for row, op in zip(own, expected, strict=True):
            moved = op["weight_bytes"] + op["kv_bytes"] + op["activation_bytes"]
            assert float(row["flops"]) == pytest.approx(op["flops"], rel=1e-12)
            assert float(row["bytes"]) == pytest.approx(moved, rel=1e-12)
            assert float(row["expected_s"]) == pytest.approx(op["expected_s"], rel=1e-12)
            assert float(row["bound_s"]) == pytest.approx(op["bound_s"], rel=1e-12)
        shares = [float(row["share_of_time"]) for row in own]
        assert sum(shares) == pytest.approx(1.0)


def test_ridges_are_peak_over_bandwidth(drawn: tuple[str, list[dict[str, str]], ET.Element]) -> None:
    case, rows, root = drawn
    facts = profile(CASES[case]["device"])
    bandwidth = si(facts["memory_bandwidth"]["value"])
    words = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    roofs = [row for row in rows if row["series"] == "roof"]
    assert roofs
    for row in roofs:
        peak = si(facts["peaks"][row["compute"]]["value"].replace("TOP/s", "TFLOP/s"))
        assert float(row["ridge_intensity"]) == pytest.approx(peak / bandwidth, rel=1e-12)
        label = f"ridge {float(f'{peak / bandwidth:.3g}'):g} FLOP/B"
        assert any(label in text for text in words), (label, words)


@pytest.mark.parametrize(
    ("case", "tp", "levels"),
    [("llama-2-7b on A100", 1, {"memory", "L2"}), ("llama-3.1-70b tp 4 on H100", 4, {"memory", "L2", "link"}),
     ("llama-3.1-8b in 4 bits on RTX 4090", 1, {"memory", "L2"})],
)  # fmt: skip
def test_slopes_are_those_of_the_profile(case: str, tp: int, levels: set[str], ask: Ask, tmp_path: Path) -> None:
    """Memory, L2 and (with several GPUs) link: numbers, kinds and sources of the YAML; the drawn line has that slope."""
    picture, data = save(build("roofline", ask(case, table=None)), tmp_path / "figure.svg")
    rows = list(csv.DictReader(data.read_text().splitlines()))
    device = CASES[case]["device"]
    facts = profile(device)
    found = {row["level"]: row for row in rows if row["series"] == "slope"}
    assert set(found) == levels
    for level, key in {"memory": "memory_bandwidth", "L2": "l2_bandwidth", "link": "link_bandwidth"}.items():
        if level in found:
            assert float(found[level]["slope_bytes_per_s"]) == pytest.approx(si(facts[key]["value"]), rel=1e-12)
            assert (found[level]["kind"], found[level]["source"]) == (facts[key]["kind"], facts[key]["source"])
    for row in rows:
        if row["series"] == "roof":
            ratio = float(row["flop_per_s"]) / si(facts["l2_bandwidth"]["value"])
            assert float(row["l2_ridge_intensity"]) == pytest.approx(ratio, rel=1e-12)
    root = ET.parse(picture).getroot()  # noqa: S314  our own file
    roof = next(row for row in rows if row["series"] == "roof")
    step = next(row for row in rows if row["series"] == "step" and row["phase"] == "decode")
    (xa, ya), (xb, yb) = centres(root, f"ridge:{device}:{roof['compute']}")[0], centres(root, "step:decode")[0]
    (ia, ra), (ib, rb) = ((math.log(float(p["intensity"] or p["ridge_intensity"])), math.log(float(p["flop_per_s"]))) for p in (roof, step))
    for level in levels - {"memory"}:
        x, y = line(root, f"slope:{device}:{level}")[0]
        intensity, rate = (math.exp(a + (at - o) / (p - o) * (b - a)) for a, b, o, p, at in ((ia, ib, xa, xb, x), (ra, rb, ya, yb, y)))
        assert rate / intensity == pytest.approx(float(found[level]["slope_bytes_per_s"]), rel=0.02)


def test_an_unknown_l2_is_no_slope_and_said(ask: Ask) -> None:
    chart = build("roofline", ask("llama-2-7b on A100", table=None, devices=(load_hardware("b200-sxm"),)))
    assert {row["level"] for row in chart.rows if row["series"] == "slope"} == {"memory"}
    assert {row["l2_ridge_intensity"] for row in chart.rows} == {None}
    assert any("L2 rate not known of B200" in line for line in chart.footer)
    known = build("roofline", ask("llama-2-7b on A100", table=None))
    assert not any("not known" in line for line in known.footer)


def test_measured_products_of_records_are_joined_to_their_predictions(ask: Ask, tmp_path: Path) -> None:
    """A records file as `bench` writes it: medians as filled marks; sentinels, other ops and other devices are passed over."""
    path = tmp_path / "bench.jsonl"
    common = {"kind": "measurement", "device": "a100-sxm-80gb", "dtype": "bf16", "method": "m", "environment": "e"}
    records = [
        {"kind": "environment", "id": "e"},
        common | {"op": "gemm", "shape": {"m": 512, "n": 4096, "k": 4096}, "samples_s": [9.0], "notes": {"case": "a"}},
        common | {"op": "gemm", "shape": {"m": 512, "n": 4096, "k": 4096}, "samples_s": [1e-4, 9e-5, 5e-4], "notes": {"case": "a"}},
        common | {"op": "gemv", "shape": {"m": 1, "n": 4096, "k": 4096}, "samples_s": [2e-5], "notes": {"case": ["b"]}},
        common | {"op": "gemm", "shape": {"m": 7, "n": 7, "k": 7}, "samples_s": [1.0], "notes": {"case": ["s"], "sentinel": True}},
        common | {"op": "stream", "shape": {"level": "memory"}, "samples_s": [1.0], "notes": {"case": "c"}},
        common | {"op": "gemm", "shape": {"m": 1, "n": 1, "k": 1}, "samples_s": [1.0], "device": "another", "notes": {"case": "d"}},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"kind": "measu')
    chart = build("roofline", ask("llama-2-7b on A100", table=path))
    found = {row["name"]: row for row in chart.rows if row["series"] == "measured"}
    assert {name: row["measured_s"] for name, row in found.items()} == {"512×4096×4096": 1e-4, "1×4096×4096": 2e-5}
    assert found["512×4096×4096"]["measured_flop_per_s"] == pytest.approx(2 * 512 * 4096 * 4096 / 1e-4)
    root = ET.fromstring(image(chart, "svg"))  # noqa: S314  our own file
    marks = {gid: [node for node in root.iter(f"{SVG}g") if node.get("id") == gid] for gid in ("measured", "predicted")}
    assert [len(nodes) for nodes in marks.values()] == [2, 2]


def line(root: ET.Element, gid: str) -> list[tuple[float, float]]:
    """The corners of a drawn line, in the drawing's units."""
    group = next(node for node in root.iter(f"{SVG}g") if node.get("id") == gid)
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", next(group.iter(f"{SVG}path")).get("d", ""))]
    return list(zip(numbers[0::2], numbers[1::2], strict=True))


def centres(root: ET.Element, gid: str) -> list[tuple[float, float]]:
    """Where the marks of a group stand on the drawing, in its units."""
    group = next(node for node in root.iter(f"{SVG}g") if node.get("id") == gid)
    found = [(float(node.get("x", "0")), float(node.get("y", "0"))) for node in group.iter(f"{SVG}use")]
    return found or [_middle(node.get("d", "")) for node in group.iter(f"{SVG}path")]


def _middle(path: str) -> tuple[float, float]:
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path)]
    xs, ys = numbers[0::2], numbers[1::2]
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2


def test_marks_stand_where_the_numbers_say(drawn: tuple[str, list[dict[str, str]], ET.Element]) -> None:
    """Two marks give the scale of both log axes; every op must then stand at its FLOP/B and FLOP/s."""
    case, rows, root = drawn
    device = CASES[case]["device"]
    roof = next(row for row in rows if row["series"] == "roof")
    step = next(row for row in rows if row["series"] == "step" and row["phase"] == "decode")
    (xa, ya), (xb, yb) = centres(root, f"ridge:{device}:{roof['compute']}")[0], centres(root, "step:decode")[0]
    pairs = [(math.log(float(roof["ridge_intensity"])), math.log(float(roof["flop_per_s"])))]
    pairs.append((math.log(float(step["intensity"])), math.log(float(step["flop_per_s"]))))
    (ia, ra), (ib, rb) = pairs
    for phase in ("prefill", "decode"):
        found = centres(root, f"ops:{phase}")
        wanted = []
        for op in ops(case, phase):
            if op["flops"]:
                i, r = math.log(op["intensity"]), math.log(op["flops"] / op["expected_s"])
                wanted.append((xa + (i - ia) / (ib - ia) * (xb - xa), ya + (r - ra) / (rb - ra) * (yb - ya)))
        assert len(found) == len(wanted)
        for (x, y), (wx, wy) in zip(found, wanted, strict=True):
            assert (x, y) == (pytest.approx(wx, abs=0.5), pytest.approx(wy, abs=0.5))


def test_the_crossover_is_where_attention_reaches_half(ask: Ask) -> None:
    """By hand for Llama-2-7B: causal attention 2·4096·T(T+1)·32 FLOPs against 2·T·(32 layers' matrices) and the head once."""
    chart = build("prefill-split", ask("llama-2-7b on A100"))
    matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)

    def attention_wins(tokens: int) -> bool:
        return 4 * 4096 * 32 * tokens * (tokens + 1) // 2 >= 2 * tokens * matrices + 2 * 4096 * 32000

    stated = int(re.search(r"from ([\d,]+) tokens", chart.title)[1].replace(",", ""))
    assert attention_wins(stated)
    assert not attention_wins(stated - 1)
    assert [row["attention_share"] >= 0.5 for row in chart.rows] == [row["tokens"] >= stated for row in chart.rows]


def test_kv_of_layouts_by_hand(ask: Ask) -> None:
    """Llama-2-7B: 32 layers × heads × 128 × K and V × 2 bytes; a window keeps 4096 positions."""
    chart = build("kv", ask("llama-2-7b on A100", batch=1))
    per_token = {"as shipped": 524288, "GQA-8": 131072, "MQA": 16384, "MLA": 32 * (512 + 64) * 2}
    for row in chart.rows:
        if row["layout"].startswith("window"):
            assert row["kv_bytes"] == 524288 * min(row["context"], 4096)
        else:
            assert row["kv_bytes"] == per_token[row["layout"]] * row["context"]


def test_the_waterfall_adds_up(ask: Ask) -> None:
    for case in CASES:
        *parts, total = build("waterfall", ask(case)).rows
        assert sum(row["seconds"] for row in parts) == pytest.approx(total["seconds"], rel=1e-3)
        assert parts[0]["part"] == "bound"
        for before, after in pairwise(parts):
            assert after["from_s"] == before["to_s"]


def test_the_budget_adds_up_to_the_memory(ask: Ask) -> None:
    for case in CASES:
        rows = build("budget", ask(case)).rows
        assert sum(row["bytes"] for row in rows) == pytest.approx(rows[0]["total_bytes"], rel=1e-9)


def test_the_front_is_what_no_point_beats(ask: Ask) -> None:
    rows = build("pareto", ask("llama-2-7b on A100")).rows
    for row in rows:
        user, gpu = row["tokens_per_s_per_user"], row["tokens_per_s_per_gpu"]
        better = [o for o in rows if o["tokens_per_s_per_user"] > user and o["tokens_per_s_per_gpu"] >= gpu]
        assert row["on_front"] == (not better)


def test_gemv_ends_where_compute_time_reaches_memory_time(ask: Ask) -> None:
    """Llama-2-7B's gate and up on an A100 by hand: 2·m·n·k / peak against (n·k + m·(n + k)) · 2 B / bandwidth."""
    facts = profile("a100-sxm-80gb")
    peak, bandwidth = si(facts["peaks"]["fp16"]["value"]), si(facts["memory_bandwidth"]["value"])
    n, k = 22016, 4096
    end = next(m for m in range(1, 5000) if 2 * m * n * k / peak >= 2 * (n * k + m * (n + k)) / bandwidth)
    assert f"below {end:,} tokens" in build("gemm-curve", ask("llama-2-7b on A100", table=None)).title


def test_heatmap_cells_are_steps_of_the_ledger(ask: Ask) -> None:
    rows = build("heatmap", ask("llama-3.1-70b tp 4 on H100")).rows
    cell = next(row for row in rows if row["batch"] == 32 and row["context"] == 2048)
    done = process("ops", "llama-3.1-70b", "-H", "h100-sxm", "--tp", "4", "--batch", "32", "--context", "2048", "--json")
    totals = json.loads(done.stdout)["totals"]
    assert cell["limited_by"] == ("KV" if totals["kv_bytes"] > totals["weight_bytes"] else "weights")
    assert cell["tpot_s"] >= totals["bound_s"]


def test_other_tensor_parallel_sizes_change_the_figures(ask: Ask) -> None:
    one, four = (build("prefill-split", ask("llama-3.1-70b tp 4 on H100", parallel=p)) for p in (Parallel(), Parallel(tp=4)))
    assert one.rows[0]["linear_flops"] == pytest.approx(4 * four.rows[0]["linear_flops"], rel=0.05)
