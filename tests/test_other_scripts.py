"""What judges scripts of other makers (tests/other_scripts); the scripts themselves are run where their sources lie."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "other_scripts"))
from judging import apart
from listed import REPOSITORIES, SCRIPTS


def test_scripts_have_names_of_their_own() -> None:
    names = [script.name for script in SCRIPTS]
    assert len(set(names)) == len(names) >= 60
    assert {before for script in SCRIPTS for before in script.before} <= set(names)
    assert {script.path.partition("/")[0] for script in SCRIPTS} == set(REPOSITORIES)


def test_first_loss_is_held_more_closely() -> None:
    assert apart([1.000009, 1.0009], [1.0, 1.0]) == ""
    assert apart([1.00002, 1.0], [1.0, 1.0]) == "loss 0: 1.00002, the CPU's 1"
    assert apart([1.0, 1.002], [1.0, 1.0]) == "loss 1: 1.002, the CPU's 1"


def test_missing_losses_are_a_difference() -> None:
    assert apart([1.0], [1.0, 1.0]) == "1 losses, on the CPU 2"


def test_numbers_that_are_none_are_none_twice() -> None:
    assert apart([1.0, float("nan")], [1.0, float("nan")]) == ""
    assert apart([1.0, float("nan")], [1.0, 1.0]) == "loss 1: nan, the CPU's 1"


def test_rounding_that_is_magnified_explains_twice_its_movement() -> None:
    assert apart([1.0, 1.002], [1.0, 1.0], moved=[[1.0, 1.0], [1.0, 1.0015]]) == ""
    assert apart([1.0, 1.002, 1.02], [1.0, 1.0, 1.0], moved=[[1.0, 1.0015, 1.0]]).startswith("loss 2")
