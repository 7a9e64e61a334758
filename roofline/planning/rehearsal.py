"""Short simulations behind figures and plans: a replica under a load of its own lengths."""

from __future__ import annotations

from typing import Any

from roofline.errors import DoesNotFitError
from roofline.phases import Setup
from roofline.planning.load import Load, operate
from roofline.scheduling import DEFAULT_BLOCK_SIZE
from roofline.serving.deployment import Deployment, Policy, deploy
from roofline.serving.statistics import Result
from roofline.serving.workloads import Lengths, Workload, closed_loop, open_loop, uniform_length

_MOST_TOKENS = 2_000_000
_REQUESTS = (6, 300)


def replica(setup: Setup, load: Load, concurrency: int, **memory_options: Any) -> tuple[Deployment, bool]:
    """(a replica, whether it fits): where not one request of the load's full length fits, it gets blocks for `concurrency` anyway."""
    longest = load.longest
    options = {"engine": setup.engine} | memory_options
    common = (setup.model, setup.hardware, setup.parallel, setup.precision)
    try:
        found = deploy(*common, **options)
        if found.memory.settings.max_model_len < longest:
            found = deploy(*common, **(options | {"max_model_len": longest}))
        if found.memory.max_sequences(longest) >= 1 and found.kv_blocks(longest) > longest // DEFAULT_BLOCK_SIZE + 1:
            return found, True
    except DoesNotFitError:
        pass
    blocks = concurrency * (longest // DEFAULT_BLOCK_SIZE + 1) + 2
    return deploy(*common, policy=Policy(blocks), **(options | {"max_model_len": longest})), False


def requests_for(load: Load) -> int:
    """So many requests that a simulation of them stays short."""
    return max(_REQUESTS[0], min(_REQUESTS[1], _MOST_TOKENS // load.longest))


def spread(load: Load) -> tuple[Lengths, Lengths]:
    """Prompts and outputs of 80 … 100 % of the load's lengths, as serving benchmarks draw them."""
    lengths = (load.input_len, load.output_len)
    inputs, outputs = (uniform_length(max(1, -(-4 * length // 5)), length) for length in lengths)
    return inputs, outputs


def in_flight(load: Load, concurrency: int, seed: int = 0) -> Workload:
    """Always `concurrency` requests of the load in flight, enough of them to pass the initial burst."""
    inputs, outputs = spread(load)
    return closed_loop(max(3 * concurrency, requests_for(load)), concurrency, inputs, outputs, seed=seed)


def at_share(setup: Setup, load: Load, deployment: Deployment, share: float, seed: int = 0) -> tuple[Workload, float]:
    """(Poisson arrivals, their rate per second): `share` of the rate that the closed form gives at the largest batch that fits."""
    inputs, outputs = spread(load)
    limit = max(1, min(deployment.max_num_seqs * deployment.engines, deployment.memory.max_sequences(load.longest)))
    rate = share * operate(setup, load, limit).request_rate
    return open_loop(requests_for(load), rate, inputs, outputs, seed=seed), rate


def run(deployment: Deployment, workload: Workload) -> Result:
    """The workload on one replica, expected step times."""
    return deployment.run(workload)
