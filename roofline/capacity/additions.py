"""What a run loads beside the model itself: draft models and multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.capacity.blocks import LayerKind, layer_kinds
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, SINGLE, Parallel, Precision, extra_weights, stage_weights
from roofline.profiles.model import Model


@dataclass(frozen=True)
class Addition:
    """Weights and caching layers that join the last pipeline stage. weight_bytes: of one rank."""

    name: str
    weight_bytes: float
    kinds: tuple[LayerKind, ...] = ()


def draft_model(model: Model, *, parallel: Parallel = SINGLE, precision: Precision = AS_SHIPPED) -> Addition:
    """A draft model of its own, split over the tp ranks of the target: its weights and its KV."""
    split = Parallel(tp=parallel.tp)
    weights = stage_weights(model, parallel=split, weights=precision.weights).bytes
    return Addition(f"draft {model.name}", weights, layer_kinds(model, parallel=split, precision=precision))


def draft_layers(
    model: Model, layers: int, weight_bytes: float, *, parallel: Parallel = SINGLE, precision: Precision = AS_SHIPPED
) -> Addition:
    """A draft head (EAGLE, Medusa with attention): `layers` layers that cache like the target's last, weight_bytes per rank.

    Raises InputError for fewer than 0 layers or bytes.
    """
    if layers < 0 or weight_bytes < 0:
        raise InputError(f"draft layers and weight bytes cannot be negative, got {layers} and {weight_bytes}")
    last = model.model_copy(update={"order": model.stack[-1], "layers": {model.stack[-1]: model.layers[model.stack[-1]]}})
    kinds = layer_kinds(last, parallel=Parallel(tp=parallel.tp, dcp=parallel.dcp), precision=precision)
    kinds = tuple(LayerKind(layers, kind.kv_bytes, kind.window, kind.state_bytes) for kind in kinds if layers)
    return Addition(f"{layers} draft layers", weight_bytes, kinds)


def multi_token_prediction(model: Model, *, parallel: Parallel = SINGLE, precision: Precision = AS_SHIPPED) -> Addition:
    """The checkpoint's own MTP block: its weights over tp ranks and one more layer of KV. Raises InputError if it has none."""
    blocks = [extra for extra in model.extras if "mtp" in extra.name.lower() or "nextn" in extra.name.lower()]
    if not blocks:
        raise InputError(
            f"{model.name} has no multi-token-prediction block; its extras: {', '.join(e.name for e in model.extras) or 'none'}"
        )
    stored = sum(extra_weights(model, extra).bytes for extra in blocks)
    drafted = draft_layers(model, 1, stored / parallel.tp, parallel=parallel, precision=precision)
    return Addition(blocks[0].name, drafted.weight_bytes, drafted.kinds)
