"""Mixed precision as of apex: ``initialize``, ``scale_loss``, ``master_params``."""

from .casts import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from .frontend import disable_casts, initialize, load_state_dict, master_params, scale_loss, state_dict
from .scaler import LossScaler

__all__ = [
    "LossScaler",
    "disable_casts",
    "float_function",
    "half_function",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]
