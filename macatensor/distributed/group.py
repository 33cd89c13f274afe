"""The process group of ``mccl``: c10d's functions, each as a :class:`MacaWork`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    PrefixStore,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
    Work,
)

from macatensor.distributed import flight_recorder, reducer, splitting
from macatensor.distributed.carriers import Carriers, Way
from macatensor.distributed.failures import Member, explained, watched
from macatensor.distributed.gloo import GlooCarrier, joined
from macatensor.distributed.messages import Receiving, Sending, parts
from macatensor.distributed.operands import (
    Tensors,
    called,
    check_sizes,
    listed,
    options_of,
    sizes_of,
    split_bytes,
)
from macatensor.distributed.reduction import Reduction, reduction_of
from macatensor.distributed.shared_memory import SharedMemory
from macatensor.distributed.shown import shown_as
from macatensor.distributed.snapshots import Source, Target, finish, is_part_of, only
from macatensor.distributed.staging import as_bytes, put_all, room_for, together
from macatensor.distributed.work import Lane, MacaWork, Together, outside_of_modes
from macatensor.runtime import capture
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

_HOST = torch.device("cpu")
_GRACE = 5.0  # seconds for other ranks to come to what is under way when this one ends


class MacaProcessGroup(splitting.Splits, SharedMemory):
    """Serves tensors on maca and, by gloo, those of the host."""

    def __init__(self, store: Store, rank: int, ranks: int, timeout: datetime.timedelta, name: str = ""):
        super().__init__(store, rank, ranks, name)
        self._timeout = timeout
        self._lane = Lane()
        self._carriers = Carriers(PrefixStore("device/", store), rank, ranks, timeout)
        self._messages: list[MacaWork] = []  # under way: gloo drops what nobody holds
        self._issued = 0
        self._broken: Exception | None = None
        self._coalesced: list[Work] | None = None
        # its collectives are numbered as they are issued, the carrier's as they run: so there are two
        gloo = joined(PrefixStore("host/", store), rank, ranks, timeout)
        self._of_host = watched(gloo, PrefixStore("watched/", store), timeout)
        self._of_host._set_sequence_number_for_group()
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._register_backend(_HOST, dist.ProcessGroup.BackendType.GLOO, self._of_host)

    # --- what c10d asks of a group ------------------------------------------------------------------------
    def _get_backend(self, device: torch.device) -> Value:
        return self._of_host if torch.device(device).type == "cpu" else self

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout
        self._of_host.set_timeout(timeout)
        self._carriers.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        self._lane.close()

    def abort(self) -> None:
        """What is under way fails."""
        self._lane.close()
        self._carriers.abort()
        self._of_host.abort()

    def end(self) -> None:
        """Called when the interpreter ends: no thread may be inside of gloo then, whatever became of the other ranks."""
        self._lane.close()
        if not self._lane.has_stopped(_GRACE):
            self.abort()
            self._lane.has_stopped(_GRACE)

    def __del__(self) -> None:
        if "_lane" in self.__dict__:
            self._lane.close()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._of_host._get_sequence_number_for_group()) + self._issued

    def carrier(self) -> str:
        """Who carries collectives of device memory, in words; the ranks meet where they have not yet."""
        library = self._carriers.library()
        return GlooCarrier.name if library is None else library.name

    def _by_host(self, name: str, *args: Value) -> Work:
        with outside_of_modes():
            work: Work = getattr(self._of_host, name)(*args)
        return work

    # --- how a collective begins --------------------------------------------------------------------------
    def _takes(self, name: str, tensors: Tensors) -> bool:
        """Is a collective of these tensors the device's? Raises where it cannot begin."""
        return any(isinstance(t, MacaTensor) for t in tensors) and self._takes_any(name)

    def _takes_any(self, name: str) -> bool:
        capture.refuse(f"{name} of torch.distributed")
        if self._broken is not None:
            raise dist.DistBackendError(
                f"mccl {name}: the group {self.group_name!r} is broken since an earlier failure, on rank {self._rank} "
                f"of {self._ranks}: {self._broken}"
            ) from self._broken
        return True

    def _issue(
        self,
        name: str,
        operands: Tensors,
        body: Callable[[Way], None],
        written: Tensors,
        result: Sequence[Value],
        is_asynchronous: bool = True,
        alike: str | None = None,
        **of_message: Value,
    ) -> MacaWork:
        """Begins ``body``. ``alike``: what is the same on every rank beside the name; None: nothing is carried. ``of_message`` is what only a send or a receive has, a lane of its own for one."""
        self._issued += 1
        peer = of_message.pop("peer", None)
        entry = flight_recorder.recorder().begin(self, name, operands, written or operands, peer)
        number = self._issued

        def run() -> None:
            flight_recorder.started(entry)
            try:
                body(self._carriers.way(None if alike is None else name + alike))
            except Exception as error:
                flight_recorder.ended(entry, error)
                member = Member(self._store, self.group_name, self._rank, self._ranks)
                self._broken = explained(member, number, called(name, operands), error)
                raise self._broken from error
            flight_recorder.ended(entry)

        lane = of_message.pop("lane", self._lane)
        work = MacaWork(lane, run, written, result, **of_message)
        work.show(name, operands, written)
        if self._coalesced is not None:
            self._coalesced.append(work)
            is_asynchronous = True
        if lane is self._lane:
            if is_asynchronous:
                lane.wake()
            else:
                work.wait()
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return Together(works)

    # --- reductions ---------------------------------------------------------------------------------------
    @shown_as("allreduce")
    def allreduce(self, tensors: Tensors, opts: Value = None, **given: Value) -> Work:
        reducer.stop_when_asked()
        opts = options_of(AllreduceOptions, opts, given)
        tensors = listed(tensors)
        if not self._takes("all_reduce", tensors):
            return self._by_host("allreduce", tensors, opts)
        return self._all_reduce("all_reduce", tensors, opts, tensors)

    @shown_as("allreduce_coalesced")
    def allreduce_coalesced(self, tensors: Tensors, opts: Value = None) -> Work:
        opts = opts or AllreduceCoalescedOptions()
        if not self._takes("all_reduce_coalesced", tensors):
            return self._by_host("allreduce_coalesced", tensors, opts)
        return self._all_reduce("all_reduce_coalesced", tensors, opts, tensors)

    @shown_as("reduce")
    def reduce(self, tensors: Tensors, opts: Value = None, **given: Value) -> Work:
        opts = options_of(ReduceOptions, opts, given)
        tensors = listed(tensors)
        if not self._takes("reduce", tensors):
            return self._by_host("reduce", tensors, opts)
        return self._all_reduce("reduce", tensors, opts, tensors if opts.rootRank == self._rank else ())

    def _all_reduce(self, name: str, tensors: Tensors, opts: Value, written: Tensors) -> Work:
        reduction = reduction_of(opts.reduceOp)
        root = getattr(opts, "rootRank", None)
        for tensor in tensors:
            reduction.check(tensor.dtype, name)
        self._carriers.see(tensors)
        sources = [Source(t, is_written=bool(written)) for t in tensors]
        targets: list[Target | None] = [Target(t, s) for t, s in zip(written, sources)]
        targets = targets or [None] * len(sources)
        computes = [reduction.is_gloo(t.dtype) for t in tensors]

        def body(way: Way) -> None:
            for source, target, is_gloos in zip(sources, targets, computes):
                if not (way.library and way.library.reduce(source, target, reduction, root)):
                    way.gloo().reduce(source, target, reduction, is_gloos)
                elif target is not None:
                    target.finish()

        alike = f"{reduction.name}{sizes_of(tensors)}{root}"
        return self._issue(name, tensors, body, written, tensors, opts.asyncOp, alike)

    @shown_as("reduce_scatter")
    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Value = None, **given: Value
    ) -> Work:
        opts = options_of(ReduceScatterOptions, opts, given)
        if not self._takes("reduce_scatter", outputs):
            return self._by_host("reduce_scatter", outputs, inputs, opts)
        return self._reduce_scatter("reduce_scatter", outputs, [Source.joined(row) for row in inputs], opts)

    @shown_as("_reduce_scatter_base")
    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Value = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    @shown_as("reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Value = None) -> Work:
        opts = opts or ReduceScatterOptions()
        if not self._takes("reduce_scatter_tensor", outputs):
            return Together(
                [self._of_host._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs)], outputs
            )
        for output, source in zip(outputs, inputs):
            check_sizes("reduce_scatter_tensor", "input", source, output, self._ranks)
        self._carriers.see(inputs)
        return self._reduce_scatter("reduce_scatter_tensor", outputs, [Source(t) for t in inputs], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(self, name: str, outputs: Tensors, sources: Sequence[Source], opts: Value) -> Work:
        reduction: Reduction = reduction_of(opts.reduceOp)
        for output in outputs:
            reduction.check(output.dtype, name)
        targets = [Target(t) for t in outputs]

        def body(way: Way) -> None:
            for source, target in zip(sources, targets):
                if way.library and way.library.reduce_scatter(source, target, reduction):
                    target.finish()
                else:
                    parts = source.host().view(-1).tensor_split(self._ranks)
                    target.put(way.gloo().reduce_scatter(parts, reduction))

        alike = f"{reduction.name}{[str(t.dtype) for t in outputs]}"
        return self._issue(name, outputs, body, outputs, outputs, opts.asyncOp, alike)

    # --- what only moves ----------------------------------------------------------------------------------
    @shown_as("broadcast")
    def broadcast(self, tensors: Tensors, opts: Value = None, **given: Value) -> Work:
        opts = options_of(BroadcastOptions, opts, given)
        tensors = listed(tensors)
        if not self._takes("broadcast", tensors):
            return self._by_host("broadcast", tensors, opts)
        root = opts.rootRank
        is_root = root == self._rank
        written = () if is_root else tensors
        ends: Sequence[Source | Target] = [Source(t) if is_root else Target(t) for t in tensors]

        def body(way: Way) -> None:
            for tensor, end in zip(tensors, ends):
                if way.library and way.library.broadcast(end, root):
                    end.finish()
                else:
                    end.put(
                        way.gloo().broadcast(
                            end.host() if isinstance(end, Source) else room_for(tensor), root
                        )
                    )

        return self._issue(
            "broadcast", tensors, body, written, tensors, opts.asyncOp, f"{sizes_of(tensors)}{root}"
        )

    @shown_as("allgather")
    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Value = None, **given: Value
    ) -> Work:
        opts = options_of(AllgatherOptions, opts, given)
        if not self._takes("all_gather", inputs):
            return self._by_host("allgather", outputs, inputs, opts)
        sources = [Source(t) for t in inputs]
        rows = [[Target(t) for t in row] for row in outputs]

        def body(way: Way) -> None:
            for row, source, targets in zip(outputs, sources, rows):
                if way.library and way.library.all_to_all([source] * self._ranks, targets):
                    finish(targets)
                else:
                    put_all(row, way.gloo().all_gather(source.host(), [room_for(t) for t in row]))

        written = [t for row in outputs for t in row]
        return self._issue(
            "all_gather", inputs, body, written, outputs, opts.asyncOp, sizes_of(written[: self._ranks])
        )

    @shown_as("allgather_coalesced")
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Value = None) -> Work:
        """``outputs[r][i]`` is what rank r gave as its input i."""
        if not self._takes("all_gather", inputs):
            return self._by_host("allgather_coalesced", outputs, inputs, opts or AllgatherOptions())
        return self.allgather([list(row) for row in zip(*outputs)], inputs, opts)

    @shown_as("_allgather_base")
    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Value = None) -> Work:
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single

    @shown_as("allgather_into_tensor_coalesced")
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Value = None) -> Work:
        opts = opts or AllgatherOptions()
        if not self._takes("all_gather_into_tensor", outputs):
            return Together(
                [self._of_host._allgather_base(o, i, opts) for o, i in zip(outputs, inputs)], outputs
            )
        for output, source in zip(outputs, inputs):
            check_sizes("all_gather_into_tensor", "output", output, source, self._ranks)
        self._carriers.see([*outputs, *inputs])
        ends = [(Source(t, is_part_of(t, o, self._rank)), Target(o)) for t, o in zip(inputs, outputs)]

        def body(way: Way) -> None:
            for source, target in ends:
                if way.library and way.library.all_gather(source, target):
                    target.finish()
                else:
                    target.put(together(way.gloo().all_gather(source.host())).view(source.dtype))

        return self._issue(
            "all_gather_into_tensor", inputs, body, outputs, outputs, opts.asyncOp, sizes_of(inputs)
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @shown_as("gather")
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Value = None, **given: Value) -> Work:
        opts = options_of(GatherOptions, opts, given)
        if not self._takes("gather", inputs):
            return self._by_host("gather", outputs, inputs, opts)
        written = [t for row in outputs for t in row]
        source, targets, root = Source(inputs[0]), [Target(t) for t in written], opts.rootRank

        def body(way: Way) -> None:
            nobody: list[None] = [None] * self._ranks
            if way.library and way.library.all_to_all(only(source, root, self._ranks), targets or nobody):
                finish(targets)
            else:
                received = [room_for(t) for t in written]
                way.gloo().gather(source.host(), received, root)
                put_all(written, received)

        return self._issue(
            "gather", inputs, body, written, outputs, opts.asyncOp, f"{sizes_of(inputs)}{opts.rootRank}"
        )

    @shown_as("scatter")
    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Value = None, **given: Value
    ) -> Work:
        opts = options_of(ScatterOptions, opts, given)
        if not self._takes("scatter", outputs):
            return self._by_host("scatter", outputs, inputs, opts)
        target, sources, root = Target(outputs[0]), [Source(t) for row in inputs for t in row], opts.rootRank

        def body(way: Way) -> None:
            nobody: list[None] = [None] * self._ranks
            if way.library and way.library.all_to_all(sources or nobody, only(target, root, self._ranks)):
                target.finish()
            else:
                room = room_for(outputs[0])
                way.gloo().scatter(room, [s.host() for s in sources], root)
                target.put(room)

        return self._issue(
            "scatter", outputs, body, outputs, outputs, opts.asyncOp, f"{sizes_of(outputs)}{opts.rootRank}"
        )

    @shown_as("alltoall")
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Value = None) -> Work:
        opts = opts or AllToAllOptions()
        self._takes("all_to_all", inputs)  # gloo has none for the host's tensors
        sources, targets = [Source(t) for t in inputs], [Target(t) for t in outputs]

        def body(way: Way) -> None:
            if way.library and way.library.all_to_all(sources, targets):
                finish(targets)
            else:
                received = [room_for(t) for t in outputs]
                way.gloo().all_to_all(received, [s.host() for s in sources])
                put_all(outputs, received)

        return self._issue("all_to_all", inputs, body, outputs, outputs, opts.asyncOp, "")

    @shown_as("alltoall_base")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Value = None,
    ) -> Work:
        opts = opts or AllToAllOptions()
        if not self._takes("all_to_all_single", [output]):
            return self._by_host(
                "alltoall_base", output, source, list(output_split_sizes), list(input_split_sizes), opts
            )
        given = split_bytes(source, input_split_sizes, self._ranks, "input")
        awaited = split_bytes(output, output_split_sizes, self._ranks, "output")
        whole, target = Source(source), Target(output)

        def body(way: Way) -> None:
            if way.library and way.library.all_to_all(
                whole.split(given), target.split(awaited), (whole, target)
            ):
                target.finish()
            else:
                room = room_for(output)
                way.gloo().all_to_all(as_bytes(room).split(awaited), as_bytes(whole.host()).split(given))
                target.put(room)

        return self._issue(
            "all_to_all_single", [source], body, [output], [output], opts.asyncOp, str(output.dtype)
        )

    alltoall_base = all_to_all_single

    # --- messages -----------------------------------------------------------------------------------------
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        if not self._takes("send", tensors):
            return Together.of([self._by_host("send", [p], dst, tag) for t in tensors for p in parts(t)])
        return self._message("send", tensors, Sending(self._of_host, tensors, dst, tag), dst)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        if not self._takes("recv", tensors):
            return Together.of([self._by_host("recv", [p], src, tag) for t in tensors for p in parts(t)])
        return self._message("recv", tensors, Receiving(self._of_host, tensors, src, tag), src)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        if not self._takes("recv", tensors) and all(len(parts(t)) == 1 for t in tensors):
            return self._by_host("recv_anysource", tensors, tag)
        return self._message("recv", tensors, Receiving(self._of_host, tensors, -1, tag), -1)

    def _message(self, name: str, tensors: Tensors, message: Sending | Receiving, peer: int) -> Work:
        """Its bytes are on their way before this returns, whoever waits for what: two ranks that send to one another
        before they receive do not wait for each other."""
        work = self._issue(
            name,
            tensors,
            lambda _: message.finish(),
            tensors if isinstance(message, Receiving) else (),
            tensors,
            lane=Lane(),
            peer=peer,
            has_arrived=message.has_arrived,
            source=message.source_rank if isinstance(message, Receiving) else None,
        )
        self._messages = [*(m for m in self._messages if not m.has_ended), work]
        return work

    # --- barriers -----------------------------------------------------------------------------------------
    def barrier(self, opts: Value = None) -> Work:
        """The agreement on the call is one already: no rank leaves it before all have come. In the lane of the
        collectives, so that a rank that calls another one meanwhile is told of."""
        opts = opts or BarrierOptions()
        self._takes_any("barrier")
        return self._issue("barrier", (), Way.agree, (), (), getattr(opts, "asyncOp", True), "")
