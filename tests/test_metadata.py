"""No tensor's metadata reaches outside its memory: where Python gives a tensor its sizes, strides and offset, and where
a launch takes them."""

from __future__ import annotations

import copy
import io
import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from running import run_python

from macatensor.dispatch.request import Declined, Operand, Refused, Request
from macatensor.runtime import ffi
from macatensor.runtime.meta import meta_of
from macatensor.runtime.tensor import wrap

_HUGE = 2**62


def _examples() -> int:
    """2,000, or as many as the profile "long" says."""
    return settings.default.max_examples if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 2_000


def _source(device: str) -> Any:
    return torch.arange(4.0, device=device)


def _set(device: str, *place: Any) -> Any:
    return torch.empty(0, device=device).set_(_source(device).untyped_storage(), *place)


def _typed(device: str) -> Any:
    storage: Any = torch.TypedStorage
    return storage(wrap_storage=_source(device).untyped_storage(), dtype=torch.float32, _internal=True)


def _middle(device: str) -> Any:
    return _source(device)[1:3]


# Called with a device; PyTorch's CPU raises, so maca raises the same.
REFUSED: dict[str, Any] = {
    "set_, negative stride": lambda d: _set(d, 0, (4,), (-1,)),
    "set_, far negative stride": lambda d: _set(d, 0, (4,), (-(10**12),)),
    "set_, negative size": lambda d: _set(d, 0, (-4,), (1,)),
    "set_, negative offset": lambda d: _set(d, -1, (2,), (1,)),
    "set_, negative offset, no elements": lambda d: _set(d, -5, (0,), (1,)),
    "set_, extent overflows": lambda d: _set(d, 0, (_HUGE,), (8,)),
    "set_, sum of extents overflows": lambda d: _set(d, 0, (2, 2), (_HUGE, _HUGE)),
    "set_, extent wraps to a small one": lambda d: _set(d, 0, (5,), (_HUGE,)),
    "set_, offset and extent overflow": lambda d: _set(d, 2**63 - 1, (2,), (1,)),
    "set_, offset beyond 64 bits": lambda d: _set(d, 2**64, (2,), (1,)),
    "set_, fewer strides than sizes": lambda d: _set(d, 0, (2, 2), (1,)),
    "set_, an offset alone": lambda d: _set(d, 1),
    "set_ of a tensor, negative stride": lambda d: torch.empty(0, device=d).set_(_source(d), 1, (3,), (-1,)),
    "as_strided, negative stride": lambda d: _middle(d).as_strided((2,), (-1,), 3),
    "as_strided, negative stride of one": lambda d: _middle(d).as_strided((1,), (-1,), 3),
    "as_strided, negative size": lambda d: _middle(d).as_strided((-2,), (1,)),
    "as_strided, past the end": lambda d: _middle(d).as_strided((10,), (1,), 0),
    "as_strided, before the start": lambda d: _middle(d).as_strided((2,), (1,), -1),
    "as_strided, extent overflows": lambda d: _middle(d).as_strided((_HUGE,), (8,), 0),
    "as_strided, extent wraps to a small one": lambda d: _middle(d).as_strided((5,), (_HUGE,), 0),
    "as_strided, stride of 63 bits": lambda d: _middle(d).as_strided((3,), (2**63 - 1,), 0),
    "as_strided_, negative stride": lambda d: _middle(d).as_strided_((2,), (-1,), 3),
    "as_strided_, past the end": lambda d: _middle(d).as_strided_((10,), (1,), 0),
    "as_strided_, before the start": lambda d: _middle(d).as_strided_((2,), (1,), -1),
    "as_strided_copy, negative stride": lambda d: torch.as_strided_copy(_middle(d), (2,), (-1,), 3),
    "as_strided_copy, past the end": lambda d: torch.as_strided_copy(_middle(d), (200,), (1,), 1),
    "as_strided_scatter, past the end": lambda d: torch.as_strided_scatter(
        _middle(d), torch.zeros(20, device=d), (20,), (1,), 0
    ),
    "as_strided_scatter, negative stride": lambda d: torch.as_strided_scatter(
        _middle(d), torch.zeros(2, device=d), (2,), (-1,), 3
    ),
    "empty_strided, negative stride": lambda d: torch.empty_strided((2,), (-1,), device=d),
    "empty_strided, extent overflows": lambda d: torch.empty_strided((3,), (_HUGE,), device=d),
    "new_empty_strided, extent overflows": lambda d: _source(d).new_empty_strided((2, 2), (_HUGE, _HUGE)),
    "empty, elements overflow": lambda d: torch.empty((_HUGE, 8), device=d),
    "resize_, bytes overflow": lambda d: torch.empty(0, device=d).resize_(_HUGE),
    "rebuilt, negative stride": lambda d: torch._utils._rebuild_tensor_v2(
        _typed(d), 0, (4,), (-1,), False, {}
    ),
    "view of another dtype": lambda d: _middle(d).view(torch.float64),
    "narrow past the end": lambda d: _source(d).narrow(0, 3, 2),
}

# Called with a device; PyTorch's CPU makes a tensor, and maca the same.
ACCEPTED: dict[str, Any] = {
    "set_, no elements beyond the end": lambda d: _set(d, 100, (0,), (1,)),
    "set_, expanded": lambda d: _set(d, 3, (5,), (0,)),
    "set_, no dimensions": lambda d: _set(d, 3, (), ()),
    "set_, no strides": lambda d: _set(d, 1, (3,)),
    "set_, negative stride of one element": lambda d: _set(d, 3, (1,), (-1,)),
    "set_, negative stride of none": lambda d: _set(d, 0, (0,), (-1,)),
    "set_ by names": lambda d: torch.empty(0, device=d).set_(
        _source(d).untyped_storage(), storage_offset=1, size=(2,), stride=(2,)
    ),
    "set_ of a tensor": lambda d: torch.empty(0, device=d).set_(_source(d), 1, (3,), (1,)),
    "set_ of nothing": lambda d: _source(d).set_(),
    "as_strided from a view, all memory": lambda d: _middle(d).as_strided((4,), (1,), 0),
    "as_strided, no elements beyond the end": lambda d: _middle(d).as_strided((0,), (1,), 100),
    "as_strided_ from a view, all memory": lambda d: _middle(d).as_strided_((4,), (1,), 0),
    "as_strided_, no elements beyond the end": lambda d: _middle(d).as_strided_((0,), (1,), 100),
    "rebuilt": lambda d: torch._utils._rebuild_tensor_v2(_typed(d), 1, (3,), (1,), False, {}),
    "view of another dtype": lambda d: torch.arange(6.0, device=d)[2:4].view(torch.float64),
    "slices": lambda d: _source(d)[3:][5:],
}


def _outcome(call: Any, device: str) -> Any:
    try:
        t = call(device)
    except Exception as error:
        # what follows is a list of signatures, or a hint for the CPU
        return type(error), str(error).split("\n")[0].split(" and strides")[0]
    return tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.tolist()


@pytest.mark.parametrize("name", [n for n in REFUSED if "view of" not in n])
def test_refusals_have_the_words_of_the_cpu(name: str) -> None:
    host = _outcome(REFUSED[name], "cpu")
    assert isinstance(host[0], type), host
    assert _outcome(REFUSED[name], "maca") == host


def test_view_of_another_dtype_at_an_odd_offset() -> None:
    with pytest.raises(RuntimeError, match=r"storage_offset\(\) must be divisible by 2"):
        REFUSED["view of another dtype"]("maca")


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_cpu_accepts_is_accepted(name: str) -> None:
    host = _outcome(ACCEPTED[name], "cpu")
    assert not isinstance(host[0], type), host
    assert _outcome(ACCEPTED[name], "maca") == host


# The CPU makes these, and its kernels then read what is not theirs.
ACCEPTED_BY_THE_CPU: dict[str, Any] = {
    "as_strided_, extent overflows": lambda: _middle("maca").as_strided_((_HUGE,), (8,), 0),
    "_reshape_alias": lambda: torch.ops.aten._reshape_alias.default(_middle("maca"), [1000], [1000]),
    "_reshape_alias, again": lambda: [
        torch.ops.aten._reshape_alias.default(t, [3], [1])
        for t in (_source("maca")[:2], _middle("maca"), _source("maca")[2:])
    ],
    "_reshape_alias of nothing": lambda: torch.ops.aten._reshape_alias.default(
        torch.empty(0, device="maca"), [4], [1]
    ),
}


@pytest.mark.parametrize("name", ACCEPTED_BY_THE_CPU)
def test_more_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="out of bounds for storage of size|calculation overflowed"):
        ACCEPTED_BY_THE_CPU[name]()


class _Crafted:
    """Saved as a call of ``function``."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_checkpoints() -> None:
    # before a stride was looked at, these ended the process
    code = """
    import sys; sys.path.insert(0, sys.argv[1])
    import io, pytest, torch, macatensor
    from collections import OrderedDict
    from test_metadata import _Crafted, _typed
    from torch._utils import _rebuild_device_tensor_from_cpu_tensor, _rebuild_parameter, _rebuild_tensor_v2
    BAD = [
        (0, (4,), (-1,)), (0, (4,), (-10**12,)), (-1, (2,), (1,)), (10**15, (1,), (1,)),
        (0, (2**62,), (8,)), (0, (5,), (2**62,)), (2**63 - 1, (2,), (1,)), (0, (-1,), (1,)), (0, (2, 2), (2**62, 2**62)),
    ]
    def crafted(place, kind, device):
        t = _Crafted(_rebuild_tensor_v2, _typed(device), *place, False, OrderedDict())
        if kind == "parameter":
            t = _Crafted(_rebuild_parameter, t, False, OrderedDict())
        elif kind == "device":
            t = _Crafted(_rebuild_device_tensor_from_cpu_tensor, t, torch.float32, "maca:0", False)
        file = io.BytesIO()
        torch.save(t, file)
        file.seek(0)
        return file
    tried = 0
    for place in BAD:
        for kind in ("tensor", "parameter", "device"):
            for device, location in (("cpu", "maca"), ("maca", None)):
                if kind == "device" and (place[0] == 10**15 or device == "maca"):
                    continue  # there the CPU grows its storage and sends it whole
                with pytest.raises((RuntimeError, ValueError)):
                    torch.load(crafted(place, kind, device), map_location=location, weights_only=True)
                tried += 1
    for place, kept in (((0, (10,), (1,)), [0, 1, 2, 3]), ((3, (2,), (1,)), [3])):  # for these a storage grows
        for device, location in (("cpu", "maca"), ("maca", None)):
            grown = torch.load(crafted(place, "tensor", device), map_location=location, weights_only=True)
            assert grown.shape == place[1] and grown[: len(kept)].tolist() == kept
    good = torch.load(crafted((1, (3,), (1,)), "parameter", "cpu"), map_location="maca", weights_only=True)
    assert good.tolist() == [1, 2, 3] and good.device.type == "maca"
    print(tried)
    """
    done = run_python(code, os.path.dirname(__file__))
    assert int(done.stdout) == 44


def test_saved_tensors_keep_their_place() -> None:
    x = _source("maca")[1:3]
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for copied in (copy.copy(x), copy.deepcopy(x), torch.load(file, weights_only=True)):
        assert copied.tolist() == [1, 2]
    x.note = 1  # type: ignore[attr-defined]
    copied = copy.deepcopy(x)
    assert copied._payload[2] is x._payload[2], "equal metas are one object"
    assert copy.deepcopy(x._payload[2]) is x._payload[2]
    a, b = torch.arange(4.0, device="maca"), torch.zeros(2, device="maca")
    torch.utils.swap_tensors(a, b)
    assert a.tolist() == [0, 0] and b.tolist() == [0, 1, 2, 3]
    b.data = a
    assert b.t_().tolist() == [0, 0] and b._payload[2] is a._payload[2]


def test_a_tensor_beyond_its_storage_is_not_copied() -> None:
    code = """
    import pytest, torch, macatensor
    for place in (lambda t: t.to("maca"), lambda t: t.to("maca", torch.float64), macatensor.maca,
                  lambda t: torch.empty(1 << 16, device="maca").copy_(t), lambda t: torch.ones(2, device="maca").set_(t.maca())):
        t = torch.ones(1 << 16)
        t.untyped_storage().resize_(4)
        with pytest.raises(RuntimeError, match="out of bounds for storage of size 4"):
            place(t)
    """
    run_python(code)


def test_bytes_of_a_storage_are_its_own() -> None:
    x = torch.arange(4.0, device="maca")
    with pytest.raises(RuntimeError, match="resize_"):
        torch.UntypedStorage.resize_(x.untyped_storage(), 0)
    storage = x.untyped_storage()
    assert storage[3:100].tolist() == list(x.cpu().untyped_storage())[3:]
    for index in (16, 10**12, -17):
        with pytest.raises(IndexError):
            storage[index]
        with pytest.raises(IndexError):
            storage[index] = 1
    assert x.resize_(2).untyped_storage().nbytes() == 16 and x.tolist() == [0, 1]


def test_launches_and_copies_look_again() -> None:
    x, y = torch.zeros(8, device="maca"), torch.ones(8, device="maca")
    buffer, _, meta = x._payload
    calls = [
        lambda t: t.add_(1),
        lambda t: t + y,
        lambda t: torch.add(y, 1, out=t),
        lambda t: torch._foreach_add([y, t], 1),
        lambda t: torch._foreach_add_([y, t], 1),
        lambda t: t.sum(),
        lambda t: t.clone(),
        lambda t: y.copy_(t),
        lambda t: t.copy_(y),
        lambda t: t.copy_(torch.ones(8)),
        lambda t: t.cpu(),
        lambda t: t.zero_(),
        lambda t: torch.cat([y, t]),
    ]
    for call in calls:
        call(torch.zeros(8, device="maca"))
    for offset in (1, -1, 8, 10**12, -(10**12), 2**61, 2**62, 2**63 - 1, -(2**63), 2**62 + 2**61, 2**64):
        for call in calls:
            t = torch.zeros(8, device="maca")
            t._payload = (buffer, offset, meta)
            with pytest.raises((RuntimeError, OverflowError)):
                call(t)
    assert x.tolist() == [0] * 8


def test_a_captured_launch_looks_again() -> None:
    x = torch.zeros(8, device="maca")
    x.add_(1)
    buffer, _, meta = x._payload
    graph = torch.maca.MacaGraph() if hasattr(torch.maca, "MacaGraph") else torch.maca.CUDAGraph()
    with torch.maca.graph(graph):
        t = torch.empty(8, device="maca")
        t._payload = (buffer, 1, meta)
        with pytest.raises(RuntimeError, match="reaches outside its memory"):
            t.add_(1)
        x.add_(1)
    graph.replay()
    assert x.tolist() == [2] * 8


class _Claim:
    """What a Meta would be that nobody checked."""

    conj = neg = False
    dense = False

    def __init__(self, size: Any, stride: Any, nbytes: int, dtype: torch.dtype = torch.float32):
        self.size, self.stride, self.nbytes, self.dtype = tuple(size), tuple(stride), nbytes, dtype
        self.itemsize = dtype.itemsize


def _planned(operand: Any) -> Any:
    request = Request("abs")
    request.attributes.append(("common_dtype", operand.dtype))
    request.add([Operand(operand)], is_list=False, is_output=False)
    request.add([Operand(meta_of((4,), (1,), torch.float32))], is_list=False, is_output=True)
    return request.create_program("aten.relu.default", [False])


def test_the_runtime_refuses_operands_that_reach_outside() -> None:
    assert _planned(_Claim((4,), (1,), 16))
    for size, stride, nbytes in (
        ((4,), (-1,), 16),
        ((4,), (-1,), -8),
        ((4,), (1,), 12),
        ((4,), (1,), 0),
        ((4,), (1,), -1),
        ((-4,), (1,), 16),
        ((_HUGE,), (8,), 16),
        ((5,), (_HUGE,), 4),
        ((2, 2), (_HUGE, _HUGE), 4),
        ((3,), (2**63 - 1,), 0),
    ):
        with pytest.raises(RuntimeError, match="outside of any memory"):
            _planned(_Claim(size, stride, nbytes))


# -- anything goes --------------------------------------------------------------------------------------------------
_small = st.integers(-2, 6)
_number = st.one_of(
    _small,
    _small,
    _small,
    st.sampled_from(
        [-(10**12), 2**31, 2**32 + 1, _HUGE - 1, _HUGE, _HUGE + 1, 2**63 - 1, -(2**63), 2**63, 2**64 + 1]
    ),
    st.integers(-(2**63), 2**63 - 1),
)
_dtype = st.sampled_from([torch.uint8, torch.float32, torch.int64, torch.complex64])
_place = st.integers(0, 3).flatmap(
    lambda rank: st.tuples(
        _number,
        st.lists(_number, min_size=rank, max_size=rank),
        st.lists(_number, min_size=rank, max_size=rank),
    )
)
_ENTRIES: dict[str, Any] = {
    "set_": lambda t, place: torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage(), *place),
    "rebuilt": lambda t, place: torch._utils._rebuild_tensor_v2(t._typed_storage(), *place, False, {}),
    "as_strided": lambda t, place: t.as_strided(place[1], place[2], place[0]),
    "as_strided of a view": lambda t, place: t[1:2].as_strided(place[1], place[2], place[0]),
    "as_strided_": lambda t, place: t[:3].as_strided_(place[1], place[2], place[0]),
    "_reshape_alias": lambda t, place: torch.ops.aten._reshape_alias.default(t[1:2], place[1], place[2]),
    "wrap": lambda t, place: wrap(
        t._payload[0], place[0], meta_of(tuple(place[1]), tuple(place[2]), t.dtype)
    ),
}


def _bytes_of(t: Any, offset: int, size: Any, stride: Any) -> tuple[int, int]:
    """The first byte of a place that is touched, and past the last; (0, 0) where nothing is. Exact, of any numbers."""
    if 0 in size:
        return 0, 0
    ends = [sorted((0, (n - 1) * step)) for n, step in zip(size, stride)]
    first, last = offset + sum(e[0] for e in ends), offset + sum(e[1] for e in ends)
    return first * t.itemsize, (last + 1) * t.itemsize


@settings(max_examples=_examples(), deadline=None)
@given(count=st.integers(0, 12), dtype=_dtype, entry=st.sampled_from(sorted(_ENTRIES)), place=_place)
def test_no_place_is_outside(count: int, dtype: torch.dtype, entry: str, place: Any) -> None:
    host = torch.arange(count).to(dtype)
    ours = host.to("maca")
    offset, size, stride = place
    if entry == "_reshape_alias":
        offset = min(count, 1)
    first, end = (
        _bytes_of(host, *place) if entry != "_reshape_alias" else _bytes_of(host, offset, size, stride)
    )
    fits = first >= 0 and end <= host.nbytes and offset >= 0 and min([0, *size, *stride]) >= 0
    fits = fits and max([0, offset, *size, *stride]) < 2**31
    try:
        made = _ENTRIES[entry](ours, place)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        assert not fits, (error, host.nbytes)
        return
    got = made.storage_offset(), tuple(made.shape), made.stride()
    assert made._payload[1:] == (got[0], meta_of(got[1], got[2], dtype))
    first, end = _bytes_of(made, *got)
    held = made._payload[0].nbytes
    assert first >= 0 and end <= held
    if held != host.nbytes:  # the storage grew
        assert entry in ("set_", "rebuilt") and held == end > host.nbytes
        assert torch.equal(ours.cpu(), host)
        return
    if not 0 < made.numel() <= 4096:
        return
    same = host.as_strided(got[1], got[2], got[0])
    assert torch.equal(made.cpu(), same)
    made.zero_()
    same.zero_()
    assert torch.equal(ours.cpu(), host), "what lies beside it was written"


@settings(max_examples=_examples(), deadline=None)
@given(
    held=st.integers(0, 80), offset=_number, call=st.sampled_from(["neg", "add_", "read", "foreach", "zero_"])
)
def test_no_launch_is_outside(held: int, offset: int, call: str) -> None:
    t = torch.empty_strided((2, 3), (8, 2), device="maca")  # 13 elements
    t._payload = (ffi.allocate(held), offset, t._payload[2])
    fits = offset >= 0 and (offset + 13) * 4 <= held
    run = {
        "neg": t.neg,
        "add_": lambda: t.add_(1),
        "read": t.cpu,
        "foreach": lambda: torch._foreach_mul_([t, t.new_ones(2, 3)], 2),
        "zero_": t.zero_,
    }[call]
    try:
        run()
    except (RuntimeError, OverflowError) as error:
        assert not fits, error
    else:
        assert fits


@settings(max_examples=_examples(), deadline=None)
@given(place=_place, told=_number, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_every_plan_covers_what_it_touches(place: Any, told: int, dtype: torch.dtype) -> None:
    _, size, stride = place
    limit = 2**63
    if not all(-limit <= n < limit for n in [told, *size, *stride]):
        return  # does not fit into the request
    claim = _Claim(size, stride, told, dtype)
    first, end = _bytes_of(dtype, 0, size, stride)
    sound = min([0, *size, *stride]) >= 0 and end < limit and told >= end
    request = Request("abs")
    request.attributes.append(("common_dtype", dtype))
    request.add([Operand(claim)], is_list=False, is_output=False)
    request.add([Operand(meta_of((), (), dtype))], is_list=False, is_output=True)
    try:
        request.create_program("aten.relu.default", [False])
    except Refused as refused:  # the library's: more dimensions than the result has
        assert sound, refused
    except RuntimeError as error:
        assert not sound and "outside of any memory" in str(error), error
    except Declined as declined:  # a kernel's own reasons
        assert sound, declined
    else:
        assert sound, (end, told)
