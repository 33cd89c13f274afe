"""What every test shares: no silent run on the host, fixed seeds, bounded hypothesis."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before macatensor is imported: an operator without a working kernel fails its test.
os.environ.setdefault("MACA_FALLBACK", "error")
# A layout policy of the user's shell must not decide what tests see.
os.environ.pop("PYTORCH_DEFAULT_NCHW", None)

# PyTorch's OpenMP threads spin for each other; on a busy machine that took minutes of the parity tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What an earlier session compiled must not decide what this one sees.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="macatensor-tests-")

import pytest
import torch
from hypothesis import HealthCheck, settings

# What the bars are stated for.
torch.set_num_threads(min(2, os.cpu_count() or 1))

_common = {
    "deadline": None,  # the first call of a signature builds a plan
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    "print_blob": True,
}
settings.register_profile("ci", max_examples=60, derandomize=True, **_common)
settings.register_profile("wide", max_examples=2000, **_common)
settings.register_profile("long", max_examples=100_000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
# four ranks and compiled programs take minutes: `make long` has them
collect_ignore = (
    []
    if os.environ.get("HYPOTHESIS_PROFILE") == "long"
    else ["test_distributed_accuracy.py", "test_distributed_mixtures.py"]
)


# More than half of the suite's time, and every row, every part of the random calls, stands alone: dealt out one by one
# after all files, they keep every worker busy to the end. The tests of any other file share fixtures or state, so one
# worker runs them in order.
_ONE_BY_ONE = ("tests/test_parity.py", "tests/test_fuzz.py")


@pytest.hookimpl(optionalhook=True)  # pytest without pytest-xdist runs the suite too
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file in _ONE_BY_ONE else file

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from expected_failures import OF_PYTORCH

    from macatensor.integration import pytorch_versions

    reasons = OF_PYTORCH.get(pytorch_versions.running(), {})
    for item in items:
        if item.nodeid in reasons:
            item.add_marker(pytest.mark.xfail(reason=reasons[item.nodeid], strict=True))


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _free_global_flags() -> Iterator[None]:
    """PyTorch's own test modules freeze global flags for the whole process; programs find them free."""
    flags = torch.backends.flags_frozen.__globals__
    name = "__allow_nonbracketed_mutation_flag"
    before, flags[name] = flags[name], True
    yield
    flags[name] = before


@pytest.fixture(autouse=True)
def _samples_of_no_unittest() -> None:
    if "torch.testing._internal.common_utils" in sys.modules:
        from macatensor.examination.entries import seek_no_unittest

        seek_no_unittest()


@pytest.fixture(autouse=True, scope="session")
def _own_tuning_bank(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests measure stays theirs: the user's bank is neither read nor written."""
    from macatensor.choices import deciding

    deciding.settings().path = tmp_path_factory.mktemp("tuning") / "bank.jsonl"


@pytest.fixture(autouse=True)
def _seeded(_free_global_flags: None) -> None:
    from macatensor.runtime.random import seed_host_and_device

    seed_host_and_device(0)


@pytest.fixture(scope="session")
def interposer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled interposer."""
    from interposer_library import compile_interposer

    return compile_interposer(tmp_path_factory.mktemp("interposer"))
