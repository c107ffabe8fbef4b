"""Settings of every test session: shape checks, strict JAX arithmetic, and a watch on global state."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

# What one process has compiled, neither it, nor its fellows (pytest -n), nor the commands that they start need compile
# again. Where its size is bounded, JAX locks the folder, so that nobody reads half an entry. JAX reads these when it is
# imported. The process that starts the others makes the folder, and they find its name here.
if "STOCKTAKE_TESTS_COMPILED" not in os.environ:
    os.environ["STOCKTAKE_TESTS_COMPILED"] = tempfile.mkdtemp(prefix="stocktake-tests-")
    atexit.register(shutil.rmtree, os.environ["STOCKTAKE_TESTS_COMPILED"], ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["STOCKTAKE_TESTS_COMPILED"]
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**32)
# Most tests are small, and take less time to run than to compile: machine code as XLA first makes it, the same here and in
# every command that a test starts. The large ones ask for better: JAX_DISABLE_MOST_OPTIMIZATIONS=0 pytest -m slow.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

import equinox  # noqa: F401
import jax
import jaxtyping
import numpy as np
import numpyro  # noqa: F401
import optax  # noqa: F401
import pytest
from hypothesis import settings

# Host code runs the same formulas on float64 numpy arrays as jitted code on traced ones, so where an annotation of the
# package says `Array` both kinds may come. Libraries are imported first, and keep their own.
jaxtyping.Array = jax.Array | np.ndarray

# The shapes and dtypes in the annotations are checked at every call: while tracing, so that a compiled function pays
# nothing, but a host loop runs about three times as long. The hook acts on imports that come after it. beartype is told
# that an int may stand for a float (PEP 484), and leaves Self alone, which it cannot check from a method.
jaxtyping.install_import_hook(
    "stocktake_jax",
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True, "
    "hint_overrides=beartype.FrozenDict({__import__('typing').Self: object})))",
)

# What JAX would silently repair is an error here: int32 + float32, or a (26,) array added to a (50, 26) one.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Same examples in every run, and no deadline: the first call of a jitted function compiles.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("ci")

_WATCHED = ("jax_enable_x64", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_default_matmul_precision")


@pytest.fixture(autouse=True)
def global_jax_flags_stay() -> Iterator[None]:
    """Fail the test that leaves a JAX flag changed; float64 must be asked for in a scope."""
    before = {flag: getattr(jax.config, flag) for flag in _WATCHED}
    yield
    after = {flag: getattr(jax.config, flag) for flag in _WATCHED}
    for flag, value in before.items():
        if after[flag] != value:
            jax.config.update(flag, value)  # so that only the guilty test fails
    assert after == before, "a JAX flag was left changed; use a scope such as `with jax.enable_x64(True):`"


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """No checks of shapes and types: see `checks`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def checks() -> Iterator[Callable[[bool], None]]:
    """Turns the checks of shapes and types off and on, which make host code about five times as slow.

    For tests that repeat the same host code hundreds of times: every so many rounds run under the checks, and the first
    of them, so that what is traced has been checked.
    """
    yield lambda on: jaxtyping.config.update("jaxtyping_disable", not on)
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def standard_promotion() -> Iterator[None]:
    """JAX's ordinary dtype promotion, for tests that run numpyro's NUTS or optax's Adam: both mix int and float."""
    with jax.numpy_dtype_promotion("standard"):
        yield
