"""apex's compiled module, where ``apex`` is provided here."""

from apex.multi_tensor_apply.functions import (  # type: ignore[import-not-found]
    multi_tensor_adam,
    multi_tensor_axpby,
    multi_tensor_l2norm,
    multi_tensor_lamb,
    multi_tensor_scale,
)

__all__ = [
    "multi_tensor_adam",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_lamb",
    "multi_tensor_scale",
]
