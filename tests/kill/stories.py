"""What is killed: every command of `lgzoo` that writes files, each in its smallest form, and what
its places may hold.

`train`, `extract`, `expand`, `heal`, `finetune`, `shrink`, `evaluate`, `plot`, `show -o`,
`doctor -o`, `fetch -o`, `export`, `new-plugin`, `bench` (also with --force, --tune, --cost,
--report and --claim) and `demo` write; the other commands only print. `demo` is a grid of bench
that takes minutes: here it has one depth and one seed. What `fetch` copies is in the Hub's cache
already: tests/hub breaks its downloads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learngene_zoo.ownership import MARKER, find_foreign

TESTS = Path(__file__).resolve().parents[1]
TASK = "folder:images"
SMALL = "--epochs 2 --images 32 --batch-size 16"
GRID = (
    "--ancestry ancestry --epochs 1 --seeds 1 --images 16 --batch-size 8 --augment none --workers 1"
)
BENCH = f"bench {TASK} --method lsamd --set lsamd.keep=1,2 {GRID}"
PUBLISHED = "me/gene@v1.0"
PARTS = (
    f"bench {TASK} --method pretrain_finetune --preset smoke --set pretrain_finetune.depths=2"
    f" --extract-task folder:photos {GRID}"
)
CLAIM = """
protocol = 2
name = "toy"
paper = "A paper"
where = "Table 1"
says = "ours is better than theirs"
estimand = "the difference"
expected = "undecided"
smallest = 1
targets = ["digits"]
layers = [2]
seeds = 3
scope = "seeds"
compare = { kind = "over", arms = ["ours", "theirs"] }
recipe = { epochs = 1, images = 16, batch_size = 8, augment = "none" }
tuning = { lr = [1e-3], augment = ["none"] }
power = { sees = 9.9, tasks = 0, seeds = 1, rest = 1, source = "none" }

[arms.ours]
method = "lsamd"
settings = { keep = [1, 2] }
ancestries = ["ancestry"]

[arms.theirs]
method = "scratch"
ancestries = ["ancestry"]
"""


@dataclass(frozen=True)
class Story:
    """A command, what it writes, and how it goes on after a kill.

    With `grows` the place is a bench's folder: its rows and files come one by one, and what was
    there stays, unless the call has --force. With `renames` the system cannot exchange two folders
    at once, so for a moment none may be there.
    """

    name: str
    line: str
    out: str = "out"
    old: str = ""  # the line that makes what is there before; "" if nothing is
    again: str = "--resume"
    sample: int | None = 40  # how many operations are tried; None is all
    grows: bool = False
    renames: bool = False


SEARCH = (
    f"extract lsamd --ancestry ancestry --preset smoke --task {TASK} --task folder:photos {SMALL}"
)
REPLACED = "expand gene --layers 2 -o out"
STORIES = (
    Story("finetune", f"finetune model --task {TASK} {SMALL} -o out", sample=None),
    Story(
        "expand-force",
        "expand gene --layers 3 --num-classes 5 -o out --force",
        old=REPLACED,
        sample=None,
    ),
    Story("expand-renames", "expand gene --layers 3 -o out --force", old=REPLACED, renames=True),
    Story("expand", REPLACED),
    Story(
        "finetune-force",
        f"finetune model --task {TASK} {SMALL} -o out --force",
        old=f"finetune ancestry --task {TASK} {SMALL} -o out",
    ),
    Story(
        "heal",
        f"heal model --images {TASK} --teacher ancestry --task {TASK} --epochs 2 --max-images 32 "
        "--batch-size 16 -o out",
    ),
    Story(
        "train",
        f"train --task {TASK} --layers 2 --width 32 --heads 2 --image-size 16 {SMALL} -o out",
    ),
    Story(
        "train-stream",
        f"train --task wds:shards --layers 2 --width 32 --heads 2 --image-size 16 {SMALL} -o out",
    ),
    Story("extract-keep", "extract lsamd --ancestry ancestry --keep 1,2 -o out"),
    Story("extract", f"{SEARCH} -o out"),
    Story(
        "extract-force",
        f"{SEARCH} -o out --force",
        old="extract lsamd --ancestry ancestry --keep 1,2 -o out",
    ),
    Story(
        "shrink",
        f"shrink ancestry --task {TASK} --max-params 20K --candidates 2 --try 1 --export none"
        " --epochs 1 --batch-size 16 -o out",
        sample=24,
    ),
    Story("evaluate", f"evaluate tuned --task {TASK} -o out.json", "out.json"),
    Story(
        "evaluate-force",
        f"evaluate tuned --task {TASK} -o out.json --force",
        "out.json",
        old=f"evaluate tuned --task {TASK} --split validation -o out.json",
    ),
    Story("fetch", f"fetch {PUBLISHED} -o out --offline --force", old=REPLACED, again=""),
    Story("export", "export tuned -o out.onnx", "out.onnx", sample=6),
    Story("export-pt2", "export tuned -o out.pt2", "out.pt2", sample=6),
    Story("convert", "convert model --format transformers -o out", again="--force", sample=6),
    Story("new-plugin", "new-plugin toy -o out", again=""),
    Story("plot", "plot searched -o out.png", "out.png", again="--force"),
    Story("sheet", f"show {TASK} -o out.png", "out.png", again="--force"),
    Story("checked", f"doctor --task {TASK} --check-images -o out.png", "out.png", again="--force"),
    Story(
        "bench",
        f"{BENCH} --layers 2,3 -o out",
        old=f"{BENCH} --layers 3 -o out",
        again="",
        sample=24,
        grows=True,
    ),
    Story(
        "bench-force",
        f"{BENCH} --layers 2 -o out --force",
        old=f"{BENCH} --layers 3 -o out",
        again="",
        sample=24,
        grows=True,
    ),
    Story(
        "bench-tune", f"{BENCH} --layers 2 --tune 1e-3,2e-3 -o out", again="", sample=12, grows=True
    ),
    Story("bench-parts", f"{PARTS} --layers 2 -o out", again="", sample=16, grows=True),
    Story(
        "bench-cost",
        f"{BENCH} --preset smoke --layers 2,3 --cost --extract-task folder:photos -o out",
        again="",
        sample=4,
        grows=True,
    ),
    Story(
        "bench-report", f"{BENCH} --layers 2 --report -o measured", "measured", again="", grows=True
    ),
    Story("claim", "bench --claim toy.toml --workers 1 -o out", again="", sample=24, grows=True),
    Story("demo", "demo --workers 1 -o out", again="", sample=24, grows=True),
)
SETUP = (
    f"finetune ancestry --task {TASK} {SMALL} -o model",
    "extract lsamd --ancestry ancestry --keep 1,2 -o gene",
    f"{SEARCH} -o searched",
    f"finetune model --task {TASK} {SMALL} -o tuned",
    f"{BENCH} --layers 2 -o measured",
)


def make_world(top: Path) -> None:
    """The files that every story starts from, before the lines of `SETUP` add theirs."""
    sys.path[:0] = [str(TESTS / "core"), str(TESTS / "hub")]
    import bench_toy
    import streaming_toy

    bench_toy.make_world(top)
    streaming_toy.shards(top / "shards", count=2)
    (top / "photos").symlink_to("images")
    (top / "toy.toml").write_text(CLAIM, encoding="utf-8")


def publish(top: Path) -> None:
    """Put a learngene into the cache of the Hub, `hub`, where `fetch` finds it. Changes the client
    in this process.
    """
    from huggingface_hub import constants
    from standin import TOKEN, StandIn

    from learngene_zoo.hub.fetch import fetch
    from learngene_zoo.publishing.publish import publish as publish_folder

    with StandIn() as server:
        constants.ENDPOINT, constants.HF_HUB_OFFLINE = server.url, False
        constants.HUGGINGFACE_CO_URL_TEMPLATE = (
            server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        os.environ |= {"HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1,localhost"}
        publish_folder(top / "gene", "me/gene", tag="v1.0", licence="mit")
        fetch(PUBLISHED)


def small_demo(seed: int = 0, *, full: bool = False, offline: bool = False) -> list[Any]:
    """Instead of the demo's grid: its arms at one depth with one seed."""
    import bench_toy

    from learngene_zoo.bench.demo import SHOWN, name_arm

    arms = [
        arm
        for arm in bench_toy.toy_arms("ancestry", (1, 2))
        if name_arm(arm.name, arm.control) in SHOWN
    ]
    return bench_toy.toy_cells(("ancestry", TASK), arms=arms, layers=[2])


def contents(where: Path) -> dict[str, str]:
    """What every file below a folder says, as a hash: without what differs from run to run by its
    nature, seconds and dates.
    """
    return {
        str(path.relative_to(where)): said(path)
        for path in sorted(where.rglob("*"))
        if path.is_file() and path.name != "metrics.jsonl"
    }


def said(path: Path) -> str:
    """The hash of what a file says; words instead for one that is cut short."""
    data = path.read_bytes()
    if path.name == MARKER:  # it says what the others say, seconds and dates too
        return (
            find_foreign(path.parent)
            if data.startswith(b"learngene_zoo: this folder was written")
            else "a workspace"
        )
    try:
        if path.suffix in (".json", ".jsonl"):
            parts = [
                json.loads(line)
                for line in (data.splitlines() if path.suffix == ".jsonl" else [data])
            ]
            table = path.name == "cost.json" and isinstance(parts[0], list)  # of seconds
            data = b"" if table else json.dumps(timeless(parts)).encode()
        elif path.name in (
            "report.html",
            "out.html",
            "summary.md",
            "summary.csv",
            "cost.md",
            "cost.png",
        ):
            data = whole(path, data)  # costs are seconds
    except ValueError as error:
        return f"cut short: {error}"
    return hashlib.sha256(data).hexdigest()[:16]


def timeless(data: Any) -> Any:
    """JSON without what the clock says."""
    if isinstance(data, list):
        return [timeless(item) for item in data]
    if isinstance(data, Mapping):
        return {
            key: timeless(item)
            for key, item in data.items()
            if not (
                key.endswith(("seconds", "latency"))
                or (key in ("busy", "finished") and not isinstance(item, bool))
            )
        }
    return data


def whole(path: Path, data: bytes) -> bytes:
    """The size of a report, if it is whole."""
    endings = {".html": b"</html>\n", ".png": b"IEND\xaeB`\x82"}
    if not data.endswith(endings.get(path.suffix, b"\n")):
        raise ValueError(f"{path.name} is cut short")
    return str(data.count(b"\n") if path.suffix in (".md", ".csv") else 0).encode()
