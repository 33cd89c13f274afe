"""What a session was asked to record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

Numbering = Literal["operator", "execution"]  # what the numbers in names of op_range count

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`macatensor.accuracy.start_record`."""

    output_dir: str = "./record_dir"
    record_level: int = 2
    record_stack: bool = True
    record_input: bool = True
    record_output: bool = True
    op_range: Sequence[str | None] = field(default_factory=list)
    op_list: Sequence[str] = field(default_factory=list)
    skip: int = 0
    process_group: ProcessGroup | None = None
    ranks: Sequence[int] = field(default_factory=list)
    numbering: Numbering = "operator"

    def __post_init__(self) -> None:
        if isinstance(self.record_level, bool) or self.record_level not in (0, 1, 2):
            raise ValueError(
                f"accuracy: record_level is 0 (structure), 1 (numbers) or 2 (whole tensors); got {self.record_level!r}"
            )
        if isinstance(self.op_list, str) or isinstance(self.op_range, str):
            raise TypeError("accuracy: op_list and op_range are lists of names, not one name")
        if self.numbering not in ("operator", "execution"):
            raise ValueError(f"accuracy: numbering is 'operator' or 'execution'; got {self.numbering!r}")
        if any(isinstance(r, bool) or not isinstance(r, int) for r in self.ranks):
            raise TypeError(f"accuracy: ranks are a list of numbers; got {self.ranks!r}")

    def shown(self) -> dict[str, object]:
        """As JSON has them."""
        held = asdict(replace(self, process_group=None))
        held["process_group"] = None if self.process_group is None else repr(self.process_group)
        return held

    def for_child(self) -> Settings:
        """For another process, which has groups of its own."""
        return replace(self, process_group=None)

    def rank(self) -> int | None:
        """This process's rank in the group, the world's if there is none; None when it is no member."""
        from macatensor.accuracy.recording.runs import rank

        return rank(self.process_group)

    def chooses_this_process(self) -> bool:
        """Do ``ranks`` and ``process_group`` take this process?"""
        mine = self.rank()
        return mine is not None and (not self.ranks or mine in self.ranks)
