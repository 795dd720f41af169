"""A state directory as one file: a tar, compressed with zstd, of the database, the artifacts it names and a manifest.

tar and zstd because both ends are one pass over a stream, and any ``tar --zstd -xf`` opens it without Reef. The manifest comes
last, with a hash of every member: a file that was cut short has none. Needs no daemon and disturbs none: it only reads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import zstandard
from filelock import FileLock, Timeout

from reef import __version__
from reef.core.artifacts import artifact_path
from reef.daemon.workplace import workplace
from reef.errors import BadRequest, Conflict, NotFound, ReefError
from reef.store.schema import MIGRATIONS

Progress = Callable[[str, int, int | None], None]
"""``(stage, bytes done, bytes in all)``."""

FORMAT = 1
_DATABASE, _TOKEN, _MANIFEST = "reef.db", "token", "manifest.json"
_MEMBER = re.compile(r"reef\.db|token|manifest\.json|artifacts/[\w.-]+(/[\w .+=@-]+)+")
_ZSTD = b"\x28\xb5\x2f\xfd"
"""What every file of zstd begins with."""
_STEP_PAGES = 2048
_PIECE_BYTES = 1 << 20
_TRIES = 3
_LOCK_S = 0.5


class _VanishedError(Exception):
    """Retention removed an artifact after the database had named it."""


def backup(home: Path, target: Path, *, with_token: bool, progress: Progress) -> dict[str, Any]:
    """Write ``target`` from ``home``, also while its daemon runs; returns the manifest with ``path`` and ``size_bytes``.

    Raises NotFound where there is no database, Conflict where ``target`` exists or is being made, ReefError where the
    database is damaged.
    """
    if not (home / _DATABASE).is_file():
        raise NotFound(f"there is no database in {home}", hint="name another state directory with --home")
    if not target.parent.is_dir():
        raise NotFound(f"there is no directory {target.parent}", hint="make it first")
    with workplace(target, "backup") as work:
        if target.exists():
            raise Conflict(f"{target} exists", hint="choose another name, or remove it first", code="file_exists")
        made = _repeated(home, work, with_token, progress)
        os.rename(work / "backup", target)
        _sync(target.parent)
        return {"path": str(target), "size_bytes": target.stat().st_size, **made}


def restore(source: Path, home: Path, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Make ``home`` what ``source`` holds; returns the manifest with ``home`` and ``moved_to``.

    Everything is unpacked beside ``home`` and checked before anything is touched. A directory that holds something is
    only replaced with ``force``, and is then moved aside, never deleted.
    """
    home = home.resolve()
    used = home.exists() and (not home.is_dir() or any(home.iterdir()))
    if used and not force:
        raise _not_empty(home)
    with _nobody_there(home) if used else contextlib.nullcontext():
        home.parent.mkdir(parents=True, exist_ok=True)
        with workplace(home, "restore") as fresh:
            manifest = _unpacked(source, fresh, progress)
            _sound(fresh / _DATABASE)
            for folder in (fresh, *(path for path in fresh.rglob("*") if path.is_dir())):
                _sync(folder)
            aside = home.with_name(f"{home.name}.before-{time.strftime('%Y%m%d-%H%M%S')}") if used else None
            if aside is not None:
                os.rename(home, aside)
            try:
                os.rename(fresh, home)
            except OSError as error:  # another restore was faster
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise _not_empty(home) from error
                raise
            _sync(home.parent)
    return {**manifest, "home": str(home), "moved_to": None if aside is None else str(aside)}


def _not_empty(home: Path) -> Conflict:
    return Conflict(
        f"{home} is not empty",
        hint="name another directory with --home, or add --force: the old one is moved aside, not deleted",
        code="not_empty",
    )


# -- writing


def _repeated(home: Path, work: Path, with_token: bool, progress: Progress) -> dict[str, Any]:
    """As ``_once``, from the start again when something that was to be read has just gone away."""
    for left in reversed(range(_TRIES)):
        try:
            return _once(home, work, with_token, progress)
        except _VanishedError as error:
            gone = error
            if not left:
                break
    raise ReefError(f"{gone} went away while it was read", hint="try again", code="changed_meanwhile")


def _once(home: Path, work: Path, with_token: bool, progress: Progress) -> dict[str, Any]:
    copy = work / _DATABASE
    copy.unlink(missing_ok=True)
    _copied(home / _DATABASE, copy, progress)
    progress("checking", 0, None)
    _sound(copy)
    facts, wanted = _facts(copy)
    files = {_DATABASE: copy}
    missing: list[str] = []
    for content_id, serves in wanted.items():
        folder = artifact_path(home, content_id)
        found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        files |= {f"artifacts/{content_id}/{path.relative_to(folder)}": path for path in found}
        if not found and serves:
            missing.append(content_id)
    if with_token:
        files[_TOKEN] = home / _TOKEN
    manifest = {
        "format": FORMAT,
        "reef": __version__,
        "sqlite": sqlite3.sqlite_version,
        "created_at": time.time(),
        **facts,
        "missing_artifacts": missing,
        "files": {},
    }
    with (work / "backup").open("wb") as raw:
        os.fchmod(raw.fileno(), 0o600)
        _packed(raw, files, manifest, progress)
        raw.flush()
        os.fsync(raw.fileno())
    return manifest


def _copied(source: Path, copy: Path, progress: Progress) -> None:
    """The database as it is at one moment: one read transaction holds the moment while the pages are copied.

    Safe beside the daemon in every SQLite version: this connection can neither write nor checkpoint.
    """
    reader = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30.0)
    os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600))
    writer = sqlite3.connect(copy, isolation_level=None)
    try:
        page = int(reader.execute("PRAGMA page_size").fetchone()[0])
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()

        def tell(_: int, left: int, total: int) -> None:
            progress("database", (total - left) * page, total * page)

        reader.backup(writer, pages=_STEP_PAGES, progress=tell, sleep=0)
        writer.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    except sqlite3.DatabaseError as error:
        raise _damaged(source, str(error)) from error
    finally:
        writer.close()
        reader.close()


def _sound(database: Path) -> None:
    connection = sqlite3.connect(database)
    try:
        said = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        said = str(error)
    finally:
        connection.close()
    if said != "ok":
        raise _damaged(database, said)


def _damaged(database: Path, said: str) -> ReefError:
    hint = "keep a copy of the file; see: reef doctor"
    return ReefError(f"the database {database.name} is damaged: {said}", hint=hint, code="store_damaged")


def _facts(copy: Path) -> tuple[dict[str, Any], dict[str, bool]]:
    """What the database holds, and which content ids its releases name: True for one that serves or may be promoted and
    has files of its own, which the base model has not."""
    connection = sqlite3.connect(copy)
    try:
        count = connection.execute("SELECT COUNT(*) FROM records").fetchone()[0]
        heads = dict(connection.execute("SELECT name, head FROM scenarios ORDER BY id"))
        wanted: dict[str, bool] = {}
        for content_id, serves in connection.execute(
            "SELECT content_id, MIN(release_id <> 'r0') AND MAX(state IN ('serving','held') OR head = release_id)"
            " FROM releases r JOIN scenarios s ON s.id = r.scenario_id GROUP BY 1"
        ):
            wanted[content_id] = bool(serves)
        schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()
    return {"schema_version": schema, "records": count, "scenarios": heads}, wanted


def _packed(raw: IO[bytes], files: Mapping[str, Path], manifest: dict[str, Any], progress: Progress) -> None:
    total, done = sum(_size(path) for path in files.values()), 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        progress("packing", done, total)

    with (
        zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(raw, closefd=False) as packer,
        tarfile.open(fileobj=packer, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in files.items():
            try:
                file = path.open("rb")
            except FileNotFoundError:
                raise _VanishedError(str(path)) from None
            with file:
                entry = _entry(name, os.fstat(file.fileno()).st_size)
                reader = _Hashing(file, told)
                tar.addfile(entry, reader)
            manifest["files"][name] = {"sha256": reader.hash.hexdigest(), "size_bytes": entry.size}
        text = json.dumps(manifest, indent=2).encode()
        tar.addfile(_entry(_MANIFEST, len(text)), io.BytesIO(text))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise _VanishedError(str(path)) from None


def _entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size_bytes, 0o600, int(time.time())
    return entry


class _Hashing(io.RawIOBase):
    """Reads a file, hashes what is read and says how much that is."""

    def __init__(self, file: IO[bytes], told: Callable[[int], None]) -> None:
        self.hash = hashlib.sha256()
        self._file, self._told = file, told

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        piece = self._file.read(size)
        self.hash.update(piece)
        self._told(len(piece))
        return piece


# -- reading


@contextlib.contextmanager
def _nobody_there(home: Path) -> Iterator[None]:
    """Hold the directory's lock, so that no daemon runs on it or starts meanwhile."""
    try:
        with FileLock(home / "lock").acquire(timeout=_LOCK_S):
            yield
    except Timeout:
        raise Conflict(
            f"a daemon runs on {home}", hint=f"stop it with: reef down --home {home}", code="already_running"
        ) from None


def _unpacked(source: Path, fresh: Path, progress: Progress) -> dict[str, Any]:
    """Write all members below ``fresh`` and compare them with the manifest, which is returned."""
    found: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None
    total = source.stat().st_size
    with source.open("rb") as raw:
        if (begin := raw.read(len(_ZSTD))) != _ZSTD:
            raise _no_backup(source, "it is empty" if not begin else "it is no tar that was compressed with zstd")
    try:
        with (
            source.open("rb") as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as unpacker,
            tarfile.open(fileobj=unpacker, mode="r|") as tar,
        ):
            for member in tar:
                file = tar.extractfile(member) if member.isreg() and _MEMBER.fullmatch(member.name) else None
                if file is None or ".." in member.name.split("/"):
                    raise _no_backup(source, f"{member.name!r} does not belong into one")
                if member.name == _MANIFEST:
                    manifest = json.load(file)
                    continue
                found[member.name] = _written(file, fresh / member.name)
                progress("unpacking", raw.tell(), total)
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError) as error:
        raise _no_backup(source, f"it is damaged, or was cut short ({error})") from error
    if not isinstance(manifest, dict):
        raise _no_backup(source, "it has no manifest; was it cut short?")
    if manifest.get("format") != FORMAT or int(manifest.get("schema_version", 0)) > len(MIGRATIONS):
        raise BadRequest(
            f"{source} was written by Reef {manifest.get('reef')}, whose state this one ({__version__}) cannot read",
            hint="install that version or a newer one",
            code="newer_backup",
        )
    promised = manifest.get("files")
    if not isinstance(promised, dict):
        promised = {}
    differing = sorted(name for name in {*found, *promised} if found.get(name) != promised.get(name))
    if differing or _DATABASE not in found:
        raise _no_backup(source, f"its content is not what its manifest says: {', '.join(differing[:3])}")
    return manifest


def _written(file: IO[bytes], path: Path) -> dict[str, Any]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as written:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            written.write(piece)
        written.flush()
        os.fsync(written.fileno())
    return {"sha256": digest.hexdigest(), "size_bytes": size}


def _no_backup(source: Path, said: str) -> ReefError:
    return BadRequest(
        f"{source} is no sound backup: {said}",
        hint="name a file that a backup made, whole; nothing was changed",
        code="bad_backup",
    )


def _sync(folder: Path) -> None:
    """Put a rename on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
