"""The documentation's table of names: complete, proven by tests, and up to date."""

from __future__ import annotations

import re

from support_table import TESTS, claims, page, written
from supported_names import AREAS, expand
from torch.testing._internal.common_optimizers import optim_db

from macatensor.runtime import switches

NAMES = [name for lines in AREAS.values() for name in expand(lines)]
MOST_REFUSED = 0.05


def test_every_name_is_proven_once_listed() -> None:
    assert len(NAMES) == len(set(NAMES))
    proven = {c.name for c in claims()}
    assert not set(NAMES) - proven, f"no test is marked with {sorted(set(NAMES) - proven)}"
    assert not proven - set(NAMES), f"not in supported_names.py: {sorted(proven - set(NAMES))}"


def test_it_has_what_tests_are_marked_with() -> None:
    for claim in claims():
        if claim.name.startswith("torch.optim."):
            continue  # from PyTorch's database; the next test compares
        text = (TESTS / claim.test.partition("::")[0]).read_text()
        marks = re.sub(r"mark\.(supports|refuses)\([^)]*\)", "", text)
        last = claim.name.rpartition(".")[2].lstrip("-")
        assert last in marks, f"{claim.test} is marked with {claim.name} and has no {last}"


def test_no_name_both_works_and_is_refused() -> None:
    found = claims()
    assert not {c.name for c in found if c.reason} & {c.name for c in found if not c.reason}


def test_few_are_refused() -> None:
    refused = {c.name for c in claims() if c.reason}
    assert len(refused) <= MOST_REFUSED * len(NAMES), sorted(refused)


def test_lists_that_the_code_has_too() -> None:
    assert set(switches.ALL) <= set(NAMES)
    assert {f"torch.optim.{info.optim_cls.__name__}" for info in optim_db} == set(
        expand(AREAS["torch.optim"])
    )


def test_the_page_is_up_to_date() -> None:
    assert written() == page(), "run python tests/support_table.py --write"
