"""Learning a world: all factors in one call, saved as they are done, taken up again after an interruption."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from jaxtyping import Array

from stocktake_jax import __version__
from stocktake_jax.errors import InputError
from stocktake_jax.inference.em import fit_em
from stocktake_jax.inference.fit import PER_NUMBER, FactorFit, Method, Problem, fit_map, fit_nuts, fit_svi
from stocktake_jax.inference.priors import Learn, entries, of_factor, require_known
from stocktake_jax.inference.series import Series
from stocktake_jax.models import FACTORS, Factor, Initial, Likelihood, World


@dataclass(frozen=True)
class Settings:
    """How to fit.

    Attributes:
        method: `map`, `nuts`, `svi` or `em`.
        learn: a group of parameters, or dotted names (factors without a name in the list are then not fitted).
        likelihood, initial: see `Problem`.
        seed: of all randomness.
        restarts: searches for the mode.
        chains, warmup, samples: of NUTS.
        steps: of SVI.
        iterations: of EM.
    """

    method: str = "map"
    learn: Learn | tuple[str, ...] = "all"
    likelihood: Likelihood = "exact"
    initial: Initial = "baseline"
    seed: int = 0
    restarts: int = 3
    chains: int = 4
    warmup: int = 1000
    samples: int = 1000
    steps: int = 2000
    iterations: int = 2000

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InputError: naming the setting.
        """
        if self.method not in get_args(Method):
            raise InputError(f"method must be one of {', '.join(get_args(Method))}, not {self.method!r}")
        for name in ("restarts", "chains", "warmup", "samples", "steps", "iterations"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be a whole number from 0 to 2^32 - 1, not {self.seed}")
        if self.method == "em" and self.learn != "transitions":
            raise InputError("em learns transitions, with emissions known: ask for --learn transitions")


@dataclass(frozen=True)
class WorldFit:
    """A learned world.

    Attributes:
        world: the base world with the estimates.
        base: the base world.
        fits: factor -> its fit, of the factors that were fitted.
        settings: how.
        source: where the series come from, in words.
        notes: what to know about it, in words.
        seconds: factor -> what its fit took; 0 for one that was there already.
    """

    world: World
    base: World
    fits: dict[str, FactorFit]
    settings: Settings
    source: str
    notes: tuple[str, ...]
    seconds: dict[str, float]

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        """factor -> reasons not to trust its fit, of factors that have any."""
        return {n: f.problems for n, f in self.fits.items() if f.problems}

    @property
    def converged(self) -> bool:
        """Whether every fit can be trusted."""
        return not self.problems

    @property
    def fixed(self) -> dict[str, str]:
        """Parameters that kept the base world's value -> why; of fitted factors."""
        return {name: why for f in self.fits.values() for name, why in f.fixed.items()}

    def rows(self, truth: World | None = None) -> list[dict[str, Any]]:
        """One row a learned parameter: estimate, interval, diagnostics, and recovery where the truth is given.

        `contraction` is the share of the prior variance that the readings took away: near 0, they told next to nothing.
        """
        out = []
        for n, fit in self.fits.items():
            for k, row in enumerate(fit.recovery((truth or self.base).factors[n])):
                known = {name: float(fit.diagnostics[name][k]) for name in PER_NUMBER if name in fit.diagnostics}
                told = 1 - (row["standard_error"] / known["prior_sd"]) ** 2 if "prior_sd" in known else math.nan
                row = {"factor": n, **row, "contraction": told}
                row |= {name: known.get(name, math.nan) for name in ("r_hat", "ess")}
                if truth is None:
                    for name in ("truth", "covered", "z"):
                        del row[name]
                out.append(row)
        return out

    def summary(self, truth: World | None = None) -> dict[str, Any]:
        """Everything but the draws, ready for JSON."""
        return {
            "version": __version__,
            "source": self.source,
            "settings": asdict(self.settings),
            "converged": self.converged,
            "parameters": self.rows(truth),
            "fixed": self.fixed,
            "notes": list(self.notes),
            "factors": {
                n: {
                    "log_evidence": f.log_evidence,
                    "problems": list(f.problems),
                    "seconds": self.seconds.get(n, 0.0),
                    **{k: v for k, v in f.diagnostics.items() if k not in PER_NUMBER},
                }
                for n, f in self.fits.items()
            },
        }

    def draws(self) -> dict[str, np.ndarray]:
        """Dotted name -> (chain, draw) posterior draws, of the fits that have any."""
        return {n: f.draws[..., k] for f in self.fits.values() if f.draws.size for k, n in enumerate(f.names)}

    def save(self, out: str | os.PathLike[str], truth: World | None = None) -> tuple[Path, ...]:
        """Write `world.toml`, `fit.json`, `parameters.csv`, `posterior.npz`, and `posterior.nc` if ArviZ is there.

        Returns:
            The files.

        Raises:
            InputError: if the folder cannot be used.
        """
        folder = Path(out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot use the folder {out}: {error.strerror}") from None
        head = f"# Learned from {self.source} by {self.settings.method}"
        head += "" if self.converged else "; THE FIT DID NOT CONVERGE"
        files = {
            "world.toml": f"{head}.\n{self.world.to_toml()}".encode(),
            "fit.json": (json.dumps(no_nan(self.summary(truth)), indent=2, allow_nan=False) + "\n").encode(),
            "parameters.csv": table_text(self.rows(truth)).encode(),
        }
        draws = self.draws()
        if draws:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **draws)
            files["posterior.npz"] = buffer.getvalue()
        for name, content in files.items():
            _write(folder / name, content)
        written = [folder / name for name in files]
        if draws and has_arviz():
            temporary = folder / "posterior.nc.part"
            self.to_arviz().to_netcdf(temporary, engine="h5netcdf")
            temporary.replace(folder / "posterior.nc")
            written.append(folder / "posterior.nc")
        return tuple(written)

    def to_arviz(self) -> Any:
        """The draws as ArviZ holds them (an xarray DataTree with the group `posterior`).

        Raises:
            InputError: without the extra `fit`.
        """
        try:
            from arviz_base import from_dict
        except ImportError:
            raise InputError("ArviZ is not installed: pip install 'stocktake-jax[fit]'") from None
        return from_dict(
            {"posterior": self.draws()},
            attrs={"posterior": {"inference_library": "stocktake-jax", "method": self.settings.method}},
        )


def has_arviz() -> bool:
    """Whether draws can be saved in ArviZ's format."""
    try:
        import arviz_base  # noqa: F401
        import h5netcdf  # noqa: F401
    except ImportError:
        return False
    return True


def load_draws(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Dotted name -> (chain, draw) draws from a `posterior.npz`.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        with np.load(path) as file:
            return {name: np.asarray(file[name], np.float64) for name in file.files}
    except OSError as error:
        raise InputError(f"cannot read the posterior draws {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"cannot read the posterior draws {path}: {error}") from None


def posterior_worlds(base: World, draws: Mapping[str, np.ndarray], count: int, *, key: Array) -> World:
    """Worlds drawn from a posterior, as one world whose leaves have a leading axis of `count`.

    The factors are independent a posteriori, so each takes a draw of its own; numbers of one factor come from one draw.

    Args:
        base: gives what was not learned.
        draws: dotted name -> (chain, draw).
        count: how many worlds.
        key: which draws are taken, with replacement.

    Raises:
        InputError: for names that the world does not have.
    """
    stacked = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x, np.float64), (count, *np.shape(x))).copy(), base)
    known = {name: (n, e) for n, f in base.factors.items() for name, e in entries(f).items()}
    picks: dict[str, np.ndarray] = {}
    for name, values in draws.items():
        if name not in known:
            raise InputError(f"there are draws of {name}, which is no parameter of the world")
        factor, entry = known[name]
        flat = np.asarray(values, np.float64).ravel()
        if factor not in picks:
            pick_key = jax.random.fold_in(key, FACTORS.index(factor))
            picks[factor] = np.asarray(jax.random.randint(pick_key, (count,), 0, flat.size))
        leaf = getattr(stacked.factors[factor], entry.field)
        leaf[(slice(None), *(() if entry.position is None else (entry.position,)))] = flat[picks[factor]]
    return stacked


def load_transitions(folder: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """factor -> free transition matrix that `em` learned, from the folder of a fit; empty for other methods.

    Raises:
        InputError: if a factor's file is damaged.
    """
    fits = {n: _load_fit(Path(folder) / "factors" / f"{n}.npz") for n in FACTORS}
    return {n: fit.transition for n, fit in fits.items() if fit is not None and fit.transition is not None}


# -- fitting


Tell = Callable[[str, str], None]
"""Called with a factor and what happens to it: `starts`, `resumed`, `done`."""


def fit_world(
    base: World,
    series: Series,
    settings: Settings | None = None,
    *,
    factors: Sequence[str] = FACTORS,
    priors: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    workers: int = 1,
    tell: Tell | None = None,
) -> WorldFit:
    """Fit factors of a world, each by itself: their readings are independent given the parameters.

    Args:
        base: where searches start; anchors the labels; gives what is not learned.
        series: what was read.
        settings: how.
        factors: which; those without readings are passed over with a note.
        priors: dotted name -> numpyro distribution, in place of default laws.
        out: a folder in which each factor's fit is kept as it is done. The same call with the same folder takes up
            where an earlier one was interrupted.
        workers: factors fitted at the same time.
        tell: for progress.

    Raises:
        InputError: for unknown factors, names or settings; unusable readings; or a folder that holds another fit.
    """
    settings = settings or Settings()
    settings.check()
    unknown = [n for n in factors if n not in FACTORS]
    if unknown or not factors:
        raise InputError(
            f"unknown factor {unknown[0]!r}; there are {', '.join(FACTORS)}" if unknown else "no factor to fit"
        )
    if workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    notes = list(series.unusable)
    jobs = {}
    for n in (n for n in FACTORS if n in factors):
        learn = of_factor(base.factors[n], settings.learn)
        if n not in series.readings:
            notes.append(f"{n}: no readings; it keeps the base world's values")
        elif learn:
            jobs[n] = learn
    require_known(base.factors, settings.learn)
    if not jobs:
        raise InputError("nothing to fit: " + ("; ".join(notes) or "no factor has a parameter that was asked for"))
    for name in priors or {}:
        if name.partition(".")[0] not in jobs:
            raise InputError(f"there is a prior for {name}, whose factor is not fitted here")
    if priors and settings.method == "em":
        raise InputError("em is maximum likelihood on free rows and takes no priors; leave them out, or fit by map")
    folder = None if out is None else _open(Path(out), base, series, settings, priors)
    key = jax.random.key(settings.seed)
    fits: dict[str, FactorFit] = {}
    seconds: dict[str, float] = {}
    speak = tell or (lambda factor, what: None)

    def run(n: str) -> FactorFit:
        speak(n, "starts")
        begun = time.perf_counter()
        own = {k: law for k, law in (priors or {}).items() if k.startswith(f"{n}.")}
        fit = _fit(
            base.factors[n], series.readings[n], jobs[n], settings, own, jax.random.fold_in(key, FACTORS.index(n))
        )
        seconds[n] = time.perf_counter() - begun
        if folder is not None:
            _save_fit(folder / f"{n}.npz", fit)
        speak(n, "done")
        return fit

    waiting = []
    for n in jobs:
        kept = None if folder is None else _load_fit(folder / f"{n}.npz")
        if kept is None:
            waiting.append(n)
        else:
            fits[n] = kept
            speak(n, "resumed")
    if workers == 1 or len(waiting) < 2:
        for n in waiting:
            fits[n] = run(n)
    else:
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(run, n): n for n in waiting}
            try:
                for future in as_completed(futures):
                    fits[futures[future]] = future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    ordered = {n: fits[n] for n in FACTORS if n in fits}
    world = base
    for n, fit in ordered.items():
        world = dataclasses.replace(world, **{n: _learned(base.factors[n], fit)})
    world.check()
    return WorldFit(world, base, ordered, settings, series.source, tuple(notes), seconds)


def _fit(
    factor: Factor,
    readings: Mapping[str, np.ndarray],
    learn: Learn | Sequence[str],
    settings: Settings,
    priors: Mapping[str, Any],
    key: Array,
) -> FactorFit:
    if settings.method == "em":
        return fit_em(
            factor, readings, likelihood=settings.likelihood, initial=settings.initial, iterations=settings.iterations
        )
    problem = Problem(
        factor, readings, learn=learn, likelihood=settings.likelihood, initial=settings.initial, priors=priors
    )
    if settings.method == "nuts":
        return fit_nuts(
            problem,
            key=key,
            chains=settings.chains,
            warmup=settings.warmup,
            samples=settings.samples,
            restarts=settings.restarts,
        )
    if settings.method == "svi":
        return fit_svi(problem, key=key, steps=settings.steps, restarts=settings.restarts)
    return fit_map(problem, key=key, restarts=settings.restarts)


def _learned(factor: Factor, fit: FactorFit) -> Factor:
    """The factor with a fit's estimates."""
    known = entries(factor)
    values: dict[str, np.ndarray] = {}
    for name, estimate in fit.values.items():
        e = known[name]
        leaf = values.setdefault(e.field, np.array(getattr(factor, e.field), np.float64))
        leaf[() if e.position is None else e.position] = estimate
    return dataclasses.replace(factor, **values)


# -- files


def _open(out: Path, base: World, series: Series, settings: Settings, priors: Mapping[str, Any] | None) -> Path:
    """Make the folder of partial results, or check that the one that is there belongs to the same fit."""
    digest = hashlib.sha256()
    for n in FACTORS:
        for c, values in sorted(series.readings.get(n, {}).items()):
            digest.update(f"{n}.{c}{values.shape}".encode())
            digest.update(np.ascontiguousarray(values, np.float64).tobytes())
    wanted = {
        "version": __version__,
        "base world": hashlib.sha256(base.to_toml().encode()).hexdigest(),
        "readings": digest.hexdigest(),
        "settings": json.loads(json.dumps(asdict(settings))),
        "priors": {k: _describe(law) for k, law in sorted((priors or {}).items())},
    }
    folder = out / "factors"
    manifest = folder / "manifest.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else None
        if found is None:
            _write(manifest, (json.dumps(wanted, indent=2) + "\n").encode())
            return folder
    except (OSError, ValueError) as error:
        raise InputError(f"cannot use the folder {out}: {error}") from None
    for name, value in wanted.items():
        if found.get(name) != value:
            raise InputError(f"{out} holds a fit with other {name}; give another folder, or delete this one")
    return folder


def _describe(law: Any) -> str:
    """A distribution with its parameters, so that two can be told apart."""
    numbers = {k: np.asarray(v).tolist() for k, v in sorted(law.get_args().items())}
    return f"{type(law).__name__}({numbers})"


_ARRAYS = ("estimate", "standard_error", "low", "high", "draws")


def _save_fit(path: Path, fit: FactorFit) -> None:
    arrays = {name: getattr(fit, name) for name in _ARRAYS}
    if fit.transition is not None:
        arrays["transition"] = fit.transition
    words = {k: v for k, v in vars(fit).items() if k not in arrays and k != "transition"}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, words=np.array(json.dumps(words)), **arrays)
    _write(path, buffer.getvalue())


def _load_fit(path: Path) -> FactorFit | None:
    """A kept fit; None if there is none."""
    if not path.exists():
        return None
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files if name != "words"}
            words = json.loads(str(file["words"]))
        return FactorFit(**{**words, "names": tuple(words["names"]), "problems": tuple(words["problems"])}, **arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it to fit that factor again") from None


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is there in full or not at all."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_bytes(content)
    temporary.replace(path)


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def no_nan(value: Any) -> Any:
    """The same document with undefined numbers as null."""
    if isinstance(value, dict):
        return {k: no_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [no_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
