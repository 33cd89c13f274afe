"""The launchers' module: what it takes, what it refuses, and that it keeps what it is given."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from macatensor import counters
from macatensor.runtime import plan_caches
from macatensor.runtime.ffi import native, pointer
from macatensor.runtime.tensor import MacaTensor

add = torch.ops.aten.add.Tensor


def test_dispatch_takes_what_a_subclass_hands_on() -> None:
    x = torch.ones(3).maca()
    assert MacaTensor.__torch_dispatch__(add, (), (x, x)).tolist() == [2, 2, 2]
    assert MacaTensor.__torch_dispatch__(add, (), args=(x, x), kwargs={"alpha": 2}).tolist() == [3, 3, 3]
    assert MacaTensor.__torch_dispatch__(add, types=(), args=(x, 1)).tolist() == [2, 2, 2]
    for wrong in ((), (add,), (add, (), (x, x), {}, 1)):
        with pytest.raises(TypeError, match=r"takes \(func, types, args=\(\), kwargs=None\)"):
            MacaTensor.__torch_dispatch__(*wrong)
    with pytest.raises(TypeError):
        native.launcher_of(add)()
    with pytest.raises(TypeError):
        native.launcher_of(add)(5, None)


@pytest.mark.parametrize("payload", [(), (1,), None, 7, (object(), 0, None), ("", "", "")])
def test_a_payload_of_none_is_no_crash(payload: object) -> None:
    x, y = torch.ones(3).maca(), torch.ones(3).maca()
    _ = x + y, x.view(3)
    x._payload = payload
    for call in (
        lambda: x + y,
        lambda: y + x,
        lambda: x.view(3),
        lambda: torch.cat([x, y]),
        lambda: x.add_(1),
    ):
        with pytest.raises((TypeError, IndexError, ValueError, AttributeError, SystemError)):
            call()
    x._payload = y._payload


def test_a_wrapper_beyond_its_memory_is_refused() -> None:
    x, small = torch.ones(1000).maca(), torch.ones(2).maca()
    meta = x._payload[2]
    x._payload = (small._payload[0], 0, meta)
    with pytest.raises(RuntimeError, match="reaches outside its memory"):
        x + x
    x._payload = (small._payload[0], -5, meta)
    with pytest.raises(RuntimeError, match="reaches outside its memory"):
        x.exp()


@pytest.mark.parametrize("number", [1, 1.0, True, -(2**63), 2**63 - 1, 0.1, 1j])
def test_numbers_reach_the_kernel_as_they_are(number: complex) -> None:
    for dtype in (torch.int64, torch.float64, torch.complex128):
        x = torch.tensor([0, 3], dtype=dtype)
        assert torch.equal((x.maca() + number).cpu(), x + number)
        assert (x.maca() + number).dtype == (x + number).dtype


def test_numbers_that_no_64_bits_hold() -> None:
    x = torch.zeros(2, dtype=torch.uint64)
    assert torch.equal(x.maca().fill_(2**64 - 1).cpu(), x.fill_(2**64 - 1))
    with pytest.raises((OverflowError, RuntimeError)):
        torch.zeros(2, dtype=torch.int64).maca() + 2**64


def test_the_last_view_keeps_its_buffer() -> None:
    x = torch.arange(6.0).maca()
    buffer = weakref.ref(x._payload[0])
    assert buffer().nbytes == 24 and buffer().address == x.data_ptr() and int(pointer(buffer()) != 0)
    view = x.view(2, 3)[1]
    before = buffer().writes
    view.add_(1)
    assert buffer().writes > before
    del x
    gc.collect()
    assert view.tolist() == [4, 5, 6] and buffer() is not None
    del view
    gc.collect()
    assert buffer() is None


def test_buffers_are_not_made_by_hand() -> None:
    assert native.allocate(1 << 60) is None
    with pytest.raises(TypeError):
        native.allocate("8")
    with pytest.raises(TypeError):
        native.Buffer()


def test_the_last_signature_dies_with_its_plans() -> None:
    """The launcher knows the signature it met last without a look-up, and forgets it with the cache."""
    x, y, scalar = torch.full((3,), 2.0).maca(), torch.full((5,), 3.0).maca(), torch.tensor(4).maca()
    for _ in range(3):  # alternating, repeated, and with what is no key of a tensor
        assert (x * x).tolist() == [4.0] * 3 and (y * y).tolist() == [9.0] * 5
        assert (y * y).tolist() == [9.0] * 5 and (x * 2).tolist() == [4.0] * 3
        assert (
            (x * 2.5).tolist() == [5.0] * 3
            and (x * scalar).tolist() == [8.0] * 3
            and (x * True).tolist() == [2.0] * 3
        )
    launcher = native.launcher_of(torch.ops.aten.mul.Tensor)
    x * x, x * x
    before = counters()["plan_misses"]
    x * x
    assert counters()["plan_misses"] == before
    plan_caches.drop_plans()
    x * x
    assert counters()["plan_misses"] == before + 1
    # as many plans as before, of other signatures
    launcher.cache.clear()
    y * y
    assert len(launcher.cache) == 1
    x * x
    assert counters()["plan_misses"] == before + 3 and len(launcher.cache) == 2


def test_a_launcher_that_is_made_anew_forgets() -> None:
    cache: dict = {}

    class Counting(native.KernelCall):  # type: ignore[misc]
        made = 0

        def miss(self, key: tuple, args: tuple) -> object:
            self.made += 1
            cache[key] = lambda args, payloads, numbers: (self, key)
            return cache[key]

    launcher = Counting(b"S", cache, 0, False, ("n",), (None,), {})
    alive = weakref.ref(launcher)
    for _ in range(3):
        assert launcher((7,), None)[1] == (7,)
    assert launcher.made == 1
    launcher.__init__(b"S", {}, 0, False, ("n",), (None,), {})
    launcher((7,), None)
    assert launcher.made == 2
    with pytest.raises(TypeError):
        launcher.__init__(b"S", [], 0, False, (), (), {})
    del launcher
    cache.clear()
    gc.collect()
    assert alive() is None


def test_arguments_by_name_fill_in_defaults() -> None:
    seen: list[tuple] = []

    class Noting(native.KernelCall):  # type: ignore[misc]
        def miss(self, key: tuple, args: tuple) -> object:
            return lambda args, payloads, numbers: seen.append(args)

        def general(self, args: tuple, kwargs: dict) -> str:
            return "general"

    idle = {"device": torch.device("maca", 0)}
    launcher = Noting(b"SSSS", {}, 0, False, ("a", "b", "device", None), (0, 1, None, 3), idle)
    launcher((5,), {"".join(("b",)): 6})
    launcher((), {"a": 7, "device": torch.device("maca", 0)})
    assert seen == [(5, 6, None, 3), (7, 1, None, 3)]
    for args, kwargs in (((), {"device": torch.device("cpu")}), ((), {"c": 1}), ((1, 2, 3, 4, 5), {"a": 1})):
        assert launcher(args, kwargs) == "general"
    with pytest.raises(ValueError, match="name and a default"):
        launcher.__init__(b"S", {}, 0, False, ("a",), (), {})


def test_casts_to_the_device_share_a_plan() -> None:
    x = torch.tensor([1.5, -2.25]).maca()
    cast = torch.ops.aten._to_copy.default
    expected = cast(x, dtype=torch.bfloat16).cpu()
    before = counters()["plan_misses"]
    options = {"layout": torch.strided, "pin_memory": False, "non_blocking": False}
    named = cast(x, dtype=torch.bfloat16, device=x.device, **options)
    assert named.device == x.device and torch.equal(named.cpu(), expected)
    assert torch.equal(cast(x, dtype=torch.bfloat16, non_blocking=True).cpu(), expected)
    assert counters()["plan_misses"] == before
    host = cast(x, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert type(host) is torch.Tensor and torch.equal(host, expected)
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        cast(x, device=torch.device("maca", 1))


def test_casts_of_autocast_leave_alone_what_needs_none() -> None:
    asked: list[object] = []

    def cast(value: object, dtype: torch.dtype) -> object:
        asked.append(value)
        return value

    rests: list[bool] = []

    def func(*args: object, **kwargs: object) -> tuple:
        assert rests[-1]
        return args, kwargs

    x = torch.ones(2).maca()
    call = native.CastCall(func, rests.append, lambda: torch.float32, cast)
    args = (x, None, 1, 2.0, [1, 2], True, "mean")
    assert call(*args, weight=x, scale=None) == (args, {"weight": x, "scale": None}) and asked == []
    assert native.CastCall(func, rests.append, torch.bfloat16, cast)(x, other=[x]) == ((x,), {"other": [x]})
    assert asked == [x, [x]]
    with pytest.raises(ZeroDivisionError):
        native.CastCall(lambda: 1 // 0, rests.append, torch.float32, cast)()
    assert rests == [True, False] * 3


def test_attention_recorded_before_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 2, 5, 4) for _ in range(3)]

    def gradients(device: str) -> list[torch.Tensor]:
        q, k, v = (t.to(device).requires_grad_() for t in given)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [t.cpu() for t in torch.autograd.grad(attended.square().sum(), (q, k, v))]

    for _ in range(3):
        for ours, theirs in zip(gradients("maca"), gradients("cpu")):
            torch.testing.assert_close(ours, theirs)
