"""Changes to files by chance: of JSON, TOML, safetensors, pickles and plain bytes. All of them are
drawn from `random.Random`.
"""

from __future__ import annotations

import copy
import json
import pickletools
import struct
from collections.abc import Callable
from random import Random
from typing import Any

NAMES = [
    "",
    "none",
    "../../etc/passwd",
    "/etc/passwd",
    "folder:/etc",
    "parquet:/etc/passwd",
    "hf:a/b",
    "hf-hub:a/b",
    "timm:resnet18",
    "wds:http://127.0.0.1:9/x.tar",
    "wds:pipe:touch x",
    "os.system",
    "__class__",
    "%s%n",
    "{0.__class__}",
    "$x$",
    "\x1b[2J",
    "a\nerror: b",
    "\u202ex",
    "caf\udce9",
    "\x00",
    "null",
    "NaN",
    "1",
    "a" * 5000,
    "[/red]",
    "bundled",
    "digits",
    "lsamd",
    "tal",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    16,
    255,
    512,
    513,
    4096,
    16384,
    65536,
    10**6,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**64,
    -(2**63),
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1.0,
    1.5,
    1e-320,
    1e300,
    -1e300,
    float("inf"),
    float("nan"),
]
OTHERS: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [{}],
    {"": {}},
    [0] * 300,
    {"a": 1},
    ["a", "a"],
]


def anything(random: Random) -> Any:
    """A value of any kind."""
    kind = random.random()
    if kind < 0.03:
        value: Any = random.choice(NUMBERS)
        for _ in range(random.choice((5, 62, 63, 64, 300))):
            value = [value] if random.random() < 0.5 else {"a": value}
        return value
    return copy.deepcopy(random.choice(random.choice((NAMES, NUMBERS, NUMBERS, OTHERS))))


def changed(data: Any, random: Random) -> Any:
    """JSON data with one to three changes, anywhere in it."""
    data = copy.deepcopy(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = _changed_once(data, random)
    return data


def _changed_once(data: Any, random: Random) -> Any:
    places = list(_places(data))
    if not places:
        return anything(random)
    holder, key = random.choice(places)
    random.choice(_CHANGES)(holder, key, random)
    return data


def _places(data: Any) -> Any:
    """Every (list or object, index or key) in the data."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        inner = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, item in inner:
            yield value, key
            waiting.append(item)


def _replace(holder: Any, key: Any, random: Random) -> None:
    holder[key] = anything(random)


def _near(holder: Any, key: Any, random: Random) -> None:
    """A value of the same kind that is nearly right."""
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, (int, float)):
        step = random.choice((1, 2, 10, 1000, 10**9))
        holder[key] = random.choice(
            [value + step, value - step, value * step, -value, float(value), str(value)]
        )
    elif isinstance(value, str):
        part = random.choice(NAMES)
        holder[key] = random.choice(
            [value + part, part + value, value[:-1], value.upper(), [value], value * 9]
        )
    elif isinstance(value, list):
        holder[key] = random.choice(
            [value[:-1], value * 2, value[::-1], [*value, anything(random)], value * 100]
        )
    elif isinstance(value, dict):
        holder[key] = random.choice(
            [list(value), list(value.values()), {**value, random.choice(NAMES): anything(random)}]
        )
    else:
        holder[key] = anything(random)


def _drop(holder: Any, key: Any, random: Random) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, random: Random) -> None:
    if isinstance(holder, dict):
        holder[random.choice([random.choice(NAMES), f"{key}s", key.upper()])] = holder.pop(key)
    else:
        holder.insert(0, anything(random))


def _swap(holder: Any, key: Any, random: Random) -> None:
    """Two values of one list or object change places."""
    other = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


_CHANGES: list[Callable[[Any, Any, Random], None]] = [
    _replace,
    _replace,
    _near,
    _near,
    _near,
    _drop,
    _rename,
    _swap,
]


def json_file(data: bytes, random: Random) -> bytes:
    """A JSON file: mostly with other data in it, sometimes spoilt as text."""
    if random.random() < 0.15:
        return spoilt(data, random)
    written = json.dumps(changed(json.loads(data), random))
    if random.random() < 0.02:
        depth = random.choice((1000, 5000, 100_000))
        written = "[" * depth + written + "]" * depth
    if random.random() < 0.05:
        written = random.choice(["\ufeff", "[", "", '{"format": 1,']) + written
    return written.encode("utf-8", "surrogatepass" if random.random() < 0.5 else "replace")


def json_lines(data: bytes, random: Random) -> bytes:
    """Lines of JSON, one to three of them changed."""
    lines = data.splitlines()
    for at in random.sample(range(len(lines)), random.choice((1, 1, 2, 3))):
        lines[at] = json_file(lines[at], random)
    return b"\n".join(lines) + (b"\n" if random.random() < 0.9 else b"")


def spoilt(data: bytes, random: Random) -> bytes:
    """Bytes that are cut, flipped, doubled, removed or inserted."""
    spoiled = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(spoiled) + 1)
        size = random.choice((1, 1, 2, 4, 8, 64, 1000))
        kind = random.randrange(6)
        if kind == 0:
            del spoiled[at:]
        elif kind == 1:
            del spoiled[at : at + size]
        elif kind == 2:
            spoiled[at:at] = spoiled[at : at + size]
        elif kind == 3:
            spoiled[at:at] = random.randbytes(size)
        elif at < len(spoiled):
            spoiled[at] = (
                spoiled[at] ^ (1 << random.randrange(8))
                if kind == 4
                else random.choice((0, 255, 128, 34, 91, 123))
            )
    return bytes(spoiled)


def tensors_file(data: bytes, random: Random) -> bytes:
    """A safetensors file: its header changed as JSON, its announced size, or its bytes."""
    size = struct.unpack("<Q", data[:8])[0]
    header, rest = data[8 : 8 + size], data[8 + size :]
    kind = random.random()
    if kind < 0.25:
        return spoilt(data, random)
    if kind < 0.35:
        said = random.choice((0, 1, size - 1, size + 8, 2**31, 2**40, 2**63, 2**64 - 1))
        return struct.pack("<Q", said) + header + rest
    if kind < 0.5:
        return data[:8] + header + spoilt(rest, random)
    spec = json.loads(header)
    name = random.choice([name for name in spec if name != "__metadata__"] or [""])
    if name and kind < 0.75:  # one tensor's own entry
        entry = spec[name]
        choice = random.randrange(6)
        if choice == 0:
            entry["dtype"] = random.choice(
                ["I32", "I64", "F64", "F16", "BF16", "BOOL", "U8", "F8_E4M3", "X", "F32"]
            )
        elif choice == 1:
            entry["shape"] = random.choice(
                [
                    entry["shape"][::-1],
                    [1, *entry["shape"]],
                    entry["shape"][:-1],
                    [2**40],
                    [0],
                    [-1],
                ]
            )
        elif choice == 2:
            entry["data_offsets"] = [
                random.choice((0, 4, -4, 2**40)),
                random.choice((entry["data_offsets"][1], 0, 2**63)),
            ]
        elif choice == 3:
            spec[random.choice([*NAMES, name.upper()])] = spec.pop(name)
        elif choice == 4:
            del spec[name]
        else:
            spec[name] = anything(random)
    else:
        spec = changed(spec, random)
    written = json.dumps(spec).encode("utf-8", "replace")
    written += b" " * (-len(written) % 8)
    return struct.pack("<Q", len(written)) + written + rest


def toml_file(data: bytes, random: Random) -> bytes:
    """A TOML file: a line's value changed, lines dropped, doubled or moved, or bytes spoilt."""
    if random.random() < 0.2:
        return spoilt(data, random)
    lines = data.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        name, equals, _ = lines[at].partition("=")
        kind = random.randrange(5)
        if kind < 3 and equals:
            lines[at] = f"{name}= {_toml(anything(random))}"
        elif kind == 3:
            lines.insert(random.randrange(len(lines)), lines[at])
        else:
            del lines[at]
        lines = lines or [""]
    return "\n".join(lines).encode("utf-8", "replace")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        return "nothing"
    return {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}.get(
        text := json.dumps(value), text
    )


# Names that a pickle must not reach, and what it would do with them.
_EVIL = [
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"cbuiltins\nexec\n",
    b"csubprocess\nPopen\n",
    b"ctorch\nload\n",
    b"cnumpy\nload\n",
    b"cbuiltins\ngetattr\n",
    b"cposix\nopen\n",
    b"c__main__\nx\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ccollections\nOrderedDict\n",
]
_PIECES = [
    *_EVIL,
    b"(",
    b")",
    b"t",
    b"R",
    b"}",
    b"]",
    b"u",
    b"s",
    b"a",
    b"e",
    b"N",
    b"\x88",
    b"0",
    b"2",
    b"b",
    b"Q",
    b"\x81",
    b"\x85",
    b"\x86",
    b"\x94",
    b"h\x00",
    b"q\xff",
    b"j\xff\xff\xff\x7f",
    b"X\xff\xff\xff\xff",
    b"\x8d" + b"\xff" * 8,
    b"K\x01",
    b"J\xff\xff\xff\xff",
    b"\x8a\xff" + b"\xff" * 255,
    b"G" + b"\xff" * 8,
    b"i",
    b"o",
    b"P",
    b"\x97",
    b"\x95" + b"\0" * 8,
    b"\x8c\x02os\x8c\x06system\x93",
    b".",
]


def pickle_file(data: bytes, random: Random) -> bytes:
    """A checkpoint of any layout: instructions inserted or removed where its pickle can be read,
    else its bytes spoilt.
    """
    if random.random() < 0.4:
        return spoilt(data, random)
    start = max(0, data.find(b"\x80", 0, 4096))
    try:
        places = [at for _, _, at in pickletools.genops(data[start:]) if at is not None]
    # a damaged pickle fails in as many ways as there are instructions; its bytes are spoilt then
    except Exception:
        places = []
    if len(places) < 3:
        return spoilt(data, random)
    written = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = start + random.choice(places)
        if random.random() < 0.7:
            written[at:at] = random.choice(_PIECES)
        else:
            del written[at : start + random.choice(places)]
    return bytes(written)
