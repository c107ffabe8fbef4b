"""Makes what of the documentation is made from the program itself.

    python docs/build.py commands   writes docs/commands.md, the command reference
    python docs/build.py api        writes the API reference to docs/api (git-ignored); open docs/api/index.html

A test fails when commands.md is out of date. The API reference needs pdoc (extra `dev`); any warning while it is built
is an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ForwardRef

HERE = Path(__file__).parent

HEAD = """\
# Command reference

Made from the program itself by `python docs/build.py commands`; do not edit it by hand. `stocktake COMMAND --help` says
the same in a terminal.

Rules that hold for every command: bad input ends with one line on standard error and exit status 2; a check that finds a
difference ends with 1, an interruption with 130. `--json` prints JSON to standard output and nothing else (commands with
one row per seed or episode print one JSON object a line), undefined numbers as `null`. Progress goes to standard error.
"""


def commands() -> str:
    """The command reference as Markdown."""
    from typer.main import get_command

    from stocktake_jax.cli import app

    found = list(_leaves(get_command(app), ("stocktake",)))
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    for path, command in found:
        name = " ".join(path)
        lines.append(f"| [`{name}`](#{'-'.join(path)}) | {_cell((command.help or '').split(chr(10) + chr(10))[0])} |")
    for path, command in found:
        lines += ["", f"## {' '.join(path)}", "", *_page(path, command)]
    return "\n".join(lines) + "\n"


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that do something, in alphabetical order, with the words that call them."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in sorted(inner):
        yield from _leaves(inner[name], (*path, name))


def _page(path: tuple[str, ...], command: Any) -> list[str]:
    context = command.make_context(" ".join(path), [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = ["```text", usage, "```", "", *(command.help or "").strip().splitlines()]
    rows = [(p.param_type_name, p.get_help_record(context)) for p in command.params if not getattr(p, "hidden", False)]
    for kind in ("argument", "option"):
        table = [(record[0], record[1]) for k, record in rows if k == kind and record]
        if table:
            lines += ["", f"| {kind} | meaning |", "|---|---|"]
            lines += [f"| `{name}` | {_cell(text)} |" for name, text in table]
    return lines


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def api(folder: Path) -> Path:
    """Write the API reference; returns its first page."""
    import equinox
    import pdoc

    import stocktake_jax

    warnings.simplefilter("error")
    for module in _modules(stocktake_jax.__name__):
        for name in getattr(module, "__all__", ()):
            vars(module).setdefault(name, getattr(module, name))  # exported on first use; pdoc looks no further
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, equinox.Module) and thing.__module__ == module.__name__:
                _plain_signature(thing)
            elif isinstance(thing, type) and hasattr(thing, "_fields") and thing.__module__ == module.__name__:
                _resolved_signature(thing, vars(module))
    pdoc.render.configure(docformat="google", search=True, footer_text=f"stocktake-jax {stocktake_jax.__version__}")
    pdoc.pdoc(stocktake_jax.__name__, output_directory=folder)
    return folder / "index.html"


def _modules(package: str) -> Iterator[Any]:
    import importlib
    import pkgutil

    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        yield importlib.import_module(found.name)


def _plain_signature(thing: type) -> None:
    """Show a field's declared type in the signature of a module's constructor.

    equinox puts there what the field's converter takes, as a string that has a meaning in the converter's file alone.
    """
    annotations = getattr(thing.__init__, "__annotations__", {})
    for field in dataclasses.fields(thing):
        if field.name in annotations:
            annotations[field.name] = field.type


def _resolved_signature(thing: type, names: dict[str, Any]) -> None:
    """Resolve the annotations of a named tuple's constructor, which says of itself that it comes from no file."""
    annotations = thing.__new__.__annotations__
    for field, reference in annotations.items():
        if isinstance(reference, ForwardRef):
            annotations[field] = eval(reference.__forward_arg__, names)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("commands", "api"))
    parser.add_argument("--out", type=Path, help="where to write, instead of docs/commands.md or docs/api")
    given = parser.parse_args()
    if given.what == "commands":
        page = given.out or HERE / "commands.md"
        page.write_text(commands(), encoding="utf-8")
    else:
        page = api(given.out or HERE / "api")
    print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
