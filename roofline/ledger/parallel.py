"""How a model is spread over GPUs, and which slice one rank holds."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.errors import ShardError
from roofline.profiles.model import MLP, Model, MoE


@dataclass(frozen=True)
class Parallel:
    """A parallel layout, in vLLM's words.

    tp: tensor parallel ranks that share each attention layer. dp: attention data parallel ranks (each has its own sequences;
    the experts of a MoE are spread over all tp·dp ranks). ep: ranks over which experts are split whole; the remaining
    tp·dp/ep split each expert. pp: pipeline stages. dcp: decode context parallel ranks, within tp, that split an MLA cache.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    dcp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "dp", "dcp"):
            if getattr(self, name) < 1:
                raise ShardError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.tp * self.dp % self.ep:
            raise ShardError(f"ep ({self.ep}) must divide tp·dp ({self.tp * self.dp})")
        if self.tp % self.dcp:
            raise ShardError(f"dcp ({self.dcp}) must divide tp ({self.tp})")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.dp * self.pp

    @property
    def moe_tp(self) -> int:
        """Ranks that split one expert between them."""
        return self.tp * self.dp // self.ep

    def check(self, model: Model) -> None:
        """Raises ShardError that names the field and the sizes that would do, if the model cannot be split this way."""
        if self.pp > model.num_layers:
            raise ShardError(f"pp {self.pp} is more than the {model.num_layers} layers of {model.name}")
        for name, layer in model.layers.items():
            if layer.mixer is not None:
                _divides(f"layers.{name}.mixer.heads", layer.mixer.heads, self.tp, "tp")
            for field in ("kv_heads", "key_heads", "groups", "out_groups"):  # split, or copied where tp is larger
                shared = getattr(layer.mixer, field, None)
                if shared and shared % self.tp and self.tp % shared:
                    raise ShardError(f"layers.{name}.mixer.{field} = {shared} and tp {self.tp}: one must divide the other")
            if isinstance(layer.ffn, MLP):
                _divides(f"layers.{name}.ffn.intermediate", layer.ffn.intermediate, self.tp, "tp")
            if isinstance(layer.ffn, MoE):
                _divides(f"layers.{name}.ffn.experts", layer.ffn.experts, self.ep, "ep")
                _divides(f"layers.{name}.ffn.intermediate", layer.ffn.intermediate, self.moe_tp, "tp·dp/ep")
                _divides(f"layers.{name}.ffn.shared_intermediate", layer.ffn.shared_intermediate, self.tp, "tp")
        if self.ep > 1 and not any(isinstance(layer.ffn, MoE) for layer in model.layers.values()):
            raise ShardError(f"ep {self.ep}: {model.name} has no experts; use tp, pp or dp")

    def stages(self, model: Model) -> list[tuple[str, ...]]:
        """The layers of each pipeline stage, in order. A remainder goes to the stages before the last, as in vLLM."""
        each, rest = divmod(model.num_layers, self.pp)
        sizes = [each] * self.pp
        for i in range(2, rest + 2):
            sizes[-i] += 1
        stages, start = [], 0
        for size in sizes:
            stages.append(model.stack[start : start + size])
            start += size
        return stages


def _divides(field: str, size: int, ranks: int, name: str) -> None:
    if size % ranks:
        near = [d for d in range(1, min(size, 4 * ranks) + 1) if size % d == 0][-8:]
        raise ShardError(f"{field} = {size} cannot be split over {name} = {ranks}; it can over {', '.join(map(str, near))}")


SINGLE = Parallel()
