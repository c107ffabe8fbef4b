"""Optional libraries: imported where they are used, with an error that names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from stocktake_jax.errors import InputError

INSTALL = "pip install 'stocktake-jax[agents]'"


def require(module: str) -> Any:
    """Import an optional library.

    Raises:
        InputError: if it is not installed, saying how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        raise InputError(f"{top} cannot be imported ({error}); this needs the extra: {INSTALL}") from None
