"""Cold means cold: rings against a simulated cache, arenas that do not repeat themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from microbench.caches import MOST_SETS, Arena, is_cold, ring_length
from microbench.device import SLOW_FILL, Device, open_device
from tests.microbench.fakes import FakeCache


@pytest.fixture
def device() -> Device:
    found = open_device("cpu")
    found.cache_bytes = 2**20
    return found


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("size", [2.0, 37.0, 250.0, 999.0, 5000.0])
def test_ring_is_never_in_the_cache(kind: str, size: float) -> None:
    cache, sets = FakeCache(1000.0), ring_length(kind, 1000.0, size)
    hits = [cache.touch(i % sets, size) for i in range(3 * sets)]
    assert not any(hits)
    assert is_cold(kind, 1000.0, size, sets)


def test_a_fixed_ring_of_ten_would_be_warm() -> None:
    cache = FakeCache(1000.0)
    assert all([cache.touch(i % 10, 50.0) for i in range(100)][10:])
    assert not is_cold("cuda", 1000.0, 50.0, 10)


def test_ring_counts() -> None:
    assert ring_length("cuda", 50 * 2**20, 32 * 2**20) == 9  # ⌈5 · 50 / 32⌉ + 1
    assert ring_length("cpu", 480 * 2**20, 2**30) == 3  # ⌈4 · 480 / 1024⌉ + 1
    assert ring_length("cuda", 50 * 2**20, 4) == MOST_SETS
    assert not is_cold("cuda", 50 * 2**20, 4, MOST_SETS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8])
def test_operands_are_random_memory_that_does_not_overlap(device: Device, dtype: torch.dtype) -> None:
    views = [device.take(dtype, 7, 100) for _ in range(10)]
    spans = sorted((v.data_ptr(), v.data_ptr() + v.nbytes) for v in views)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for view in views:
        values = view.float()
        assert values.std() > 0.5
        assert (values == 0).float().mean() < 0.05
        assert torch.isfinite(values).all()
        assert abs(values.mean()) < values.std()


def test_operands_of_every_type_stay_random_whatever_is_written(device: Device) -> None:
    first = device.take(torch.float32, 64).data_ptr()
    for _ in range(2000):
        device.output(torch.float32, 1000).fill_(float("nan"))
    operands = device.take(torch.bfloat16, 2**18)
    assert torch.isfinite(operands.float()).all()
    assert first != device.output(torch.float32, 64).data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8])
def test_an_arena_of_one_type_is_drawn_in_that_type(dtype: torch.dtype) -> None:
    values = Arena("cpu", size=2**16, drawn=dtype).take(dtype, 2**14).float()
    scale = 32.0 if dtype == torch.int8 else 1.0
    assert values.std() == pytest.approx(scale, rel=0.05)
    assert values.mean() == pytest.approx(0.0, abs=0.05 * scale)
    assert (values == 0).float().mean() < 0.05


def test_arena_walks_around_and_grows() -> None:
    arena = Arena("cpu", size=4096)
    first = arena.take(torch.float32, 600).data_ptr()
    assert arena.take(torch.int8, 3000).data_ptr() == first
    assert arena.take(torch.float32, 2000).shape == (2000,)
    assert arena.size == 8192


def test_with_little_memory_an_arena_is_shorter_and_said_to_be(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.empty

    def limited(count: int, **kind: object) -> torch.Tensor:
        if count * 2 > 2**20:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return whole(count, **kind)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", limited)
    assert device.take(torch.float32, 1000).numel() == 1000
    assert not device.passes_caches()
    with pytest.raises(RuntimeError, match="can't allocate"):
        device.take(torch.float32, 2**20)
    monkeypatch.undo()
    device.release()
    device.take(torch.float32, 1000)
    assert device.passes_caches()


def test_arena_fills_only_what_is_taken() -> None:
    arena = Arena("cpu", size=2**26)
    arena.take(torch.float32, 100)
    assert arena.filled_bytes < 2**24


def test_what_is_left_to_fill_is_known(device: Device) -> None:
    assert device.filling_s() == pytest.approx(4 * 2**20 * SLOW_FILL)
    device.take(torch.float32, 2**20)
    assert device.filling_s() == 0.0


def test_arena_is_the_same_for_the_same_seed() -> None:
    a, b, c = (Arena("cpu", 1024, seed=seed).take(torch.float32, 100) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
