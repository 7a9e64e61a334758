"""Quantised products equal products with the weights that the codes stand for, worked out element by element."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roofline.engine.build import Options, build_engine, check
from roofline.engine.kvcache import KvFormat, Vectors, bytes_per_token
from roofline.engine.linear import Fp8, Int4WeightOnly, Int8, Int8WeightOnly, linear
from roofline.errors import InputError
from roofline.scheduling import VllmConfig
from tests.engine import tiny

ROWS, INPUTS, OUTPUTS = 3, 128, 48


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x · Wᵀ in fp64 by explicit sums."""
    return torch.tensor([[sum(a * b for a, b in zip(row, each, strict=True)) for each in weight.tolist()] for row in x.tolist()])


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_int8_weight_only_is_the_product_with_the_codes() -> None:
    weight, x, bias = random(OUTPUTS, INPUTS), random(ROWS, INPUTS, seed=1), random(OUTPUTS, seed=2)
    layer = Int8WeightOnly(weight.double(), bias.double())
    meant = torch.tensor(
        [[code * scale for code in row] for row, scale in zip(layer.quantised.tolist(), layer.scale.tolist(), strict=True)]
    )
    assert (meant - weight).abs().max() <= weight.abs().amax(1).max() / 127 / 2 + 1e-6
    expected = product(x, meant) + bias
    assert relative(layer(x.double()), expected) < 1e-6
    narrow = Int8WeightOnly(weight, bias)(x)
    assert narrow.dtype == torch.float32
    assert relative(narrow, expected) < 2**-8
    many = Int8WeightOnly(weight, bias)(x.repeat(20, 1))[:ROWS]
    assert relative(many, expected) < 1e-5


def test_int4_is_the_product_with_the_codes() -> None:
    weight, x = random(OUTPUTS, INPUTS), random(ROWS, INPUTS, seed=1)
    layer = Int4WeightOnly(weight)
    group = layer.group
    meant = torch.zeros(OUTPUTS, INPUTS)
    for row in range(OUTPUTS):
        for first in range(0, INPUTS, group):
            part = weight[row, first : first + group].tolist()
            low, high = min(part), max(part)
            step = (high - low) / 15
            meant[row, first : first + group] = torch.tensor([low + step * round((value - low) / step) for value in part])
    assert relative(layer(x), product(x, meant)) < 2**-7


def test_w8a8_is_the_product_of_codes() -> None:
    weight, x = random(OUTPUTS, INPUTS), random(ROWS, INPUTS, seed=1)
    layer = Int8(weight)
    x_scale = [max(map(abs, row)) / 127 for row in x.tolist()]
    x_codes = [[round(value / scale) for value in row] for row, scale in zip(x.tolist(), x_scale, strict=True)]
    sums = product(torch.tensor(x_codes, dtype=torch.float64), layer.quantised.double())
    expected = sums * torch.tensor(x_scale).unsqueeze(1) * layer.scale
    assert relative(layer(x), expected) < 1e-3  # a code on the edge between two may fall either way
    assert relative(layer(x), product(x, weight)) < 0.02


def test_fp8_is_near_the_product() -> None:
    weight, x = random(OUTPUTS, INPUTS), random(ROWS, INPUTS, seed=1)
    assert relative(Fp8(weight)(x), product(x, weight)) < 0.06


@pytest.mark.parametrize("fmt", ["", "w8a16", "int4", "int8", "fp8"])
def test_engines_run_with_every_format(fmt: str) -> None:
    wide = tiny.model(hidden_size=64, layers=1)
    wide = wide.model_copy(
        update={"layers": {"a": wide.layers["a"].model_copy(update={"ffn": wide.layers["a"].ffn.model_copy(update={"intermediate": 96})})}}
    )
    assert linear(random(64, 64), None, fmt)(random(2, 64)).shape == (2, 64)
    setup = check(wide, Options(weights=fmt, block_size=4, num_blocks=64))
    engine = build_engine(setup, setup.scheduler(), debug=True)
    engine.add_request("a", tiny.prompt(0, 9), 5)
    assert len(tiny.finish(engine)["a"]) == 5


@pytest.mark.parametrize(("kind", "worst"), [("", 0.0), ("int8", 1 / 254), ("fp8", 2**-4)])
def test_a_quantised_cache_gives_back_what_it_was_given(kind: str, worst: float) -> None:
    store = Vectors(8, 4, 2, 16, KvFormat(torch.float32, kind), tiny.CPU)
    given = random(6, 2, 16) * torch.tensor([1e-3, 1, 50, 1, 1, 1]).view(6, 1, 1)
    slots = torch.tensor([9, 4, 30, 8, 5, 11])
    store.write(slots, given)
    found = store.read(torch.tensor([[2, 1, 7]]))[0]
    where = [1, 4, 10, 0, 5, 3]
    for row, place in enumerate(where):
        largest = given[row].abs().amax(-1, keepdim=True)
        assert ((found[place] - given[row]).abs() <= worst * largest + 1e-9).all()
    untouched = [place for place in range(12) if place not in where]
    assert (found[untouched] == 0).all()


@pytest.mark.parametrize("model", ["llama", "window", "mla"])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_chunks_and_hits_see_the_same_quantised_cache(model: str, kind: str) -> None:
    outputs = []
    for budget in (256, 5):
        engine = tiny.engine(model, VllmConfig(max_num_batched_tokens=budget, max_num_seqs=4), kv=kind)
        for name in ("cold", "warm"):
            engine.add_request(name, tiny.prompt(3, 22), 8)
            outputs.append(tiny.finish(engine)[name])
    assert all(output == outputs[0] for output in outputs)


def test_bytes_of_the_cache() -> None:
    llama, latent = tiny.model(), tiny.model("mla")
    assert bytes_per_token(llama, KvFormat(torch.float32)) == 2 * 2 * 2 * 8 * 4
    assert bytes_per_token(llama, KvFormat(torch.bfloat16, "int8")) == 2 * 2 * 2 * (8 + 4)
    assert bytes_per_token(llama, KvFormat(torch.bfloat16), ranks=2) == 2 * 2 * 1 * 8 * 2
    assert bytes_per_token(latent, KvFormat(torch.bfloat16), ranks=2) == 2 * 20 * 2


def test_formats_that_cannot_be() -> None:
    with pytest.raises(InputError, match="w8a16, int4, int8 or fp8"):
        check(tiny.model(), Options(weights="mxfp4"))
    with pytest.raises(InputError, match="as int8 or as fp8"):
        check(tiny.model(), Options(kv="int4"))
    with pytest.raises(InputError, match="multiple of 32"):
        Int4WeightOnly(random(4, 40))
