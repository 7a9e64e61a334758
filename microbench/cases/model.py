"""Exactly the shapes of a model: the ledger of its prefill and decode passes as cases."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.cases.attention import decode, prefill
from microbench.cases.gemm import TOLERANCE, gemm
from microbench.measure import Case
from microbench.ops import Heads
from roofline.batch import Batch
from roofline.ledger import AS_SHIPPED, Op, Parallel, Precision, build_ledger
from roofline.profiles.model import Model


def in_one_type(model: Model, kind: str) -> Model:
    """The model with every weight, activation and KV entry in one type, whatever its checkpoint stores."""
    layers = {name: layer.model_copy(update={"weights": {}}) for name, layer in model.layers.items()}
    return model.model_copy(update={"dtype": kind, "weights": {}, "kv_dtype": None, "layers": layers})


def model_cases(
    model: Model, *, batches: Sequence[int], context: int, prompt: int, precision: Precision = AS_SHIPPED, tp: int = 1
) -> tuple[list[Case], list[str]]:
    """Cases of one decode step at each batch (with `context` cached tokens) and of one prefill of `prompt` tokens, cold.

    GEMMs that read the same input are one, as engines run them. Also: what has no case here, with the reason. Raises ShardError.
    """
    passes = [Batch.decode(batch, context) for batch in batches] + [Batch.prefill(1, prompt)]
    found: dict[str, Case] = {}
    left_out: dict[str, None] = {}
    kind = precision.activation_dtype(model).name
    for batch in passes:
        for op in build_ledger(model, batch, parallel=Parallel(tp=tp), precision=precision).fused():
            case = _case(op, kind)
            if isinstance(case, str):
                left_out[case] = None
            else:
                found[case.id] = case
    return list(found.values()), list(left_out)


def _case(op: Op, activation: str) -> Case | str:
    """The case of `op`, or why there is none."""
    if op.kind == "gemm" and not op.shape:
        if op.weight_dtype in TOLERANCE:
            return gemm(int(op.m), int(op.n), int(op.k), op.weight_dtype, cold=True, op=op)
        return f"{op.name}: no GEMM case for {op.weight_dtype} weights"
    plain = op.kind in ("prefill_attention", "decode_attention") and not op.shape.get("mla") and "kv_heads" in op.shape
    if plain and op.batch is not None and op.shape["kv_dtype"] == activation and op.shape["head_dim"] == op.shape["v_head_dim"]:
        sequences, of = int(op.batch.sequences), Heads(op.shape["heads"], op.shape["kv_heads"], op.shape["head_dim"])
        if op.kind == "decode_attention":
            return decode(sequences, int(op.n) // sequences, of, activation, op=op)
        if not op.shape["window"] or op.shape["window"] >= op.batch.new.max():
            return prefill(sequences, int(op.m) // sequences, of, activation, op=op)
    return f"{op.name}: no case for {op.kind} of this kind"
