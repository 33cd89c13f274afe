"""The request of launches that become one, for the kernel ``pointwise_program``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from macatensor.compiling.launches import Extent, Launch, Source
from macatensor.dispatch.request import Attribute, Declined, Operand, Request
from macatensor.runtime.boxed import Value
from macatensor.runtime.meta import Meta, contiguous_meta

_MOST_REGISTERS = 48


class Program:
    """Launches as parts of one, and where its operands are.

    ``count``: elements of the index space, in rows of ``row``, 0 where no part works on rows; ``is_private``: is the
    memory read by these launches alone?
    """

    def __init__(self, launches: Sequence[Launch], count: int, row: int, is_private: Callable[[int], bool]):
        self.count, self.row = count, row
        self.inputs: list[Source] = []
        self.registers: list[Meta] = []
        self.extents: list[Extent] = []
        self.operands: list[int] = []
        self.numbers: list[str] = []
        self.attributes: list[tuple[str, Attribute]] = []
        self.parts: list[str] = []
        self.by_rows: list[int] = []
        self.scalars = 0
        self.last_read: dict[int, int] = {}  # of registers, by the number of the part
        self.first_write: dict[tuple[int, int], int] = {}  # of places
        held: dict[Source, int] = {}  # registers of inputs
        at: dict[tuple[int, int], int] = {}  # of results, by where they are
        for launch in launches:  # inputs come first
            for source in launch.sources:
                if source is not None and source.place not in at and source not in held:
                    held[source] = len(self.inputs)
                    self.inputs.append(source)
            at.update((result.touch.place, -1) for result in launch.results)
        self.registers = [s.meta for s in self.inputs]
        self.extents = [s.extent for s in self.inputs]
        at.clear()
        for number, launch in enumerate(launches):
            self._add(number, launch, held, at)
        self.results = [(place, register) for place, register in at.items() if not is_private(place[0])]

    def _add(
        self, number: int, launch: Launch, held: dict[Source, int], at: dict[tuple[int, int], int]
    ) -> None:
        request = launch.request
        self.parts.append(request.kernel)
        self.operands.append(len(launch.sources))
        read = []
        for (meta, slot), source in zip(request.operands, launch.sources):
            if source is not None:
                register = at.get(source.place)
                read.append(held[source] if register is None else register)
                self.operands.append(read[-1])
            elif meta is None:
                self.operands.append(-1)
            else:
                self.operands.append(-2 - (self.scalars + slot))
                self.numbers.append(str(meta.dtype).removeprefix("torch."))
        for name, value in request.attributes:
            if name.endswith(".scalar") and isinstance(value, int):
                value += self.scalars
            if launch.row:
                value = _of_matrix(request, name, value, launch.row)
            self.attributes.append((f"{number}:{name}", value))
        self.scalars += launch.scalars
        self.operands.append(len(launch.results))
        on = Extent.ELEMENTS if launch.count == self.count else Extent.ROWS
        self.last_read |= dict.fromkeys(read, number)
        for touch, meta, extent in launch.results:
            self.first_write.setdefault(touch.place, number)
            at[touch.place] = len(self.registers)
            self.operands.append(len(self.registers))
            self.registers.append(meta)
            self.extents.append(extent if launch.row else on)
        if launch.row or any(self.extents[r] is not on for r in read):
            self.by_rows.append(number)

    def key(self) -> object:
        """Of what :meth:`request` says."""
        return (
            self.count,
            self.row,
            tuple((s.meta, s.extent) for s in self.inputs),
            tuple(r for _, r in self.results),
            tuple(self.operands),
            tuple(self.parts),
            tuple((n, type(v), tuple(v) if isinstance(v, (list, tuple)) else v) for n, v in self.attributes),
            tuple(m.dtype for m in self.registers),
        )

    def request(self) -> Request:
        """Raises :class:`Declined` where there are too many registers."""
        if len(self.registers) > _MOST_REGISTERS or not self.results:
            raise Declined("a program of too many registers")
        request = Request("pointwise_program")
        request.add([Operand(s.meta) for s in self.inputs], is_list=True, is_output=False)
        dense = []
        for _, register in self.results:
            n = self.count if self.extents[register] is Extent.ELEMENTS else self.count // self.row
            dense.append(contiguous_meta((n,), self.registers[register].dtype))
        request.add([Operand(m) for m in dense], is_list=True, is_output=True)
        request.slots(self.scalars)
        said: dict[str, Value] = {
            "registers": " ".join(str(m.dtype).removeprefix("torch.") for m in self.registers),
            "outputs": [r for _, r in self.results],
            "parts": " ".join(self.parts),
            "operands": self.operands,
            "numbers": " ".join(self.numbers),
        }
        if self.row:
            said |= {"row": self.row, "extents": [int(e) for e in self.extents], "by_rows": self.by_rows}
        request.attributes += [*said.items(), *self.attributes]
        return request

    def places(self) -> list[tuple[int, int]]:
        """Stand-in and offset of every operand."""
        return [s.place for s in self.inputs] + [place for place, _ in self.results]

    def heirs(self, launches: Sequence[Launch]) -> list[tuple[int, int]]:
        """Inputs and results, of which the second may lie where the first does, if nothing else needs that."""
        found = []
        for i, source in enumerate(self.inputs):
            memory, begin = source.place
            alone = sum(other.place[0] == memory for other in self.inputs) == 1
            if not alone or not source.is_direct or self.extents[i] is not Extent.ELEMENTS:
                continue
            for place, register in self.results:
                number = self.first_write[place]
                read = self.last_read.get(i, -1)
                if (
                    place[1] == begin
                    and self.extents[register] is Extent.ELEMENTS
                    and self.registers[register].itemsize == source.meta.itemsize
                    and (read < number or (read == number and not launches[number].row))
                ):
                    found.append((memory, place[0]))
        return found


def _of_matrix(request: Request, name: str, value: Attribute, row: int) -> Attribute:
    """An attribute of a kernel that works on rows, for operands that are matrices of rows."""
    if name == "keepdim":
        return True
    if name != request.by_rows:
        return value
    if name == "normalized_shape":
        return [row]
    return 1 if isinstance(value, int) else [1]
