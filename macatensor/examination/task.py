"""What is asked, and what came of it: plain data that travels between processes as JSON lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from macatensor.runtime.boxed import Value


@dataclass(frozen=True)
class Task:
    """One question to one entry of a database in one dtype (PyTorch's name, ``"float32"``)."""

    question: str
    database: str  # "operators", "references" or "foreach"
    entry: str  # OpInfo's name with its variant: "div.floor_rounding"
    dtype: str

    @property
    def key(self) -> str:
        return f"{self.question} {self.database} {self.entry} {self.dtype}"


Asked = tuple[Task, int | None]  # and of how many samples at most


@dataclass
class Answer:
    """``outcome``: "pass", "fail", "empty" (nothing to ask: no sample that PyTorch itself computes), "crash", "hang"."""

    task: Task
    outcome: str = "pass"
    samples: int = 0
    detail: str = ""  # the first sample that is wrong, and how
    wrong: int = 0  # samples that are
    wrong_first: int = 0  # of those, among the first five
    nearer: int = 0  # samples apart from PyTorch's by rounding, and nearer to float64
    max_ulp: float = 0.0  # from PyTorch's result of the same dtype
    on_cpu: dict[str, int] = field(default_factory=dict)  # operators that ran on the host, with calls
    kinds: dict[str, int] = field(default_factory=dict)  # calls by kind of row
    seconds: float = 0.0  # of processor time

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Value]) -> Answer:
        return Answer(**{**value, "task": Task(**value["task"])})
