"""Bad input gets PyTorch's exception, the process lives on, and nothing is leaked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from running import nothing_leaked

import macatensor
from macatensor import maca


def t(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype)


def i(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


# A call of d, which moves its operands; the host says what it must raise.
BAD: list[Callable[[Any], Any]] = [
    # shapes
    lambda d: d(t(2, 3)) + d(t(4)), lambda d: d(t(2, 3)) * d(t(3, 2)), lambda d: d(t(2, 3)) @ d(t(2, 3)),
    lambda d: d(t(2, 3)).mm(d(t(3))), lambda d: d(t(2)).dot(d(t(3))), lambda d: d(t(2, 3, 4)).bmm(d(t(3, 4, 5))),
    lambda d: d(t(2, 3)).view(7), lambda d: d(t(2, 3)).t().view(6), lambda d: d(t(2, 3)).reshape(4, 2),
    lambda d: d(t(2, 3)).expand(3, 3), lambda d: d(t(2, 3)).expand(-1), lambda d: d(t(2, 3)).permute(0, 0),
    lambda d: d(t(2, 3)).permute(0), lambda d: d(t(2, 3)).transpose(0, 2), lambda d: d(t(2, 3, 4)).t(),
    lambda d: d(t(2, 3)).squeeze(5), lambda d: d(t(2, 3)).unsqueeze(4), lambda d: d(t(2, 3)).narrow(0, 1, 3),
    lambda d: d(t(4)).unfold(0, 5, 1), lambda d: d(t(4)).split(-1), lambda d: d(t(4)).split([1, 2]),
    lambda d: d(t(4)).as_strided((3, 3), (3, 1)), lambda d: d(t(4)).as_strided((2,), (1,), -1),
    lambda d: torch.cat([d(t(2, 3)), d(t(2, 4))]), lambda d: torch.cat([d(t(2)), d(t(2))], 1), lambda d: torch.cat([]),
    lambda d: torch.stack([d(t(2)), d(t(3))]), lambda d: torch.stack([]), lambda d: d(t(2, 3)).unflatten(1, (2, 2)),
    lambda d: d(t(2, 3)).add_(d(t(5, 2, 3))), lambda d: d(t(3)).copy_(d(t(2))), lambda d: d(t(2, 3)).copy_(d(t(3, 2))),
    lambda d: d(t(2, 3)).masked_fill(d(t(4, dtype=torch.bool)), 1), lambda d: torch.where(d(t(2) > 0), d(t(3)), d(t(4))),
    lambda d: F.conv2d(d(t(1, 3, 8, 8)), d(t(4, 2, 3, 3))), lambda d: F.conv2d(d(t(1, 3, 2, 2)), d(t(4, 3, 3, 3))),
    lambda d: F.conv2d(d(t(1, 3, 8, 8)), d(t(4, 3, 3, 3)), d(t(5))), lambda d: F.conv2d(d(t(3)), d(t(4, 3, 3, 3))),
    lambda d: F.conv2d(d(t(1, 4, 8, 8)), d(t(4, 2, 3, 3)), groups=3),
    lambda d: F.conv2d(d(t(1, 3, 8, 8)), d(t(4, 3, 3, 3)), stride=0), lambda d: F.linear(d(t(2, 3)), d(t(4, 5))),
    lambda d: F.conv2d(d(t(1, 3, 8, 8)), d(t(4, 3, 3, 3)), padding=-1),
    lambda d: F.max_pool2d(d(t(1, 1, 2, 2)), 3), lambda d: F.max_pool2d(d(t(1, 1, 4, 4)), 2, padding=2),
    lambda d: F.avg_pool2d(d(t(1, 1, 4, 4)), 0), lambda d: F.max_pool2d(d(t(4)), 2),
    lambda d: F.adaptive_avg_pool2d(d(t(2)), 2), lambda d: F.layer_norm(d(t(2, 3)), (4,)),
    lambda d: F.group_norm(d(t(2, 3)), 2), lambda d: F.batch_norm(d(t(2, 3)), d(t(4)), d(t(4))),
    lambda d: F.batch_norm(d(t(1, 3)), None, None, training=True), lambda d: F.pad(d(t(2)), (1, 2, 3)),
    lambda d: F.pad(d(t(1, 2, 2)), (3, 3), mode="reflect"), lambda d: F.nll_loss(d(t(2, 3)), d(i(0, 1, 2))),
    lambda d: F.cross_entropy(d(t(2, 3)), d(t(2, 4))), lambda d: F.mse_loss(d(t(2)), d(t(2, 3)).expand(4, 2, 3)),
    lambda d: F.scaled_dot_product_attention(d(t(1, 2, 3, 4)), d(t(1, 2, 3, 5)), d(t(1, 2, 3, 4))),
    lambda d: F.embedding(d(t(2, 3).long()), d(t(4))), lambda d: torch.addmm(d(t(3, 3)), d(t(2, 3)), d(t(3, 2))),
    lambda d: torch.nn.LSTM(3, 4)(t(2, 5)) if d is identity else torch.nn.LSTM(3, 4, device="maca")(d(t(2, 5))),
    lambda d: F.interpolate(d(t(1, 1, 4, 4)), size=(0, 2)),
    # dimensions
    lambda d: d(t(2, 3)).sum(2), lambda d: d(t(2, 3)).mean(-3), lambda d: d(t(2, 3)).max(5), lambda d: d(t(2, 3)).softmax(2),
    lambda d: d(t(2, 3)).sum((0, 0)), lambda d: d(t(2, 3)).cumsum(2), lambda d: d(t(2, 3)).argmax(3),
    lambda d: d(t(0)).max(), lambda d: d(t(0, 2)).max(0), lambda d: d(t(0)).argmin(), lambda d: d(t(2, 0)).amax(1),
    lambda d: d(t(2, 3)).select(0, 2), lambda d: d(t(2, 3))[2], lambda d: d(t(2, 3))[0, 3], lambda d: d(t(2))[0, 0],
    lambda d: d(t(2, 3)).unbind(2), lambda d: d(t(2, 3)).flip(2), lambda d: d(t(2, 3)).roll(1, 4), lambda d: d(t(3)).diagonal(),
    lambda d: d(t(2, 3)).sort(4), lambda d: d(t(3)).topk(4), lambda d: d(t(2, 3)).gather(2, d(i(0)).reshape(1, 1)),
    lambda d: d(t(3)).kthvalue(5), lambda d: d(t(2, 3)).chunk(0), lambda d: d(t(2, 3)).tril().diag_embed(0, 0, 0),
    # dtypes
    lambda d: d(i(1, 2)).sigmoid_(), lambda d: d(i(1, 2)).add_(1.5), lambda d: d(t(2)) & d(t(2)), lambda d: ~d(t(2)),
    lambda d: d(t(2, dtype=torch.bool)) - d(t(2, dtype=torch.bool)), lambda d: -d(t(2, dtype=torch.bool)),
    lambda d: d(t(2, 2)) @ d(t(2, 2).double()), lambda d: d(i(1, 2)).mean(), lambda d: d(t(2)) << d(t(2)),
    lambda d: d(t(2, dtype=torch.complex64)) < d(t(2, dtype=torch.complex64)), lambda d: d(t(2, dtype=torch.complex64)).max(),
    lambda d: F.conv2d(d(t(1, 1, 3, 3)), d(t(1, 1, 3, 3).double())), lambda d: F.linear(d(t(2, 3)), d(t(4, 3).half())),
    lambda d: F.embedding(d(t(2)), d(t(3, 4))), lambda d: d(t(2, 3)).gather(0, d(t(1, 1))), lambda d: d(t(3))[d(t(1))],
    lambda d: d(t(3)).index_select(0, d(t(1))), lambda d: d(t(3)).scatter(0, d(i(0)), d(t(1).double())),
    lambda d: F.cross_entropy(d(t(2, 3)), d(t(2))), lambda d: d(t(2)).masked_fill(d(t(2)), 0),
    lambda d: d(t(2)).requires_grad_().int().requires_grad_(), lambda d: d(i(1)).requires_grad_(),
    lambda d: torch.where(d(t(2)), d(t(2)), d(t(2))), lambda d: d(t(2, 2, dtype=torch.int32)).softmax(0),
    lambda d: F.dropout(d(t(2)), -0.1), lambda d: d(t(2)).clamp(), lambda d: torch.polar(d(t(2)), d(t(2).double())),
    lambda d: d(t(2)).add(d(t(2)), alpha=1j), lambda d: d(i(1)).add(d(i(1)), alpha=1.5),
    lambda d: torch.view_as_complex(d(t(3))), lambda d: torch.view_as_real(d(t(3))), lambda d: d(t(3)).view(torch.float64),
    lambda d: d(i(2)) ** -1, lambda d: torch.linalg.inv(d(i(1, 2))), lambda d: d(t(2)).type(torch.quint8),
    # values
    lambda d: d(i(1)) // d(i(0)), lambda d: d(i(1)) % d(i(0)), lambda d: d(t(3)).topk(-1), lambda d: d(t(3)).repeat(-1),
    lambda d: d(t(4))[::-1], lambda d: d(t(2, 2)).norm(float("nan")) if False else d(t(2, 2)).reshape(-1, -1),
    lambda d: d(t(2)).item(), lambda d: bool(d(t(2))), lambda d: d(t(2)).backward(), lambda d: d(t(2)).requires_grad_().sum().backward(d(t(3))),
    lambda d: torch.multinomial(d(t(3)), 0), lambda d: d(t(3)).repeat_interleave(d(i(-1, 1, 1))),
]  # fmt: skip


def identity(x: Any) -> Any:
    return x


def outcome(call: Callable[[Any], Any], move: Callable[[Any], Any]) -> BaseException | None:
    try:
        call(move)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("position", range(len(BAD)))
def test_bad_input_raises_what_the_host_raises(position: int) -> None:
    call = BAD[position]
    theirs = outcome(call, identity)
    assert theirs is not None, "the host accepts this"
    with nothing_leaked(), macatensor.fallback("silent"):
        ours = outcome(call, maca)
        assert ours is not None, f"the host raises {type(theirs).__name__}: {theirs}"
        # of the same class, or one that handlers of that class catch; CUDA too differs in NotImplementedError
        related = (
            isinstance(ours, type(theirs)) or isinstance(theirs, type(ours)) or isinstance(ours, RuntimeError)
        )
        assert related, f"{type(ours).__name__}: {ours}; the host raises {type(theirs).__name__}: {theirs}"
        assert "defect" not in str(ours) and "INTERNAL ASSERT" not in str(ours), ours
        del ours


MIXED: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda a, b: a + b, lambda a, b: b + a, lambda a, b: a * b, lambda a, b: a @ b, lambda a, b: b @ a,
    lambda a, b: torch.cat([a, b]), lambda a, b: torch.cat([b, a]), lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: torch.stack([a, b]), lambda a, b: a.add_(b), lambda a, b: b.add_(a), lambda a, b: torch.mm(a, b),
    lambda a, b: F.linear(a, b), lambda a, b: torch.addmm(a, b, a), lambda a, b: a.eq(b), lambda a, b: torch.maximum(a, b),
    lambda a, b: F.mse_loss(a, b), lambda a, b: F.embedding(b.long(), a), lambda a, b: F.conv1d(a[None], b[:, :, None]),
    lambda a, b: a.masked_fill(b > 0, 0), lambda a, b: a.gather(0, b.long() * 0), lambda a, b: F.layer_norm(a, (2,), b[0], b[0]),
    lambda a, b: F.cross_entropy(a, b[0].long()), lambda a, b: torch.einsum("ij,jk->ik", a, b), lambda a, b: torch.lerp(a, b, 0.5),
    lambda a, b: torch.addcmul(a, b, a), lambda a, b: torch._foreach_add([a, a], [b, b]), lambda a, b: a.index_select(0, b[0].long()),
    lambda a, b: F.scaled_dot_product_attention(a[None], b[None], a[None]), lambda a, b: a.scatter(0, b.long() * 0, a),
    lambda a, b: torch.bmm(a[None], b[None]), lambda a, b: F.batch_norm(a, b[0], b[0]), lambda a, b: a.equal(b),
    lambda a, b: torch.nn.LSTM(2, 2)(a), lambda a, b: F.bilinear(a, a, b[None]), lambda a, b: torch.dot(a[0], b[0]),
    lambda a, b: torch.outer(a[0], b[0]), lambda a, b: F.prelu(a, b[0]), lambda a, b: b.masked_scatter(a > 0, b),
    lambda a, b: torch.linalg.solve(a, b), lambda a, b: torch.isin(a, b), lambda a, b: torch.bucketize(a, b[0]),
    lambda a, b: a.masked_select(b > 0), lambda a, b: torch.nonzero(b, out=a.long()), lambda a, b: torch.bincount(b[0].long(), a[0]),
]  # fmt: skip


@pytest.mark.parametrize("position", range(len(MIXED)))
def test_devices_that_differ(position: int) -> None:
    ours, host = maca(torch.ones(2, 2)), torch.ones(2, 2)
    with nothing_leaked(), macatensor.fallback("silent"):
        with pytest.raises(
            RuntimeError, match="Expected all tensors to be on the same device|same device"
        ) as raised:
            MIXED[position](ours, host)
        text = str(raised.value)
        assert "maca:0" in text and "cpu" in text, text
        del raised
    assert ours.tolist() == [[1, 1], [1, 1]] and host.tolist() == [[1, 1], [1, 1]]


def test_zero_dimensional_host_tensors_enter_as_on_cuda() -> None:
    x = maca(torch.ones(2))
    for f in (lambda s: x + s, lambda s: s + x, lambda s: x * s, lambda s: torch.where(x > 0, x, s), lambda s: x.mul_(s),
              lambda s: s / x, lambda s: torch.maximum(x, s), lambda s: x**s, lambda s: x < s):  # fmt: skip
        assert f(torch.tensor(1.0)).device.type == "maca"
    assert (x + torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32
    assert (maca(torch.ones(2, dtype=torch.int32)) + torch.tensor(2.5)).dtype == torch.float32


OUT_OF_RANGE: list[Callable[[torch.Tensor, Callable[[Any], Any]], Any]] = [
    lambda x, d: x[d(i(0, 9))], lambda x, d: x[d(i(-6))], lambda x, d: x.index_select(0, d(i(7))),
    lambda x, d: x.gather(0, d(i(5))[:, None]), lambda x, d: x.scatter(0, d(i(5))[:, None], 1.0),
    lambda x, d: x.scatter_add(0, d(i(-1))[:, None], x), lambda x, d: x.index_add(0, d(i(6)), x[:1]),
    lambda x, d: x.index_put((d(i(9)),), x[0]), lambda x, d: x.clone().index_put_((d(i(9)),), x[0], accumulate=True),
    lambda x, d: F.embedding(d(i(3, 8)), x), lambda x, d: F.embedding(d(i(-1)), x), lambda x, d: x.take(d(i(100))),
    lambda x, d: F.nll_loss(x, d(i(0, 1, 2, 1, 9))), lambda x, d: F.cross_entropy(x, d(i(0, 1, 2, 1, -5))),
    lambda x, d: x.index_fill(0, d(i(6)), 0), lambda x, d: x.index_copy(0, d(i(5)), x[:1]), lambda x, d: x[:, d(i(4))],
    lambda x, d: x.put(d(i(99)), x[0, :1]), lambda x, d: x[d(torch.tensor([True, False]))],
    lambda x, d: x.scatter_reduce(0, d(i(8))[:, None], x, "sum"), lambda x, d: F.embedding_bag(d(i(77))[None], x),
    lambda x, d: F.max_unpool2d(x[None], d(torch.full((1, 5, 3), 10**6)), 2), lambda x, d: x.index_reduce(0, d(i(9)), x[:1], "prod"),
]  # fmt: skip


@pytest.mark.parametrize("position", range(len(OUT_OF_RANGE)))
def test_an_index_out_of_range(position: int) -> None:
    call, host = OUT_OF_RANGE[position], torch.arange(15.0).reshape(5, 3)
    theirs = outcome(lambda d: call(host, d), identity)
    assert theirs is not None, "the host accepts this"
    ours = maca(host)
    with nothing_leaked(), macatensor.fallback("silent"):
        error = outcome(lambda d: call(ours, d), maca)
        assert isinstance(error, (IndexError, RuntimeError)), f"{error!r}; the host: {theirs!r}"
        assert "defect" not in str(error)
        del error
    assert torch.equal(ours.cpu(), host)


def test_the_layout_hint_comes_where_layout_fails() -> None:
    image, square = maca(torch.ones(1, 3, 4, 5)), maca(torch.ones(3, 4))
    for call, is_to_blame in (
        (lambda: image.view(60), True),
        (lambda: image.view(7), False),
        (lambda: image.view(-1, -1), False),
        (lambda: square.t().view(12), False),
    ):
        with pytest.raises(RuntimeError) as raised:
            call()
        assert ("channels_last after a transfer" in str(raised.value)) is is_to_blame, raised.value
    with macatensor.layout.policy("nchw"), pytest.raises(RuntimeError) as raised:
        image.view(60)
    assert "channels_last" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["ge_", "eq_", "pow_", "clamp_max_", "atan2_", "add_", "remainder_", "xlogy_"]
)
def test_a_number_of_the_host_is_not_written(name: str) -> None:
    """It may stand beside tensors of the device only where it is read."""
    for size, dtype in itertools.product(((), (3,)), (torch.float32, torch.int64)):
        number = torch.tensor(3, dtype=dtype)
        with pytest.raises(RuntimeError, match="on the same device"):
            getattr(number, name)(torch.ones(size, dtype=dtype).maca())
        assert number == 3, "by the CPU's kernel, which is asked for its error"


def test_device_index_1() -> None:
    x = torch.ones(2)
    for make in (lambda: x.to("maca:1"), lambda: x.maca(1), lambda: torch.ones(2, device="maca:1"),
                 lambda: torch.empty(2, device=torch.device("maca", 1)), lambda: maca(x).to("maca:1"),
                 lambda: torch.nn.Linear(2, 2).to("maca:1"), lambda: torch.tensor([1.0], device="maca:7"),
                 lambda: torch.zeros_like(x, device="maca:1"), lambda: maca(x).new_zeros(2, device="maca:1"),
                 lambda: torch.arange(3, device="maca:1"), lambda: torch.rand(3, device="maca:2"),
                 lambda: torch.rand_like(maca(x), device="maca:1"), lambda: torch.full((2,), 1.0, device="maca:1")):  # fmt: skip
        with nothing_leaked(), pytest.raises(RuntimeError, match="invalid device ordinal|device"):
            make()


def test_autograd_errors() -> None:
    x = maca(torch.ones(2)).requires_grad_()
    with pytest.raises(
        RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"
    ):
        x.add_(1)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    loss = (x * 2).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad"):
        maca(1.0).backward()
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        (x * 2).backward()
    host = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError):
        host.grad = maca(torch.ones(2))
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(2)
    with pytest.raises(RuntimeError):
        (x * 2).sum().backward(torch.ones(()).double().expand(3))


def test_a_failing_call_leaves_the_next_one_alone() -> None:
    x = maca(torch.arange(6.0).reshape(2, 3))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            x @ x
        with pytest.raises(IndexError):
            x[maca(i(5))]
        assert (x @ x.t()).tolist() == [[5, 14], [14, 50]]
        assert x[maca(i(1))].tolist() == [[3, 4, 5]]
    assert macatensor.counters()["launches"] > 0


_library = torch.library.Library("maca_test_errors", "DEF")
_library.define("only_on_host(Tensor x) -> Tensor")
_library.impl("only_on_host", lambda x: x + 1, "CPU")


def test_the_fallback_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    only_on_host = torch.ops.maca_test_errors.only_on_host
    x = maca(torch.rand(3, 3))
    with (
        macatensor.fallback("error"),
        pytest.raises(NotImplementedError, match="MACA_FALLBACK=error refuses"),
    ):
        only_on_host(x)
    with macatensor.fallback("silent"):
        values = only_on_host(x)
        assert isinstance(values, macatensor.MacaTensor)
    with pytest.raises(ValueError, match="accepted"), macatensor.fallback("loud"):
        pass
    monkeypatch.setenv("MACA_FALLBACK", "loud")
    with pytest.raises(ValueError, match="accepted: warn, error, silent"):
        only_on_host(x)
    monkeypatch.setenv("MACA_FALLBACK", "error")
    with pytest.raises(NotImplementedError):
        only_on_host(x)


def test_foreign_arguments() -> None:
    x = maca(torch.ones(2))
    for call in (lambda: x + "a", lambda: torch.add(x, None), lambda: x + [1, 2], lambda: x.add(object()), lambda: x["a"],
                 lambda: x + torch.ones(2).to_sparse(), lambda: torch.add(x, torch.ones(2, device="meta")),
                 lambda: x.sum(dim="a"), lambda: torch.cat(x), lambda: x.to("nowhere"), lambda: x.view("a"),
                 lambda: torch.zeros(2, device="maca", dtype="float32"), lambda: x.copy_(torch.empty(2, device="meta"))):  # fmt: skip
        with (
            nothing_leaked(),
            pytest.raises((TypeError, RuntimeError, IndexError, NotImplementedError, ValueError)),
        ):
            call()
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.zeros(3, device=d).index_add_(0, torch.tensor([3], device=d), torch.ones(1, device=d)),
        lambda d: torch.zeros(3, 2, device=d).index_add_(0, torch.tensor([3], device=d), torch.ones(1, 2, device=d)),
        lambda d: torch.zeros(3, device=d).index_put_((torch.zeros(1, dtype=torch.int8, device=d),), torch.ones(1, device=d)),
        lambda d: torch.arange(3, device=d, dtype=torch.complex32),
        lambda d: torch.eye(3, device=d, dtype=torch.complex32),
        lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.tensor([0, 1], dtype=torch.int32, device=d)),
        lambda d: F.nll_loss(torch.ones(2, 3, 4, 4, device=d), torch.zeros(2, 4, 4, dtype=torch.int32, device=d)),
        lambda d: torch.batch_norm_update_stats(*[torch.ones(2, 2, device=d)] * 2, None, 0.1),
        lambda d: torch._fused_adamw_(
            [], [torch.ones(3, device=d)], *[[]] * 4, lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1.0,
            amsgrad=False, maximize=False,
        ),
    ],
    ids=[
        "index_add", "index_add rows", "index_put", "arange", "eye", "cross_entropy", "nll_loss", "batch_norm_update_stats", "fused",
    ],
)  # fmt: skip
def test_errors_have_the_class_of_the_cpu(call: Any) -> None:
    with pytest.raises(Exception) as host:
        call("cpu")
    with pytest.raises(type(host.value)) as ours:
        call("maca")
    assert type(ours.value) is type(host.value)


def test_targets_of_bytes() -> None:
    scores, target = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0], dtype=torch.uint8)
    assert torch.equal(F.nll_loss(scores.maca(), target.maca()).cpu(), F.nll_loss(scores, target))


SAID: dict[str, tuple[str, Callable[[str], Any]]] = {
    "subscript": ("out of bounds for dimension with size 0", lambda d: torch.ones(3, 0, device=d)[:, [0, 1]]),
    "grid's batch": (
        "expected grid and input to have same batch size, but got input with sizes",
        lambda d: F.grid_sample(torch.ones(5, 5, 5, 5, device=d), torch.ones(1, 1, 4, 2, device=d)),
    ),
    "bag's offsets": (
        "offsets has to be a 1D Tensor",
        lambda d: torch._embedding_bag(
            torch.ones(2, 2, device=d), *(torch.zeros(n, dtype=torch.int64, device=d) for n in ((1,), (1, 1)))
        ),
    ),
    "bag's table": (
        "weight has to be a 2D Tensor",
        lambda d: torch._embedding_bag(torch.ones(2, device=d), *[torch.zeros(1, device=d).long()] * 2),
    ),
    "bag's index": (
        "Expected idx >= 0 && idx < num_embeddings",
        lambda d: F.embedding_bag(torch.tensor([[-1, 1]], device=d), torch.ones(9, 2, device=d), padding_idx=0),
    ),
    "pool of nothing": (
        "Expected grad_output to have non-zero size",
        lambda d: F.adaptive_avg_pool2d(torch.ones(1, 4, 5, 5, device=d, requires_grad=True), 0).sum().backward(),
    ),
    "celu": ("alpha cannot be 0", lambda d: F.celu(torch.ones(2, device=d), 0.0)),
    "celu, in place": ("alpha cannot be 0", lambda d: F.celu(torch.ones(2, device=d), 0, inplace=True)),
    "celu, after another": (
        "alpha cannot be 0",
        lambda d: [F.celu(torch.ones(3, device=d), alpha) for alpha in (0.5, 0.0)],
    ),
    "index_put": (
        r"too many indices for tensor of dimension 1 \(got 2\)",
        lambda d: torch.ops.aten.index_put(
            torch.ones(3, device=d), [torch.tensor([1], device=d), None], torch.ones(1, device=d)
        ),
    ),
    "bucketize": (
        r"boundaries tensor must be 1 dimension, but got dim\(2\)",
        lambda d: torch.bucketize(*[torch.ones(3, 1, device=d)] * 2),
    ),
    "_trilinear": (
        r"unroll_dim must be in \[0,0\]",
        lambda d: torch._trilinear(*[torch.ones(2, device=d)] * 3, [], [], [], [0], -1),
    ),
    "affine_grid_generator": (
        "batch2 must be a 3D tensor",
        lambda d: torch.affine_grid_generator(torch.ones(2, 2, 3, 1, device=d), [2, 3, 1, 1], True),
    ),
    "affine_grid_generator, another batch": (
        "Expected size for first two dimensions of batch2",
        lambda d: torch.affine_grid_generator(torch.ones(5, 2, 3, device=d), [2, 3, 1, 1], True),
    ),
    "ormqr": (
        r"tau.shape\[-1\] must be equal to min",
        lambda d: torch.ormqr(torch.ones(4, 3, device=d), torch.ones(2, device=d), torch.ones(4, 5, device=d)),
    ),
    **{
        f"index_reduce, {size}": (
            words,
            lambda d, count=count, size=size: torch.ones(4, device=d).index_reduce(
                0, torch.zeros(count, dtype=torch.int64, device=d), torch.ones(size, device=d), "prod"
            ),
        )
        for count, size, words in (
            (2, (1,), "Number of indices .2. should be equal"), (1, (), "source tensor shape must match self")
        )
    },
    "range": (
        "cannot be converted to type int64_t without overflow",
        lambda d: torch.range(0.5, 1 - 2j, dtype=torch.int64, device=d),
    ),
    "a fused step's rate": (
        "a Tensor with 2 elements cannot be converted to Scalar",
        lambda d: torch._fused_sgd_(
            [], [], [], weight_decay=0.0, momentum=0.0, lr=torch.ones(2, device=d), dampening=0.0, nesterov=False,
            maximize=False, is_first_step=True,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_errors_have_the_words_of_the_cpu(name: str) -> None:
    words, call = SAID[name]
    for device in ("cpu", "maca"):
        with pytest.raises((RuntimeError, IndexError), match=words):
            call(device)


def test_weights_of_bags_have_the_table_dtype() -> None:
    table, where = torch.ones(5, 2, device="maca"), torch.zeros(1, 3, dtype=torch.int64, device="maca")
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        F.embedding_bag(where, table, per_sample_weights=where.double(), mode="sum")
