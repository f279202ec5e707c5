"""A full disk, a lack of memory and too many open files give one line and exit code 1, and existing
files stay complete.

Nothing is simulated: the tests use a small full file system and the system's limits of a process.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.families.vit.spec import ViTSpec

pytestmark = pytest.mark.slow

SPEC = ViTSpec(layers=3, width=64, heads=2, classes=2, image_size=16, patch_size=8)
BRIEF = "--task folder:photos --epochs 1 --images 8 --batch-size 4"
# Imports what commands need, since Python itself and its libraries need memory and files. For each
# line of its input, forks a process that sets the limit and runs the command.
PROGRAM = """
import json, os, resource, signal, sys
import torch, datasets, accelerate, PIL.Image, learngene_zoo.training.fit, learngene_zoo.artifacts.descendant
import learngene_zoo.families.vit.host
from learngene_zoo.cli.main import main

def run(folder, limit, size, words):
    signal.alarm(240)
    os.chdir(folder)
    if limit == "AS":
        size += int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    if limit:
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (size, size))
    main(words)

while line := sys.stdin.readline():
    *asked, stdout, stderr = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in enumerate([os.devnull, stdout, stderr]):
            file = os.open(path, os.O_RDWR)
            os.dup2(file, number)
            os.close(file)
        run(*asked)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Shell = Callable[..., subprocess.CompletedProcess[str]]
WRITES = [
    "expand scratched --layers 9 -o new",
    "expand scratched --layers 9 -o model --force",
    (
        "extract pretrain_finetune --depths 3 --epochs 0 --ancestry ancestry --task folder:photos"
        " -o new"
    ),
    f"finetune model {BRIEF} -o new",
    f"finetune model {BRIEF} -o model --force",
    f"train {BRIEF} --layers 3 --width 64 --heads 2 --image-size 16 -o ancestry --force --quiet",
]


def make_world(root: Path) -> None:
    from PIL import Image

    for colour, pixel in {"red": (200, 40, 40), "blue": (40, 40, 200)}.items():
        (root / "photos" / colour).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (16, 16), pixel).save(root / "photos" / colour / f"{i}.png")
    ancestry = assemble(SPEC, {}, seed=0)
    ancestry.save(root / "ancestry")
    replace(ancestry, class_names=("blue", "red"), task="photos").save(root / "model")
    Learngene(config=LearngeneConfig(method="scratch", spec=SPEC), state={}).save(
        root / "scratched"
    )


def contents(root: Path) -> dict[str, str]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a function that runs a command in a folder, in a new process with a limit."""
    output = [tmp_path_factory.mktemp("output") / name for name in ("stdout", "stderr")]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        requests, answers = server.stdin, server.stdout
        assert requests is not None
        assert answers is not None

        def run(root: Path, line: str, limit: str, size: int) -> subprocess.CompletedProcess[str]:
            for path in output:
                path.write_text("")
            asked = [str(root), limit, size, line.split(), *map(str, output)]
            print(json.dumps(asked), file=requests, flush=True)
            code = int(answers.readline())
            return subprocess.CompletedProcess(line, code, *(path.read_text() for path in output))

        yield run
        requests.close()


def check(shell: Shell, root: Path, line: str, *words: str, limit: str = "", size: int = 0) -> None:
    """Check that a command fails with one line that has these words, without losing data.

    Only a run's folder may be new.
    """
    before = contents(root)
    process = shell(root, line, limit, size)
    assert process.returncode == 1, process.stderr
    assert process.stdout == ""
    # A training says its settings and epochs, and on a slow machine how long a step takes.
    said = r"epoch |training: |the learning rate is |\S+ has \d+ training, |\w+.*, (\d+m )?\d+s$"
    lines = [line for line in process.stderr.splitlines() if not re.match(said, line)]
    assert [line.partition(":")[0] for line in lines] == ["error"], process.stderr
    assert "unexpected" not in process.stderr
    for word in words:
        assert word in process.stderr
    after = contents(root)
    assert {name: digest for name, digest in after.items() if ".run/" not in name} == before


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system with 100 KiB of free space."""
    root = tmp_path / "disk"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(root)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    try:
        make_world(root)
        with (root / "filling").open("wb", buffering=0) as filling:
            free = 4 * 2**20 - sum(
                -(-path.stat().st_size // 4096) * 4096 for path in root.rglob("*") if path.is_file()
            )
            filling.write(b"x" * (free - 100 * 2**10))
        yield root
    finally:
        subprocess.run(["umount", str(root)], check=True)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            line,
            marks=pytest.mark.exhaustive if "--force" in line or line.startswith("extract") else [],
        )
        for line in WRITES
    ],
)
def test_a_full_disk(line: str, full: Path, shell: Shell) -> None:
    check(shell, full, line, "the disk is full; free some space")


@pytest.mark.parametrize(
    "line", [WRITES[1], *(pytest.param(line, marks=pytest.mark.exhaustive) for line in WRITES[2:4])]
)
def test_a_limit_on_the_size_of_files(line: str, tmp_path: Path, shell: Shell) -> None:
    make_world(tmp_path)
    check(
        shell, tmp_path, line, "larger than this process may write", limit="FSIZE", size=64 * 2**10
    )


@pytest.mark.parametrize(
    "line",
    [
        "expand scratched --width 4096 --heads 2 --layers 24 -o new",
        pytest.param(
            "expand scratched --width 4096 --heads 2 --layers 24 -o model --force",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            f"train {BRIEF} --width 2048 --heads 2 --layers 24 --image-size 16 -o new",
            marks=pytest.mark.exhaustive,
        ),
        f"train {BRIEF} --width 32 --heads 2 --layers 3 --image-size 4096 --patch-size 8 -o new",
    ],
)
def test_a_lack_of_memory(line: str, tmp_path: Path, shell: Shell) -> None:
    make_world(tmp_path)
    check(shell, tmp_path, line, "out of memory; use a smaller", limit="AS", size=512 * 2**20)


@pytest.mark.parametrize("files", [16, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_too_many_open_files(files: int, tmp_path: Path, shell: Shell) -> None:
    make_world(tmp_path)
    line = f"finetune model {BRIEF} --workers 8 -o new"
    check(
        shell,
        tmp_path,
        line,
        "too many files are open; raise the limit",
        limit="NOFILE",
        size=files,
    )


def test_a_lack_of_a_gpus_memory(tmp_path: Path, shell: Shell) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    make_world(tmp_path)
    held = torch.empty(
        int(torch.cuda.mem_get_info()[0] * 0.97) - 2**30, dtype=torch.uint8, device="cuda"
    )
    line = f"train {BRIEF} --device cuda --width 4096 --heads 2 --layers 48 --image-size 16 -o new"
    check(shell, tmp_path, line, "out of memory; use a smaller")
    del held
