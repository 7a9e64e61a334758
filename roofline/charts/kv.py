"""KV cache over context under several attention layouts, with the weights as a line."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from matplotlib.figure import FigureBase

from roofline import units
from roofline.batch import Array
from roofline.charts import labels, style
from roofline.charts.chart import Chart, Request
from roofline.ledger import kv_bytes_stored, stage_weights
from roofline.profiles.layouts import with_layout
from roofline.profiles.model import Attention, Model

LAYOUTS = ("mha", "gqa:8", "mqa", "mla")
WINDOW = 4096
_NAMES = {"mha": "MHA", "gqa:8": "GQA-8", "mqa": "MQA", "mla": "MLA"}


def kv(request: Request) -> Chart:
    """KV bytes that the request's batch of sequences keeps on one GPU, over context: as shipped and as other layouts.

    The weights of one GPU and, with a device, its memory are lines. A model with windows keeps only what can still be seen.
    """
    model = request.the_model
    contexts = np.unique(np.geomspace(256, 1 << 20, 49).astype(np.int64)).astype(np.float64)
    variants = _variants(model)
    stored = {name: np.asarray(_stored(request, variant, contexts)) for name, variant in variants.items()}
    weights = stage_weights(model, request.parallel, weights=request.precision.weights).bytes
    memory = request.devices[0].memory_reported_bytes or request.devices[0].memory_bytes if request.devices else None
    rows = tuple(
        {
            "layout": name,
            "context": int(c),
            "sequences": request.batch,
            "kv_bytes": float(b),
            "weight_bytes": weights,
            "memory_bytes": memory,
        }
        for name, sizes in stored.items()
        for c, b in zip(contexts, sizes, strict=True)
    )

    def paint(figure: FigureBase) -> None:
        axes = style.panels(figure, right=0.80)[0]
        style.log_counts(axes.xaxis, 256, 1 << 20, most=7)
        axes.set_yscale("log")
        everything = [b for sizes in stored.values() for b in sizes] + [weights] + ([memory] if memory else [])
        axes.set_ylim(*style.log_span([b / 2**30 for b in everything], below=3.0, above=1.8))
        axes.set(xlabel="cached tokens per sequence", ylabel=f"KV cache of {_sequences(request.batch)}, one GPU (GiB)")
        style.plain_numbers(axes.yaxis)
        for (name, sizes), (colour, marker, dash) in zip(stored.items(), style.SERIES, strict=False):
            first = name == "as shipped"
            axes.plot(
                contexts, sizes / 2**30, color=colour, ls=dash, lw=2.6 if first else 1.6, marker=marker, markevery=8, ms=5, label=name,
                zorder=4 if first else 3, gid=f"kv:{name}",
            )  # fmt: skip
        for value, text in ((weights, "weights"), (memory, "memory of the GPU")):
            if value:
                axes.axhline(value / 2**30, color=style.INK, lw=1.2, ls=(0, (1, 1.5)))
                label = f"{text} {units.format(value, 'bytes', binary=True)}"
                below = value == weights
                axes.annotate(
                    label, (256, value / 2**30), (4, -3 if below else 3), textcoords="offset points", size=style.SMALL,
                    va="top" if below else "bottom", bbox=labels.BACKING, zorder=6,
                )  # fmt: skip
        beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, "alignment": "left"}
        legend = axes.legend(**beside, handlelength=3.2, title="KV per token", title_fontsize=style.SMALL)
        for entry, (name, sizes) in zip(legend.get_texts(), stored.items(), strict=True):
            entry.set_text(f"{name}\n{units.format(float(sizes[0]) / 256 / request.batch, 'bytes', binary=True)}")

    return Chart(
        kind="kv",
        title=_finding(request, stored, contexts, weights),
        subtitle=f"{request.shown} · {_sequences(request.batch)}, KV as {request.precision.kv_cache_dtype(model).name}",
        rows=rows,
        paint=paint,
        request=request,
    )


def _stored(request: Request, model: Model, context: Array | int) -> Array:
    """KV bytes of the whole batch on one GPU."""
    return request.batch * np.asarray(kv_bytes_stored(model, context, parallel=request.parallel, precision=request.precision))


def _sequences(batch: int) -> str:
    return "1 sequence" if batch == 1 else f"{batch:,} sequences"


def _variants(model: Model) -> dict[str, Model]:
    """The model as shipped, then each layout that differs from it, then as shipped with a sliding window in every layer."""
    found = {"as shipped": model}
    kinds = [layer.mixer for layer in model.layers.values() if layer.mixer is not None]
    for layout in LAYOUTS:
        if layout == "gqa:8" and any(mixer.heads % 8 for mixer in kinds):
            continue
        variant = with_layout(model, layout)
        if variant.layers != model.layers:
            found[_NAMES[layout]] = variant
    if any(isinstance(mixer, Attention) and not (mixer.window or mixer.chunk) for mixer in kinds):
        found[f"window {style.compact(WINDOW)}"] = _windowed(model)
    return found


def _windowed(model: Model) -> Model:
    layers = {
        name: layer.model_copy(update={"mixer": layer.mixer.model_copy(update={"window": WINDOW})})
        if isinstance(layer.mixer, Attention) and not (layer.mixer.window or layer.mixer.chunk)
        else layer
        for name, layer in model.layers.items()
    }
    return model.model_copy(update={"layers": layers})


def _finding(request: Request, stored: dict[str, np.ndarray], contexts: np.ndarray, weights: float) -> str:
    own = stored["as shipped"]
    beyond = 1 + bisect_left(
        range(1, int(contexts[-1])), True, key=lambda tokens: bool(_stored(request, request.the_model, tokens) > weights)
    )
    passes = f"outweighs the weights from {beyond:,} tokens on" if own[-1] > weights else "never outweighs the weights"
    largest = max(stored, key=lambda name: float(stored[name][-1]))
    if largest == "as shipped":
        return f"The KV cache of {_sequences(request.batch)} {passes}; other layouts would shrink it"
    ratio = float(stored[largest][-1] / own[-1])
    return f"The KV cache of {_sequences(request.batch)} {passes}; as {largest} it would be {units.significant(ratio, 2)}× larger"
