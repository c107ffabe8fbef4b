"""The README and the pages in docs: examples run, commands exist, links lead somewhere, what is generated is up to date."""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from typer.main import get_command

from stocktake_jax import __version__
from stocktake_jax.cli import app, main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), ROOT / "notebooks" / "README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

CHEAP = ("--version", "agents list", "classify", "replay", "tape", "world")
"""Commands that the pages may show and that are run as they stand there. Others are only held against the parser: they
take long, wait for input, or need a file that the page does not make."""


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line that it begins on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in found]


def command_lines(page: Path) -> Iterator[tuple[int, list[str], str | None]]:
    """The `stocktake` commands in fenced blocks: line, arguments, and the file that the output goes to."""
    for block in blocks(page):
        if block.language in ("text", "python"):
            continue
        for number, line in enumerate(block.text.splitlines(), block.line):
            for part in line.split(" && "):
                words = shlex.split(part, comments=True)
                if words[:1] == ["stocktake"]:
                    target = words[words.index(">") + 1] if ">" in words else None
                    yield number, words[1 : words.index(">") if ">" in words else None], target


@functools.cache
def program() -> Any:
    """The command line as an object that can be asked."""
    return get_command(app)


def parse(arguments: list[str]) -> None:
    """Hold a command line against the program's parser, without running it."""
    command = program()
    rest = list(arguments)
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"):
            command.make_context("stocktake", rest, resilient_parsing=True)
            return
        assert rest[0] in command.commands, f"there is no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    command.make_context("stocktake", rest)


# ---- examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_examples_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    standard_promotion: None,
) -> None:
    """Blocks of Python and cheap commands, in the order of the page, in one empty folder."""
    monkeypatch.chdir(tmp_path)
    name = f"page_{page.stem}"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    commands = list(command_lines(page))
    for block in blocks(page):
        # Line numbers of the page, so that an error names the line at fault.
        padded = "\n" * (block.line - 1) + block.text
        if block.language == "python":
            capsys.readouterr()
            exec(compile(padded, str(page), "exec", dont_inherit=True), module.__dict__)
            assert "print(" not in block.text or capsys.readouterr().out.strip()
        elif block.language == "json":
            json.loads(block.text)
        last = block.line + block.text.count("\n")
        for number, arguments, target in commands:
            if block.line <= number < last:
                parse(arguments)
                if " ".join(arguments).startswith(CHEAP):
                    capsys.readouterr()
                    with pytest.raises(SystemExit) as exit_:
                        main(arguments)
                    out = capsys.readouterr().out
                    assert exit_.value.code == 0, f"{page.name}, line {number}"
                    assert out.strip()
                    if target is not None:
                        Path(target).write_text(out, encoding="utf-8")


def test_there_are_examples() -> None:
    readme = [block.text for block in blocks(PAGES[0]) if block.language == "python"]
    assert len(readme) >= 4
    assert sum("(Factor):" in block for block in readme) == 1
    assert sum(len(list(command_lines(page))) for page in PAGES) >= 12


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_in_running_text_exist(page: Path) -> None:
    """Every `stocktake ...` in backticks begins with a command, and has none but that command's options."""
    faults = []
    for span in re.findall(r"`stocktake ([^`]+)`", " ".join(prose(page).split())):
        command = program()
        words = span.split()
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        known = {"--help", "--version"} if hasattr(command, "commands") else {"--help"}
        known |= {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        bare = hasattr(command, "commands") and words and not words[0].startswith("-") and not words[0].isupper()
        if bare or any(w.startswith("--") and w.split("=")[0].rstrip(".,") not in known for w in words):
            faults.append(span)
    assert faults == []


# ---- links ----------------------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """A page, or a notebook's text cells, without fenced blocks."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = prose(page)
    found: dict[str, int] = {}
    out = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, re.M):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        out.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return out


def links(page: Path) -> list[str]:
    """Targets of links and pictures, outside of code."""
    text = re.sub(r"`[^`\n]+`", "code", prose(page))
    return re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)


def fault(page: Path, link: str) -> str | None:
    """Why a link leads nowhere; None if it does lead somewhere, or to another host."""
    if re.match(r"https?://[\w.-]+\.\w+(/|$)", link):
        return None
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{link}: there is no such file"
    if not target.is_relative_to(ROOT):
        return f"{link}: outside of the repository"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target)):
        return f"{link}: there is no such heading"
    return None


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=[*NAMES, *(path.stem for path in NOTEBOOKS)])
def test_links_lead_somewhere(page: Path) -> None:
    assert [f for f in (fault(page, link) for link in links(page)) if f] == []


def test_the_link_check(tmp_path: Path) -> None:
    page = DOCS / "index.md"
    assert fault(page, "concepts.md") is None
    assert fault(page, "concepts.md#the-question-that-the-benchmark-asks") is None
    assert fault(page, "https://arxiv.org/abs/2607.13618") is None
    assert "no such file" in str(fault(page, "nothing.md"))
    assert "no such heading" in str(fault(page, "concepts.md#nothing"))
    assert "outside" in str(fault(page, "../.."))
    other = tmp_path / "page.md"
    other.write_text(
        "# A `b`: c, d\n\n## A\n## A\n\n```\n# no heading\n[x](y)\n```\n`[x](y)` [p](q.md#r) ![i](<j k>)\n"
    )
    assert anchors(other) == {"a-b-c-d", "a", "a-1"}
    assert links(other) == ["q.md#r", "j"]


def test_every_page_is_reached_from_the_first() -> None:
    reached, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        found = (unquote(link).partition("#")[0] for link in links(page))
        todo += [(page.parent / path).resolve() for path in found if path.endswith(".md")]
    assert set(PAGES) - reached == set()


# ---- what is generated ----------------------------------------------------------------------------------------------


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run docs/build.py in a process of its own: shape checks of this one are no part of the documentation."""
    return subprocess.run(
        [sys.executable, str(DOCS / "build.py"), *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_what_to_cite_is_this_version() -> None:
    assert f"version = {{{__version__}}}," in (DOCS / "citing.md").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_command_reference_is_up_to_date(tmp_path: Path) -> None:
    result = build("commands", "--out", str(tmp_path / "commands.md"))
    assert result.returncode == 0, result.stderr
    fresh = (tmp_path / "commands.md").read_text(encoding="utf-8")
    assert fresh == (DOCS / "commands.md").read_text(encoding="utf-8"), "run: python docs/build.py commands"


def test_the_api_reference_builds_without_a_warning(tmp_path: Path) -> None:
    result = build("api", "--out", str(tmp_path / "api"))
    assert result.returncode == 0, result.stderr[-2000:]
    assert "warning" not in result.stderr.lower()
    page = (tmp_path / "api" / "stocktake_jax" / "models.html").read_text(encoding="utf-8")
    assert "One regime of a factor" in page
    assert not list(tmp_path.rglob("__init__.html"))
