"""What a drafter costs: its passes in time, its weights and KV in memory."""

from __future__ import annotations

from roofline.capacity import draft_layers, draft_model
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, SINGLE, Parallel, Precision, stage_weights
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.serving.deployment import Speculating
from roofline.serving.speculation import Drafter
from roofline.timing.step_timer import StepTimer

_ROWS = 64


def one_layer(model: Model) -> Model:
    """A draft head like EAGLE's: one layer of the model, with its output head."""
    return _stacked(model, 1)


def _stacked(model: Model, times: int) -> Model:
    """The model as its last layer alone, so many times."""
    last = model.stack[-1]
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    return Model(**(fields | {"order": f"{times}*{last}", "layers": {last: model.layers[last]}}))


def speculate(
    target: Model,
    hardware: Hardware,
    tokens: int,
    acceptance: float,
    *,
    draft: Model | str = "head",
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    engine: str = "vllm",
    context: int = 1024,
) -> Speculating:
    """`tokens` drafts per step, each right with probability `acceptance` if those before it were.

    draft: a model of its own, "head" (one layer of the target and its output head, as EAGLE and MTP have), or "ngram" (drafts cost
    nothing). A drafting pass is priced as a decode step of the drafter at `context` cached tokens, linear in the rows between 1
    and 64. The target's check of the drafts is in the step itself. Raises InputError.
    """
    if draft == "ngram":
        return Speculating(Drafter(tokens, acceptance, passes=0), lookahead=0)
    if isinstance(draft, str) and draft != "head":
        raise InputError(f"drafter {draft!r}: a model, head or ngram")
    own = isinstance(draft, Model)
    drafter = draft if isinstance(draft, Model) else one_layer(target)
    split = Parallel(tp=parallel.tp)
    timer = StepTimer(drafter, hardware, parallel=split, precision=precision, engine=engine, max_tokens=1024, max_context=1 << 17)
    one, many = timer.step_time(1, context, ()), timer.step_time(_ROWS, _ROWS * context, ())
    row_s = max(0.0, (many - one) / (_ROWS - 1))
    if own:
        addition = draft_model(drafter, parallel=split, precision=precision)
    else:
        addition = draft_layers(target, 1, _layer_bytes(target, split, precision), parallel=parallel, precision=precision)
    return Speculating(Drafter(tokens, acceptance, one - row_s, row_s), addition, draft_slots=1 if own else 0)


def _layer_bytes(model: Model, parallel: Parallel, precision: Precision) -> float:
    """Weights of the last layer on one rank: what a model with that layer twice has more."""
    once, twice = (stage_weights(_stacked(model, times), parallel=parallel, weights=precision.weights).bytes for times in (1, 2))
    return twice - once
