"""Products of quantized numbers, and floats rounded to a grid for training.

Kernels read a weight of few bits as it is stored. What a library declines, and the rest, are composites: factors become int32
or float32 on the device and are multiplied there. The products of integers are exact. Those of floats err as a product of
float32 does, whose terms are what the numbers stand for.
"""

from op_table.row import HALVES, also, composite, exact, kernel, per_term

_BOUND = per_term("factors are exact in float32 up to one rounding by their scale; rounded once to the result's dtype",
                  chain=512, f32=10, f64=10, f16=1, bf16=1)  # fmt: skip

kernel("_int_mm", frozenset({"int8", "uint8"}), bound=exact(), otherwise="int_mm")
_SCALED = "five to seven launches: float8 through tables, scales, a product of float32"
composite("_scaled_mm", via="scaled_mm", bound=_BOUND, why=_SCALED)
composite("_scaled_mm_v2", via="scaled_mm_of_recipes", bound=_BOUND, why=_SCALED)
_FLOATS = HALVES | {"float32"}
kernel("_weight_int8pack_mm", _FLOATS, bound=_BOUND, otherwise="weight_int8pack_mm")
composite(
    "_convert_weight_to_int4pack_for_cpu", via="pack_int4_as_cpu", bound=exact(), why="once for each weight"
)
kernel("_weight_int4pack_mm_for_cpu", _FLOATS, bound=_BOUND, otherwise="int4_mm_as_cpu")
composite("_convert_weight_to_int4pack", via="pack_int4", bound=exact(), why="once for each weight")
kernel("_weight_int4pack_mm", _FLOATS, bound=_BOUND, otherwise="int4_mm")
composite("_dyn_quant_pack_4bit_weight", via="pack_4bit_weight", bound=exact(), why="once for each weight")
kernel("_dyn_quant_matmul_4bit", frozenset({"float32", "bfloat16"}), otherwise="matmul_4bit",
       bound=per_term("sums of blocks are exact, and added in float32", f32=16, bf16=2))  # fmt: skip

also("_int_mm", meta="int_mm")
also("_weight_int4pack_mm", meta="weight_int4pack_mm")
also("_weight_int4pack_mm_for_cpu", attributes="order_of_cpu")

_STEPS = (
    "some ten elementwise launches, which a compiled program makes one; on the host it would be two copies"
)
composite("fake_quantize_per_tensor_affine_cachemask", via="fake_quantize", bound=exact(), why=_STEPS)
composite("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", via="fake_quantize_by_tensors", bound=exact(),
          why=_STEPS)  # fmt: skip
composite(
    "fake_quantize_per_channel_affine_cachemask", via="fake_quantize_channels", bound=exact(), why=_STEPS
)
composite(
    "_fake_quantize_learnable_per_tensor_affine", via="learnable_fake_quantize", bound=exact(), why=_STEPS
)
composite("_fake_quantize_learnable_per_channel_affine", via="learnable_fake_quantize_channels", bound=exact(),
          why=_STEPS)  # fmt: skip
_SUMS = per_term("each element's share has the CPU's bits; sums over elements have an order of their own",
                 f32=16, f64=16, f16=4, bf16=4)  # fmt: skip
composite("_fake_quantize_learnable_per_tensor_affine_backward", via="learnable_fake_quantize_backward", bound=_SUMS,
          why=_STEPS)  # fmt: skip
composite("_fake_quantize_learnable_per_channel_affine_backward", via="learnable_fake_quantize_channels_backward",
          bound=_SUMS, why=_STEPS)  # fmt: skip

composite("_fused_moving_avg_obs_fq_helper", via="observed_fake_quantize", bound=exact(), why=_STEPS)
composite("dequantize.self", via="dequantized_float", bound=exact(), why="a cast of what is not quantized")

also(
    "fake_quantize_per_tensor_affine_cachemask _fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
    "fake_quantize_per_channel_affine_cachemask _fake_quantize_learnable_per_tensor_affine "
    "_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine_backward "
    "_fake_quantize_learnable_per_channel_affine_backward _fused_moving_avg_obs_fq_helper",
    jumps=True,
)
