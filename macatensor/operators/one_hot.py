"""``torch.nn.functional.one_hot`` with PyTorch's checks, which its path for Python tensors leaves out."""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.dispatch.tracing import are_traced
from macatensor.operators.whole import whole


@whole("one_hot.default")
def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """A dimension of ``num_classes`` with 1 at each class. Raises RuntimeError for classes out of range."""
    if self.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if self.numel() == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return torch.empty((*self.shape, num_classes), dtype=torch.int64, device=self.device)
    if num_classes > 0 and are_traced([self]):  # as PyTorch's: in a graph nobody looks at the classes
        return (self.unsqueeze(-1) == torch.arange(num_classes, device=self.device)).to(torch.int64)
    lowest, highest = (int(v) for v in torch.stack(torch.aminmax(self)).tolist())
    if lowest < 0:
        raise RuntimeError("Class values must be non-negative.")
    if num_classes == -1:
        num_classes = highest + 1
    elif num_classes <= highest:
        raise RuntimeError("Class values must be smaller than num_classes.")
    result = torch.zeros((*self.shape, num_classes), dtype=torch.int64, device=self.device)
    return result.scatter_(-1, self.unsqueeze(-1), 1)
