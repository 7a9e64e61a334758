"""The ledger's counts against counts that share no code with it: tensors that a case touches, and explicit loops."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from microbench.cases.attention import decode, naive, prefill
from microbench.cases.gemm import TOLERANCE, gemm
from microbench.cases.model import in_one_type, model_cases
from microbench.cases.moving import elementwise, launch, stream, transfer
from microbench.cases.standard import GROUPS, cases, sentinel
from microbench.device import Device, open_device
from microbench.ops import Heads
from roofline.ledger.collectives import wire_share
from roofline.profiles.catalog import load_model
from roofline.profiles.model import Model


@pytest.fixture(scope="module")
def device() -> Device:
    found = open_device("cpu")
    found.cache_bytes = 2**20  # small arenas
    return found


def touched(*groups: object) -> int:
    return sum(tensor.nbytes for group in groups for tensor in group)  # type: ignore[attr-defined]


def ran(case, device: Device):
    """A set of the case after one call, its result checked."""
    trial = case.build(device)
    trial.call()
    if trial.error is not None:
        assert trial.error() <= case.tolerance
    return trial


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [(1, 48, 32), (5, 16, 64), (33, 96, 16)])
def test_gemm(device: Device, dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    case = gemm(m, n, k, dtype, cold=True)
    trial = ran(case, device)
    assert case.op.bytes_each == touched(trial.reads, trial.writes)
    multiply_adds = sum(1 for _ in range(m) for _ in range(n) for _ in range(k))
    assert case.op.flops_each == 2 * multiply_adds


@pytest.mark.parametrize(("dtype", "scales"), [("int8", 0), ("w8a16", 0), ("int4", 0)])
def test_quantised_gemm(device: Device, dtype: str, scales: int) -> None:
    m, n, k = 32, 128, 256
    case = gemm(m, n, k, dtype, cold=True)
    trial = ran(case, device)
    output = trial.writes or [torch.empty(m, n, dtype=torch.bfloat16)]
    assert case.op.bytes_each == touched(trial.reads, output) - scales
    assert case.op.flops_each == 2 * m * n * k


def test_fp8_gemm(device: Device) -> None:
    case = gemm(32, 64, 128, "fp8", cold=True)
    trial = ran(case, device)
    assert case.op.bytes_each == touched(trial.reads, trial.writes)


def pairs(new: int, past: int, causal: bool) -> int:
    return sum(1 for q in range(new) for key in range(past + new) if not causal or key <= past + q)


@pytest.mark.parametrize("of", [Heads(4, 4, 16), Heads(8, 2, 32), Heads(6, 1, 8)])
@pytest.mark.parametrize(("kernel", "causal"), [("flash", True), ("flash", False), ("math", True)])
def test_prefill(device: Device, of: Heads, kernel: str, causal: bool) -> None:
    case = prefill(2, 37, of, "fp32", kernel=kernel, causal=causal)
    trial = ran(case, device)
    output = trial.reads[0]  # as large as the queries
    assert case.op.bytes_each == touched(trial.reads, [output])
    assert case.op.flops_each == 2 * (2 * pairs(37, 0, causal)) * of.heads * (2 * of.head_dim)  # two sequences; scores and values


@pytest.mark.parametrize("of", [Heads(4, 4, 16), Heads(8, 2, 32)])
@pytest.mark.parametrize("context", [0, 30, 31, 32])
def test_decode_contiguous_and_paged(device: Device, of: Heads, context: int) -> None:
    case = decode(3, context, of, "fp32")
    trial = ran(case, device)
    assert case.op.bytes_each == touched(trial.reads, [trial.reads[0]])
    assert case.op.flops_each == 2 * (3 * pairs(1, context, True)) * of.heads * (2 * of.head_dim)
    paged = decode(3, context, of, "fp32", paged=True)
    ran(paged, device)
    assert paged.op.bytes_each == case.op.bytes_each


def test_naive_attention_stores_its_scores(device: Device) -> None:
    of, tokens = Heads(3, 3, 16), 40
    case = naive(2, tokens, of, "fp32")
    trial = ran(case, device)
    assert case.op.bytes_each == touched(trial.reads, trial.writes)
    matmuls = 2 * (2 * of.heads * tokens * tokens * of.head_dim) * 2  # scores and values, two sequences
    softmax = 5 * 2 * of.heads * tokens * tokens
    assert case.op.flops_each == matmuls + softmax


@pytest.mark.parametrize("kernel", ["copy", "read", "triad"])
def test_streams(device: Device, kernel: str) -> None:
    case = stream(kernel, "memory", 3 * 2**16, cold=True)
    trial = ran(case, device)
    assert case.op.bytes_each == touched(trial.reads, trial.writes)
    assert abs(case.op.bytes_each - 3 * 2**16) < 16
    elements = trial.reads[0].numel()
    assert case.op.flops_each == {"copy": 0, "read": 1, "triad": 2}[kernel] * elements


@pytest.mark.parametrize("kernel", ["residual_add", "norm", "mlp_act"])
def test_elementwise_is_what_the_ledger_of_a_model_counts(device: Device, kernel: str) -> None:
    case = elementwise(kernel, 12, 64, "bf16")
    trial = ran(case, device)
    reads = 1 if kernel == "norm" else 2
    assert case.op.bytes_each == (reads + 1) * trial.reads[0].nbytes
    from roofline.batch import Batch
    from roofline.ledger import Conventions, build_ledger

    model = load_model("llama-2-7b")
    ledger = build_ledger(model, Batch.prefill(1, 12), conventions=Conventions(elementwise=True))
    (theirs,) = [op for op in ledger if op.name == kernel]
    width = model.layers[theirs.layer].ffn.intermediate if kernel == "mlp_act" else model.hidden_size
    ours = elementwise(kernel, 12, width, "bf16").op
    assert ours.bytes_each == theirs.bytes_each
    assert ours.flops_each == theirs.flops_each


def test_launch_and_transfer(device: Device) -> None:
    trial = ran(launch(graph=False), device)
    assert launch(graph=False).op.bytes_each == touched(trial.reads, trial.writes)
    case = transfer("h2d", 4096, pinned=False)
    trial = ran(case, device)
    assert case.op.bytes_each == touched(trial.writes) == 4096
    assert torch.equal(trial.reads[0], trial.writes[0])


def test_wire_bytes_of_rings_counted_step_by_step() -> None:
    """A ring passes chunks: n − 1 steps of 1/n each to gather or to reduce, both to reduce everywhere."""
    for ranks in (2, 3, 4, 8):
        chunk = 1.0 / ranks
        gather = sum(chunk for _ in range(ranks - 1))
        assert wire_share("all_gather", ranks) == pytest.approx(gather)
        assert wire_share("reduce_scatter", ranks) == pytest.approx(gather)
        assert wire_share("all_reduce", ranks) == pytest.approx(2 * gather)
        assert wire_share("all_to_all", ranks) == pytest.approx(sum(chunk for peer in range(ranks) if peer))


@pytest.mark.parametrize("name", ["tiny-llama-110m", "llama-3.1-8b"])
def test_model_cases_are_the_shapes_of_the_ledger(name: str) -> None:
    model = in_one_type(load_model(name), "fp32")
    found, left_out = model_cases(model, batches=[1, 4], context=100, prompt=64)
    assert {case.dtype for case in found} == {"fp32"}
    assert not left_out
    assert {(int(c.shape["m"]), int(c.shape["n"]), int(c.shape["k"])) for c in found if c.kind == "gemm"} == set(_linear_layers(model))
    assert sorted((c.kind, c.shape["batch"]) for c in found if c.kind != "gemm") == [
        ("decode_attention", 1),
        ("decode_attention", 4),
        ("prefill_attention", 1),
    ]


def _linear_layers(model: Model) -> list[tuple[int, int, int]]:
    """qkv together, output, gate and up together, down, head: written down from the fields of a Llama."""
    (layer,) = model.layers.values()
    mixer, ffn, hidden = layer.mixer, layer.ffn, model.hidden_size
    qkv = (mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
    sizes = [(qkv, hidden), (hidden, mixer.heads * mixer.head_dim), (2 * ffn.intermediate, hidden), (hidden, ffn.intermediate)]
    return [(m, n, k) for m in (1, 4, 64) for n, k in sizes] + [(m, model.vocab_size, hidden) for m in (1, 4)]


def test_model_with_experts_says_what_has_no_case() -> None:
    _, left_out = model_cases(load_model("mixtral-8x7b"), batches=[1], context=16, prompt=16)
    assert left_out == ["experts: no case for moe of this kind"]


def test_small_model_cases_run_and_are_right(device: Device) -> None:
    found, _ = model_cases(in_one_type(load_model("tiny-llama-110m"), "fp32"), batches=[2], context=33, prompt=16)
    for case in found:
        trial = ran(case, device)
        output = trial.writes or [trial.reads[0]]
        assert case.op.bytes_each == touched(trial.reads, output)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_standard_cases_have_ids_of_their_own(kind: str) -> None:
    fake = Device(kind, "x", 5e7, {"L2": 5e7}, tuple(TOLERANCE))
    for group in GROUPS:
        ids = [case.id for case in cases(group, fake)]
        assert len(ids) == len(set(ids)), [a for a, b in pairwise(sorted(ids)) if a == b]
    assert len(cases("all", fake)) == sum(len(cases(group, fake)) for group in GROUPS)
    assert sentinel(fake).kind == "gemm"


def test_what_comes_after_the_cases_may_take_any_attention_backend(device: Device) -> None:
    """The engine of a validation runs in the same process: widths of V other than of K need the backend `math`."""
    q, v = torch.ones(1, 2, 3, 8, dtype=torch.float64), torch.ones(1, 2, 3, 6, dtype=torch.float64)
    prefill(1, 8, Heads(2, 2, 8), "fp32").build(device)
    assert not torch.backends.cuda.math_sdp_enabled()
    device.release()
    assert torch.backends.cuda.math_sdp_enabled()
    assert torch.nn.functional.scaled_dot_product_attention(q, q, v).shape == (1, 2, 3, 6)
