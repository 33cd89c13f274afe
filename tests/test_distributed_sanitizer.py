"""MACA_SANITIZE with collectives: what CUDA would race on while one is in flight is reported, what waits is not."""

from __future__ import annotations

from pathlib import Path

from ranks import run_ranks

_FOUND = """
import warnings
from macatensor.device import sanitizer
warnings.simplefilter("ignore", sanitizer.StreamHazardWarning)
def found(program):
    start = len(sanitizer.hazards)
    program()
    return [(h.earlier.site.operator, h.later.site.operator, h.later.writes) for h in sanitizer.hazards[start:]]
x, side = torch.ones(4).maca(), torch.maca.Stream()
"""


def test_operands_of_a_collective_in_flight(tmp_path: Path) -> None:
    said = run_ranks(
        _FOUND
        + """
def read():
    work = dist.all_reduce(x, async_op=True)
    x + 1
    work.wait()
assert found(read) == [("all_reduce", "aten.add.Tensor", False)], found(read)
print(sanitizer.hazards[-1])
def write():
    work = dist.all_reduce(x, async_op=True)
    x.view(2, 2).mul_(2)
    work.wait()
assert found(write) == [("all_reduce", "aten.mul_.Tensor", True)]
y, parts = torch.ones(4).maca(), torch.ones(4 * ranks).maca()
def write_what_it_reads():
    work = dist.all_gather_single(parts, y, async_op=True)
    y.zero_()
    work.wait()
assert found(write_what_it_reads) == [("all_gather_into_tensor", "aten.zero_.default", True)]
def read_on_another_stream():
    dist.all_reduce(x)
    with torch.maca.stream(side):
        x * 3
    side.synchronize()
assert found(read_on_another_stream) == [("all_reduce", "aten.mul.Tensor", False)]
def two_groups():
    works = [dist.all_reduce(x, group=g, async_op=True) for g in (None, dist.new_group())]
    [work.wait() for work in works]
assert found(two_groups) == [("all_reduce", "all_reduce", True)]
""",
        tmp_path,
        ranks=1,
        MACA_SANITIZE="1",
    )[0]
    assert "write by all_reduce in flight between ranks" in said and ", in read" in said
    assert "Call the collective's wait() first" in said


def test_collectives_that_are_awaited(tmp_path: Path) -> None:
    run_ranks(
        _FOUND
        + """
from torch.distributed import _functional_collectives as functional
def wait():
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.add_(1)
def synchronous():
    for _ in range(3):
        dist.all_reduce(x)
        x.add_(1)
        dist.broadcast(x, 0)
    x.cpu()
def by_future():
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    future.wait() + 1
def device():
    dist.all_reduce(x, async_op=True)
    torch.maca.synchronize()
    x + 2
def by_another_stream():
    side.wait_stream(torch.maca.current_stream())
    with torch.maca.stream(side):
        dist.all_reduce(x)
    torch.maca.current_stream().wait_stream(side)
    x * 2
def functions():
    y = functional.all_reduce(x, "sum", dist.group.WORLD)
    functional.wait_tensor(y.view(2, 2))
    y + 1
    functional.all_gather_tensor(x, 0, dist.group.WORLD) + 1
def together():
    with dist._coalescing_manager(device=torch.device("maca"), async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_reduce(y)
    manager.wait()
    x + y
y = torch.ones(4).maca()
strided = torch.ones(4, 4).maca().t()
def parts():
    dist.all_reduce(strided)
    strided + 1
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).to("maca")
model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001)
optimizer = torch.optim.AdamW(model.parameters())
def training():
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8).maca()).square().sum().backward()
        optimizer.step()
for program in (wait, synchronous, by_future, device, by_another_stream, functions, together, parts, training):
    assert found(program) == [], (program, found(program), [str(h) for h in sanitizer.hazards])
""",
        tmp_path,
        ranks=2,
        MACA_SANITIZE="1",
    )
