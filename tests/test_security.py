"""The promises of docs/security.md, each shown by a test that its page names."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import pickle
import re
import shlex
import shutil
import socket
import struct
import subprocess
import zlib
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image
from watching import watched

import learngene_zoo
from learngene_zoo.artifacts.descendant import assemble, load_descendant
from learngene_zoo.artifacts.shelf import find_cards_folder
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.vit.spec import ViTSpec

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=2, image_size=16, patch_size=8)
FOREIGN = [
    "folder:/etc",
    "parquet:/etc/passwd",
    "hf:a/b",
    "wds:http://127.0.0.1:9/x.tar",
    "hf-stream:a/b",
    "x; rm:-rf ~",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return assemble(SPEC, {}, seed=0, task="digits").save(tmp_path / "model")


def edit(folder: Path, **ours: Any) -> None:
    """Change what a model's config.json says under `learngene`."""
    data = json.loads((folder / "config.json").read_text())
    data["learngene"].update(ours)
    (folder / "config.json").write_text(json.dumps(data))


HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)>$\\frac{1}$ \\1 | `x` [a](javascript:x)'
    " \x1b[2J\u202e\n../../x"
)


def hostile_bench(folder: Path) -> Path:
    """A bench folder all of whose texts are hostile."""
    text = dict.fromkeys(("arm", "task", "split", "size", "metric", "machine", "finished"), HOSTILE)
    about = {
        "method": "lsamd",
        "control": None,
        "width": 96,
        "lr": 1e-3,
        "images": 9,
        "value": 0.5,
        **text,
    }
    rows = [
        {
            "key": f"{seed}{layers}{epochs}{arm}",
            **about,
            "params": 9 * (layers - 3),
            "arm": f"{HOSTILE}{arm}",
            "seed": seed,
            "layers": layers,
            "epochs": epochs,
        }
        for seed in (0, 1)
        for layers in (3, 4)
        for epochs in (1, 2)
        for arm in ("", "b")
    ]
    rows[0] = {**rows[0], "value": None, "error": HOSTILE}
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    grid = {
        "cost": False,
        "settings": {HOSTILE: [HOSTILE]},
        "versions": {HOSTILE: HOSTILE},
        "keys": [row["key"] for row in rows],
    }
    (folder / "grid.json").write_text(
        json.dumps({**grid, "arms": [{HOSTILE: {HOSTILE: [HOSTILE]}}]})
    )
    return folder


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.slow
def test_a_bench_is_data_in_its_report(tmp_path: Path) -> None:
    folder = hostile_bench(tmp_path / "bench")
    lgzoo("bench", "--report", "-o", str(folder))  # matplotlib makes its own caches
    with watched() as activity:
        code, out, err = lgzoo("bench", "--report", "-o", str(folder))
    assert code == 0, err
    assert not {"\x1b", "\u202e"} & set(out + err)
    assert [
        fault
        for fault in activity.faults(folder)
        if fault.startswith(("changed", "asked", "started"))
    ] == []
    text = (folder / "report.html").read_text()
    result = Tags()
    result.feed(text)
    assert [tag for tag, _ in result.tags].count("script") == 1
    policy = next(
        words["content"]
        for _, words in result.tags
        if words.get("http-equiv") == "Content-Security-Policy"
    )
    script = re.search("<script>(.*)</script>", text, re.DOTALL)
    assert script
    assert policy
    assert base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode() in policy
    assert not [
        tag for tag, _ in result.tags if tag in ("img", "iframe", "object", "a", "link", "form")
    ]
    assert not [
        name for _, attributes in result.tags for name in attributes if name.startswith("on")
    ]
    assert not {"\x1b", "\u202e"} & set(text)
    for name in ("summary.md", "summary.csv"):
        written = (folder / name).read_text()
        assert not {"\x1b", "\u202e"} & set(written)
    marked = (folder / "summary.md").read_text()
    assert not re.search(
        r"(?<!\\)[<>`]|\](?=\()", re.sub("`(shuffled|stem|stem_fan_in|forms|source)`", "", marked)
    )
    for table in re.findall(r"(?:^\|.*\n)+", marked, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    assert all(path.parent == folder / "pictures" for path in folder.rglob("*.png"))
    assert len(list(folder.rglob("*.png"))) >= 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"value": 5.0}, "value is 5.0; it must be at least -1 and at most 1"),
        ({"value": -0.1}, "value is -0.1; only a Matthews correlation is below 0"),
        ({"untrained": 2}, "untrained is 2"),
        ({"probe": 1.5}, "probe is 1.5"),
        ({"layers": 10**15}, "layers is 1000000000000000"),
        ({"layers": True}, "layers is true"),
        ({"params": -1}, "params is -1"),
        ({"params": 10**19}, "params is 1"),
        ({"seconds": -1.0}, "seconds is -1"),
        ({"epochs": 10**9}, "epochs is 1000000000"),
        ({"correct": "zz", "evaluated": 8}, "correct is not one hexadecimal digit"),
        ({"correct": "ff", "evaluated": 80}, "correct is not one hexadecimal digit"),
        ({"size": {}}, "size is {}"),
    ],
)
def test_rows_that_no_cell_leaves_are_refused(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = hostile_bench(tmp_path / "bench")
    lines = (folder / "results.jsonl").read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), **values})
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    code, out, err = lgzoo("bench", "--report", "-o", str(folder))
    assert (code, out) == (1, "")
    assert "line 4: " in err
    assert said in err


def lgzoo(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("offline", [(), ("--offline",)])
@pytest.mark.parametrize("task", FOREIGN)
@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
def test_a_model_chooses_no_data(
    verb: str, task: str, offline: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    edit(model, task=task)
    lgzoo("show", "digits")  # whatever is loaded lazily is loaded now
    with watched() as activity:
        code, _, stderr = lgzoo(
            verb,
            str(model),
            *offline,
            *(("-o", str(tmp_path / "out")) if verb == "finetune" else ()),
        )
    assert code == 2
    quoted = task if " " not in task else f"'{task}'"
    assert stderr.endswith(f"only if you name it: add --task {quoted}\n")
    # Where the result is to be written is looked at before anything else.
    assert [fault for fault in activity.faults(model) if fault != f"read {tmp_path}"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "name", ["me/learngene", "modles/best@v1.0", "./me/learngene@v1.0", "/me/learngene@v1.0"]
)
@pytest.mark.parametrize("verb", ["expand", "show", "evaluate", "finetune"])
def test_a_mistyped_path_asks_nobody(
    verb: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    (tmp_path / "modles").mkdir()
    with watched() as activity:
        code, _, stderr = lgzoo(verb, name)
    assert (code, stderr.count("\n")) == (2, 1)
    assert [fault for fault in activity.faults() if fault.startswith("asked")] == []


@pytest.mark.parametrize("verb", [learngene_zoo.finetune, learngene_zoo.evaluate])
def test_a_model_chooses_no_data_in_python(verb: Any, model: Path) -> None:
    edit(model, task="folder:/etc")
    for given in (model, load_descendant(model), assemble(SPEC, {}, seed=0, task="folder:/etc")):
        with pytest.raises(WrongCall, match=r"only if you name it: add task=.folder:/etc."):
            verb(given)


@pytest.mark.parametrize("task", FOREIGN[:-1])
def test_a_learngene_chooses_no_data(task: str, tmp_path: Path) -> None:
    gene = tmp_path / "gene"
    shutil.copytree(find_cards_folder() / "tal-mini", gene)
    data = json.loads((gene / "config.json").read_text())
    data["purpose"] = {"task": task, "classes": 3}
    (gene / "config.json").write_text(json.dumps(data))
    lgzoo("show", "digits")  # whatever is loaded lazily is loaded now
    with watched() as activity:  # TAL embeds the pictures of a task that it has not seen
        code, _, stderr = lgzoo("expand", str(gene), "--layers", "2", "-o", str(tmp_path / "out"))
    assert code == 2
    assert stderr.endswith(f"only if you name it: add --task {task}\n")
    assert not [fault for fault in activity.faults(gene) if "/etc" in fault or "asked" in fault]


def test_what_these_tests_would_see(tmp_path: Path) -> None:
    with watched() as activity:
        Path("/etc/passwd").read_bytes()
        os.listdir("/etc")
        (tmp_path / "own").write_text("x")
        (tmp_path / "own").rename(tmp_path / "other")
        with suppress(OSError), socket.socket() as plug:
            plug.settimeout(0.1)
            plug.connect(("127.0.0.1", 9))
        subprocess.run(["true"], check=True)
        with suppress(ImportError):
            importlib.import_module("no_such_package")
        pickle.loads(pickle.dumps(Path))
    expected = {
        "read /etc",
        "read /etc/passwd",
        f"changed {tmp_path}/own",
        f"changed {tmp_path}/other",
    }
    rest = {
        "asked socket.connect",
        "started 'true'",
        "imported no_such_package",
        "unpickled pathlib.Path",
    }
    result = activity.faults()
    assert expected <= set(result)
    assert all(any(fault.startswith(word) for fault in result) for word in rest), result
    assert not [fault for fault in activity.faults(tmp_path) if str(tmp_path) in fault]


def pictures(folder: Path, *names: bytes) -> None:
    for name in names:
        place = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
        place.mkdir(parents=True)
        for shade in range(8):
            Image.new("RGB", (16, 16), (30 * shade, 0, 9 * len(name))).save(place / f"{shade}.png")


def test_a_class_whose_name_is_not_text_is_refused_before_anything_is_computed(
    model: Path, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos", b"caf\xe9", b"tea")
    code, _, stderr = lgzoo(
        "finetune",
        str(model),
        "--task",
        f"folder:{tmp_path / 'photos'}",
        "-o",
        str(tmp_path / "out"),
    )
    assert code == 1
    assert "'caf\\udce9' is not text in UTF-8; rename it" in stderr
    assert not (tmp_path / "out.run").exists()


def test_names_that_control_a_terminal_are_data(model: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "photos", b"\x1b[2Jred", "\u202eblue".encode())
    task = ["--task", f"folder:{tmp_path / 'photos'}"]
    brief = [
        "--epochs",
        "1",
        "--images",
        "8",
        "--batch-size",
        "4",
        "-o",
        str(tmp_path / "out\x1b[2J"),
    ]
    lines = [
        ["finetune", str(model), *task, *brief],
        ["evaluate", str(tmp_path / "out\x1b[2J"), *task],
        ["doctor", *task],
    ]
    lines += [
        ["show", task[1], "--json"],
        ["show", str(tmp_path / "out\x1b[2J")],
        ["show", "\x1b[2J"],
    ]
    for line in lines:
        _, out, stderr = lgzoo(*line)
        assert not {"\x1b", "\u202e"} & set(out + stderr), line
    card = (tmp_path / "out\x1b[2J" / "README.md").read_text()
    assert not {"\x1b", "\u202e"} & set(card)


def test_a_folder_of_any_name_can_be_worked_in(model: Path, tmp_path: Path) -> None:
    folder = model.rename(tmp_path / "\u202e\x1b[2J \"'`$(x)` ; |[b]")
    result = lgzoo("extract", "scratch", "--ancestry", str(folder), "-o", f"{folder}-learngene")
    assert result[0] == 0, result
    result = lgzoo(
        "expand", f"{folder}-learngene", "--layers", "1", "--task", "digits", "-o", f"{folder}-out"
    )
    assert result[0] == 0, result
    assert shlex.split(result[2].splitlines()[-1])[:3] == ["next:", "lgzoo", "finetune"]
    assert lgzoo("show", f"{folder}-out")[0] == 0


def test_a_folder_whose_name_is_not_text_is_refused_in_one_line(
    model: Path, tmp_path: Path
) -> None:
    folder = model.rename(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    for line in (
        ["evaluate", str(folder)],
        ["extract", "scratch", "--ancestry", str(folder), "-o", str(tmp_path / "new")],
    ):
        code, out, stderr = lgzoo(*line)
        assert (code, out, stderr.count("\n")) == (1, "", 1)
        assert "caf\\udce9" in stderr
        assert "not valid UTF-8" in stderr


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_an_image_bomb_is_not_decoded(side: int, model: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "photos", b"red", b"blue")
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(10**6))
    chunks = [header, data, b"IEND"]
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )
    for path in (tmp_path / "photos").rglob("*.png"):
        path.write_bytes(bomb)
    code, out, stderr = lgzoo(
        "evaluate", str(model), "--task", f"folder:{tmp_path / 'photos'}", "--threads", "1"
    )
    assert (code, out, stderr.count("\n")) == (1, "", 1)
    assert f"the image is too large ({side**2 / 1e6:.0f} million pixels by its header" in stderr


PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"


def promises() -> list[str]:
    """The guarantees of the page, one text each."""
    part = PAGE.read_text().split("## Guarantees\n")[1].split("\n## ")[0]
    return [
        " ".join(item.split())
        for item in re.split(r"^- ", part.split("\n### ", 1)[1], flags=re.MULTILINE)[1:]
    ]


def names_of_tests() -> set[str]:
    """The names of all tests in the tree."""
    return {
        name
        for path in PAGE.parents[1].glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }


def test_every_promise_names_its_tests() -> None:
    every = promises()
    assert len(every) >= 20
    known = names_of_tests()
    for promise in every:
        named = re.findall(r"`(test_\w+)`", promise)
        assert named, f"no test shows that {promise}"
        assert set(named) <= known, set(named) - known


def test_the_page_names_every_target_of_the_fuzzer() -> None:
    """By the first word of its name."""
    source = (PAGE.parents[1] / "tests" / "fuzz" / "targets.py").read_text()
    targets = set(re.findall(r"\bTarget\(\s*f?\"(\w+)", source))
    assert len(targets) >= 8
    messages = [
        re.findall(r"`(\w+)`", line.split(":")[0])
        for line in PAGE.read_text().split("## Fuzzing")[1].splitlines()
        if line.startswith("| `")
    ]
    assert {name for names in messages for name in names} == targets
    options = (PAGE.parents[1] / "tests" / "conftest.py").read_text()
    (cases,) = re.findall(r'"--fuzz-cases", type=int, default=(\d+)', options)
    assert f" {int(cases):,} cases, as CI does" in PAGE.read_text()
