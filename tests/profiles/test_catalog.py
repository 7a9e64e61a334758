"""Finding profiles: order of places, aliases, ambiguity, and that a plain name opens one file only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofline.errors import InputError, ProfileError, UnknownNameError
from roofline.profiles import catalog, yamlfile

MINIMAL = """\
id: {id}
vendor: v
name: {name}
aliases: {aliases}
memory_bytes: {{value: "1 GB", source: a test, kind: measured}}
memory_bandwidth: {{value: "{bandwidth} GB/s", source: a test, kind: measured}}
sparsity: dense
peaks: {{fp32: {{value: "1 TFLOP/s", source: a test, kind: measured}}}}
"""


def write(folder: Path, id_: str, *, name: str = "Some Device", aliases: str = "[]", bandwidth: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{id_}.yaml"
    path.write_text(MINIMAL.format(id=id_, name=name, aliases=aliases, bandwidth=bandwidth))
    return path


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("h100-sxm", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("h100-sxm5", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100-80gb-pcie", "h100-pcie"),
        ("a100-sxm4-80gb", "a100-sxm-80gb"),
        ("a100_sxm_40gb", "a100-sxm-40gb"),
        ("v100-sxm2-32gb", "v100-sxm-32gb"),
        ("NVIDIA H200", "h200-sxm"),
        ("b200", "b200-sxm"),
        ("RTX4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("Tesla T4", "t4"),
        ("m3-ultra", "apple-m3-ultra"),
        ("mi300x", "mi300x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("L40S", "l40s"),
        ("l40", "l40"),
    ],
)
def test_names_and_older_spellings(name: str, id_: str) -> None:
    assert catalog.load_hardware(name).id == id_


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("h100", ["h100-sxm", "h100-pcie", "h100-nvl"]),
        ("H100", ["h100-sxm", "h100-pcie", "h100-nvl"]),
        ("h200", ["h200-sxm", "h200-nvl"]),
        ("a100", ["a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"]),
        ("a100-sxm", ["a100-sxm-40gb", "a100-sxm-80gb"]),
        ("gh200", ["gh200-96gb", "gh200-144gb"]),
        ("rtx-pro-6000", ["rtx-pro-6000-server", "rtx-pro-6000-workstation"]),
    ],
)
def test_an_ambiguous_name_lists_the_candidates(name: str, candidates: list[str]) -> None:
    with pytest.raises(UnknownNameError, match="ambiguous") as caught:
        catalog.load_hardware(name)
    listed = str(caught.value).split("one of: ")[1].split(", ")
    assert sorted(listed) == sorted(candidates)


@pytest.mark.parametrize(("name", "near"), [("h100-sxn", "'h100-sxm'"), ("4090", "'rtx-4090'"), ("l40z", "'l40"), ("mi300xx", "'mi300x'")])
def test_an_unknown_name_gets_close_matches(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        catalog.load_hardware(name)


def test_a_cpu_is_measured_not_looked_up() -> None:
    with pytest.raises(UnknownNameError, match=r"bench all --profile this-machine\.yaml`, then -H this-machine\.yaml"):
        catalog.load_hardware("CPU")


@pytest.mark.parametrize("name", ["", "   ", "-", "nothing like it at all", "日本"])
def test_nonsense_is_refused_with_the_way_to_the_list(name: str) -> None:
    with pytest.raises(UnknownNameError, match="hardware list"):
        catalog.load_hardware(name)


@given(st.text(max_size=30))
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40, deadline=None)
def test_any_name_is_found_or_an_input_error(name: str) -> None:
    with contextlib.suppress(InputError):
        catalog.load_hardware(name)


def test_a_plain_name_opens_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = yamlfile.read_text
    monkeypatch.setattr(yamlfile, "read_text", lambda path: opened.append(Path(path).name) or real(path))
    catalog.load_hardware("h100-sxm")
    catalog.load_hardware("H100_SXM")
    assert opened == ["h100-sxm.yaml", "h100-sxm.yaml"]


class TestPlaces:
    def test_an_explicit_path_wins(self, tmp_path: Path) -> None:
        path = write(tmp_path, "h100-sxm", bandwidth=7)
        assert catalog.load_hardware(path).memory_bandwidth == 7e9
        assert catalog.load_hardware(str(path)).memory_bandwidth == 7e9

    def test_then_profile_dir_then_the_environment_then_ours(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path / "one", "h100-sxm", bandwidth=1)
        write(tmp_path / "two", "h100-sxm", bandwidth=2)
        write(tmp_path / "two", "l4", bandwidth=2)
        monkeypatch.setenv(catalog.ENVIRONMENT, str(tmp_path / "two"))
        dirs = [tmp_path / "one"]
        assert catalog.load_hardware("h100-sxm", profile_dirs=dirs).memory_bandwidth == 1e9
        assert catalog.load_hardware("h100-sxm").memory_bandwidth == 2e9
        assert catalog.load_hardware("l4", profile_dirs=dirs).memory_bandwidth == 2e9
        assert catalog.load_hardware("t4", profile_dirs=dirs).memory_bandwidth == 320e9

    def test_several_folders_in_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path / "one", "aa")
        write(tmp_path / "two" / "hwprofiles", "bb")
        monkeypatch.setenv(catalog.ENVIRONMENT, os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]))
        assert [catalog.load_hardware(n).id for n in ("aa", "bb")] == ["aa", "bb"]

    def test_own_aliases_in_any_yaml_style(self, tmp_path: Path) -> None:
        write(tmp_path, "mine", aliases="\n  - My Card  # ours\n  - other-card")
        assert catalog.load_hardware("my card", profile_dirs=[tmp_path]).id == "mine"
        assert catalog.load_hardware("Other Card", profile_dirs=[tmp_path]).id == "mine"

    def test_an_alias_of_two_files_is_ambiguous(self, tmp_path: Path) -> None:
        write(tmp_path, "one", aliases="[card]")
        write(tmp_path, "two", aliases="[card]", name="Other")
        with pytest.raises(UnknownNameError, match="one of: one, two"):
            catalog.load_hardware("card", profile_dirs=[tmp_path])

    def test_a_broken_file_does_not_hide_the_others(self, tmp_path: Path) -> None:
        (tmp_path / "broken.yaml").write_text("aliases: [\nname: {")
        write(tmp_path, "whole", aliases="[card]")
        assert catalog.load_hardware("card", profile_dirs=[tmp_path]).id == "whole"
        with pytest.raises(ProfileError, match=r"broken\.yaml"):
            catalog.load_hardware("broken", profile_dirs=[tmp_path])

    def test_a_missing_profile_dir_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="is not a folder"):
            catalog.load_hardware("l4", profile_dirs=[tmp_path / "none"])

    @pytest.mark.parametrize("name", ["./nothing", "nothing.yaml", "/nothing/at/all.yml"])
    def test_a_path_that_is_not_there(self, name: str) -> None:
        with pytest.raises(ProfileError, match="no such file"):
            catalog.load_hardware(name)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ProfileError, match="is a folder"):
            catalog.load_hardware(str(tmp_path))

    def test_packaged_data_is_used_without_a_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path / "roofline" / "_data" / "hwprofiles", "packaged")
        monkeypatch.setattr(catalog, "_PACKAGE", tmp_path / "roofline")
        assert list(catalog.files(catalog.HARDWARE)) == ["packaged"]


def test_the_list_is_sorted_and_complete() -> None:
    ids = [hardware.id for hardware in catalog.list_hardware()]
    assert ids == sorted(ids)
    assert len(ids) == len(catalog.files(catalog.HARDWARE)) >= 90


def test_models_are_found_the_same_way() -> None:
    assert catalog.find(catalog.MODELS, "llama-3.1-8b").name == "llama-3.1-8b.yaml"
    assert catalog.find(catalog.MODELS, "meta-llama/Llama-3.1-8B").name == "llama-3.1-8b.yaml"
    with pytest.raises(UnknownNameError, match="models list"):
        catalog.find(catalog.MODELS, "no-such-model-anywhere")


def test_source_keys_have_their_documents() -> None:
    assert "whitepaper" in catalog.sources()["h100wp"]
