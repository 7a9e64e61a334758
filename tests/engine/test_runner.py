"""How a pass is laid out, and the calls to kernels that only a GPU has, made to stand-ins that do what is documented."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor

from roofline.engine.build import Options, check
from roofline.engine.kvcache import KvFormat, build_cache
from roofline.engine.model import build_decoder
from roofline.engine.numerics import from_config
from roofline.engine.runner import Row, Runner, bucket, build_pass
from roofline.engine.weights import SeededWeights, expected_shapes
from roofline.errors import InputError
from tests.engine import tiny


def test_buckets() -> None:
    assert [bucket(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 100)] == [1, 2, 4, 4, 8, 8, 16, 16, 24, 104]


def test_layout_of_a_pass() -> None:
    rows = [Row([7, 8, 9], 0, [3, 4], 1), Row([5], 6, [2, 6], 1), Row([1, 2, 3], 2, [9, 8], 3), Row([4], 0, [1], 0)]
    step, places = build_pass(rows, 4, tiny.CPU)
    assert step.tokens.tolist() == [5, 4, 7, 8, 9, 1, 2, 3]
    assert step.positions.tolist() == [6, 0, 0, 1, 2, 2, 3, 4]
    assert step.slots.tolist() == [26, 4, 12, 13, 14, 38, 39, 32]
    assert step.outputs.tolist() == [0, 4, 5, 6, 7]
    assert places == [1, 0, 2, 1]
    assert [(group.rows, group.new, group.cold) for group in step.groups] == [(2, 1, False), (2, 3, False)]
    assert step.groups[0].tables.tolist() == [[2, 6], [1, 0]]
    assert step.groups[1].mask(2)[1, 0].int().tolist() == [[0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]]


def documented(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, _: None, max_q: int, max_k: int, *,
    scale: float, window_size: tuple[int, int], enable_gqa: bool, seqused_k: Tensor, block_table: Tensor,
) -> Tensor:  # fmt: skip
    """torch.nn.attention.varlen.varlen_attn by its documentation, one query and head at a time."""
    assert starts.dtype == seqused_k.dtype == block_table.dtype == torch.int32
    assert enable_gqa == (q.shape[1] != k.shape[2])
    assert max_k >= int(seqused_k.max())
    assert window_size[1] == 0
    out = torch.zeros_like(q)
    for row, (first, stop) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        length = int(seqused_k[row])
        assert stop - first <= max_q
        keys, values = (store[block_table[row].long()].flatten(0, 1)[:length] for store in (k, v))
        for at in range(first, stop):
            position = length - (stop - at)  # causal masks are aligned to the end
            seen = range(0 if window_size[0] < 0 else max(0, position - window_size[0]), position + 1)
            for head in range(q.shape[1]):
                own = head * k.shape[2] // q.shape[1]
                scores = torch.stack([(q[at, head] * keys[place, own]).sum() * scale for place in seen])
                out[at, head] = sum(weight * values[place, own] for weight, place in zip(scores.softmax(0), seen, strict=True))
    return out


@pytest.mark.parametrize("mode", ["eager", "padded"])
@pytest.mark.parametrize("kind", ["llama", "window"])
def test_flash_attention_is_called_by_its_documentation(kind: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("torch.nn.attention.varlen")
    stand_in.varlen_attn = documented  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", stand_in)
    spec = tiny.model(kind)
    flash = build_decoder(
        spec, from_config(spec, {}), SeededWeights(expected_shapes(spec)), dtype=torch.float64, device=tiny.CPU, positions=64, flash=True
    )
    tokens = tiny.prompt(3, 24)
    expected = Runner(tiny.decoder(kind), build_cache(spec, 9, 4, KvFormat(torch.float64), 1, tiny.CPU), 4, tiny.CPU).run(
        [Row(tokens, 0, range(1, 8), 24)]
    )[0]
    runner = Runner(flash, build_cache(spec, 30, 4, KvFormat(torch.float64), 1, tiny.CPU), 4, tiny.CPU, mode)
    tables = [[5, 1, 9, 2, 7, 3], [11, 12, 20, 14, 22, 16]]
    found = [runner.run([Row(tokens[:11], 0, table, 0) for table in tables])]
    found.append(runner.run([Row(tokens[11:14], 11, table, 3) for table in tables]))
    found.append(runner.run([Row([tokens[14]], 14, tables[0], 1), Row(tokens[14:19], 14, tables[1], 5)]))
    found.append(runner.run([Row([tokens[15]], 15, tables[0], 1), Row([tokens[19]], 19, tables[1], 1)]))
    for place, first in enumerate((11, 14, 15)):
        assert torch.allclose(found[1 + place][0], expected[first : first + len(found[1 + place][0])], rtol=0, atol=1e-12)
    assert torch.allclose(torch.cat([each[1] for each in found[1:]]), expected[11:20], rtol=0, atol=1e-12)


def test_flash_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="flash attention needs a CUDA device"):
        check(tiny.model(), Options(attention="flash", dtype="bf16"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_equal_their_eager_twin() -> None:
    for mode in ("eager", "padded", "graphs"):
        engine = tiny.engine("llama", device="cuda", dtype="fp32", mode=mode)
        for seed in range(5):
            engine.add_request(str(seed), tiny.prompt(seed, 6 + seed), 20)
        outputs = tiny.finish(engine)
        if mode == "eager":
            expected = outputs
        assert outputs == expected
