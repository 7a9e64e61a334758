"""The parts of a layer: token mixers (attention and its kin) and feed-forward parts, as plain geometry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator


class Spec(BaseModel):
    """Base of all parts of a model: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Attention(Spec):
    """Softmax attention with K and V heads: MHA (kv_heads = heads), GQA, MQA (kv_heads = 1), windows and chunks.

    head_dim is that of Q and K; v_head_dim that of V (head_dim unless given). window: a token sees at most that many
    positions, itself included. chunk: it sees only its own block of that many positions. shares_kv: K and V are those of an
    earlier layer (no projections, no cache of its own). k_is_v: V is K (no V projection; both are cached).
    output_gate: Q is projected at twice the width, half of it gates the output.
    """

    kind: Literal["attention"] = "attention"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    v_head_dim: PositiveInt | None = None
    window: PositiveInt | None = None
    chunk: PositiveInt | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    shares_kv: bool = False
    k_is_v: bool = False

    @property
    def value_dim(self) -> int:
        """Width of one V head."""
        return self.v_head_dim or self.head_dim

    @model_validator(mode="after")
    def _whole_groups(self) -> Attention:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) must divide heads ({self.heads})")
        if self.window and self.chunk:
            raise ValueError("give window or chunk, not both")
        return self


class Indexer(Spec):
    """Sparse-attention indexer (DeepSeek-V3.2, GLM-5): scores every cached position, attention reads the top_k best.

    cache_bits: bits per cached index element including its scales (fp8 with one fp32 scale per 128: 8.25). shared: the layer
    attends to the positions that an earlier layer's indexer picked; it has no indexer of its own.
    """

    heads: PositiveInt
    head_dim: PositiveInt
    top_k: PositiveInt
    cache_bits: PositiveFloat = 8.25
    shared: bool = False


class MLA(Spec):
    """Multi-head latent attention (DeepSeek-V2/V3): K and V live in one latent of kv_lora_rank plus a rotary key.

    q_lora_rank None: Q is projected directly. Decode runs absorbed (in the latent space), prefill expanded; with an indexer
    both run absorbed, since every token reads positions of its own.
    """

    kind: Literal["mla"] = "mla"
    heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    bias: bool = False
    indexer: Indexer | None = None

    @property
    def latent_dim(self) -> int:
        """Cached elements per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class Compressed(Spec):
    """Attention over compressed positions (DeepSeek-V4): one KV head whose K is also V, a window of plain positions beside it.

    ratio: `ratio` positions are pooled into one cached entry (None: the window is all there is). overlap: each pool also sees
    the one before it (projections twice as wide). indexer: picks top_k entries. Q comes from q_lora_rank; the output is
    projected in `out_groups` groups to out_lora_rank each, then to the hidden size.
    """

    kind: Literal["compressed"] = "compressed"
    heads: PositiveInt
    head_dim: PositiveInt
    window: PositiveInt
    q_lora_rank: PositiveInt
    out_groups: PositiveInt
    out_lora_rank: PositiveInt
    ratio: PositiveInt | None = None
    overlap: bool = False
    indexer: Indexer | None = None

    @model_validator(mode="after")
    def _whole(self) -> Compressed:
        if self.heads % self.out_groups:
            raise ValueError(f"out_groups ({self.out_groups}) must divide heads ({self.heads})")
        if self.indexer and not self.ratio:
            raise ValueError("an indexer needs compressed entries: give ratio")
        return self


class GatedDelta(Spec):
    """Gated delta net (Qwen3-Next, Qwen3.5): a state of key_dim × value_dim per value head in place of a KV cache.

    heads: value heads. conv: width of the causal convolution before it. state_bits: of one state element.
    """

    kind: Literal["gated_delta"] = "gated_delta"
    heads: PositiveInt
    key_heads: PositiveInt
    key_dim: PositiveInt
    value_dim: PositiveInt
    conv: PositiveInt = 4
    state_bits: PositiveInt = 32

    @model_validator(mode="after")
    def _whole_groups(self) -> GatedDelta:
        if self.heads % self.key_heads:
            raise ValueError(f"key_heads ({self.key_heads}) must divide heads ({self.heads})")
        return self


class KDA(Spec):
    """Kimi delta attention (Kimi-Linear): a delta net whose state decays by channel; gates through a rank of head_dim."""

    kind: Literal["kda"] = "kda"
    heads: PositiveInt
    head_dim: PositiveInt
    conv: PositiveInt = 4
    state_bits: PositiveInt = 32


class Mamba2(Spec):
    """Mamba-2 (Nemotron-H, Bamba): a state of head_dim × state_size per head; B and C are shared by heads of a group."""

    kind: Literal["mamba2"] = "mamba2"
    heads: PositiveInt
    head_dim: PositiveInt
    state_size: PositiveInt
    groups: PositiveInt
    conv: PositiveInt = 4
    conv_bias: bool = True
    bias: bool = False
    gated_norm: bool = True
    state_bits: PositiveInt = 32


class Mamba(Spec):
    """Mamba-1 (Jamba): each of `heads` channels has a state of state_size; the step comes through a rank of dt_rank."""

    kind: Literal["mamba"] = "mamba"
    heads: PositiveInt
    state_size: PositiveInt
    dt_rank: PositiveInt
    conv: PositiveInt = 4
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False
    state_bits: PositiveInt = 32


Mixer = Annotated[Attention | MLA | Compressed | GatedDelta | KDA | Mamba2 | Mamba, Field(discriminator="kind")]


class MLP(Spec):
    """Dense feed-forward: up and down, and a gate when gated (SwiGLU, GeGLU)."""

    kind: Literal["mlp"] = "mlp"
    intermediate: PositiveInt
    gated: bool = True
    bias: bool = False


class MoE(Spec):
    """Mixture of experts: a router picks top_k of `experts`; shared experts run for every token.

    intermediate is that of one routed expert; shared_intermediate that of all shared experts together (0: none).
    router_bias: a score-correction vector of the router (fp32). shared_gate: a 1-wide sigmoid gate of the shared expert.
    expert_bias, router_linear_bias: biases as in gpt-oss. latent: experts work on a projection of the hidden state to this
    width (Nemotron-3 Super).
    """

    kind: Literal["moe"] = "moe"
    experts: PositiveInt
    top_k: PositiveInt
    intermediate: PositiveInt
    gated: bool = True
    shared_intermediate: NonNegativeInt = 0
    shared_gate: bool = False
    router_bias: bool = False
    router_linear_bias: bool = False
    expert_bias: bool = False
    latent: PositiveInt | None = None

    @model_validator(mode="after")
    def _enough_experts(self) -> MoE:
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) cannot exceed experts ({self.experts})")
        return self


FeedForward = Annotated[MLP | MoE, Field(discriminator="kind")]
