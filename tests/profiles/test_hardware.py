"""Hardware profiles: plain numbers with provenance, and what a profile may not say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from roofline.errors import InputError, ProfileError
from roofline.profiles import facts
from roofline.profiles.catalog import load_hardware
from roofline.profiles.hardware import Hardware, load

GOOD = """\
id: x-1
vendor: Someone
name: X One
architecture: Hopper
memory_bytes: {value: "80 GB", source: the X One datasheet, kind: datasheet}
memory_bandwidth: {value: "3.35 TB/s", source: h100wp, kind: whitepaper, note: at 2.6 GHz}
sm_count: {value: 132, source: h100wp, kind: whitepaper}
sparsity: dense
peaks:
  bf16: {value: "989.4 TFLOP/s", source: h100wp, kind: whitepaper}
  int8: {value: "1978.9 TOP/s", source: comp, kind: computed}
link: NVLink
link_bandwidth: {value: "450 GB/s", source: mem, kind: unverified}
achieved:
  - {metric: stream_read, value: "3 TB/s", fraction: 0.9, source: me}
  - {metric: gemm, dtype: bf16, value: "700 TFLOP/s", source: me}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "x-1.yaml"
    path.write_text(GOOD)
    return path


def changed(path: Path, old: str, new: str) -> Path:
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    return path


def test_numbers_are_plain_and_in_base_units(profile: Path) -> None:
    x = load(profile)
    assert (x.memory_bytes, x.memory_bandwidth, x.sm_count, x.link_bandwidth) == (80e9, 3.35e12, 132, 450e9)
    assert x.peaks == {"bf16": 989.4e12, "int8": 1978.9e12}
    assert (x.memory_reported_bytes, x.l2_bytes, x.tdp_w, x.boost_hz) == (None, None, None, None)
    assert [a.value for a in x.achieved] == [3e12, 700e12]
    assert x.path == profile


def test_provenance_of_each_number(profile: Path) -> None:
    x = load(profile)
    figure = x.provenance("memory_bandwidth")
    assert (figure.value, figure.source, figure.kind, figure.note) == ("3.35 TB/s", "h100wp", "whitepaper", "at 2.6 GHz")
    assert x.provenance("peaks.int8").kind == "computed"
    with pytest.raises(InputError, match=r"peaks\.bf16"):
        x.provenance("peaks.bf1")


def test_peak_lists_what_exists(profile: Path) -> None:
    x = load(profile)
    assert x.peak("bf16") == 989.4e12
    with pytest.raises(InputError, match="no fp8 peak; it has bf16, int8"):
        x.peak("fp8")


def test_a_what_if_keeps_the_rest(profile: Path) -> None:
    x = load(profile)
    half = x.model_copy(update={"memory_bandwidth": x.memory_bandwidth / 2})
    assert (half.memory_bandwidth, half.peaks) == (x.memory_bandwidth / 2, x.peaks)
    with pytest.raises(ValidationError, match="frozen"):
        x.memory_bytes = 1.0  # type: ignore[misc]


def test_python_callers_may_give_plain_numbers() -> None:
    x = Hardware(id="y", vendor="v", name="n", memory_bytes=1e9, memory_bandwidth=1e9, peaks={"fp32": 1e12})
    assert x.peak("fp32") == 1e12


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words"),
    [
        ('"3.35 TB/s"', '"3.35 Tb/s"', 6, "memory_bandwidth", "counts bits"),
        ('"3.35 TB/s"', "3.35", 6, "memory_bandwidth", "valid string|no unit"),
        ('"3.35 TB/s"', "3350", 6, "memory_bandwidth", "no unit"),
        ('"3.35 TB/s"', '"0 TB/s"', 6, "memory_bandwidth", "greater than or equal to 1"),
        ('{value: "80 GB", source: the X One datasheet, kind: datasheet}', '"80 GB"', 5, "memory_bytes", "needs its source"),
        ('{value: "80 GB", source: the X One datasheet, kind: datasheet}', "80000000000", 5, "memory_bytes", "needs its source"),
        (", kind: datasheet}", "}", 5, "memory_bytes", "kind"),
        ("kind: datasheet}", "kind: rumour}", 5, "memory_bytes", "datasheet"),
        ("source: the X One datasheet", 'source: ""', 5, "memory_bytes", "source"),
        ("memory_bandwidth:", "memory_bandwith:", 6, "memory_bandwith", "did you mean 'memory_bandwidth'"),
        ("sparsity: dense", 'sparsity: "2:4"', 8, "sparsity", "must be dense"),
        ("  bf16:", "  bf17:", 10, "peaks.bf17", "unknown compute type"),
        ("sm_count: {value: 132", "sm_count: {value: -3", 7, "sm_count", "greater than 0"),
        ("sm_count: {value: 132", "sm_count: {value: 1.5", 7, "sm_count", "valid"),
        ("id: x-1", "id: X 1", 1, "id", "match pattern"),
        ('value: "3 TB/s"', 'value: "3 Tb/s"', 15, "achieved[0]", "bits"),
    ],
)
def test_refusals_name_line_key_and_fix(profile: Path, old: str, new: str, line: int, key: str, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        load(changed(profile, old, new))
    assert (caught.value.line, caught.value.key) == (line, key)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sparsity: dense\n", "", "write 'sparsity: dense'"),
        ("link: NVLink\n", "", "not the link's name"),
        ("vendor: Someone\n", "", "'vendor' is missing"),
        ("sparsity: dense\n", "sparsity: dense\nfigures: {}\n", "filled by the program"),
        ("sm_count:", 'memory_reported_bytes: {value: "180 GiB", source: a, kind: measured}\nsm_count:', "another device"),
    ],
)
def test_refusals_of_the_whole(profile: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        load(changed(profile, old, new))


SHIPPED = load_hardware("h100-sxm").path
assert SHIPPED is not None
TEXT = SHIPPED.read_bytes()


DAMAGE = [b"{", b"}", b": ", b"\n", b"- ", b"no", b"1e9", b'"', b"\t", b"&a *a"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A shipped profile after up to three random insertions, deletions, or swaps of bytes."""
    raw = TEXT
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(raw)))
        length = draw(st.integers(0, 40))
        middle = draw(st.one_of(st.binary(max_size=6), st.sampled_from(DAMAGE)))
        raw = raw[:start] + middle + raw[start + length :]
    return raw


@given(damaged())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
def test_random_damage_is_valid_or_a_profile_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "damaged.yaml"
    path.write_bytes(raw)
    try:
        hardware = load(path)
    except ProfileError as error:
        told = str(error)
    else:
        told = "damaged.yaml" if hardware.memory_bandwidth > 0 else "a bandwidth that is none"
    assert "damaged.yaml" in told


def test_facts_carry_their_source() -> None:
    rows = {fact.key: fact for fact in facts.facts(load_hardware("h100-sxm"))}
    assert rows["memory_bandwidth"].value == 3.35e12
    assert rows["peaks.bf16"].kind == "whitepaper"
    assert rows["ridge"].value == pytest.approx(989.4e12 / 3.35e12)
    assert rows["peaks.int8"].unit == "flop_rate"
    assert "peaks.fp4" not in rows


def test_compare_puts_devices_side_by_side() -> None:
    rows = {row.key: row for row in facts.compare([load_hardware("h100-sxm"), load_hardware("b200-sxm")])}
    assert rows["memory_bytes"].values == (80e9, 180e9)
    assert rows["peaks.fp4"].values == (None, 9e15)
    assert "peaks.int4" not in rows
    with pytest.raises(InputError, match="at least one"):
        facts.compare([])


def test_profiles_import_nothing_heavy() -> None:
    code = "import sys, roofline.profiles.catalog as c; c.load_hardware('h100-sxm'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "pandas", "matplotlib", "scipy", "pynvml"} & set(done.stdout.split())
