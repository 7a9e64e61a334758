"""Models small enough for hundreds of forward passes in a test, in fp64 so that equal computations choose equal tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from roofline.engine.build import Options, Setup, Speculation, build_engine, check
from roofline.engine.engine import Engine
from roofline.engine.kvcache import KvFormat, build_cache
from roofline.engine.model import Decoder, build_decoder
from roofline.engine.numerics import from_config
from roofline.engine.runner import Row, Runner
from roofline.engine.sampler import Sampling, sample
from roofline.engine.weights import SeededWeights, expected_shapes
from roofline.profiles.model import MLA, MLP, Attention, Layer, Model, MoE
from roofline.scheduling import VllmConfig

CPU = torch.device("cpu")
VOCAB = 61


def model(kind: str = "llama", *, layers: int = 2, **more: Any) -> Model:
    """llama; window (a layer that slides over 9 tokens and one that does not); moe; mla."""
    dense = MLP(intermediate=40)
    attention = Attention(heads=4, kv_heads=2, head_dim=8)
    kinds: dict[str, tuple[str, dict[str, Layer], str]] = {
        "llama": ("llama", {"a": Layer(mixer=attention, ffn=dense)}, f"{layers}*a"),
        "window": (
            "qwen3",
            {
                "local": Layer(mixer=Attention(heads=4, kv_heads=1, head_dim=8, window=9, qk_norm="head"), ffn=dense),
                "full": Layer(mixer=Attention(heads=4, kv_heads=1, head_dim=8, qk_norm="head"), ffn=dense),
            },
            "local + full",
        ),
        "moe": ("qwen3_moe", {"a": Layer(mixer=attention, ffn=MoE(experts=6, top_k=2, intermediate=24))}, f"{layers}*a"),
        "mla": (
            "deepseek_v3",
            {
                "a": Layer(
                    mixer=MLA(heads=4, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6),
                    ffn=MoE(experts=4, top_k=2, intermediate=16, shared_intermediate=16, router_bias=True),
                )
            },
            f"{layers}*a",
        ),
    }
    family, specs, order = kinds[kind]
    fields = {"name": f"tiny {kind}", "model_type": family, "source": "this test", "hidden_size": 32, "vocab_size": VOCAB}
    return Model(**{**fields, "max_position_embeddings": 256, "layers": specs, "order": order, **more})


@cache
def setup(kind: str = "llama", **options: Any) -> Setup:
    """A setup in fp64 with blocks of 4 tokens."""
    return check(model(kind), Options(**{"dtype": "fp64", "block_size": 4, "num_blocks": 256, **options}))


def engine(
    kind: str = "llama", config: VllmConfig | None = None, *, speculation: Speculation | None = None, prefix: bool = True, **options: Any
) -> Engine:
    """An engine that checks its blocks after every step."""
    chosen = setup(kind, **options)
    if speculation is not None:
        chosen = check(chosen.model, chosen.options, speculation=speculation)
    return build_engine(chosen, chosen.scheduler(config, prefix_caching=prefix), debug=True)


@cache
def decoder(kind: str = "llama") -> Decoder:
    """The decoder that engines of this kind have."""
    spec = model(kind)
    return build_decoder(spec, from_config(spec, {}), SeededWeights(expected_shapes(spec)), dtype=torch.float64, device=CPU, positions=257)


@cache
def alone(kind: str, prompt: tuple[int, ...], count: int, sampling: Sampling = Sampling()) -> list[int]:  # noqa: B008 - frozen
    """What a model says after a prompt, computed without a cache: the whole text again for every token."""
    tokens = list(prompt)
    runner = Runner(decoder(kind), build_cache(model(kind), 65, 4, KvFormat(torch.float64), 1, CPU), 4, CPU)
    for _ in range(count):
        logits = runner.run([Row(tokens, 0, range(1, 65), 1)])[0]
        tokens += sample(logits, [sampling], [len(tokens)])
    return tokens[len(prompt) :]


def finish(target: Engine) -> dict[str, list[int]]:
    """Steps an engine until nothing is left; what each request generated."""
    outputs: dict[str, list[int]] = {}
    while (step := target.step()) is not None:
        for request_id, tokens in step.emitted.items():
            outputs.setdefault(request_id, []).extend(tokens)
    return outputs


def prompt(seed: int, length: int) -> list[int]:
    """Random tokens."""
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
