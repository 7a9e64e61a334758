"""Memory of one deployment, from model, device, layout and the rules of the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roofline.capacity import runtime
from roofline.capacity.activations import ActivationPeak, activation_peak
from roofline.capacity.additions import Addition
from roofline.capacity.blocks import LayerKind, Pool, Share, exact_shares, full_shares, layer_kinds
from roofline.capacity.engines import Engine, engine_rules
from roofline.capacity.hybrid import grouped_shares
from roofline.capacity.memory import Known, MemoryPlan
from roofline.capacity.ranges import NOTHING, ByteRange, GiB
from roofline.capacity.settings import Settings, resolve_settings, sampled_rows
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, SINGLE, Parallel, Precision, stage_weights
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Compressed, Model

NOTHING_KNOWN = Known()


def memory_plan(
    model: Model,
    hardware: Hardware,
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    *,
    engine: str = "vllm",
    engine_version: str | None = None,
    utilization: float | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    prefix_caching: bool = True,
    spec_tokens: int = 0,
    additions: tuple[Addition, ...] = (),
    known: Known = NOTHING_KNOWN,
) -> MemoryPlan:
    """What fits when `model` runs on GPUs like `hardware` under an engine's memory rules.

    Limits that are None take the engine's defaults; a max_model_len that is given must fit once. engine "plain" charges
    weights only: tokens = floor((fraction · memory − weights) / KV bytes per token). known: measured figures in place of
    estimates. Raises InputError and ShardError. Does not raise when the model does not fit: see `fits` and `shortfall_bytes`.
    """
    parallel.check(model)
    rules = engine_rules(engine, engine_version)
    total, visible, notes = _device(hardware, rules, known)
    settings = resolve_settings(
        rules,
        model,
        hardware,
        visible,
        parallel,
        utilization=utilization,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    if spec_tokens < 0:
        raise InputError(f"speculative tokens cannot be negative, got {spec_tokens}")
    request = _Request(model, hardware, parallel, precision, rules, settings, known, additions, prefix_caching, spec_tokens, total, visible)
    plans = [request.stage_plan(stage, 1 if max_model_len is None else max_model_len) for stage in range(parallel.pp)]
    tightest = min(plans, key=lambda plan: (plan.kv_tokens, plan.kv.expected))
    everything = sum(plan.weight_bytes for plan in plans) * parallel.tp * parallel.dp
    return replace(tightest, weight_bytes_total=everything, assumptions=(*notes, *request.assumptions(tightest)))


def _device(hardware: Hardware, rules: Engine, known: Known) -> tuple[float, float, list[str]]:
    """(bytes of the device, bytes that the engine sees, what was assumed)."""
    if known.memory is not None:
        return known.memory, known.memory, [f"device memory as given: {known.memory / GiB:.2f} GiB"]
    total = hardware.memory_reported_bytes or hardware.memory_bytes
    source = "as the driver reports it" if hardware.memory_reported_bytes else "as marketed: the driver reports a little less"
    notes = [f"device memory {source}: {total / GiB:.2f} GiB"]
    reserve = runtime.driver_reserve(hardware) if rules.estimates else 0.0
    if reserve:
        notes.append(f"the driver keeps {reserve / GiB:.2f} GiB of that for itself")
    return total, total - reserve, notes


@dataclass(frozen=True)
class _Request:
    """One question, so that the steps of its answer read as what they compute."""

    model: Model
    hardware: Hardware
    parallel: Parallel
    precision: Precision
    rules: Engine
    settings: Settings
    known: Known
    additions: tuple[Addition, ...]
    prefix_caching: bool
    spec_tokens: int
    total: float
    visible: float

    def stage_plan(self, stage: int, required_tokens: int) -> MemoryPlan:
        weights = self._weights(stage)
        peak = self._activations(stage)
        activation = peak.total if self.rules.estimates else NOTHING
        if self.known.activations is not None:
            activation = ByteRange.exactly(self.known.activations)
        reserve = self._runtime()
        usable, kv = self._budget(weights, activation, reserve)
        kinds = self._kinds(stage)
        tokens = self.rules.block_tokens * self.parallel.dcp
        full, exact = full_shares(kinds, tokens), exact_shares(kinds, tokens)
        null = self.rules.null_blocks
        return MemoryPlan(
            model=self.model.name,
            hardware=self.hardware.id,
            engine=self.rules,
            settings=self.settings,
            parallel=self.parallel,
            stage=stage,
            total_bytes=self.total,
            usable_bytes=usable,
            weight_bytes=weights,
            weight_bytes_total=weights,
            activation=activation,
            activation_peak=peak,
            runtime=reserve,
            kv=kv,
            kv_bytes_per_token=sum(kind.layers * kind.kv_bytes for kind in kinds),
            pool=Pool(kv.expected, self._shares(kinds, full, exact, tokens), null),
            pool_charged_full=Pool(kv.expected, full, null),
            pool_windows_exact=Pool(kv.expected, exact, null),
            required_tokens=required_tokens,
            assumptions=(),
        )

    def _shares(self, kinds: tuple[LayerKind, ...], full: tuple[Share, ...], exact: tuple[Share, ...], tokens: int) -> tuple[Share, ...]:
        """What a sequence takes under the engine's rule for windows and states."""
        states = any(kind.state_bytes for kind in kinds)
        if self.rules.windows == "grouped" or (self.rules.name == "vllm" and states):
            return grouped_shares(kinds, tokens, prefix_caching=self.prefix_caching, spec_tokens=self.spec_tokens)
        return exact if self.rules.windows == "exact" else full

    def _weights(self, stage: int) -> float:
        """Weights of one rank: the stage, loaded extras on the first stage, additions on the last."""
        if self.known.weights is not None:
            return self.known.weights
        held = stage_weights(self.model, parallel=self.parallel, stage=stage, weights=self.precision.weights).bytes
        if stage == 0:
            held += sum(extra.bytes for extra in self.model.extras if extra.loaded) / self.parallel.tp
        if stage == self.parallel.pp - 1:
            held += sum(addition.weight_bytes for addition in self.additions)
        return held

    def _kinds(self, stage: int) -> tuple[LayerKind, ...]:
        """Caching layers of the stage, drafts on the last one; layers of the same geometry together."""
        kinds = list(layer_kinds(self.model, parallel=self.parallel, precision=self.precision, stage=stage, spec_tokens=self.spec_tokens))
        for addition in self.additions if stage == self.parallel.pp - 1 else ():
            for extra in addition.kinds:
                same = next((i for i, kind in enumerate(kinds) if replace(kind, layers=extra.layers) == extra), None)
                if same is None:
                    kinds.append(extra)
                else:
                    kinds[same] = replace(extra, layers=kinds[same].layers + extra.layers)
        return tuple(kinds)

    def _activations(self, stage: int) -> ActivationPeak:
        return activation_peak(
            self.model,
            tokens=self.settings.max_num_batched_tokens,
            rows=sampled_rows(self.rules, self.settings, self.visible, self.parallel, self.spec_tokens),
            logit_bytes=self.rules.logit_bytes,
            parallel=self.parallel,
            precision=self.precision,
            stage=stage,
        )

    def _graphs(self) -> ByteRange:
        return runtime.cuda_graphs(self.rules, self.model, self.settings, self.visible, self.parallel, self.spec_tokens)

    def _runtime(self) -> ByteRange:
        if self.known.runtime is not None:
            return ByteRange.exactly(self.known.runtime)
        if not self.rules.estimates:
            return NOTHING
        return runtime.non_torch(self.parallel) + (self._graphs() if self.rules.graphs_charged else NOTHING)

    def _budget(self, weights: float, activation: ByteRange, reserve: ByteRange) -> tuple[float, ByteRange]:
        """(what the fraction gives, what is left for KV): what is charged at its high end leaves the low end."""
        system = runtime.system_reserve(self.hardware) if self.rules.estimates and self.known.memory is None else NOTHING
        usable, kv = self._left(weights, activation.expected, reserve.expected, system.expected)
        _, low = self._left(weights, activation.high, reserve.high, system.high)
        _, high = self._left(weights, activation.low, reserve.low, system.low)
        return usable, ByteRange(kv, low, high)

    def _left(self, weights: float, activation: float, reserve: float, system: float) -> tuple[float, float]:
        """(usable, left for KV) in bytes, by what the engine's fraction is of."""
        fraction, working = self.settings.utilization, activation + reserve
        if self.rules.fraction == "static":
            usable = min(fraction * (self.visible - reserve), self.visible - system - working)
            return usable, usable - weights
        if self.rules.fraction == "free":
            free = self.visible - system - working - weights
            kv = fraction * free if free > 0 else free
            return weights + working + kv, kv
        usable = min(fraction * self.visible, self.visible - system)
        return usable, usable - weights - working

    def assumptions(self, plan: MemoryPlan) -> list[str]:
        """What was taken for granted, as sentences for the output."""
        rules, settings = self.rules, self.settings
        version = f" {rules.version[0]}.{rules.version[1]}" if rules.name == "vllm" else ""
        notes = [
            f"{rules.name}{version}: fraction {settings.utilization:g} {rules.meaning}",
            f"limits: max_model_len {settings.max_model_len}, max_num_batched_tokens {settings.max_num_batched_tokens}, "
            f"max_num_seqs {settings.max_num_seqs}",
        ]
        if any(isinstance(layer.mixer, Compressed) for layer in self.model.layers.values()):
            notes.append("compressed caches: how the engine pages them is not known; tokens and sequences extrapolate its rule for hybrids")
        if not rules.estimates:
            return notes
        if self.known.activations is None:
            notes.append(f"activation peak estimated: set by {plan.activation_peak.widest}")
        if not rules.graphs_charged and self.known.runtime is None and (graphs := self._graphs().expected):
            notes.append(f"CUDA graphs (about {graphs / GiB:.1f} GiB) come out of the memory outside the fraction")
        if self.hardware.unified_memory and self.known.memory is None:
            reserve = runtime.system_reserve(self.hardware)
            notes.append(f"unified memory: {reserve.expected / GiB:.1f} GiB kept for the operating system and its page cache")
        if self.known.weights is None:
            extras = [extra.name for extra in self.model.extras if extra.loaded]
            notes += [f"loaded besides the language model: {', '.join(extras)}"] if extras else []
        if plan.fits and plan.pool.shares and plan.max_sequences() == 0:
            longest = plan.largest_model_len
            notes.append(f"one sequence of max_model_len {settings.max_model_len} does not fit: set it to {longest} or less")
        if any(share.window for share in plan.pool_windows_exact.shares):
            how = {"full": "charged in full", "grouped": "share one page pool by groups of layers", "exact": "keep only their window"}
            notes.append(f"layers with a window: {how[rules.windows]} by this engine version; kv_tokens_bounds shows both ends")
        return notes
