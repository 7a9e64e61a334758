"""The traffic and the servers of a question, as a command or a sweep states them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from roofline import units
from roofline.errors import InputError
from roofline.serving import workloads
from roofline.serving.deployment import Deployment, run_disaggregated
from roofline.serving.disaggregation import KvLink
from roofline.serving.routers import ByClass, LeastLoaded, PrefixAware, RoundRobin, Router
from roofline.serving.statistics import Result
from roofline.serving.traces import load_trace
from roofline.serving.workloads import Workload, shared_id

RouterName = Literal["least-loaded", "round-robin", "prefix-aware"]
DEFAULT_REQUESTS = 1000
MOST_REQUESTS, STEADY_S = 20_000, 300.0  # where the rate is asked for: at least so many seconds of traffic
CYCLES, MOST_OF_USERS = 5, 100_000  # requests of each user, so that the first and the last ones do not count for much


@dataclass(frozen=True)
class Lengths:
    """Prompt and output tokens of requests.

    variation: standard deviation over mean of both, log-normal (0: all alike). shared_prefix: tokens that each prompt begins with
    in common with the others of its group; groups: how many such beginnings there are.
    """

    input_len: int = 1024
    output_len: int = 256
    variation: float = 0.0
    shared_prefix: int = 0
    groups: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.variation <= 100:
            raise InputError(f"length variation {self.variation}: standard deviation over mean, 0 to 100")
        if not 1 <= self.groups <= units.FAR:
            raise InputError(f"prefix groups {self.groups}: from 1 to {units.FAR:g}")
        if self.shared_prefix > self.input_len:
            raise InputError(f"a shared prefix of {self.shared_prefix} tokens is longer than the input of {self.input_len}")

    def distributions(self) -> tuple[workloads.Lengths, workloads.Lengths]:
        """Of prompts and of outputs."""
        if not self.variation:
            return workloads.fixed_length(self.input_len), workloads.fixed_length(self.output_len)
        return tuple(workloads.lognormal_length(mean, self.variation) for mean in (self.input_len, self.output_len))  # type: ignore[return-value]

    def shared(self, workload: Workload, seed: int) -> Workload:
        """The workload with its common beginnings."""
        if not self.shared_prefix:
            return workload
        group = np.random.default_rng(seed + 1).integers(0, self.groups, len(workload)).tolist()
        tokens = np.minimum(workload.input_tokens, self.shared_prefix).tolist()
        return replace(workload, segments=[((count, shared_id(number)),) for count, number in zip(tokens, group, strict=True)])


@dataclass(frozen=True)
class Traffic:
    """Who sends what and when: exactly one of trace, request_rate, concurrency and users.

    speed: a trace is sent so many times as fast. burstiness: shape of the gamma gaps of request_rate. think_time: mean pause of a
    user, s. num_requests: None = DEFAULT_REQUESTS, CYCLES of each user where these are more, or the whole trace. open_ended: the rate
    is asked for, not given.
    """

    trace: Path | None = None
    speed: float = 1.0
    request_rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    users: int | None = None
    think_time: float = 30.0
    num_requests: int | None = None
    lengths: Lengths = Lengths()
    seed: int = 0
    open_ended: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("trace", "request_rate", "concurrency", "users") if getattr(self, name) is not None]
        if self.open_ended and set(given) - {"trace"}:
            raise InputError(f"the highest rate is asked for, so {' and '.join(given)} cannot be given with it (a trace's lengths can)")
        if not self.open_ended and len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise InputError(f"what load? give one of --trace, --request-rate, --concurrency and --users; given: {said}")
        for name in ("speed", "request_rate", "burstiness"):
            value = getattr(self, name)
            at_once = name == "request_rate" and value == math.inf
            if value is not None and not (1 / units.FAR <= value <= units.FAR or at_once):
                raise InputError(f"{name.replace('_', ' ')} must be above 0, from {1 / units.FAR:g} to {units.FAR:g}, got {value}")
        if not 0 <= self.think_time <= units.FAR:
            raise InputError(f"think time must be between 0 and {units.FAR:g} seconds, got {self.think_time}")
        if self.seed < 0:
            raise InputError(f"seed must not be negative, got {self.seed}")

    def workload(self, rate: float | None = None) -> Workload:
        """The requests; rate: per second, in place of what was given."""
        count = self.num_requests or DEFAULT_REQUESTS
        inputs, outputs = self.lengths.distributions()
        if self.trace is not None:
            return self._of_trace(self.trace, rate)
        if self.concurrency is not None:
            made = workloads.closed_loop(count, self.concurrency, inputs, outputs, seed=self.seed)
        elif self.users is not None:
            if self.num_requests is None:
                count = max(count, min(CYCLES * self.users, MOST_OF_USERS))
            made = workloads.users(count, self.users, self.think_time, inputs, outputs, seed=self.seed)
        else:
            wanted = rate if rate is not None else self.request_rate
            assert wanted is not None  # noqa: S101 - checked when it was made
            if self.open_ended and self.num_requests is None:
                count = max(count, min(MOST_REQUESTS, round(wanted * STEADY_S * max(1.0, 1 / self.burstiness))))
            made = workloads.open_loop(count, wanted, inputs, outputs, burstiness=self.burstiness, seed=self.seed)
        return self.lengths.shared(made, self.seed)

    def _of_trace(self, path: Path, rate: float | None) -> Workload:
        whole = load_trace(path)
        if self.num_requests is not None:
            whole = whole.slice(0, self.num_requests)
        if rate is None:
            return whole.scaled(rate=self.speed)
        span = float(np.ptp(whole.arrival_s))
        if not span:
            raise InputError(f"{path}: all requests come at once, so the trace has no rate to change")
        return whole.scaled(rate=rate * span / len(whole))


@dataclass(frozen=True)
class Disaggregated:
    """`prefill` and `decode` servers, and bytes per second of the link of each."""

    prefill: int
    decode: int
    bandwidth: float


def serve(
    deployment: Deployment,
    workload: Workload,
    *,
    replicas: int = 1,
    router: RouterName = "least-loaded",
    pools: Disaggregated | None = None,
    class_servers: Mapping[str, int] | None = None,
    band: str = "expected",
    seed: int = 0,
) -> Result:
    """Runs a workload on mixed replicas, or on prefill and decode pools of such replicas.

    class_servers: replicas of each traffic class, in place of `replicas` that serve all.
    """
    if pools is not None:
        ranks = deployment.parallel.tp
        link = KvLink(pools.bandwidth * ranks, deployment.memory.kv_bytes_per_token * ranks)
        return run_disaggregated(deployment, deployment, (pools.prefill, pools.decode), workload, link, band=band)
    if class_servers is not None:
        return _by_class(deployment, workload, class_servers, band, seed)
    routers: dict[str, type[Router]] = {"least-loaded": LeastLoaded, "round-robin": RoundRobin, "prefix-aware": PrefixAware}
    return deployment.run(workload, replicas=replicas, router=routers[router](), band=band, seed=seed)


def _by_class(deployment: Deployment, workload: Workload, servers: Mapping[str, int], band: str, seed: int) -> Result:
    """Each class on its own servers."""
    if workload.classes is None:
        raise InputError(f"{workload.name}: no request names its class, so there is nothing to route by (a trace's column `class`)")
    pools, first = {}, 0
    for name, count in servers.items():
        pools[name] = range(first, first + count * deployment.engines)
        first += count * deployment.engines
    router = ByClass(workload.classes, pools, LeastLoaded())
    return deployment.run(workload, replicas=sum(servers.values()), router=router, band=band, seed=seed)
