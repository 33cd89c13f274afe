"""Runs a call on the host and on the device, and says in which way they differ.

Numbers are held against one another coarsely, relative to the largest: what a kernel may differ by in detail is asked by
the parity of rows. Memory is looked at as well: an operand that was not to be written keeps its bits.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from calls import Call
from recipes import dense, is_tensor, make, shares_memory

# of the largest finite number; of integers and bool none
TOLERANCE = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 2e-3, torch.complex64: 2e-3, torch.float16: 3e-2,
             torch.bfloat16: 1e-1}  # fmt: skip
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
RANDOM = re.compile(
    r"empty|resize|new_empty|rand|normal|uniform|bernoulli|dropout|multinomial|poisson|exponential|geometric|cauchy|"
    r"log_normal|random|binomial|gamma|dirichlet|rrelu|fractional|_sample_|maca::sample|native_dropout|philox|fused_moving|lowrank"
)


@dataclass(frozen=True)
class Ran:
    """What one side gave: values, and what its operands hold after, or an error."""

    values: tuple[Any, ...] = ()
    error: str = ""  # its class
    text: str = ""


def run(call: Call, device: str) -> Ran:
    """Runs it there; whatever it raises is an outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            args, kwargs = make(call.args, device), {k: make(v, device) for k, v in call.kwargs.items()}
        except Exception as error:
            raise ValueError(f"the operands themselves cannot be made on {device}: {error}") from error
        tensors = _tensors((args, kwargs))
        leaves = [t for t in tensors if t.requires_grad]
        torch.manual_seed(7)
        try:
            found = call.overload(*args, **kwargs)
            results = _tensors(found)
            if leaves and not any(
                a.alias_info and a.alias_info.is_write for a in call.overload._schema.arguments
            ):
                ends = [r for r in results if r.requires_grad]
                grads = (
                    torch.autograd.grad(ends, leaves, [torch.ones_like(r) for r in ends], allow_unused=True)
                    if ends
                    else ()
                )
                found = (found, grads)
            values = (_fetched(found), _fetched(tensors))
        except Exception as error:
            with contextlib.suppress(
                Exception
            ):  # what a launch of this call still raises is not the next one's
                torch.get_device_module(device).synchronize()
            return Ran(error=_public(type(error)), text=str(error))
        return Ran(values)


def _public(kind: type[BaseException]) -> str:
    """The class that a user catches: of PyTorch or of Python, where ours derives from it."""
    return next(k.__name__ for k in kind.__mro__ if k.__module__.partition(".")[0] in ("builtins", "torch"))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _fetched(value: Any) -> Any:
    """The same on the host; a tensor with its device's name, strides and numbers."""
    if isinstance(value, torch.Tensor):
        t = value.detach()
        return (t.device.type, tuple(t.stride()), t.cpu(), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return tuple(_fetched(v) for v in value)
    return value


def is_random(name: str) -> bool:
    """Whether its numbers are any: random, or of memory that nobody wrote."""
    return RANDOM.search(name) is not None


def difference(call: Call, host: Ran, there: Ran) -> str:
    """ "" where they agree; else a short text, alike for calls that differ in the same way."""
    if host.error or there.error:
        if host.error == there.error:
            return ""
        if not there.error:
            return f"the host raises {host.error}: {words(host.text)}"
        if not host.error:
            return f"raises {there.error}: {words(there.text)}"
        return f"{there.error} for {host.error}: {words(there.text)} / {words(host.text)}"
    rough = _roughest((host.values, there.values))
    found = _differs(host.values, there.values, is_random(call.operator) or writes_over_itself(call), rough)
    told = (
        FACTS
        if re.match("other numbers|NaN|infinite", found)
        else FACTS_OF_SHAPES
        if found == "other shape"
        else ()
    )
    said = (words for of, holds, words in told if re.search(of, call.operator) and holds(call))
    return next((f"{found}, {words}" for words in said), found)


def _has(call: Call, number: Any) -> bool:
    """Whether it is an argument, or in a list of numbers."""
    each = (*call.args, *call.kwargs.values())
    return any(given == number or (isinstance(given, list) and number in given) for given in each)


def _named(call: Call, name: str) -> Any:
    """The recipe of an argument; None where it is not given."""
    names = [a.name for a in call.overload._schema.arguments]
    return (dict(zip(names, call.args)) | call.kwargs).get(name)


def _has_gaps(call: Call, name: str = "out") -> bool:
    given = _named(call, name)
    return is_tensor(given) and given["tensor"]["stride"] != dense(given["tensor"]["size"])


def _is_beyond_halves(call: Call) -> bool:
    number = _named(call, "other")
    if isinstance(number, dict) and "float" in number:
        number = float(number["float"])
    return isinstance(number, (int, float)) and 65504 < abs(number) < math.inf


def _is_below_0(call: Call, *names: str) -> bool:
    """Whether the first of these arguments that is given is; of a bound where none is named."""
    given = (_named(call, name) for name in names or ("delta", "beta"))
    number = next((number for number in given if number is not None), 0)
    return (float(number["float"]) if isinstance(number, dict) else number) < 0


def _cancels(call: Call) -> bool:
    """Whether the sum of all numbers is of the size of float32's roundings of them."""
    x = make(_named(call, "self"), "cpu")
    if _named(call, "dim") is not None or x.dtype is not torch.float32:
        return False
    x = x.detach().double()
    return bool(x.nansum().abs() < 1e-6 * x.abs().nansum())


def _dtype(call: Call, name: str) -> str:
    """Of an argument that is a tensor or a dtype; "" where it is not given."""
    given = _named(call, name)
    return str(given["tensor"]["dtype"] if is_tensor(given) else given["dtype"]) if given else ""


def _has_equal_keys(call: Call) -> bool:
    keys = make(_named(call, "key"), "cpu").detach()
    return bool((keys == keys[..., :1, :]).all())


def _has_small_products(call: Call) -> bool:
    numbers, dim = make(_named(call, "self"), "cpu").detach(), _named(call, "dim")
    if not numbers.is_floating_point():
        return False
    products = numbers.double().prod(dim) if isinstance(dim, int) else numbers.double().prod()
    return bool(((products != 0) & (products.abs() < torch.finfo(torch.float16).tiny)).any())


# of an operator, what holds of a call, and the words of it: a reason for these calls is none for others
FACTS_OF_SHAPES = (
    ("_loss", lambda call: _named(call, "reduction") not in (None, 0, 1, 2), "of a reduction that is none"),
    (r"::(rsub|sub|subtract)_?\.|tri[lu]_indices", lambda call: _has(call, -(2**63)), "of the smallest integer"),
)  # fmt: skip
FACTS = (
    *FACTS_OF_SHAPES,
    ("pow|renorm", lambda call: _has(call, {"float": "1e-320"}), "of an exponent that float32 rounds to 0"),
    ("pow", lambda call: _named(call, "self") is True, "of True"),
    ("cross", lambda call: _named(call, "self") == _named(call, "other"), "of a tensor by itself"),
    ("_euclidean_dist", lambda call: _named(call, "x1") == _named(call, "x2"), "of a tensor by itself"),
    ("_cdist_backward", lambda call: _is_below_0(call, "p"), "of an exponent below 0"),
    ("nansum", lambda call: _cancels(call), "that cancel"),
    ("upsample", lambda call: _has(call, {"float": "1e-320"}), "of a scale that float32 rounds to 0"),
    ("pairwise_distance|renorm", lambda call: any(_has(call, {"float": p}) for p in ("nan", "1e300", "1e-320")),
     "of an exponent that float32 does not hold"),
    ("layer_norm|rms_norm", lambda call: math.prod(_named(call, "normalized_shape")) == 1, "of one number"),
    ("isin", lambda call: _named(call, "assume_unique") is True, "said to be unique"),
    ("(huber|smooth_l1)_loss_backward", _is_below_0, "of a bound below 0"),
    ("gelu|_softmax|narrow_copy|adaptive_avg_pool3d_backward", lambda call: _has_gaps(call) or _has_gaps(call, "grad_input"),
     "into an out= with gaps"),
    ("solve_triangular", lambda call: "'lazy': 'neg'" in str(call.kwargs.get("out")), "into a lazily negated out="),
    ("a(rc)?cosh", lambda call: "'lazy': 'conj'" in str((call.args, call.kwargs)), "of a lazy conjugate"),
    ("dot_product_attention", lambda call: _named(call, "dropout_p") not in (None, {"float": "0.0"}), "dropped at random"),
    (r"::(_foreach_|special_)?(r?sqrt|log\d*|log1p|asin|acos|a(rc)?cosh|atanh|angle|pow|max_pool1d|choose_qparams_optimized)_?(\.|$)", lambda call: "'lazy': 'neg'" in str((call.args, call.kwargs)), "of a lazy negation"),
    ("_log_softmax_back", lambda call: _dtype(call, "input_dtype") != _dtype(call, "grad_output"), "of another input_dtype"),
    ("norm", lambda call: "nuc" in str(call) and "'grad': True" in str(call), "of a nuclear norm's gradient"),
    (r"logsumexp\.", lambda call: "complex" in _dtype(call, "self") and "float" in _dtype(call, "out"), "of complex numbers into real ones"),
    (r"::(mul|multiply)_\.Scalar", _is_beyond_halves, "by a number that halves do not hold"),
    ("_native_batch_norm_legit|flash_attention", lambda call: any(_has_gaps(call, n) for n in ("input", "query", "key", "value")),
     "of an operand with gaps"),
    (r"batch_norm|matrix_exp|triplet_margin_loss|cholesky_ex|smooth_l1_loss(\.|$)", lambda call: "'specials'" in str((call.args, call.kwargs)), "of the largest numbers"),
    ("topk", lambda call: _named(call, "sorted") is False, "unsorted"),
    ("slogdet", lambda call: 0 in next(filter(is_tensor, call.args))["tensor"]["stride"][-2:], "of equal rows or columns"),
    (r"::log_softmax\.", lambda call: not any(call.args[0]["tensor"]["stride"]), "of equal numbers"),
    ("gather_backward", lambda call: _named(call, "sparse_grad") is True and bool((make(_named(call, "index"), "cpu") < 0).any()),
     "of negative indices"),
    (r"::copy(\.|$)", lambda call: shares_memory(call.args[0]["tensor"]["size"], call.args[0]["tensor"]["stride"]), "where elements share memory"),
    ("_index_put_impl", lambda call: not _named(call, "accumulate"), "where values are not summed"),
    (r"::batch_norm(\.|$)", lambda call: "'grad': True" in str(call.args), "of a gradient"),
    ("_fft_", lambda call: _named(call, "normalization") not in (None, 0, 1, 2), "of a normalization that is none"),
    ("as_strided_scatter", lambda call: shares_memory(*call.args[2:4]), "where elements share memory"),
    ("::_scaled_dot_product_attention_math", _has_equal_keys, "of equal keys"),
    ("::scaled_dot_product_attention", lambda call: "'specials'" in str([_named(call, n) for n in ("query", "key")]),
     "of scores past the largest number"),
    (r"::prod(\.|$)", _has_small_products, "of products below the least normal half"),
)  # fmt: skip


def writes_over_itself(call: Call) -> bool:
    """Whether it writes in place to elements that share memory, in which order nobody says."""
    written = [a.name for a in call.overload._schema.arguments if a.alias_info and a.alias_info.is_write]
    named = dict(zip([a.name for a in call.overload._schema.arguments], call.args)) | call.kwargs
    recipes = [r for name in written if (r := named.get(name)) is not None]
    each = [r for recipe in recipes for r in (recipe if isinstance(recipe, list) else [recipe])]
    return any(shares_memory(r["tensor"]["size"], r["tensor"]["stride"]) for r in each if is_tensor(r))


def _roughest(value: Any) -> float:
    """The tolerance of the least exact numbers of floating point among all that went in or came out."""
    if isinstance(value, torch.Tensor):
        return TOLERANCE.get(value.dtype, 0.0)
    return max(map(_roughest, value), default=0.0) if isinstance(value, tuple) else 0.0


def words(text: str) -> str:
    """An error's first words, without its numbers."""
    return " ".join(re.sub(r"[-\d.]+", "N", text.partition("\n")[0]).split()[:12])


def _differs(a: Any, b: Any, random: bool, rough: float) -> str:
    if isinstance(a, tuple) and len(a) == 4 and isinstance(a[2], torch.Tensor):
        return _tensor_differs(a, b, random, rough)
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            return "other number of results"
        return next(filter(None, (_differs(x, y, random, rough) for x, y in zip(a, b))), "")
    if isinstance(a, float) and isinstance(b, float):
        same = a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-5)
        return "" if same or random else "other number"
    if isinstance(a, torch.device):
        return ""
    return "" if a == b or random else f"other {type(a).__name__}"


def _tensor_differs(a: Any, b: Any, random: bool, rough: float) -> str:
    if not (isinstance(b, tuple) and len(b) == 4 and isinstance(b[2], torch.Tensor)):
        return "no tensor"
    (_, strides, x, grad), (_, other_strides, y, other_grad) = a, b
    if x.dtype != y.dtype:
        return f"dtype {y.dtype} for {x.dtype}"
    if x.shape != y.shape:
        return "other shape"
    if strides != other_strides and x.numel() > 1:
        return "other strides"
    if grad != other_grad:
        return "other requires_grad"
    if random or x.numel() == 0:
        return ""
    return _numbers_differ(x, y, rough)


def _numbers_differ(x: torch.Tensor, y: torch.Tensor, rough: float) -> str:
    if x.is_quantized:
        return ""
    if x.layout != torch.strided:
        x, y = x.to_dense(), y.to_dense()
    if x.dtype in SIGNED:  # PyTorch has no negation of these to resolve a lazy one with
        x, y = (
            torch._neg_view(t).view(SIGNED[t.dtype]).neg() if t.is_neg() else t.view(SIGNED[t.dtype])
            for t in (x, y)
        )
    if not (x.is_floating_point() or x.is_complex()):
        return "" if torch.equal(x, y) else f"other numbers of {x.dtype}"
    tolerance = max(TOLERANCE.get(x.dtype, 0.3), rough)
    kind, wide = x.dtype, torch.complex128 if x.is_complex() else torch.float64
    a, b = x.to(wide), y.to(wide)
    # a complex number is NaN where a part of it is, as for torch.isclose: the other part is as its products were summed
    if not torch.equal(a.isnan(), b.isnan()):
        return f"NaN at other places of {kind}"
    a, b = a[~a.isnan()], b[~b.isnan()]
    if kind.is_complex:
        a, b = (torch.view_as_real(v.resolve_conj().resolve_neg()) for v in (a, b))
    infinite = a.isinf() | b.isinf()
    if not torch.equal(a[infinite], b[infinite]):
        return f"infinite at other places of {kind}"
    a, b = a[~infinite], b[~infinite]
    if a.numel() == 0:
        return ""
    off = float((a - b).abs().max() / max(float(a.abs().max()), 1e-5))
    return "" if off <= tolerance else f"other numbers of {kind.to_real()}"
