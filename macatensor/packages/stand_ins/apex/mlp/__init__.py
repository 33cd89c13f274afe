"""Linear layers one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}


class MLP(torch.nn.Module):
    """Layers of sizes ``mlp_sizes[0] -> mlp_sizes[1] -> ...``, each with the ``activation`` "none", "relu" or "sigmoid" behind
    it, the last one, too. Raises TypeError for another activation."""

    def __init__(self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise TypeError(f"activation must be relu, sigmoid or none; got {activation!r}")
        self.num_layers, self.mlp_sizes = len(mlp_sizes) - 1, list(mlp_sizes)
        self.bias, self.activation = int(bias), activation
        for i in range(self.num_layers):
            self.register_parameter(
                f"weight_{i}", torch.nn.Parameter(torch.empty(mlp_sizes[i + 1], mlp_sizes[i]))
            )
            if bias:
                self.register_parameter(f"bias_{i}", torch.nn.Parameter(torch.empty(mlp_sizes[i + 1])))
        self.reset_parameters()

    @property
    def weights(self) -> list[torch.nn.Parameter]:
        return [self.get_parameter(f"weight_{i}") for i in range(self.num_layers)]

    @property
    def biases(self) -> list[torch.nn.Parameter]:
        return [self.get_parameter(f"bias_{i}") for i in range(self.num_layers)] if self.bias else []

    def reset_parameters(self) -> None:
        for weight in self.weights:
            torch.nn.init.normal_(weight, 0.0, math.sqrt(2.0 / sum(weight.shape)))
        for bias in self.biases:
            torch.nn.init.normal_(bias, 0.0, math.sqrt(1.0 / bias.shape[0]))

    def forward(self, input: Tensor) -> Tensor:
        """[N, mlp_sizes[-1]] of input [N, mlp_sizes[0]]."""
        biases: Sequence[Tensor | None] = self.biases or [None] * self.num_layers
        for weight, bias in zip(self.weights, biases):
            input = _ACTIVATIONS[self.activation](functional.linear(input, weight, bias))
        return input

    def extra_repr(self) -> str:
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"
