"""``macatensor migrate``: sources written for CUDA become sources for maca."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Json, emit_json, err, error_panel, out, table

if TYPE_CHECKING:
    from macatensor.migrate.project import Migration


def migrate(
    path: Annotated[Path, typer.Argument(help="A script, or a folder of sources. It is only read.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the new sources go: an empty or new folder.")],
    rules: Annotated[Path | None, typer.Option(help="JSON file of your own renames.", show_default=False)] = None,
    report: Annotated[bool, typer.Option("--report", help="Write lists to OUTPUT/migration: changes.csv, unsupported.xlsx.")] = False,
    similar: Annotated[bool, typer.Option("--similar", help="Where there is no counterpart use a near API, and list it.")] = False,
    nhwc: Annotated[bool, typer.Option("--nhwc", help="Let 4-D tensors become channels_last, and write reshape for view.")] = False,
    distributed: Annotated[bool, typer.Option("--distributed", help="Wrap the model of --main for several processes.")] = False,
    main: Annotated[str, typer.Option("--main", "-m", help="Script that makes the model, relative to PATH.")] = "main.py",
    target: Annotated[str, typer.Option("--target", "-t", help="Variable that holds the model.")] = "model",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rewrite sources for CUDA: device strings, torch.cuda, .cuda(), cudnn, mixed precision, imports.

    Exit status: 0 when nothing is left to do, 1 when the lists name something for you, 2 when nothing was written.
    """
    try:
        import libcst  # noqa: F401
        import openpyxl  # noqa: F401
    except ModuleNotFoundError as error:
        error_panel(
            "The migration needs more packages",
            f"{error}. Install them with: pip install 'macatensor[migrate]'",
        )
        raise typer.Exit(2) from None
    from macatensor.migrate import project
    from macatensor.migrate import report as lists
    from macatensor.migrate.rules import Rules, RulesError, UserRules

    try:
        chosen = Rules(UserRules.load(rules) if rules is not None else UserRules(), similar, nhwc)
        if not all(part.isidentifier() for part in target.split(".")):
            raise project.MigrationError(f"--target {target!r} is no variable")
        done = project.migrate(path, output, chosen, (Path(main).as_posix(), target) if distributed else None)
    except (RulesError, project.MigrationError) as error:
        if as_json:
            emit_json({"error": str(error)})
        error_panel("Nothing was migrated", str(error))
        raise typer.Exit(2) from None
    written = lists.write(done) if report else ()
    if as_json:
        emit_json(lists.facts(done, written))
    else:
        show(done, written)
    if done.findings or done.unparsed:
        raise typer.Exit(1)


def show(done: Migration, written: tuple[Path, ...]) -> None:
    """Prints what was done and what is left."""
    from collections import Counter

    counts = Counter(c.rule for c in done.changes)
    page = table("Rewritten", "rule", "places", right=("places",))
    for rule, count in counts.most_common():
        page.add_row(rule, str(count))
    if counts:
        out.print(page)
    if done.findings:
        page = table("Left for you", "place", "API", "why", "remedy")
        for f in done.findings:
            page.add_row(f"{f.file}:{f.line}", f.api, f.why, f.remedy)
        out.print(page)
    for file, why in done.unparsed.items():
        err.print(f"not rewritten: {file} ({why})", markup=False, highlight=False, soft_wrap=True)
    out.print(
        f"{len(done.rewritten)} of {done.files} files rewritten, {len(done.changes)} changes: {done.output}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    for path in written:
        out.print(f"List: {path}", markup=False, highlight=False, soft_wrap=True)
