"""An engine as it is started: limits, KV pool, scheduler and step times, from model, device and the engine's arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roofline.capacity import Addition, MemoryPlan, memory_plan
from roofline.errors import DoesNotFitError, InputError
from roofline.ledger import AS_SHIPPED, SINGLE, Parallel, Precision
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.scheduling import (
    DEFAULT_BLOCK_SIZE,
    CountingPool,
    RadixPool,
    RunPool,
    Scheduler,
    SglangConfig,
    SglangScheduler,
    StaticScheduler,
    VllmConfig,
    VllmScheduler,
)  # fmt: skip
from roofline.serving.disaggregation import KvLink, simulate_disaggregated
from roofline.serving.routers import LeastLoaded, Router
from roofline.serving.simulator import simulate_replicas
from roofline.serving.speculation import Drafter
from roofline.serving.statistics import Result
from roofline.serving.workloads import Workload
from roofline.timing.step_timer import StepTimer


@dataclass(frozen=True)
class Policy:
    """How an engine schedules, beyond its limits.

    kv_blocks: of DEFAULT_BLOCK_SIZE tokens on each rank, one of them the null block; None: what memory leaves.
    watermark, priority, long_prefill_token_threshold, reserve_full_isl: see VllmConfig. static_batching: no continuous batching,
    each request reserves max_model_len slots. asynchronous: the host schedules while the device computes.
    """

    kv_blocks: int | None = None
    prefix_caching: bool = True
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0
    reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True
    static_batching: bool = False
    asynchronous: bool = True


DEFAULT_POLICY = Policy()


@dataclass(frozen=True)
class Speculating:
    """A drafter with what it takes: memory beside the weights, and rows that it adds to the batch per sequence."""

    drafter: Drafter
    addition: Addition | None = None
    draft_slots: int = 0
    lookahead: int | None = None


@dataclass(frozen=True)
class Deployment:
    """One replica of an engine. Made by `deploy`.

    A replica of dp data-parallel ranks or pp pipeline stages is simulated as dp · pp engines with a share of the requests each,
    as every pass holds a share of them.
    """

    model: Model
    hardware: Hardware
    parallel: Parallel
    precision: Precision
    engine: str
    memory: MemoryPlan
    policy: Policy = DEFAULT_POLICY
    speculating: Speculating | None = None

    @property
    def engines(self) -> int:
        """Engines that one replica is simulated as."""
        return self.parallel.dp * self.parallel.pp

    @property
    def max_num_seqs(self) -> int:
        """Most running sequences of one engine."""
        return max(1, self.memory.settings.max_num_seqs // self.parallel.pp)

    def kv_blocks(self, tokens: int) -> int:
        """Blocks of one engine's pool (the null block included) when sequences have about `tokens` tokens: layers with windows or
        states take less of a long sequence than its length says."""
        if self.policy.kv_blocks is not None:
            return self.policy.kv_blocks
        if not self.memory.pool.shares:
            return 1 << 30
        held = self.memory.kv_tokens if len(self.memory.pool.shares) == 1 else self.memory.pool.tokens_at(max(1, tokens))
        return max(held, 0) // DEFAULT_BLOCK_SIZE // self.parallel.pp + (self.memory.pool.null_blocks == 0)

    def scheduler(self, tokens: int) -> Scheduler:
        """A fresh scheduler of one engine for sequences of about `tokens` tokens."""
        blocks, policy, settings = self.kv_blocks(tokens), self.policy, self.memory.settings
        if policy.static_batching:
            slots = (blocks - 1) * DEFAULT_BLOCK_SIZE
            return StaticScheduler(self.max_num_seqs, slots, min(settings.max_model_len, slots))
        if self.engine == "sglang":
            if self.speculating is not None:
                raise InputError("speculation is simulated under vLLM's policy: use --engine vllm")
            config = SglangConfig(settings.max_num_batched_tokens, max_running_requests=self.max_num_seqs)
            return SglangScheduler(config, RadixPool((blocks - 1) * DEFAULT_BLOCK_SIZE, caching=policy.prefix_caching))
        return self._vllm(blocks)

    def _vllm(self, blocks: int) -> VllmScheduler:
        policy, settings, spec = self.policy, self.memory.settings, self.speculating
        config = VllmConfig(
            settings.max_num_batched_tokens,
            min(self.max_num_seqs, settings.max_num_batched_tokens),
            max_model_len=settings.max_model_len,
            enable_chunked_prefill=policy.enable_chunked_prefill,
            long_prefill_token_threshold=policy.long_prefill_token_threshold,
            reserve_full_isl=policy.reserve_full_isl,
            watermark=policy.watermark,
            num_speculative_tokens=spec.drafter.tokens if spec else 0,
            num_lookahead_tokens=spec.lookahead if spec else None,
            draft_slots=spec.draft_slots if spec else 0,
        )
        return VllmScheduler(config, RunPool(blocks) if policy.prefix_caching else CountingPool(blocks))

    @cached_property
    def _timers(self) -> dict[str, StepTimer]:
        return {}

    def timer(self, band: str = "expected") -> StepTimer:
        """Step times of one engine, at the end of the interval that `band` names."""
        if band not in self._timers:
            settings = self.memory.settings
            self._timers[band] = StepTimer(
                self.model,
                self.hardware,
                parallel=self.parallel,
                precision=self.precision,
                engine=self.engine,
                band=band,
                max_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
                max_context=settings.max_model_len,
            )
        return self._timers[band]

    def run(self, workload: Workload, *, replicas: int = 1, router: Router | None = None, band: str = "expected", seed: int = 0) -> Result:
        """Simulates a workload on `replicas` of these (least loaded first unless a router is given)."""
        count = replicas * self.engines
        tokens = typical_tokens(workload)
        return simulate_replicas(
            workload,
            [self.scheduler(tokens) for _ in range(count)],
            self.timer(band),
            router=(router or LeastLoaded()) if count > 1 else None,
            asynchronous=self.policy.asynchronous and not self.policy.static_batching,
            drafter=self.speculating.drafter if self.speculating else None,
            seed=seed,
        )


def run_disaggregated(
    prefill: Deployment, decode: Deployment, counts: tuple[int, int], workload: Workload, link: KvLink, *, band: str = "expected"
) -> Result:
    """Simulates P prefill and D decode replicas (counts) joined by `link`; both under vLLM's policy."""
    tokens = typical_tokens(workload)
    pools = []
    for deployment, count in zip((prefill, decode), counts, strict=True):
        if deployment.engine == "sglang" or deployment.policy.static_batching or deployment.speculating is not None:
            raise InputError("disaggregation is simulated under vLLM's policy, with continuous batching and without speculation")
        pools.append([deployment._vllm(deployment.kv_blocks(tokens)) for _ in range(count * deployment.engines)])
    return simulate_disaggregated(
        workload, pools[0], pools[1], (prefill.timer(band), decode.timer(band)), link, asynchronous=decode.policy.asynchronous
    )


def typical_tokens(workload: Workload) -> int:
    """Mean length of a finished request."""
    return int((workload.input_tokens + workload.output_tokens).mean()) if len(workload) else 1


def deploy(
    model: Model,
    hardware: Hardware,
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    *,
    engine: str = "vllm",
    policy: Policy = DEFAULT_POLICY,
    speculating: Speculating | None = None,
    **memory_options: Any,
) -> Deployment:
    """A replica with the memory that the engine's rules leave it. memory_options: those of capacity.memory_plan.

    Raises DoesNotFitError when the model does not load and policy.kv_blocks does not say otherwise.
    """
    additions = (speculating.addition,) if speculating is not None and speculating.addition is not None else ()
    memory = memory_plan(
        model,
        hardware,
        parallel,
        precision,
        engine=engine,
        prefix_caching=policy.prefix_caching,
        spec_tokens=speculating.drafter.tokens if speculating else 0,
        additions=additions,
        **memory_options,
    )
    if policy.kv_blocks is None and not memory.fits:
        raise DoesNotFitError(
            f"{model.name} does not fit on {parallel.gpus} × {hardware.id}: {math.ceil(memory.shortfall_bytes / 1e8) / 10:g} GB more "
            "per GPU are needed; more ranks (--tp), smaller weights (--weights fp8) or a shorter --max-model-len"
        )
    return Deployment(model, hardware, parallel, precision, "reference" if engine == "plain" else engine, memory, policy, speculating)
