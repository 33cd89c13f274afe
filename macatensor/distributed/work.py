"""A collective under way, and the lane in which a group's collectives run one after another."""

from __future__ import annotations

import datetime
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future
from torch.utils._python_dispatch import _disable_current_modes

from macatensor.runtime import streams
from macatensor.runtime.awaited import Awaited
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import raise_later
from macatensor.runtime.tensor import MacaTensor

_AT_ONCE = datetime.timedelta(0)
_numbers = itertools.count(1)  # of lanes


def outside_of_modes() -> AbstractContextManager[object]:
    """Gloo's threads take over the caller's dispatch modes, as the recorder's, and would run them without Python."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


class Lane:
    """Runs what it is given in order: on a thread of its own, or on that of whoever waits first.

    So every rank's carrier sees a group's collectives in the order in which the program issued them, and a small one
    that the program waits for at once needs no other thread.
    """

    def __init__(self, name: str = "mccl"):
        self._name = name
        self.number = next(_numbers)
        self._queue: deque[MacaWork] = deque()
        self._running = threading.RLock()
        self._has_work = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, work: MacaWork) -> None:
        self._queue.append(work)

    def wake(self) -> None:
        """What was added goes on without anybody who waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._has_work.release()

    def run_until(self, work: MacaWork) -> None:
        """Returns when ``work`` has ended."""
        while not work.has_ended:
            with self._running:
                if not work.has_ended and self._queue:
                    self._queue.popleft().run()

    def close(self) -> None:
        """The thread ends when what was added has ended."""
        self._closed = True
        self._has_work.release()

    def has_stopped(self, seconds: float) -> bool:
        """Has the thread ended, or does it in that time?"""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def _serve(self) -> None:
        while True:
            self._has_work.acquire()
            if self._closed and not self._queue:
                return
            with self._running:
                work = self._queue.popleft() if self._queue else None
                if work is not None:
                    work.run()


class MacaWork(Work):
    """What ``async_op=True`` returns. ``body`` moves the bytes and writes ``written``; it runs once.

    Readers of that memory wait by themselves. So :meth:`get_future` gives a future that is done, as CUDA's is when the
    collective is on its stream: callbacks run in the thread and the order of the program, in which they may issue
    collectives of their own, and wait where they read.
    """

    def __init__(
        self,
        lane: Lane,
        body: Callable[[], None],
        written: Sequence[torch.Tensor],
        result: Sequence[Value],
        has_arrived: Callable[[], bool] | None = None,
        source: Callable[[], int] | None = None,
    ):
        super().__init__()
        self.has_ended = False
        self._lane = lane
        self._body: Callable[[], None] | None = body
        self._result = list(result)
        self._has_arrived = has_arrived
        self._source = source
        self._error: Exception | None = None
        self._is_told = False
        self._future: Future[Value] | None = None
        self._shown = 0
        self._awaited = Awaited((t for t in written if isinstance(t, MacaTensor)), self._finish_for_reader)
        lane.add(self)

    def show(self, name: str, operands: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Tells the sanitizer of a collective that was issued, if there is one."""
        if streams.observer is not None:
            self._shown = streams.observer.collective_issued(self._lane.number, name, operands, written)

    def _is_over(self) -> None:
        """What the calling thread's stream is given from now on comes after this."""
        if streams.observer is not None and self._shown:
            streams.observer.collective_awaited(self._lane.number, self._shown)

    def run(self) -> None:
        """Called by the lane."""
        body, self._body = self._body, None
        try:
            if body is not None:
                with outside_of_modes():
                    body()
        except Exception as error:
            self._error = error
        finally:
            self.has_ended = True
            if self._error is None:
                self._awaited.release()  # else whoever reads the memory is told, unless somebody was

    def _finish_for_reader(self) -> None:
        """The reader is a launch that can raise nothing: the next wait of the host raises it."""
        self._lane.run_until(self)
        if self._error is not None and self._tell():
            streams.used = True
            raise_later(self._error)

    def wait(self, timeout: datetime.timedelta = _AT_ONCE) -> bool:
        self._lane.run_until(self)
        if self._error is not None:
            self._tell()
            raise self._error
        self._is_over()
        return True

    def _tell(self) -> bool:
        """The failure is raised now. Is it for the first time?"""
        was_told, self._is_told = self._is_told, True
        self._awaited.release()
        return not was_told

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        if not self.has_ended and self._has_arrived is not None and self._has_arrived():
            self._lane.run_until(self)
        if self.has_ended:
            self._is_over()
        return self.has_ended

    def is_success(self) -> bool:
        return self.has_ended and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Value]:
        return self._result

    def source_rank(self) -> int:
        if self._source is None:
            raise RuntimeError(
                "source_rank() may only be called on work objects that represent a recv or recv-from-any-source call"
            )
        self.wait()
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> Future[Value]:
        self._is_over()  # whose wait() would be, and nobody sees it
        if self._future is None:
            self._future = Future()
            if self.has_ended and self._error is not None:
                self._tell()
                self._future.set_exception(self._error)
            else:
                self._future.set_result(self._result)
        return self._future


class Together(Work):
    """Several works as one."""

    def __init__(self, works: Sequence[Work], result: Sequence[Value] = ()):
        super().__init__()
        self._works = list(works)
        self._result = list(result)

    @classmethod
    def of(cls, works: Sequence[Work]) -> Work:
        """One stays itself."""
        return works[0] if len(works) == 1 else cls(works)

    def wait(self, timeout: datetime.timedelta = _AT_ONCE) -> bool:
        for work in self._works:
            work.wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((e for e in (work.exception() for work in self._works) if e is not None), None)

    def result(self) -> list[Value]:
        return self._result

    def get_future(self) -> Future[Value]:
        future: Future[Value] = Future()
        future.set_result(self._result)
        return future
