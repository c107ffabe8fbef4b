"""The journal of an episode: an append-only file of JSON lines from which a killed episode goes on.

Every line ends with a checksum that covers it and all lines before it. A line counts once its newline is on disk: a
last line without one was being written when the process died, and is cut off when the file is opened again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import weakref
from pathlib import Path
from typing import Any, Self

from stocktake_jax.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows: there two processes on one journal are found by the file's length alone
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
"""Version of the format, in the header's first key."""

MAGIC = "stocktake_journal"

_OPEN: weakref.WeakValueDictionary[tuple[int, int], Journal] = weakref.WeakValueDictionary()
"""Journals open in this process by device and inode: opening one again takes it over."""


class Journal:
    """An open journal, at its end. Use `create` or `reopen`."""

    def __init__(self, path: Path, fd: int, check: str, size: int) -> None:
        self._path, self._fd, self._check, self._size = path, fd, check, size
        status = os.fstat(fd)
        _OPEN[status.st_dev, status.st_ino] = self

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: dict[str, Any]) -> Self:
        """Begin a journal with its header line.

        An empty file is used; one in which a header was being written, and nothing else, is begun again.

        Raises:
            InputError: if the file holds anything else, is in use, or cannot be written.
        """
        where, fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(where, fd)
            line, check = _line({MAGIC: FORMAT} | header, "")
            old = _read(fd, len(line))
            if old and not (line.startswith(old) and len(old) < len(line)):
                raise InputError(f"{where} is not empty; go on with Episode.resume, or give another path")
            os.ftruncate(fd, 0)
            journal = cls(where, fd, "", 0)
        except BaseException:
            os.close(fd)
            raise
        journal._write(line, check)
        return journal

    @classmethod
    def reopen(cls, path: str | os.PathLike[str]) -> tuple[Self, dict[str, Any], list[dict[str, Any]]]:
        """Open a journal to go on with it.

        Returns:
            The journal, its header and its other lines; line n of the file is entry n - 2. The file has been cut back
            to its last whole line.

        Raises:
            InputError: naming the line at fault, if the file is no journal, of another version, damaged, or in use.
        """
        where, fd = _open(path, os.O_RDWR)
        try:
            _take_over(fd)
            _lock(where, fd)
            content = _read(fd, os.fstat(fd).st_size)
            whole = content[: content.rfind(b"\n") + 1]
            lines = whole.split(b"\n")[:-1]
            if not lines:
                raise InputError(f"{where}: line 1 is not complete, so no call was recorded; begin a new episode")
            check, entries = "", []
            for number, raw in enumerate(lines, 1):
                entry, check = _parse(where, number, raw, check)
                entries.append(entry)
            if entries[0].get(MAGIC) != FORMAT:
                raise InputError(
                    f"{where}: line 1 says format {entries[0].get(MAGIC)!r}; this package reads format {FORMAT}"
                )
            if len(whole) < len(content):
                os.ftruncate(fd, len(whole))
                os.fsync(fd)
            return cls(where, fd, check, len(whole)), entries[0], entries[1:]
        except BaseException:
            os.close(fd)
            raise

    def append(self, entry: dict[str, Any]) -> None:
        """Add a line; when this returns it is on disk.

        Raises:
            InputError: if the journal was closed, taken over or changed by others, or the disk refuses. The file is
                as it was.
        """
        if self._fd < 0:
            raise InputError(f"{self._path}: the journal is closed, or was resumed elsewhere in this process")
        if os.fstat(self._fd).st_size != self._size:
            raise InputError(f"{self._path}: somebody else wrote to the journal; resume it to go on from there")
        self._write(*_line(entry, self._check))

    def _write(self, line: bytes, check: str) -> None:
        try:
            os.lseek(self._fd, self._size, os.SEEK_SET)
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            # One sync a call: a week takes a model seconds and a disk milliseconds.
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise InputError(f"{self._path}: cannot write the journal: {error.strerror}") from None
        self._check, self._size = check, self._size + len(line)

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _open(path: str | os.PathLike[str], flags: int) -> tuple[Path, int]:
    try:
        where = Path(path)
        return where, os.open(where, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o644)
    except (OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot open the journal {path}: {reason}") from None


def _read(fd: int, most: int) -> bytes:
    """The file from its start, one byte past `most` at most."""
    os.lseek(fd, 0, os.SEEK_SET)
    content = b""
    while len(content) <= most:
        part = os.read(fd, most + 1 - len(content))
        if not part:
            break
        content += part
    return content


def _take_over(fd: int) -> None:
    status = os.fstat(fd)
    older = _OPEN.get((status.st_dev, status.st_ino))
    if older is not None:
        older.close()


def _lock(path: Path, fd: int) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{path}: another episode has this journal open; end that one first") from None
    except OSError:
        return  # a file system without locks: `append` still notices a second writer


def _line(entry: dict[str, Any], before: str) -> tuple[bytes, str]:
    """The line of an entry, and its checksum, given the checksum of the line before."""
    body = json.dumps(entry, ensure_ascii=True, allow_nan=False, separators=(",", ":"))[:-1]
    check = hashlib.sha256(f"{before}{body}".encode()).hexdigest()[:16]
    return f'{body},"check":"{check}"}}\n'.encode(), check


_TAIL = len(',"check":"0123456789abcdef"}')


def _parse(path: Path, number: int, raw: bytes, before: str) -> tuple[dict[str, Any], str]:
    """The entry of a line, and its checksum."""
    try:
        text = raw.decode("ascii")
        entry = json.loads(text)
        if not isinstance(entry, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise InputError(f"{path}: line {number} is damaged: it is not a JSON object") from None
    check = hashlib.sha256(f"{before}{text[:-_TAIL]}".encode()).hexdigest()[:16]
    if number == 1 and MAGIC not in entry:
        raise InputError(f"{path}: line 1 has no {MAGIC!r}; this is not a journal")
    if entry.pop("check", None) != check:
        raise InputError(f"{path}: line {number} is damaged, or a line before it is missing: its checksum is wrong")
    return entry, check
