"""From options to an engine. Everything that can be wrong is found before memory is taken for weights or KV."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from roofline.dtypes import dtype
from roofline.engine.engine import Engine
from roofline.engine.kvcache import KvFormat, build_cache, bytes_per_token
from roofline.engine.linear import check_format
from roofline.engine.model import build_decoder
from roofline.engine.numerics import check_supported, from_config, from_folder
from roofline.engine.parallel import Ranks
from roofline.engine.runner import Forward, Runner
from roofline.engine.speculation import Drafter, ModelDrafter, NgramDrafter
from roofline.engine.weights import FolderWeights, SeededWeights, Weights, expected_shapes
from roofline.errors import InputError
from roofline.ledger.parallel import Parallel
from roofline.profiles.model import Model, MoE
from roofline.scheduling import BlockPool, ScheduledBatch, Scheduler, StaticScheduler, VllmConfig, VllmScheduler

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
MODES = ("eager", "padded", "graphs")


@dataclass(frozen=True)
class Options:
    """How an engine computes; what its scheduler decides is in VllmConfig.

    dtype: of activations and unquantised weights; weights, kv: storage formats in place of it ("" = none); num_blocks: KV blocks of
    block_size tokens, the null block included. mode: see Runner. compiler: backend of torch.compile ("" = do not compile).
    attention: "sdpa" gathers pages, "flash" reads them where they lie (CUDA, fp16 or bf16).
    """

    device: str = "cpu"
    dtype: str = "fp32"
    weights: str = ""
    kv: str = ""
    num_blocks: int = 1024
    block_size: int = 16
    seed: int = 0
    mode: str = "eager"
    compiler: str = ""
    attention: str = "sdpa"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the activations. Raises InputError."""
        name = dtype(self.dtype).name if self.dtype != "fp64" else "fp64"
        if name not in DTYPES:
            raise InputError(f"dtype {self.dtype!r}: the engine computes in {', '.join(DTYPES)}")
        return DTYPES[name]


@dataclass(frozen=True)
class Speculation:
    """kind: "ngram" or "model"; tokens: drafts per step; draft, folder: the smaller model and its weights (None: random)."""

    kind: str
    tokens: int
    draft: Model | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("ngram", "model") or self.tokens < 1 or (self.kind == "model") != (self.draft is not None):
            raise InputError("speculation is ngram with at least 1 token, or model with at least 1 token and a draft model")


@dataclass(frozen=True)
class Setup:
    """A checked configuration: nothing is loaded yet. assumptions: what the user should know about the numbers."""

    model: Model
    options: Options
    folder: Path | None
    speculation: Speculation | None
    ranks: Ranks
    positions: int
    assumptions: tuple[str, ...] = ()

    def within_pool(self, *, exactly: bool) -> Setup:
        """This setup with sequences no longer than one alone finds KV for. Raises InputError if that is less and `exactly` is set."""
        longest = (self.options.num_blocks - 1) * self.options.block_size - self._lookahead
        if longest >= self.positions:
            return self
        if exactly or longest < 2:
            raise InputError(
                f"max_model_len {self.positions}: {self.options.num_blocks} KV blocks of {self.options.block_size} tokens hold {longest}"
            )
        return replace(self, positions=longest, assumptions=(*self.assumptions, f"max_model_len {longest}: what the KV pool holds"))

    @property
    def _lookahead(self) -> int:
        """KV slots beyond a sequence that its drafts take."""
        return 0 if self.speculation is None or self.speculation.kind == "ngram" else self.speculation.tokens

    def static_scheduler(self, batch_size: int, reserve_tokens: int | None = None) -> ReservedScheduler:
        """Static batches of so many requests, each with KV for `reserve_tokens` (the longest sequence unless given)."""
        if self.speculation is not None:
            raise InputError("static batching does not verify drafts; leave speculation out")
        return ReservedScheduler(batch_size, self.options.num_blocks, self.options.block_size, reserve_tokens or self.positions)

    def scheduler(self, config: VllmConfig | None = None, *, prefix_caching: bool = True) -> VllmScheduler:
        """A scheduler for this engine: `config` with its length and speculation filled in."""
        config = replace(config or VllmConfig(), max_model_len=self.positions)
        if self.speculation is not None:
            config = replace(config, num_speculative_tokens=self.speculation.tokens, num_lookahead_tokens=self._lookahead)
        return VllmScheduler(config, BlockPool(self.options.num_blocks, self.options.block_size, prefix_caching=prefix_caching))


class ReservedScheduler(StaticScheduler):
    """Static batching whose members' reserved KV lies in a row, told as block tables."""

    def __init__(self, batch_size: int, num_blocks: int, block_size: int, reserve_tokens: int) -> None:
        super().__init__(batch_size, (num_blocks - 1) * block_size, -(-reserve_tokens // block_size) * block_size)
        self._blocks = -(-reserve_tokens // block_size)

    def schedule(self) -> ScheduledBatch:
        """See StaticScheduler; prompts come in the order of the members."""
        batch = super().schedule()
        for place, chunk in enumerate(batch.chunks):
            chunk.request.block_ids = list(range(1 + place * self._blocks, 1 + (place + 1) * self._blocks))
        return batch


def check(
    model: Model,
    options: Options,
    *,
    folder: Path | None = None,
    speculation: Speculation | None = None,
    ranks: Ranks | None = None,
    max_model_len: int | None = None,
) -> Setup:
    """Raises InputError for anything that this engine cannot do, with the reason, before memory is taken."""
    ranks = ranks or Ranks()
    if options.device not in ("cpu", "cuda"):
        raise InputError(f"device {options.device!r}: cpu or cuda")
    device = torch.device(options.device)
    for each in (model, speculation.draft if speculation else None):
        if each is not None:
            check_supported(each)
            Parallel(tp=ranks.size).check(each)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda: this PyTorch sees no CUDA device; use --device cpu")
    check_format(options.weights, options.torch_dtype, device)
    KvFormat(options.torch_dtype, options.kv)
    if options.mode not in MODES or (options.mode == "graphs" and device.type != "cuda"):
        raise InputError(f"mode {options.mode!r}: {', '.join(MODES)}; graphs need a CUDA device")
    if options.attention not in ("sdpa", "flash"):
        raise InputError(f"attention {options.attention!r}: sdpa or flash")
    if options.attention == "flash" and (device.type != "cuda" or options.torch_dtype.itemsize != 2):
        raise InputError(f"flash attention needs a CUDA device and fp16 or bf16, not {options.device} and {options.dtype}; use sdpa")
    longest = model.max_position_embeddings or 1 << 20
    if max_model_len is not None and not 1 <= max_model_len <= longest:
        raise InputError(f"max_model_len {max_model_len}: {model.name} has {longest} positions")
    if speculation is not None and speculation.draft is not None and speculation.draft.vocab_size != model.vocab_size:
        raise InputError(
            f"draft model {speculation.draft.name}: its vocabulary of {speculation.draft.vocab_size} is not {model.vocab_size}"
        )
    _check_memory(model, options, ranks, device)
    assumptions = [] if folder else [f"random weights, seed {options.seed}; norms, rotary base and routing as usual for {model.model_type}"]
    if options.mode == "graphs" and _has_experts(model):
        assumptions.append("models with experts run without graphs: which experts run is known only on the way")
    return Setup(model, options, folder, speculation, ranks, max_model_len or longest, tuple(assumptions))


def _has_experts(model: Model) -> bool:
    return any(isinstance(layer.ffn, MoE) for layer in model.layers.values())


def _check_memory(model: Model, options: Options, ranks: Ranks, device: torch.device) -> None:
    """Weights and KV pool must fit into what the device has free."""
    if options.num_blocks < 2 or options.block_size < 1:
        raise InputError(f"{options.num_blocks} KV blocks of {options.block_size} tokens: at least 2 blocks of 1 are needed")
    each = {"": options.torch_dtype.itemsize, "int4": 0.5}.get(options.weights, 1)
    weights = each * sum(math.prod(shape) for shape in expected_shapes(model).values()) / ranks.size
    kv = options.num_blocks * options.block_size * bytes_per_token(model, KvFormat(options.torch_dtype, options.kv), ranks.size)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if free and weights + kv > free:
        raise InputError(
            f"{model.name} takes {weights / 1e9:.1f} GB and {options.num_blocks} KV blocks {kv / 1e9:.1f} GB; {free / 1e9:.1f} GB are free"
        )


def _free_memory() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")), 0)
    except OSError:
        return 0


def build_engine(setup: Setup, scheduler: Scheduler, *, debug: bool = False) -> Engine:
    """Loads the weights, takes the KV pool and puts the engine together. Raises ProfileError for weights that do not fit the model."""
    runner = _runner(setup, setup.model, setup.folder, setup.options.weights)
    return Engine(scheduler, runner, setup.model.vocab_size, _drafter(setup), debug=debug)


def _runner(setup: Setup, model: Model, folder: Path | None, fmt: str) -> Runner:
    options, device = setup.options, torch.device(setup.options.device)
    numerics = from_folder(model, folder) if folder else from_config(model, {})
    shapes = expected_shapes(model)
    weights: Weights = (
        FolderWeights(folder, shapes, device) if folder else SeededWeights(shapes, options.seed, device, numerics.norm_offset)
    )
    kind = options.torch_dtype
    decoder = build_decoder(model, numerics, weights, dtype=kind, device=device, positions=setup.positions + 1, fmt=fmt, ranks=setup.ranks)
    cache = build_cache(model, options.num_blocks, options.block_size, KvFormat(kind, options.kv), setup.ranks.size, device)
    forward: Forward = torch.compile(decoder, backend=options.compiler, dynamic=True) if options.compiler else decoder
    mode = "eager" if options.mode == "graphs" and _has_experts(model) else options.mode
    return Runner(forward, cache, options.block_size, device, mode)


def _drafter(setup: Setup) -> Drafter | None:
    how = setup.speculation
    if how is None:
        return None
    if how.draft is None:
        return NgramDrafter(how.tokens)
    return ModelDrafter(_runner(setup, how.draft, how.folder, ""), how.tokens)
