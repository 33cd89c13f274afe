"""Draws a call of an operator from its schema: a seed gives the same call on every machine and in every run."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from typing import Any

import torch
from recipes import FILLS, Recipe, dense, tensor

SIDES = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33)
RANKS = (0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 6, 7)
MOST = 1 << 12  # elements of a tensor
DTYPES = {
    "float32": 12, "float64": 4, "bfloat16": 3, "float16": 3, "int64": 5, "int32": 2, "uint8": 2, "int8": 1, "int16": 1,
    "bool": 3, "complex64": 2, "complex128": 1, "uint16": 1, "uint32": 1, "uint64": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "complex32": 1,
}  # fmt: skip
# what is missing by default, and read from memory all the same
NEEDED: dict[tuple[str, str], Recipe] = {("aten::to.prim_dtype", "dtype"): 6}
EXTREMES = (2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63), 10**12, -(10**12))
WORDS = {
    "reduce": ("sum", "prod", "mean", "amax", "amin"), "reduction": ("sum", "mean", "none"),
    "rounding_mode": ("floor", "trunc"), "approximate": ("none", "tanh"), "padding": ("same", "valid"),
    "ord": ("fro", "nuc"), "mode": ("reduced", "complete", "r", "constant", "reflect", "circular"), "UPLO": ("L", "U"),
    "indexing": ("ij", "xy"), "side": ("left", "right"), "equation": ("ij,jk->ik", "ij->ji", "...i,...i", "ii"),
    "driver": ("gelsy", "gels", "gelsd", "gesvd"), "pad_mode": ("reflect", "constant", "replicate"),
}  # fmt: skip
INDICES = re.compile(r"^(index|indices|target|offsets|tidx|.*_indices|indexes|dim_index|buckets?)$")

# no arithmetic on tensors: files, other back ends, or a change of the process
APART = re.compile(
    r"aten::(from_file|_cudnn|cudnn|miopen|_mps|mps|_xpu|_cuda|mkldnn|_mkldnn|to_mkldnn|_to_mkldnn|_fused_sdp_choice_cuda|"
    r"_nested|nested|_jagged|.*sparse|.*_csr|.*_coo|.*crow|.*ccol|.*coalesce|quantize|.*quantized|q_|fbgemm|.*qlinear|"
    r"dequantize|_make_per|_make_dep|record_stream|_record_function|set_data|_backward|retain_grad|_fw_primal|_unpack_dual|"
    r"_make_dual|_enter_dual|_exit_dual|rename|align_|refine_names|is_vulkan|_vulkan|_test_|_use_cudnn|_assert_|"
    r"_async_error|sym_|_print|pin_memory|_pin_memory|is_pinned|_has_compatible|_thnn_fused.*cuda|_wrapped|_c10d|"
    r"_unsafe_set|set$|set\.|set_\.source|_resize_output|_sobol|_spsolve|_linalg_check|_int_mm\.tune)"
)


@dataclass(frozen=True)
class Call:
    """An operator and its arguments, by name where the schema says so."""

    operator: str  # "aten::add.Tensor"
    args: list[Recipe]
    kwargs: dict[str, Recipe]

    @property
    def overload(self) -> Any:
        return overload(self.operator)


def overload(name: str) -> Any:
    """``torch.ops.aten.add.Tensor`` for ``"aten::add.Tensor"``."""
    space, _, rest = name.partition("::")
    base, _, kind = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), kind or "default")


@functools.cache
def operators() -> tuple[str, ...]:
    """Every overload of aten and of ours that takes or gives a tensor."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        types = [str(a.real_type) for a in (*schema.arguments, *schema.returns)]
        if not name.startswith(("aten::", "maca::")) or APART.match(name):
            continue
        if not any("Tensor" in t for t in types) or any(
            re.search(r"Dict|Future|RRef|Any|\bt\d?\b|Stream|Storage", t) for t in types
        ):
            continue
        try:
            overload(name)
        except AttributeError:
            continue
        found.append(name)
    return tuple(sorted(set(found)))


class _Draw:
    """The choices of one call: operands that fit one another more often than not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.of_lazy_bits = random.Random(seed + (1 << 40))
        self.base = self._size()
        self.dtype = self._dtype()
        self.grad = self.random.random() < 0.15
        self.odd = (
            self.random.random() < 0.3
        )  # extremes and mixtures are in few calls, else all would be refused

    def _size(self) -> list[int]:
        r = self.random
        size = [r.choice(SIDES) for _ in range(r.choice(RANKS))]
        while _product(size) > MOST:
            size[size.index(max(size))] //= 2
        return size

    def _dtype(self) -> str:
        return self.random.choices(list(DTYPES), list(DTYPES.values()))[0]

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def operand(self, name: str) -> Recipe:
        r = self.random
        size = list(self.base)
        way = r.random()
        if way < 0.1 and size:
            size[r.randrange(len(size))] = 1
        elif way < 0.2 and size:
            size = size[r.randrange(len(size)) :]
        elif way < 0.3 and len(size) > 1:
            size[-2:] = size[:-3:-1]
        elif way < 0.35 and len(size) > 1:
            size = [size[1]]
        elif way < 0.45:
            size = self._size()
        dtype = self.dtype if self.chance(0.8) else self._dtype()
        fill = r.choices(FILLS[:5], (6, 2, 1, 1, 2))[0]
        more: dict[str, Any] = {}
        if INDICES.match(name):
            dtype = r.choices(("int64", "int32", "bool", dtype), (8, 2, 1, 1))[0]
            fill, more["limit"] = "indices", r.choice([1, 2, 3, *self.base, 100])
        stride, offset = self._strides(size)
        if self.grad and dtype in ("float32", "float64", "complex64", "bfloat16", "float16"):
            more["grad"] = True
        if self.odd and self.chance(0.04):
            more["host"] = True
        if (lazy := self.of_lazy_bits.random()) < 0.3 and dtype.startswith("complex"):
            more["lazy"] = "conj"
        elif lazy > 0.97 and dtype in ("float32", "float64", "complex64", "complex128"):
            more["lazy"] = "neg"
        return tensor(size, stride, dtype, fill, offset, **more)

    def _strides(self, size: list[int]) -> tuple[list[int], int]:
        r, n = self.random, len(size)
        stride, way, offset = dense(size), r.random(), 0
        if way > 0.5 and n:
            if way < 0.65:  # a permutation
                order = r.sample(range(n), n)
                inner = dense([size[i] for i in order])
                stride = [inner[order.index(i)] for i in range(n)]
            elif way < 0.75:
                stride = [2 * s for s in stride]
            elif way < 0.82:
                stride[r.randrange(n)] = 0
            elif way < 0.86:  # elements that share memory
                stride = [r.choice([0, 1, 1, 2, 3]) for _ in size]
            elif way < 0.92 and n in (4, 5):
                order = [0, *range(2, n), 1]
                inner = dense([size[i] for i in order])
                stride = [inner[order.index(i)] for i in range(n)]
        if r.random() < 0.15:
            offset = r.choice([1, 3, 8])
        return stride, offset

    def integer(self, name: str) -> int:
        r, rank = self.random, len(self.base)
        if self.odd and self.chance(0.15):
            return r.choice(EXTREMES)
        if "dim" in name or name in ("axis", "start_dim", "end_dim", "source", "destination"):
            return r.randint(-rank, max(rank - 1, 0)) if self.chance(0.9) else r.randint(-rank - 2, rank + 2)
        if name in ("reduction", "normalization"):  # of three, and PyTorch looks at no other
            return r.randrange(3)
        if name == "dtype":  # a script's number of one: past the last PyTorch reads what is there
            return r.choice((0, 3, 4, 5, 6, 7, 9, 11, 15))
        if self.base and self.chance(0.3):
            return r.choice(self.base)
        return r.choice([0, 1, 1, 2, 3, -1, 4, 5, -2])

    def integers(self, name: str) -> list[int]:
        r, rank = self.random, len(self.base)
        if "dim" in name:
            return (
                r.sample(range(rank), r.randint(0, rank))
                if self.chance(0.8)
                else [self.integer(name) for _ in range(2)]
            )
        if name in (
            "size",
            "shape",
            "sizes",
            "self_size",
            "input_sizes",
            "input_size",
            "output_size",
            "shape_",
        ):
            return list(self.base) if self.chance(0.6) else self._size()
        if name in ("stride", "strides") and self.chance(0.5):
            return dense(self.base)
        inner = max(rank - 2, 1) if self.chance(0.8) else r.randrange(4)
        if "pad" in name and self.chance(0.3):
            inner *= 2
        if self.odd and self.chance(0.1):
            return [r.choice(EXTREMES) for _ in range(inner)]
        low = 0 if "pad" in name else 1
        return [r.choice([low, 1, 1, 2, 3]) for _ in range(inner)]

    def real(self) -> Recipe:
        values = ("0.0", "1.0", "0.5", "1e-05", "-1.0", "2.0", "0.1")
        return {
            "float": self.random.choice(
                ("nan", "inf", "-inf", "1e300", "1e-320") if self.odd and self.chance(0.3) else values
            )
        }

    def number(self) -> Recipe:
        r = self.random
        kind = r.random()
        if kind < 0.4:
            return self.real()
        if kind < 0.8:
            return self.integer("number")
        return r.choice([True, False]) if kind < 0.9 else {"complex": ["1.0", "-2.0"]}

    def argument(self, kind: str, name: str) -> Recipe:
        """An argument of that type."""
        r = self.random
        kind = kind.replace("SymInt", "int").replace("Float", "float")
        if kind.startswith("Optional["):
            return None if self.chance(0.5) else self.argument(kind[9:-1], name)
        if kind.startswith("List["):
            inner = kind[5:-1]
            if inner == "int":
                return self.integers(name)
            count = r.choice((0, 1, 2, 2, 3, len(self.base)))
            return [self.argument(inner, name) for _ in range(count)]
        simple = {
            "Tensor": lambda: self.operand(name), "int": lambda: self.integer(name), "float": self.real,
            "number": self.number, "Scalar": self.number, "bool": lambda: r.choice([True, False]),
            "complex": lambda: {"complex": ["1.0", "-2.0"]}, "ScalarType": lambda: {"dtype": self._dtype()},
            "Layout": lambda: {"layout": "strided"}, "Device": lambda: {"device": ""}, "Generator": lambda: {"generator": 3},
            "MemoryFormat": lambda: {"format": r.choice(["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"])},
            "str": lambda: r.choice(WORDS.get(name, ("sum", "none", "x"))),
        }  # fmt: skip
        if kind not in simple:
            raise LookupError(f"no argument of type {kind} can be drawn")
        return simple[kind]()


def _product(size: list[int]) -> int:
    found = 1
    for n in size:
        found *= max(n, 1)
    return found


def draw(seed: int) -> Call:
    """The call of that seed: operators in turn, so that each comes as often as the others."""
    names = operators()
    name = names[seed % len(names)]
    choices = _Draw(seed)
    args: list[Recipe] = []
    kwargs: dict[str, Recipe] = {}
    positional = True
    for a in overload(name)._schema.arguments:
        needed = NEEDED.get((name, a.name))
        if a.has_default_value() and choices.chance(0.5) and needed is None:
            positional = False  # what follows goes by name
            continue
        kind = str(a.real_type)
        recipe = choices.argument(kind, a.name)
        if recipe is None:
            recipe = needed
        if a.name in ("device",) and recipe is None and not a.kwarg_only:
            recipe = {"device": ""}
        if positional and not a.kwarg_only:
            args.append(recipe)
        else:
            kwargs[a.name] = recipe
    if any(a.name == "device" for a in overload(name)._schema.arguments):
        kwargs["device"] = {"device": ""}
    return Call(name, args, kwargs)
