"""Fused optimizer steps and gradient scaling. Every tensor that a step changes is written through."""

from op_table.row import FLOATING, also, kernel, per_term

_STEP = per_term("a step is a handful of sums of two terms", f32=4, f64=4, f16=2, bf16=2)

# A learning rate changes every step and must not make a new plan.
for _name in ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"):
    kernel(f"{_name}_", FLOATING, kernel=_name, bound=_STEP, launch_scalars=("lr",))
    # elementwise: a learning rate in a 0-dim tensor of the host is a launch scalar too
    kernel(f"{_name}_.tensor_lr", FLOATING, kernel=_name, bound=_STEP, elementwise=True)

kernel(
    "_amp_foreach_non_finite_check_and_unscale_",
    FLOATING,
    kernel="_amp_foreach_non_finite_check_and_unscale",
    bound=per_term("one product", f32=1),
)
kernel(
    "_amp_update_scale_",
    frozenset({"float32"}),
    kernel="_amp_update_scale",
    bound=per_term("one product", f32=1),
)

also(
    " ".join(f"_fused_{name}_.tensor_lr" for name in ("adam", "adamw", "sgd", "adagrad")),
    one_element_is_number=True,
    meta="fused_step_by_tensor",
)
also(
    "_fused_adam_.default _fused_adamw_.default _fused_sgd_.default _fused_adagrad_.default",
    meta="fused_step",
)
also("_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_", dense_on_cpu=True)
