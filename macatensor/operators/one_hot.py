"""``torch.nn.functional.one_hot`` with PyTorch's checks, which its path for Python tensors leaves out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value


def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """A dimension of ``num_classes`` with 1 at each class. Raises RuntimeError for classes out of range."""
    if self.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if self.numel() == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return torch.empty((*self.shape, num_classes), dtype=torch.int64, device=self.device)
    lowest, highest = (int(v) for v in torch.stack(torch.aminmax(self)).tolist())
    if lowest < 0:
        raise RuntimeError("Class values must be non-negative.")
    if num_classes == -1:
        num_classes = highest + 1
    elif num_classes <= highest:
        raise RuntimeError("Class values must be smaller than num_classes.")
    result = torch.zeros((*self.shape, num_classes), dtype=torch.int64, device=self.device)
    return result.scatter_(-1, self.unsqueeze(-1), 1)


@special("aten.one_hot.default")
def _undecomposed(func: OpOverload) -> Launcher:
    """Under inference_mode the operator arrives whole."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        return one_hot(*args, **(kwargs or {}))

    return run


_library: torch.library.Library | None = None


def register() -> None:
    """Takes the operator over on the autograd key."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("one_hot", one_hot, "AutogradPrivateUse1")
