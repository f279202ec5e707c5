"""JSON is read strictly: data that was read can be written, printed and traversed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learngene_zoo.errors import BadFile
from learngene_zoo.storage import MAX_JSON_DEPTH, parse_json, read_json


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, -2.5, 1e-300, true, null, "x"], "": {}}',
        '"\\ud83d\\udc4d \\\\ud800 caf\\u00e9"',
        "[1e+100, 0.1234567890123456789012345, 9223372036854775807, -18446744073709551615]",
        "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH,
        "[" + "[]," * 500 + "[]]",
        '"' + "[" * 5000 + '"',
        '\ufeff{"a": 1}',
    ],
)
def test_what_json_can_say_is_read(text: str) -> None:
    assert parse_json(text.encode()) == json.loads(text.removeprefix("\ufeff"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"NaN", "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"[1e999]", "more than 64 bits"),
        (b'{"a": 18446744073709551616}', "more than 64 bits"),
        (b"[" + b"9" * 5000 + b"]", "limit"),
        (b"[" + b"1" * 400 + b".0]", "more than 64 bits"),
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested more than 64 deep"),
        (b"[" * 200_000, "nested more than 64 deep"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'{"\\udcff": 1}', "surrogates not allowed"),
        (b'"\xed\xa0\x80"', "can't decode"),
        (b"\xff\xfe[\x00]\x00", "can't decode"),
        (b"", "Expecting value"),
        (b"{} {}", "Extra data"),
    ],
)
def test_what_only_python_would_accept_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(data)
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(BadFile, match=r"config\.json is not valid JSON"):
        read_json(tmp_path / "config.json")


TWICE = [
    (b'{"method": "first_k", "method": "lsamd"}', "method"),
    (b'{"method": "first_k", "me\\u0074hod": "first_k"}', "method"),
    (b'{"a": [{"b": {"c": 1, "d": 2, "c": 1}}]}', "c"),
    (b'{"": 1, "": 1}', ""),
]


@pytest.mark.parametrize(("data", "key"), TWICE)
def test_a_key_that_occurs_twice_is_refused_wherever_it_stands(
    data: bytes, key: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"the key '{key}' occurs twice in one object"):
        parse_json(data)
    (tmp_path / "config.json").write_bytes(data)
    for before in ("", "card"):
        with pytest.raises(
            BadFile, match=rf"config\.json is not valid JSON: the key '{key}' occurs twice"
        ):
            read_json(tmp_path / "config.json", before)


def test_many_keys_cost_no_more_than_their_number() -> None:
    text = "{" + ", ".join(f'"{number}": 0' for number in [*range(100_000), 99_999]) + "}"
    with pytest.raises(ValueError, match="'99999' occurs twice"):
        parse_json(text.encode())


def test_every_reader_of_json_is_the_one_that_refuses() -> None:
    """`json.loads` silently takes the last of duplicate keys; only `storage` calls it, and the grid
    for its own text.
    """
    root = Path(__file__).parents[2]
    files = [
        *root.glob("learngene_zoo/**/*.py"),
        *root.glob("plugins/**/*.py"),
        root / "hubconf.py",
    ]
    users = {path.name for path in files if "json.load" in path.read_text(encoding="utf-8")}
    # Configs of transformers have numbers of more than 64 bits.
    assert users == {"storage.py", "grid.py", "transformers_config.py"}
