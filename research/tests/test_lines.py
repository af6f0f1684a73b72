"""Tests of the files with the raw data of a study."""

import gzip
from pathlib import Path

import pytest

from research.lines import Lines, StudyError, read


def test_a_resumed_file_keeps_complete_lines_and_drops_an_incomplete_one(tmp_path: Path) -> None:
    """The complete record stays in the file, and the next record follows it."""
    path = tmp_path / "deep" / "pool.jsonl"
    with Lines.open(path, {"case": "a", "begun": "now"}, resume=False) as lines:
        lines.add({"n": 1})
    with path.open("ab") as stream:
        stream.write(b'{"n": ')
    with Lines.open(path, {"case": "a", "begun": "later"}, resume=True) as lines:
        assert lines.records == [{"n": 1}]
        lines.add({"n": 2})
    assert read(path) == ({"case": "a", "begun": "now"}, [{"n": 1}, {"n": 2}])


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """A file is continued only with --resume, and only with the same header."""
    path = tmp_path / "pool.jsonl"
    Lines.open(path, {"case": "a"}, resume=True).__exit__(None, None, None)
    with pytest.raises(StudyError, match="exists: add --resume to continue it, or name another folder with --data"):
        Lines.open(path, {"case": "a"}, resume=False)
    with pytest.raises(StudyError, match="was measured with other values of case: name another folder with --data"):
        Lines.open(path, {"case": "b"}, resume=True)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    """A file that was compressed with gzip can be read; a missing file gives None."""
    tmp_path.joinpath("pool.jsonl.gz").write_bytes(gzip.compress(b'{"case":"a"}\n{"n":1}\n'))
    assert read(tmp_path / "pool.jsonl") == ({"case": "a"}, [{"n": 1}])
    assert read(tmp_path / "other.jsonl") is None
