"""PyTorch's meta kernels against its CPU kernels: where they differ, a row of ours must know."""

from __future__ import annotations

import pytest
import torch
from running import threads_restored

from macatensor.examination.survey import rule_of, survey


@pytest.mark.timeout(600)
def test_every_disagreement_is_a_rule() -> None:
    with threads_restored(1):
        seen = survey()
    assert len(seen.asked) > 500
    # the survey itself must see what is known to differ
    assert torch.ops.aten.convolution.default in seen.differs
    unruled = [f"{func}: {example}" for func, example in seen.differs.items() if not rule_of(func)]
    assert not unruled, "\n".join(unruled)
