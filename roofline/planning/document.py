"""A plan as the JSON document that other programs read; the keys are a contract (docs/reference)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from roofline.ledger import active_parameters, parameters, stage_weights
from roofline.phases import Phase
from roofline.planning.plan import Cost, Plan


def plan_document(plan: Plan) -> dict[str, Any]:
    """The fields of `plan --json` beside schema_version, command, inputs and assumptions; SI units, named in the keys.

    memory.max_sequences: sequences of the load's full length in one replica's cache.
    """
    model, hardware = plan.setup.model, plan.setup.hardware
    return {
        "fits": plan.fits,
        "meets_load": plan.meets_load,
        "model": {
            "name": model.name,
            "parameters": parameters(model),
            "active_parameters": active_parameters(model),
            "weight_bytes": stage_weights(model, weights=plan.setup.precision.weights).bytes,
            "num_layers": model.num_layers,
        },
        "hardware": {"id": hardware.id, "name": hardware.name, "gpus": plan.setup.parallel.gpus},
        "memory": plan.memory.as_dict() | {"max_sequences": plan.memory.max_sequences(plan.load.longest) if plan.memory.fits else 0},
        "prefill": phase_document(plan.prefill),
        "decode": phase_document(plan.decode),
        "largest_batch": plan.largest_batch,
        "knee_batch": plan.shape.knee,
        "eighty_percent_batch": plan.shape.eighty,
        "plateau_output_tokens_per_s": plan.shape.plateau_tokens_per_s,
        "curve": [
            {
                "batch": point.batch,
                "tpot_s": {"bound": point.bound_s, "expected": point.expected_s, "low": point.low_s, "high": point.high_s},
                "output_tokens_per_s": point.tokens_per_s,
                "fits": point.fits,
            }
            for point in plan.curve
        ],
        "limits": [asdict(limit) for limit in plan.limits],
        "knobs": [asdict(gain) for gain in plan.gains],
        "need": None if plan.need is None else asdict(plan.need),
        "cost": None if plan.cost is None else cost_data(plan.cost),
    }


def phase_document(phase: Phase) -> dict[str, Any]:
    """One row of the phase table as JSON."""
    return {
        "batch": phase.batch,
        "new_tokens": phase.new_tokens,
        "context": phase.context,
        "flops": phase.flops,
        "bytes": phase.bytes,
        "weight_bytes": phase.weight_bytes,
        "kv_read_bytes": phase.kv_read_bytes,
        "kv_write_bytes": phase.kv_write_bytes,
        "activation_bytes": phase.activation_bytes,
        "intensity": phase.intensity,
        "ridge": phase.ridge,
        "limited_by": phase.limited_by,
        "time_s": phase.time.as_json(),
        "serial_s": phase.serial_s,
        "tokens_per_s": phase.tokens_per_s,
    }


def cost_data(cost: Cost) -> dict[str, Any]:
    """The keys of a cost, in the plan and in its search."""
    return {
        "usd_per_hour": cost.usd_per_hour,
        "usd_per_million_output_tokens": cost.usd_per_million_output_tokens,
        "price": cost.price.model_dump(mode="json"),
    }
