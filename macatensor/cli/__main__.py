"""``python -m macatensor.cli``: the command line."""

from macatensor.cli import main

main()
