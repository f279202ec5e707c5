"""A file stored by git itself must match git's checksum and the manifest's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

from learngene_zoo.hub import fetch
from learngene_zoo.hub.manifest import FileRecord


def test_a_file_outside_lfs_has_the_checksum_that_the_hub_lists(tmp_path: Path) -> None:
    file, data = tmp_path / "config.json", b'{"a": 1}\n'
    file.write_bytes(data)
    record = FileRecord(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    checksum = hashlib.sha1(b"blob 9\0" + data).hexdigest()
    assert fetch._is_right(file, record, SimpleNamespace(lfs=None, blob_id=checksum))  # type: ignore[arg-type]
    other = SimpleNamespace(lfs=None, blob_id="0" * 40)
    assert not fetch._is_right(file, record, other)  # type: ignore[arg-type]
    stored = SimpleNamespace(lfs={"sha256": record.sha256}, blob_id="0" * 40)
    assert fetch._is_right(file, record, stored)  # type: ignore[arg-type]
    file.write_bytes(b'{"a": 2}\n')
    assert not fetch._is_right(file, record, stored)  # type: ignore[arg-type]
