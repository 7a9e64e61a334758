"""Weight tensors as shapes with a role: what a checkpoint stores and what a GEMM reads."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.dtypes import DType
from roofline.profiles.model import Layer, Model


@dataclass(frozen=True)
class Matrix:
    """A weight matrix (n, k), K the reduced axis, `copies` of it on the rank. bias: elements of a bias vector beside it.

    role and name decide the storage format. input: matrices with the same label read the same activations and may be fused.
    """

    name: str
    role: str
    n: int
    k: int
    copies: int = 1
    bias: int = 0
    input: str = ""

    @property
    def parameters(self) -> int:
        """Parameters of all copies, biases included."""
        return (self.n * self.k + self.bias) * self.copies

    def dtype(self, model: Model, layer: Layer | None, override: str | None) -> DType:
        """Storage format in `model` (override: in place of the checkpoint's)."""
        return model.weight_dtype(self.role, self.name, layer, override)

    def bytes(self, model: Model, layer: Layer | None, override: str | None = None) -> float:
        """Bytes of all copies with their scales and biases."""
        bias = self.bias * model.weight_dtype("bias", self.name, layer, override).bytes_per_element
        return (self.dtype(model, layer, override).matrix_bytes(self.n, self.k) + bias) * self.copies


@dataclass(frozen=True)
class Vector:
    """A small tensor (norm, score correction, sinks) of `size` elements, `copies` of it."""

    name: str
    role: str
    size: int
    copies: int = 1

    @property
    def parameters(self) -> int:
        """Elements of all copies."""
        return self.size * self.copies

    def bytes(self, model: Model, layer: Layer | None, override: str | None = None) -> float:
        """Bytes of all copies."""
        return self.parameters * model.weight_dtype(self.role, self.name, layer, override).bytes_per_element
