"""Raw data of a study: JSON lines, a header and then one record a line, each stored at once and none taken twice."""

import gzip
import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["Lines", "StudyError", "read"]

Record = dict[str, Any]
# Fields of a header that say when and by whom: another value does not make it another measurement.
ALOOF = frozenset({"begun", "commit"})


class StudyError(Exception):
    """A study that cannot go on; the message is one line."""


class Lines:
    """A file that is open for appending, with the records that it held before."""

    def __init__(self, path: Path, stream: IO[bytes], held: list[Record]) -> None:
        self.path = path
        self.held = held
        self._stream = stream

    @classmethod
    def opened(cls, path: Path, header: Record, *, resume: bool) -> Self:
        """A new file, or where it is there and ``resume`` says so, the same one; a line that was cut is thrown away.

        Raises: StudyError where there is a file already, or one that was measured otherwise.
        """
        if not path.exists() or not path.stat().st_size:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = cls(path, path.open("wb"), [])
            made.add(header)
            made.held.clear()
            return made
        if not resume:
            raise StudyError(f"{path} is there already; go on with it by --resume, or name another folder with --data")
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if len(kept) < len(whole):
            os.truncate(path, len(kept))
        if not kept:
            return cls.opened(path, header, resume=resume)
        before, *held = [json.loads(line) for line in kept.splitlines()]
        other = [name for name in header.keys() - ALOOF if before.get(name) != json.loads(json.dumps(header[name]))]
        if other:
            raise StudyError(f"{path} was measured with another {', '.join(sorted(other))}; name another --data folder")
        return cls(path, path.open("ab"), held)

    def add(self, record: Record) -> None:
        """Store a record, at once."""
        self._stream.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.held.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def read(path: Path) -> tuple[Record, list[Record]] | None:
    """Header and records of a file, or of the same file packed by gzip; None where there is neither."""
    packed = path.with_name(f"{path.name}.gz")
    if path.exists():
        whole = path.read_bytes()
    elif packed.exists():
        whole = gzip.decompress(packed.read_bytes())
    else:
        return None
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    header, *records = [json.loads(line) for line in lines] or [{}]
    return header, records
