"""The largest working set of one step: activations of a layer at the token budget, or the logits of the sampled rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from roofline.capacity.ranges import NOTHING, ByteRange, GiB
from roofline.ledger import Parallel, Precision
from roofline.ledger.mixers import matrices
from roofline.profiles.model import MLA, MLP, FeedForward, Layer, Mixer, Model, MoE

_RESIDENT_STREAMS = 3  # layer input, residual and normalised input are alive together in an eager layer
_UNPROFILED = 0.3 * GiB


@dataclass(frozen=True)
class ActivationPeak:
    """Peak activation memory of one rank in bytes.

    layers: the widest layer at the token budget. logits: head and sampler, with the hidden states they come from. The two
    do not happen at once, so total is the larger; `widest` says which ("layers" or "logits").
    """

    layers: ByteRange
    logits: ByteRange

    @property
    def total(self) -> ByteRange:
        """The larger of the two, plus, in the high end, 0.3 GiB of buffers that profiles of public logs did not explain."""
        peak = self.layers.at_least(self.logits)
        return ByteRange(peak.expected, peak.low, peak.high + _UNPROFILED)

    @property
    def widest(self) -> str:
        """Which of the two sets the peak."""
        return "logits" if self.logits.expected > self.layers.expected else "layers"


def activation_peak(
    model: Model,
    *,
    tokens: int,
    rows: int,
    logit_bytes: ByteRange,
    parallel: Parallel,
    precision: Precision,
    stage: int = 0,
) -> ActivationPeak:
    """Peak of a step with `tokens` tokens, `rows` of them sampled, on one rank of a pipeline stage.

    Counts per token: three hidden-sized streams and the widest live set of attention or feed-forward, tensor-parallel parts
    divided; per sampled row: logits of the whole vocabulary at logit_bytes each. Not counted: images, prompt logprobs.
    Source: 0.6.4's log of an 8B model at 29,000 tokens to 0.2 % for the layers; 0.11's logs to 1 % for the logits.
    """
    element = precision.activation_dtype(model).bytes_per_element
    layers = {name: model.layers[name] for name in parallel.stages(model)[stage]}
    widths = [layer_width(layer, model.hidden_size, parallel) for layer in layers.values()]
    stream = model.hidden_size * element
    widest = max((w.expected for w in widths), default=0.0)
    most = max((w.high for w in widths), default=0.0)
    per_token = ByteRange(
        _RESIDENT_STREAMS * stream + widest * element,
        2 * stream + 0.6 * widest * element,  # a compiled or in-place engine reuses buffers
        (_RESIDENT_STREAMS + 1) * stream + 1.25 * most * element,
    )
    if stage < parallel.pp - 1:
        return ActivationPeak(per_token.times(tokens), NOTHING)
    states = ByteRange.exactly((tokens + rows) * stream)
    return ActivationPeak(per_token.times(tokens), states + logit_bytes.times(float(rows) * model.vocab_size))


def layer_width(layer: Layer, hidden: int, parallel: Parallel) -> ByteRange:
    """Elements per token that are alive at the widest point of a layer, besides the hidden-sized streams."""
    parts = [NOTHING]
    if layer.mixer is not None:
        parts.append(ByteRange.exactly(_mixer_width(layer.mixer, hidden, parallel.tp)))
    if layer.ffn is not None:
        parts.append(_ffn_width(layer.ffn, hidden, parallel))
    widest = parts[0]
    for part in parts[1:]:
        widest = widest.at_least(part)
    return widest


@singledispatch
def _mixer_width(spec: Mixer, hidden: int, tp: int) -> float:
    """The outputs of all projections but the last, and the input of the last."""
    *inward, outward = matrices(spec, hidden, tp)
    return float(sum(matrix.n for matrix in inward) + outward.k)


@_mixer_width.register
def _latent_width(spec: MLA, hidden: int, tp: int) -> float:
    """Expanded prefill: Q, K and V of all heads of the rank, their output, and the latents."""
    query = spec.qk_nope_head_dim + spec.qk_rope_head_dim
    expanded = 2 * query + spec.qk_nope_head_dim + 3 * spec.v_head_dim
    return float(spec.heads // tp * expanded + spec.latent_dim + (spec.q_lora_rank or 0))


@singledispatch
def _ffn_width(spec: FeedForward, hidden: int, parallel: Parallel) -> ByteRange:
    raise NotImplementedError(type(spec))


@_ffn_width.register
def _dense_width(spec: MLP, hidden: int, parallel: Parallel) -> ByteRange:
    return ByteRange.exactly(float(spec.intermediate // parallel.tp * (3 if spec.gated else 2)))


@_ffn_width.register
def _moe_width(spec: MoE, hidden: int, parallel: Parallel) -> ByteRange:
    """top_k rows of gate, up, product and output for each token; with attention data parallel, rows of all ranks meet.

    Expected with expert parallelism: each rank gets as many rows as it sends. high: the rows of all dp ranks on one.
    """
    shared = float(spec.shared_intermediate // parallel.tp * (3 if spec.gated else 2) + (hidden if spec.shared_intermediate else 0))
    row = spec.intermediate // parallel.moe_tp * (3 if spec.gated else 2) + hidden
    routed = float(spec.top_k * row)
    everyone = routed * parallel.dp
    return ByteRange(shared + (everyone if parallel.ep == 1 else routed), shared + routed, shared + everyone)
