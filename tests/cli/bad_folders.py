"""Functions that damage a folder of artifacts and data: each returns a change that takes the
folder's root.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learngene_zoo.ownership import mark_workspace

Change = Callable[[Path], Any]


def edit(path: str, **values: Any) -> Change:
    """Change keys of a JSON file; the value ... removes a key, a double underscore descends one
    level.
    """

    def change(root: Path) -> None:
        data = json.loads((root / path).read_text())
        for name, value in values.items():
            *outer, last = name.split("__")
            node = data
            for key in outer:
                node = node[key]
            if value is ...:
                del node[last]
            else:
                node[last] = value
        (root / path).write_text(json.dumps(data))

    return change


def write(path: str, content: bytes | str) -> Change:
    data = content.encode() if isinstance(content, str) else content

    def change(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return change


def remove(path: str) -> Change:
    def change(root: Path) -> None:
        target = root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change


def cut(path: str, keep: float) -> Change:
    def change(root: Path) -> None:
        data = (root / path).read_bytes()
        (root / path).write_bytes(data[: int(len(data) * keep)])

    return change


def retensor(path: str, alter: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the tensors of a safetensors file."""

    def change(root: Path) -> None:
        from safetensors.torch import load_file, save_file

        state = {name: tensor.clone() for name, tensor in load_file(root / path).items()}
        alter(state)
        (root / path).unlink()
        save_file(state, root / path)

    return change


def write_unfinished_run(folder: str, **record: Any) -> Change:
    """Write the folder of a run as a kill leaves it, with a part that a resumed run would reuse."""
    data = {"verb": "x", "seed": 0, "settings": {}, "finished": False, **record}
    files = both(write(f"{folder}/run.json", json.dumps(data)), write(f"{folder}/kept.json", "{}"))
    return both(files, lambda root: mark_workspace(root / folder, "run"))


def poison(state: dict[str, Any]) -> None:
    state["blocks.0.attn.qkv.weight"][0, 0] = float("nan")


def reshape(state: dict[str, Any]) -> None:
    state["blocks.0.norm1.weight"] = state["blocks.0.norm1.weight"][:5].clone()


def foreign(state: dict[str, Any]) -> None:
    tensor = next(iter(state.values())).clone()
    state.clear()
    state["encoder.layer.0.weight"] = tensor


def both(*changes: Change) -> Change:
    def change(root: Path) -> None:
        for one in changes:
            one(root)

    return change


def folder(path: str) -> Change:
    return lambda root: (root / path).mkdir(parents=True)


def link(path: str, target: str) -> Change:
    return lambda root: (root / path).symlink_to(target)


def fifo(path: str) -> Change:
    """Create a named pipe, which blocks readers, in place of an existing file."""

    def change(root: Path) -> None:
        (root / path).unlink(missing_ok=True)
        os.mkfifo(root / path)

    return change


def flip(path: str, at: int) -> Change:
    """Flip one bit of the byte at this offset."""

    def change(root: Path) -> None:
        data = bytearray((root / path).read_bytes())
        data[at] ^= 4
        (root / path).write_bytes(data)

    return change


def every_image(spoil: Callable[[bytes], bytes], kind: str = "png") -> Change:
    """Change the bytes of every image of the class red.

    `kind` is the format of the bytes that `spoil` receives.
    """

    def change(root: Path) -> None:
        from PIL import Image

        for file in (root / "photos/red").iterdir():
            stream = io.BytesIO()
            Image.open(file).save(stream, kind)
            file.unlink()
            file.with_suffix(f".{kind}").write_bytes(spoil(stream.getvalue()))

    return change


def halve(data: bytes) -> bytes:
    return data[: len(data) // 2]


def enormous(data: bytes) -> bytes:
    """Return a small PNG file whose header says 13,377 x 13,377 (179 megapixels)."""
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 13377, 13377, 8, 0, 0, 0, 0))
    return data[:8] + header + chunk(b"IDAT", zlib.compress(b"\0" * 2**20)) + chunk(b"IEND", b"")


def parquet(path: str, rows: dict[str, list[Any]], info: Any = None) -> Change:
    """Write a Parquet file with 16 x 16 images in an image column, and the other columns as given.

    `info` are the features for `datasets` in the file's metadata.
    """

    def change(root: Path) -> None:
        import pyarrow as pa
        from pyarrow.parquet import write_table

        picture = (root / "photos/red/0.png").read_bytes()
        columns = dict(rows)
        if "image" in columns:
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            columns["image"] = pa.array(
                [{"bytes": picture, "path": None} for _ in columns["image"]], kind
            )
        table = pa.table(columns)
        if info is not None:
            text = info if isinstance(info, str) else json.dumps({"info": {"features": info}})
            table = table.replace_schema_metadata({"huggingface": text})
        write_table(table, root / path)

    return change


def tar(
    path: str, *files: tuple[str, bytes | None], spoil: Callable[[bytearray], None] | None = None
) -> Change:
    """Write a tar; a content of None is an image. `spoil` changes the tar's bytes."""

    def change(root: Path) -> None:
        picture = (root / "photos/red/0.png").read_bytes()
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, content in files:
                member = tarfile.TarInfo(name)
                data = picture if content is None else content
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        data = bytearray(stream.getvalue())
        if spoil is not None:
            spoil(data)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return change


def set_size(size: bytes) -> Callable[[bytearray], None]:
    """Return a change of the size in the first header of a tar, with a valid checksum."""

    def change(data: bytearray) -> None:
        data[124:136] = size
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\0 " % sum(data[:512])

    return change
