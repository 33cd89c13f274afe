"""Which dtypes an operator takes: all that PyTorch's operator database says of CUDA, none that PyTorch refuses."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

NOT_TAKEN = {
    "fft": "PyTorch refuses a half for any device but CUDA before the device is asked; complex32 has no transform",
    "torch_ops_aten": "attention of CUDA's own libraries, which scaled_dot_product_attention replaces here",
    "nansum-torch.complex": "PyTorch's CPU, the authority on errors, refuses complex numbers",
    "nanmean-torch.complex": "PyTorch's CPU, the authority on errors, refuses complex numbers",
    "logaddexp-torch.complex32": "complex32 is no dtype of the loop",
}


def _name(info: Any) -> str:
    return str(info.formatted_name)


def _more() -> Iterator[Any]:
    """Entries with the dtypes that CUDA takes and the CPU does not."""
    for info in op_db:
        for dtype in sorted(set(info.dtypesIfCUDA) - set(info.dtypes), key=str):
            reason = next(
                (why for part, why in NOT_TAKEN.items() if f"{_name(info)}-{dtype}".startswith(part)), ""
            )
            marks = [pytest.mark.xfail(strict=True, raises=Exception, reason=reason)] if reason else []
            yield pytest.param(info, dtype, id=f"{_name(info)}-{dtype}", marks=marks)


def _moved(value: Any) -> Any:
    return tree_map(lambda t: t.to("maca") if isinstance(t, torch.Tensor) else t, value)


@pytest.mark.parametrize(("info", "dtype"), _more())
def test_dtypes_of_cuda_are_taken(info: Any, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), 2):
            info.op(*_moved([sample.input, *sample.args]), **_moved(sample.kwargs))


# The CPU's own limits, where more is computed for good reasons.
COMPUTED = {
    "conv": "PyTorch's CPU takes integers with one of its algorithms and not with the other",
    "nn_functional_conv": "PyTorch's CPU takes integers with one of its algorithms and not with the other",
    "nn_functional_max_pool1d": "its own CPU kernel refuses integers, max_pool2d, which serves it here, takes them",
    "masked_": "a bool is added up as an integer",
    "div_trunc_rounding": "the rounding to below takes bool",
}
ASKED = [torch.bool, torch.int64, torch.complex64]


def _cast(value: Any, source: torch.dtype, dtype: torch.dtype) -> Any:
    def cast(t: Any) -> Any:
        return t.detach().to(dtype) if isinstance(t, torch.Tensor) and t.dtype == source else t

    return tree_map(cast, value)


def _refused(info: Any, args: Any, kwargs: Any) -> bool:
    try:
        info.op(*args, **kwargs)
    except Exception:
        return True
    return False


@pytest.mark.parametrize("dtype", ASKED)
def test_dtypes_that_pytorch_refuses_are_refused(dtype: torch.dtype) -> None:
    accepted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db:
            if dtype in set(info.dtypes) | set(info.dtypesIfCUDA) or torch.float32 not in info.dtypes:
                continue
            if _name(info).startswith(tuple(COMPUTED)):
                continue
            for sample in itertools.islice(info.sample_inputs("cpu", torch.float32), 2):
                args, kwargs = _cast(([sample.input, *sample.args], sample.kwargs), torch.float32, dtype)
                if _refused(info, args, kwargs) and not _refused(info, _moved(args), _moved(kwargs)):
                    accepted.append(_name(info))
    assert accepted == []


def test_integers_are_counted_as_cuda_does() -> None:
    numbers = torch.arange(-20, 100, dtype=torch.int32) % 37
    ours = torch.histc(numbers.to("maca"), 5, 0, 30)
    assert ours.dtype is torch.int32 and torch.equal(
        ours.cpu().double(), torch.histc(numbers.double(), 5, 0, 30)
    )
    assert torch.histc(torch.tensor([3, 3], device="maca"), 4).tolist() == [0, 0, 2, 0]
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(numbers.to("maca"), 5, 3, 1)


def test_a_histogram_of_nothing_has_any_dtype() -> None:
    for device in ("cpu", "maca"):
        counts, edges = torch.histogram(torch.empty(0, dtype=torch.float16, device=device), 3)
        assert counts.tolist() == [0, 0, 0] and counts.dtype is edges.dtype is torch.float16
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        torch.histogram(torch.ones(2, dtype=torch.float16, device="maca"), 3)


@pytest.mark.parametrize("fill", [torch.Tensor.normal_, torch.Tensor.uniform_])
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_draws_of_complex_numbers_keep_to_their_memory(fill: Any, dtype: torch.dtype) -> None:
    rows = torch.zeros(3, 500, dtype=dtype, device="maca")
    fill(rows[1])
    parts = torch.view_as_real(rows.cpu().to(torch.complex128))
    assert not parts[::2].any()
    assert (parts[1].std(0) > 0.2).all()


COMPLEX32: dict[str, Any] = {
    "padded": lambda t: torch.nn.functional.pad(t, (1, 2), value=2.5),
    "filled by index": lambda t: t.index_fill(0, torch.tensor([0, 2], device=t.device), 1 - 2j),
    "in chunks": lambda t: torch._chunk_cat([t], 0, 4),
    "nonzero": torch.nonzero,
}


@pytest.mark.parametrize("use", COMPLEX32.values(), ids=COMPLEX32)
def test_complex32_is_as_on_the_host(use: Any) -> None:
    parts = torch.tensor([[0.0, 0.0], [-0.0, 0.0], [0.0, -0.0], [1.0, 0.0], [0.0, torch.inf], [-2.0, 6e-8]])
    host = torch.view_as_complex(parts).to(torch.complex32)
    found, expected = use(host.to("maca")).cpu(), use(host)
    assert found.dtype == expected.dtype
    assert torch.equal(found.to(torch.complex64), expected.to(torch.complex64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_floats_wrap_in_uint64_as_on_the_host(dtype: torch.dtype) -> None:
    """AVX-512 has an instruction that gives negative ones the largest number."""
    inf = float("inf")
    x = torch.tensor(
        [-1, -2.5, -1e10, -1e30, float("nan"), inf, -inf, 2.0**63, 1.5 * 2.0**63, 2.0**64, 1e30, 3.7, -0.5]
        * 5,
        dtype=torch.float64,
    ).to(dtype)
    for step in (1, 3):
        assert x.to("maca")[::step].to(torch.uint64).tolist() == x[::step].to(torch.uint64).tolist()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers_are_drawn(dtype: torch.dtype) -> None:
    most = min(torch.iinfo(dtype).max, 2**63 - 2)
    x = torch.randint(most - 1, most + 1, (1000,), dtype=dtype, device="maca")
    assert set(x.tolist()) == {most - 1, most}
    assert set(torch.empty(99, 2, dtype=dtype, device="maca")[:, 1].random_(2).tolist()) == {0, 1}
    for bounds in ((-1, 5), (5, 5), (0, min(most + 2, 2**63 - 1)), (2**40, None), (-(2**63), None)):
        said = []
        for device in ("cpu", "maca"):
            try:
                said.append(torch.empty(4, dtype=dtype, device=device).random_(*bounds).dtype)
            except RuntimeError as error:
                said.append(str(error))
        assert said[0] == said[1]


def test_sums_of_complex32_are_made_on_the_device() -> None:
    made = []
    for device in ("cpu", "maca"):
        target = torch.ones(4, 3, dtype=torch.complex32, device=device)
        index = torch.tensor([0, 0, 2], device=device)
        rows = torch.full((3, 3), 1 + 2j, dtype=torch.complex32, device=device)
        sums = target.index_add(0, index, rows), target.index_add(0, index, rows, alpha=2j)
        made.append([*sums, target.index_put((index,), rows, accumulate=True)])
    for want, got in zip(*made, strict=True):
        assert got.tolist() == want.tolist()


def test_bool_products_add_up_nothing_or_are_refused() -> None:
    def bools(*size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bool, device="maca")

    for result, size in (
        (torch.mm(bools(2, 0), bools(0, 3)), (2, 3)),
        (torch.mm(bools(0, 2), bools(2, 3)), (0, 3)),
        (torch.mv(bools(2, 0), bools(0)), (2,)),
        (torch.bmm(bools(2, 3, 0), bools(2, 0, 3)), (2, 3, 3)),
    ):
        assert result.dtype is torch.bool and result.shape == size and not result.any()
    assert torch.addmv(bools(2), bools(2, 0), bools(0)).all()
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        torch.mm(bools(2, 2), bools(2, 3))
