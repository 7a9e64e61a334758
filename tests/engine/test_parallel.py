"""Two ranks over gloo say what one rank says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from roofline.engine.build import Options, check
from roofline.engine.kvcache import KvFormat, build_cache
from roofline.engine.parallel import Ranks, launch
from roofline.engine.runner import Row, Runner
from roofline.engine.sampler import Sampling
from roofline.errors import InputError, ShardError
from tests.engine import tiny

ROOT = Path(__file__).parents[2]


def test_two_ranks_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert launch(2, [sys.executable, str(ROOT / "tests/engine/rank.py"), str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    for kind, said in found.items():
        for seed in range(6):
            how = Sampling(temperature=0.7 * (seed % 2), seed=seed)
            assert said["outputs"][str(seed)] == tiny.alone(kind, tuple(tiny.prompt(seed, 6 + seed)), 8, how)
        runner = Runner(tiny.decoder(kind), build_cache(tiny.model(kind), 8, 4, KvFormat(torch.float64), 1, tiny.CPU), 4, tiny.CPU)
        whole = runner.run([Row(tiny.prompt(9, 12), 0, [1, 2, 3], 12)])[0]
        torch.testing.assert_close(torch.tensor(said["logits"], dtype=torch.float64), whole, rtol=0, atol=1e-10)
        assert said["agreed"] == 1.5


def test_a_failing_rank_ends_the_others() -> None:
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    assert launch(2, [sys.executable, "-c", code]) == 7


@pytest.mark.parametrize(("parts", "expected"), [(4, [[0, 1], [2, 3]]), (2, [[0, 1], [2, 3]]), (1, [[0, 1, 2, 3], [0, 1, 2, 3]])])
def test_shards(parts: int, expected: list[list[int]]) -> None:
    rows = torch.arange(4)
    assert [Ranks(rank, 2).shard(rows, 0, parts).tolist() for rank in (0, 1)] == expected


def test_key_heads_are_copied_to_the_ranks_whose_queries_need_them() -> None:
    heads = torch.arange(2).repeat_interleave(3)
    assert [Ranks(rank, 4).shard(heads, 0, 2).tolist() for rank in range(4)] == [[0] * 3, [0] * 3, [1] * 3, [1] * 3]


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ShardError, match=r"mixer\.heads = 4 cannot be split over tp = 3"):
        check(tiny.model(), Options(), ranks=Ranks(0, 3))
    with pytest.raises(InputError, match="WORLD_SIZE"):
        Ranks(0, 2).connect("cpu")
