"""The package as a whole: what importing it does, who may import whom, and what is shipped."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import stocktake_jax
from stocktake_jax.models import Port

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "stocktake_jax"
LAYERS = ("models", "inference", "desk", "policies", "evaluation", "plots", "report", "agents")  # lowest first
# What only an extra installs.
EXTRAS = (
    *(
        "arviz_base",
        "beartype",
        "dynamax",
        "gymnasium",
        "hmmlearn",
        "hypothesis",
        "inspect_ai",
        "ipywidgets",
        "IPython",
    ),
    *("matplotlib", "mcp", "pyarrow", "pytest", "selenium"),
)
# The README's two commands, to the letter: a newcomer's first lines, and the ones that .ci/run executes.
INSTALL = "python3 -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt"
BENCH_COMMAND = f"{INSTALL} . && stocktake bench"
TEST_COMMAND = f"{INSTALL} -e '.[dev,all,peers]' && pytest -n 2"


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, name: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, wherever in the file, as (line, absolute dotted name)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = name.split(".")
                parent = parent[: len(parent) - node.level + is_package]
                base = ".".join([*parent, base] if base else parent)
            # `from package import name`: the name may be a module of its own, so it is judged with its prefix.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layering_fault(importer: str, imported: str) -> str | None:
    """Says what is wrong with one import inside the package, or None."""
    mine, theirs = importer.split(".")[1:2], imported.split(".")[1:2]
    top = not mine or mine[0] == "__main__" or mine[0].startswith("cli")
    if theirs and theirs[0].startswith("cli") and not (top and mine):
        return "nothing imports the command line"
    if top:
        return None  # the top may use everything below it
    if theirs and theirs[0] in LAYERS:
        rank = LAYERS.index(mine[0]) if mine[0] in LAYERS else -1  # helper modules at the top lie under all layers
        return None if LAYERS.index(theirs[0]) <= rank else "imports go down only: " + " -> ".join(reversed(LAYERS))
    if theirs == ["__version__"] or (theirs and (PACKAGE / f"{theirs[0]}.py").exists()):
        return None
    return "import from the layer that defines it: the package's __init__ lies above every layer"


def import_faults(path: Path, name: str) -> list[str]:
    faults = []
    for line, imported in imports(path, name, path.name == "__init__.py"):
        top, *rest = imported.split(".")
        if top == "stocktake_jax":
            fault = layering_fault(name, imported)
        else:
            private = top != "__future__" and any(part.startswith("_") for part in (top, *rest))
            fault = "a private name of another package" if private else None
        if fault:
            faults.append(f"{name}:{line} imports {imported}: {fault}")
    return faults


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter, from the repository root, without this session's JAX settings."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )


# ---- importing ------------------------------------------------------------------------------------------------------

PROBE = """
import importlib, json, logging, os, random, sys, threading, warnings
import jax, numpy as np
{before}
def snapshot():
    return {{
        "jax": {{name: repr(value) for name, value in jax.config.values.items()}},
        "warnings": [repr(row) for row in warnings.filters],
        "root logger": [repr(logging.root.handlers), logging.root.level, logging.root.manager.disable],
        "jax logger": [repr(logging.getLogger("jax").handlers), logging.getLogger("jax").level],
        "environment": dict(os.environ),
        "path": list(sys.path),
        "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(sys.meta_path), repr(warnings.showwarning)],
        "numpy": [repr(np.geterr()), repr(np.get_printoptions()), repr(np.random.get_state())],
        "random": hash(random.getstate()),
        "threads": threading.active_count(),
        "recursion": sys.getrecursionlimit(),
    }}
start = snapshot()
for name in {modules!r}:
    importlib.import_module(name)
end = snapshot()
print(json.dumps({{key: [start[key], end[key]] for key in start if start[key] != end[key]}}))
"""
# The libraries that we build on may touch such things when imported; that is theirs. What we add is compared.
LIBRARIES = "import equinox, numpyro, optax, rich, scipy.stats, typer, jaxtyping, tomli_w"


def test_importing_changes_nothing_global() -> None:
    modules = [module_name(path) for path in sources() if path.name != "__main__.py"]
    result = run_python(PROBE.format(before=LIBRARIES, modules=modules))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {}
    assert result.stderr == ""


@pytest.mark.parametrize("module", ["stocktake_jax", "stocktake_jax.cli"])
def test_importing_starts_no_backend_and_needs_no_extra(module: str) -> None:
    # No device may be claimed: jax.distributed must still be startable, and `stocktake --help` must be quick. With a
    # platform that does not exist the first array raises, and None in sys.modules makes an import raise.
    code = f"""
import sys
for name in {EXTRAS!r}:
    sys.modules[name] = None
import {module}
"""
    result = run_python(code, JAX_PLATFORMS="no_such_platform")
    assert result.returncode == 0, result.stderr


def test_version_is_the_installed_one() -> None:
    assert stocktake_jax.__version__ == importlib.metadata.version("stocktake-jax")
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited.group(1) == stocktake_jax.__version__


# ---- who imports whom -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_imports_go_down_and_use_public_names(path: Path) -> None:
    assert import_faults(path, module_name(path)) == []


@pytest.mark.parametrize(
    ("name", "line", "allowed"),
    [
        ("stocktake_jax.desk.books", "from stocktake_jax.models import tape", True),
        ("stocktake_jax.desk.books", "from ..models.tape import Tape", True),
        ("stocktake_jax.desk.books", "from .contracts import Contract", True),
        ("stocktake_jax.desk.books", "from stocktake_jax import models", True),
        ("stocktake_jax.desk.books", "from stocktake_jax import __version__", True),
        ("stocktake_jax.cli", "from stocktake_jax.evaluation import benchmark", True),
        ("stocktake_jax.desk.books", "import stocktake_jax.policies", False),
        ("stocktake_jax.desk.books", "from ..policies import floor", False),
        ("stocktake_jax.desk.books", "from .. import policies", False),
        ("stocktake_jax.desk.books", "def f():\n    from stocktake_jax import evaluation", False),
        ("stocktake_jax.desk.books", "import stocktake_jax", False),
        ("stocktake_jax.desk.books", "from stocktake_jax import World", False),
        ("stocktake_jax.agents.task", "from stocktake_jax.cli import main", False),
        ("stocktake_jax.models.tape", "from jax._src import random", False),
        ("stocktake_jax.models.tape", "from jax import _src", False),
    ],
)
def test_the_import_rules(tmp_path: Path, name: str, line: str, allowed: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(line + "\n", encoding="utf-8")
    assert (import_faults(path, name) == []) == allowed


def test_no_file_names_private_jax() -> None:
    # Also as an attribute, in a string or a comment. This file has to name it.
    files = [path for path in [*sources(), *(ROOT / "tests").rglob("*.py")] if path != Path(__file__)]
    assert [str(path) for path in files if "jax._src" in path.read_text(encoding="utf-8")] == []


# ---- what is shipped ------------------------------------------------------------------------------------------------


def shipped_texts() -> Iterator[tuple[Path, str]]:
    """Every text file that git tracks or that a copy without git carries."""
    folders = [ROOT / name for name in ("stocktake_jax", "tests", "notebooks", "docs", "benchmarks", ".ci")]
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders if folder.exists() for path in folder.rglob("*") if path.is_file()]
    for path in files:
        if "__pycache__" in path.parts or path.suffix in (".gz", ".npz", ".png", ".pyc"):
            continue
        yield path, path.read_text(encoding="utf-8")


def test_no_path_of_one_machine() -> None:
    # Homes, build folders and drives of one machine, and the folder beside the repository that a user does not have.
    pattern = re.compile(r"(?<![\w./-])/(work|root|home|Users)/\w|\b[A-Z]:\\\\?\w|\.\./shared")
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path, text in shipped_texts()
        if path != Path(__file__)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert faults == []


def test_readme_has_the_commands_that_ci_runs() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines.count(BENCH_COMMAND) == 1
    assert lines.count(TEST_COMMAND) == 1


def test_links_at_the_top_show_the_two_folders_of_the_package() -> None:
    for name in ("models", "inference"):
        assert (ROOT / name).is_symlink()
        assert (ROOT / name).readlink() == Path("stocktake_jax") / name


def test_an_install_claims_one_import_name() -> None:
    # Also an editable one: with this folder on the path, `import models` would load the classes a second time.
    result = run_python(
        "import sys; sys.path = [entry for entry in sys.path if entry]  # not the folder we run in\n"
        "import importlib.util as u; import stocktake_jax\n"
        "print([name for name in ('models', 'inference', 'tests') if u.find_spec(name)])"
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_wheel_and_sdist_hold_every_file_once(tmp_path: Path) -> None:
    code = f"from hatchling.build import *; build_wheel({str(tmp_path)!r}); build_sdist({str(tmp_path)!r})"
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    expected = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert "stocktake_jax/py.typed" in expected
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        in_wheel = [name for name in wheel.namelist() if ".dist-info/" not in name]
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        in_sdist = [name.split("/", 1)[1] for name in sdist.getnames()]
    assert sorted(in_wheel) == sorted(expected)
    assert sorted(name for name in in_sdist if name.startswith("stocktake_jax/")) == sorted(expected)
    assert not [name for name in in_sdist if name.startswith(("models", "inference"))]
    assert {"LICENSE", "README.md", "CITATION.cff", "constraints.txt", "tests/conftest.py"} <= set(in_sdist)


def test_pins_cover_and_satisfy_what_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = [Requirement(row) for row in [*project["dependencies"], *(row for rows in extras for row in rows)]]
    pins = {}
    for row in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if row and not row.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", row), f"not an exact pin: {row}"
            name, version = row.split("==")
            pins[canonicalize_name(name)] = version
    for requirement in declared:
        if requirement.name == project["name"]:  # an extra that is made of others
            assert requirement.extras <= set(project["optional-dependencies"])
            continue
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"no pin for {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement} but pinned at {version}"


# ---- the settings of conftest.py ------------------------------------------------------------------------------------


def test_session_is_strict() -> None:
    with pytest.raises(jax.dtypes.TypePromotionError):
        _ = jnp.ones(2, jnp.int32) + jnp.ones(2, jnp.float32)
    with pytest.raises(ValueError, match="rank"):
        _ = jnp.ones(2) + jnp.ones((2, 2))


def test_session_checks_annotated_shapes() -> None:
    Port().log_likelihood({"berth_wait": jnp.ones(3)})
    with pytest.raises(TypeCheckError):
        Port().log_likelihood({"berth_wait": jnp.ones((2, 3))})


def test_standard_promotion_is_scoped(standard_promotion: None) -> None:
    assert (jnp.ones(2, jnp.int32) + jnp.ones(2, jnp.float32)).dtype == jnp.float32
