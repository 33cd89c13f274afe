"""What is written has room for what is computed, or PyTorch's error comes: numbers, kinds of numbers, dtypes of operands.

A sweep over every overload that writes to an operand, by its schema, against PyTorch's CPU kernels.
"""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from macatensor.dispatch.signature import find_row
from macatensor.runtime import counters
from op_table import Kind

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64,
]  # fmt: skip
NUMBERS = [1, True, -1, 300, 1.5, 1e6, 1e40, math.nan, math.inf, 1j, 2**63 - 1]
_CASES = 24  # of each overload, drawn with a fixed seed; all of them take minutes


class Difference(NamedTuple):
    """A deviation that is meant. ``ours`` and ``host``: "raises", or "value"."""

    ours: str
    host: str
    why: str


_SERVES_MORE = Difference("value", "raises", "the CPU has no kernel for the dtype, ours computes it")
ACCEPTED: dict[str, Difference] = {
    "add_": Difference(
        "value", "value", "an infinite number has no imaginary NaN; -1 as alpha of bool is not True"
    ),
    "sub_": Difference(
        "value", "value", "an infinite number has no imaginary NaN where the CPU multiplies by alpha"
    ),
    "fill_": Difference("value", "value", "1e40 as an integer is undefined in C"),
    "hardtanh_": Difference("value", "value", "a bound that is NaN bounds nothing"),
    "index_reduce_": Difference(
        "value", "raises", "a source of no dimensions is taken for one of one element"
    ),
    "masked_fill_": Difference("raises", "value", "1j is no bool, as Python's own conversion has it"),
    "pow_": Difference(
        "raises", "value", "bool to the power True is of int64 here, as PyTorch's meta kernel says"
    ),
    "xlogy_": Difference(
        "value", "value", "the logarithm of a number is taken before it is rounded to float16"
    ),
}
_DRAWN = (
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "rrelu",
    "uniform",
    "random",
)


def _overloads() -> list[Any]:
    """Those that write to an operand in place by a kernel of the table."""
    found = []
    for name in dir(torch.ops.aten):
        if name.startswith(("_", *_DRAWN)) or not name.endswith("_"):
            continue
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            func = getattr(packet, overload)
            served = find_row(func)
            if (
                served is not None
                and served[0].kind is Kind.KERNEL
                and torch.Tag.inplace_view not in func.tags
            ):
                found.append(func)
    return found


_MATRICES = {"mat1": (3, 3), "mat2": (3, 3), "mat": (3, 3), "batch1": (3, 3, 3), "batch2": (3, 3, 3)}
_RANK = {"addmm_": 2, "addbmm_": 2, "baddbmm_": 3, "tril_": 2, "triu_": 2}


def _arguments(func: Any, dtype: torch.dtype, place: str, value: Any) -> list[Any]:
    """Ones of ``dtype`` for tensors, 1 for numbers, and ``value`` in one place."""
    operator = func._schema.name.partition("::")[2]
    arguments = []
    for a in func._schema.arguments:
        kind = str(a.type)
        given: Any = a.default_value if a.has_default_value() else None
        if a.name == place:
            given = value
        elif a.name == "mask":
            given = torch.tensor([True, False, True])
        elif a.name in ("index", "indices"):
            given = torch.arange(3) if kind == "Tensor" else [torch.arange(3)]
        elif kind == "Tensor":
            shape = (3,) * _RANK.get(operator, 1) if a.name == "self" else _MATRICES.get(a.name, (3,))
            given = torch.ones(shape, dtype=dtype)
        elif not a.has_default_value():
            given = {"number": 1, "int": 0, "float": 1.0, "bool": False, "str": "add"}.get(kind)
            if operator == "index_reduce_" and kind == "str":
                given = "mean"
        arguments.append(given)
    return arguments


def _values(func: Any) -> Iterator[tuple[str, Any]]:
    for a in func._schema.arguments:
        if str(a.type) in ("number", "Optional[number]"):
            yield from ((a.name, v) for v in NUMBERS)
        elif str(a.type) == "Tensor" and a.name not in ("self", "mask", "index", "indices"):
            yield from ((a.name, v) for v in (1.5, 1j, 300))
            numbers = ((torch.uint8, 200), (torch.int64, 300), (torch.float32, 1e6), (torch.float16, 1.5))
            for dtype, v in (*numbers, (torch.float64, 1e30), (torch.complex64, 1 + 1j)):
                yield a.name, torch.tensor(v, dtype=dtype)
                yield a.name, torch.full((3,), v, dtype=dtype)
    yield "", None


def _run(func: Any, arguments: list[Any], move: Callable[[Any], Any]) -> Any:
    """The operand written to, on the host, or the error."""
    moved = [move(v) for v in arguments]
    split = sum(not a.kwarg_only for a in func._schema.arguments)
    named = {a.name: v for a, v in zip(func._schema.arguments[split:], moved[split:])}
    try:
        func(*moved[:split], **named)
    except Exception as error:
        return error
    return moved[0].cpu()


def _fresh(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _on_maca(value: Any) -> Any:
    if isinstance(value, list):
        return [v.to("maca") for v in value]
    return value.to("maca") if isinstance(value, torch.Tensor) else value


_RELATIVE = {torch.float16: 5e-3, torch.bfloat16: 2e-2}


def _agree(ours: Any, host: Any) -> bool:
    if isinstance(ours, Exception) or isinstance(host, Exception):
        return type(ours) is type(host)
    with contextlib.suppress(AssertionError):
        relative = _RELATIVE.get(host.dtype, 1e-4)
        torch.testing.assert_close(ours, host, rtol=relative, atol=1e-5, equal_nan=True)
        return True
    return False


def _outcome(result: Any) -> str:
    return "raises" if isinstance(result, Exception) else "value"


def _is_accepted(func: Any, ours: Any, host: Any) -> bool:
    if isinstance(host, NotImplementedError):
        return True if isinstance(ours, Exception) else (_outcome(ours), "raises") == _SERVES_MORE[:2]
    expected = ACCEPTED.get(func._schema.name.partition("::")[2])
    return expected is not None and (_outcome(ours), _outcome(host)) == (expected.ours, expected.host)


@pytest.mark.parametrize("func", _overloads(), ids=str)
def test_in_place(func: Any) -> None:
    generator = random.Random(str(func))
    cases = [(dtype, place, value) for dtype in DTYPES for place, value in _values(func)]
    compared = 0
    for dtype, place, value in generator.sample(cases, min(_CASES, len(cases))):
        arguments = _arguments(func, dtype, place, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            host = _run(func, arguments, _fresh)
            ours = _run(func, arguments, _on_maca)
        compared += 1
        if not _agree(ours, host) and not _is_accepted(func, ours, host):
            pytest.fail(f"{func} of {dtype}, {place}={value}: {ours!r}, the host has {host!r}")
    assert compared


_REFUSED: dict[str, Callable[[str], Any]] = {
    "imaginary part added": lambda d: torch.ones(2, device=d).add_(1j),
    "imaginary factor": lambda d: torch.ones(2, device=d).mul_(1j),
    "fraction as factor of integers": lambda d: torch.ones(2, dtype=torch.int32, device=d).mul_(1.5),
    "complex operand": lambda d: torch.ones(2, device=d).addcmul_(
        torch.ones(2, device=d), torch.ones(2, device=d) * 1j
    ),
    "half fill_": lambda d: torch.ones(2, dtype=torch.half, device=d).fill_(1e6),
    "half full": lambda d: torch.full((2,), 1e6, dtype=torch.half, device=d),
    "half masked_fill": lambda d: (
        torch.ones(2, device=d).half().masked_fill(torch.ones(2, device=d) > 0, 1e6)
    ),
    "half masked_fill_ of a tensor": lambda d: (
        torch.ones(2, device=d)
        .half()
        .masked_fill_(torch.ones(2, device=d) > 0, torch.tensor(-3e38, device=d))
    ),
    "half index_fill_": lambda d: (
        torch.ones(2, device=d).half().index_fill_(0, torch.arange(2, device=d), 1e6)
    ),
    "byte fill_": lambda d: torch.ones(2, dtype=torch.uint8, device=d).fill_(300),
    "NaN in integers": lambda d: torch.ones(2, dtype=torch.int32, device=d).fill_(math.nan),
    "2^63 in int64": lambda d: torch.ones(2, dtype=torch.int64, device=d).fill_(2**63),
    "imaginary part in fill_": lambda d: torch.ones(2, device=d).fill_(1j),
    "half constant_pad": lambda d: torch.nn.functional.pad(torch.ones(2, device=d).half(), (1, 1), value=1e6),
    "bool subtracted": lambda d: torch.ones(2, dtype=torch.uint8, device=d) - True,
    "bool alpha": lambda d: torch.add(torch.ones(2, device=d), torch.ones(2, device=d), alpha=True),
    "relu of bool": lambda d: torch.ones(2, dtype=torch.bool, device=d).relu(),
    "heaviside of two dtypes": lambda d: torch.heaviside(
        torch.ones(2, device=d), torch.ones(2, device=d).double()
    ),
    "complex probabilities": lambda d: torch.ones(2, device=d).bernoulli_(torch.ones(2, device=d) * (1 + 1j)),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_refused_as_the_host_does(name: str) -> None:
    """In the host's class and words, at the first call and at the next, which has a plan."""
    call = _REFUSED[name]
    with pytest.raises(Exception) as host:
        call("cpu")
    for _ in range(2):
        with pytest.raises(host.type) as ours:
            call("maca")
        assert str(ours.value).splitlines()[0] == str(host.value).splitlines()[0]


def test_known_plan_weighs_each_number() -> None:
    """A plan that ran with a number that fits refuses one that does not, and asks the host once for one it takes."""
    target = torch.ones(3, dtype=torch.half, device="maca")
    target.fill_(2.0)
    with pytest.raises(RuntimeError, match="without overflow"):
        target.fill_(1e6)
    assert target.tolist() == [2.0] * 3
    target.fill_(math.inf)
    assert target.tolist() == [math.inf] * 3
    target.fill_(0.0)
    target.add_(3.0)
    before = sum(counters.consultations.values())
    for _ in range(3):
        target.add_(1e6)
    assert target.tolist() == [math.inf] * 3
    assert sum(counters.consultations.values()) == before + 1


def test_large_operands_are_checked_too() -> None:
    """What is asked of the host is a few elements, whatever the size."""
    large = torch.ones(1 << 27, dtype=torch.half, device="maca").expand(4, 1 << 27)[0]
    with pytest.raises(RuntimeError, match="without overflow"):
        large.fill_(1e6)
    with pytest.raises(RuntimeError, match="result type ComplexHalf can't be cast"):
        large.mul_(1j)


def test_copy_of_a_number() -> None:
    target = torch.ones(3, device="maca")
    torch.ops.aten.copy_.default(target, 2.5)
    assert target.tolist() == [2.5] * 3


def test_conjugate_in_place() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device="maca")
    assert x.conj_physical_().tolist() == [1 - 2j, 3 + 1j]


def test_hardtanh_of_crossed_bounds() -> None:
    """The greater bound has the last word, as on the host."""
    for device in ("cpu", "maca"):
        x = torch.tensor([-5.0, 0.0, 5.0, 500.0], device=device)
        assert torch.ops.aten.hardtanh.default(x, 300, 1).tolist() == [1.0] * 4


def test_hardtanh_of_no_bound() -> None:
    for bounds in ((1.0, math.nan), (math.nan, 1.0)):
        for x in (torch.arange(33.0), torch.arange(5.0).bfloat16()):
            assert torch.ops.aten.hardtanh.default(x, *bounds).isnan().all()
            assert torch.ops.aten.hardtanh.default(x.maca(), *bounds).isnan().all()


def test_split_copy_casts_what_it_writes() -> None:
    results = []
    for device in ("cpu", "maca"):
        x = torch.tensor([[1 + 2j, 3], [4, 5j]], device=device)
        out = [torch.zeros(1, 2, device=device) for _ in range(2)]
        torch.ops.aten.split_copy.Tensor_out(x, 1, out=out)
        results.append(torch.cat(out).cpu())
    assert torch.equal(*results)


def test_empty_parts_of_empty_memory_are_joined() -> None:
    """It begins beyond the end of its memory, where the CPU's kernel, which is asked about dtypes, has nothing to read."""
    part = torch.zeros(2, 3, 0, 4, dtype=torch.float64, device="maca").split(1, -1)[-1]
    out = torch.zeros(4, 3, dtype=torch.complex64, device="maca")
    with pytest.warns(UserWarning, match="resized"):
        torch.cat([part, part], out=out)
    assert out.shape == (4, 3, 0, 1)
