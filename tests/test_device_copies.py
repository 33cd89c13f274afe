"""``torch.maca.comm`` and torch.nn.parallel's replicas: copies between the devices of a process, of which there is one."""

from __future__ import annotations

import copy

import pytest
import torch
from running import same
from torch.nn.parallel import DataParallel, data_parallel, gather, parallel_apply, replicate, scatter

X = torch.arange(20.0).view(5, 4)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to("maca")


@pytest.mark.supports(
    "torch.maca.comm: broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather"
)
def test_copies_are_those_of_one_device() -> None:
    comm = torch.maca.comm
    x = X.maca()
    same(comm.broadcast(X, [0])[0], X)
    assert comm.broadcast(x, ["maca:0"])[0] is x  # it is there already
    target = torch.zeros(5, 4).maca()
    comm.broadcast(X, out=[target])
    same(target, X)
    [[a, b]] = comm.broadcast_coalesced([X, x], [0])
    same(a, X)
    same(b, X)
    same(comm.reduce_add([x, x, x], 0), 3 * X)
    first, second = comm.reduce_add_coalesced([[x, x.half()], [x, x.half()]], 0)
    same(first, 2 * X)
    same(second, 2 * X.half())
    same(comm.scatter(X, [0], chunk_sizes=[5])[0], X)
    parts = [torch.zeros(2, 4).maca(), torch.zeros(3, 4).maca()]
    comm.scatter(X, out=parts)
    same(parts[1], X[2:])
    same(comm.gather([x, x[:2]]), torch.cat([X, X[:2]]))
    assert comm.gather([x], destination="cpu").device.type == "cpu"
    together = torch.zeros(5, 8).maca()
    comm.gather([x, x], dim=1, out=together)
    same(together, torch.cat([X, X], 1))


@pytest.mark.supports("torch.nn.parallel: replicate scatter gather parallel_apply DataParallel data_parallel")
def test_replicas_compute_and_differentiate_as_the_module() -> None:
    whole = model()
    whole(X.maca()).square().sum().backward()
    for made in (
        DataParallel(model()),
        DataParallel(model(), device_ids=[0]),
        DataParallel(model(), ["maca:0"]),
    ):
        made(X).square().sum().backward()  # the input comes from the host
        same(made.module[0].weight.grad, whole[0].weight.grad.cpu())
    own = model()
    [replica] = replicate(own, [0])
    [(x,)] = scatter((X,), [0])
    outputs = parallel_apply([replica], [x])
    gather(outputs, 0).square().sum().backward()
    same(
        own[0].weight.grad, whole[0].weight.grad.cpu()
    )  # through the copies to the module that was replicated
    same(data_parallel(model(), X, [0]).detach(), model()(X.maca()).detach().cpu())
    [(nested, number)] = scatter(({"a": X}, 3), [0])
    assert number == 3 and nested["a"].device.type == "maca"


def test_modules_of_the_host_stay_there() -> None:
    net = torch.nn.Linear(4, 2)
    assert DataParallel(copy.deepcopy(net))(X).device.type == "cpu"


def test_wrong_devices_are_named() -> None:
    comm = torch.maca.comm
    for call, text in (
        (lambda: comm.broadcast(X, [1]), "ordinal 1"),
        (lambda: comm.scatter(X, [0, 1]), "ordinal 1"),
        (lambda: comm.gather([X.maca(), X]), "index 1 is on cpu"),
        (lambda: comm.broadcast(X, out=[torch.zeros(5, 4)]), "index 0 is on cpu"),
        (lambda: comm.broadcast(X, out=[torch.zeros(4).maca()]), "same shape"),
        (lambda: comm.scatter(X, [0], chunk_sizes=[2, 3]), "same length"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
