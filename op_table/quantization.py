"""Products of quantized numbers, and floats rounded to a grid for training.

All are composites: factors of few bits become int32 or float32 on the device and are multiplied there. The products of
integers are exact. Those of floats err as a product of float32 does, whose terms are what the numbers stand for.
"""

from op_table.row import also, composite, exact, per_term

_BOUND = per_term("factors are exact in float32 up to one rounding by their scale; rounded once to the result's dtype",
                  chain=512, f32=10, f64=10, f16=1, bf16=1)  # fmt: skip
_WEIGHT = "the weight becomes float32 at each call: an operator that saves memory"

composite("_int_mm", via="int_mm", bound=exact(), why="three launches: a product of int32")
_SCALED = "five to seven launches: float8 through tables, scales, a product of float32"
composite("_scaled_mm", via="scaled_mm", bound=_BOUND, why=_SCALED)
composite("_scaled_mm_v2", via="scaled_mm_of_recipes", bound=_BOUND, why=_SCALED)
composite("_weight_int8pack_mm", via="weight_int8pack_mm", bound=_BOUND, why=_WEIGHT)
composite(
    "_convert_weight_to_int4pack_for_cpu", via="pack_int4_as_cpu", bound=exact(), why="once for each weight"
)
composite("_weight_int4pack_mm_for_cpu", via="int4_mm_as_cpu", bound=_BOUND, why=_WEIGHT)
composite("_convert_weight_to_int4pack", via="pack_int4", bound=exact(), why="a copy in other words")
composite("_weight_int4pack_mm", via="int4_mm", bound=_BOUND, why=_WEIGHT)
composite("_dyn_quant_pack_4bit_weight", via="pack_4bit_weight", bound=exact(), why="once for each weight")
composite("_dyn_quant_matmul_4bit", via="matmul_4bit", bound=per_term("sums of blocks are exact, and added in float32", f32=16, bf16=2),
          why=_WEIGHT)  # fmt: skip

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

also(
    "fake_quantize_per_tensor_affine_cachemask _fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
    "fake_quantize_per_channel_affine_cachemask _fake_quantize_learnable_per_tensor_affine "
    "_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine_backward "
    "_fake_quantize_learnable_per_channel_affine_backward",
    jumps=True,
)
