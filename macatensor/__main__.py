"""``python -m macatensor``: the command line."""

from macatensor.cli import main

main()
