"""Files with the raw data of a study: lines of JSON, first a header and then one record per line.

Each record is written to the disk as soon as it is measured, so an interrupted study can be resumed.
"""

import gzip
import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["Lines", "StudyError", "read"]

Record = dict[str, Any]
# Header fields that may differ when a study is resumed: its start time, and the commit of the repository.
IGNORED_FIELDS = frozenset({"begun", "commit"})


class StudyError(Exception):
    """Raised if a study cannot continue; the message has one line."""


class Lines:
    """A file of raw data that is open for appending; ``records`` are the records stored so far."""

    def __init__(self, path: Path, stream: IO[bytes], records: list[Record]) -> None:
        self.path = path
        self.records = records
        self._stream = stream

    @classmethod
    def open(cls, path: Path, header: Record, *, resume: bool) -> Self:
        """Open the file for appending; create it if it does not exist.

        An incomplete last line of an existing file is removed.

        Raises: StudyError if the file exists and ``resume`` is False, or if its header differs from ``header``.
        """
        if not path.exists() or not path.stat().st_size:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = cls(path, path.open("wb"), [])
            lines.add(header)
            lines.records.clear()
            return lines
        if not resume:
            raise StudyError(f"{path} exists: add --resume to continue it, or name another folder with --data")
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if len(kept) < len(whole):
            os.truncate(path, len(kept))
        if not kept:
            return cls.open(path, header, resume=resume)
        stored, *records = [json.loads(line) for line in kept.splitlines()]
        wanted = json.loads(json.dumps(header))
        different = [name for name in wanted.keys() - IGNORED_FIELDS if stored.get(name) != wanted[name]]
        if different:
            names = ", ".join(sorted(different))
            raise StudyError(f"{path} was measured with other values of {names}: name another folder with --data")
        return cls(path, path.open("ab"), records)

    def add(self, record: Record) -> None:
        """Append a record and flush it to the disk."""
        self._stream.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.records.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def read(path: Path) -> tuple[Record, list[Record]] | None:
    """Return the header and the records of a file or of its gzip-compressed copy; None if neither file exists."""
    compressed = path.with_name(f"{path.name}.gz")
    if path.exists():
        whole = path.read_bytes()
    elif compressed.exists():
        whole = gzip.decompress(compressed.read_bytes())
    else:
        return None
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    header, *records = [json.loads(line) for line in lines] or [{}]
    return header, records
