"""Every exception becomes one line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.cli.main import main
from learngene_zoo.cli.process.guard import run_guarded
from learngene_zoo.errors import CAN_RESUME, BadFile, Exists, Refused, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.ownership import mark_workspace
from learngene_zoo.runs.folder import check_start
from learngene_zoo.runs.run import Run
from learngene_zoo.training import tuning


def outcome(
    error: BaseException, capsys: pytest.CaptureFixture[str], words: list[str] | None = None
) -> tuple[int, str]:
    def fail(_: list[str]) -> None:
        raise error

    code = run_guarded(fail, words or [])
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, printed.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (WrongCall("no such thing"), 2, "error: no such thing\n"),
        (BadFile("it is\n  broken"), 1, "error: it is broken\n"),
        (
            click.UsageError("Missing argument 'NAME'."),
            2,
            "error: missing argument 'NAME'; see lgzoo --help\n",
        ),
        (
            KeyError("x"),
            1,
            "error: unexpected KeyError: 'x'; run again with --debug to see the traceback\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "f"),
            1,
            "error: f: the disk is full; free some space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "f"),
            1,
            "error: f: permission denied; choose another path",
        ),
        (MemoryError(), 1, "error: out of memory; use a smaller --batch-size"),
        (
            RuntimeError("Too many open files. Communication with the workers is not possible"),
            1,
            "error: too many files are open; raise the limit",
        ),
    ],
)
def test_one_line_and_a_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, text = outcome(error, capsys)
    assert got == code
    assert text.startswith(said)
    assert text.count("\n") == 1


def test_debug_shows_where_and_is_taken_off_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = outcome(BadFile("broken"), capsys, ["show", "--debug", "x"])
    assert code == 1
    assert "Traceback" in text
    assert text.endswith("error: broken\n")
    _, text = outcome(KeyError("x"), capsys, ["show", "--debug", "x"])
    assert text.endswith("error: unexpected KeyError: 'x'\n")
    seen: list[str] = []
    assert run_guarded(seen.extend, ["show", "--debug", "x"]) == 0
    assert seen == ["show", "x"]


@pytest.mark.parametrize(
    ("words", "path", "beside"),
    [
        (["finetune"], "finetuned", "lgzoo finetune -o finetuned-3"),
        (
            ["finetune", "my model", "-o", "finetuned", "--lr", "1e-3"],
            "finetuned",
            "lgzoo finetune 'my model' --lr 1e-3 -o finetuned-3",
        ),
        (["export", "--out=a b.onnx", "-q"], "a b.onnx", "lgzoo export -q -o 'a b-2.onnx'"),
        (
            ["expand", "-ox", "--task", "folder:My Photos"],
            "x",
            "lgzoo expand --task 'folder:My Photos' -o x-2",
        ),
        (["show", "digits", "--sheet", "s.png"], "s.png", "lgzoo show digits -o s-2.png"),
        (["shrink", "--task", "digits"], "shrunk.onnx", "lgzoo shrink --task digits -o shrunk-4"),
        (["shrink", "-o", "my.model"], "my.model.html", "lgzoo shrink -o my-2.model"),
        (["expand", "--layers", "7", "--", "-y"], "x", "lgzoo expand --layers 7 -o x-2 -- -y"),
        (["expand", "-o", "./-y"], "-y", "lgzoo expand -o ./-y-2"),
        (
            ["list", "learngenes", "--html", "x.html"],
            "x.html",
            "lgzoo list learngenes --html x-2.html",
        ),
        (
            ["list", "learngenes", "--html=x.html"],
            "x.html",
            "lgzoo list learngenes --html x-2.html",
        ),
    ],
)
def test_a_place_that_is_taken_comes_with_the_command_that_writes_beside_it(
    words: list[str],
    path: str,
    beside: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("finetuned-2", "shrunk-2"):
        Path(folder).mkdir()
    Path("shrunk-3.html").touch()
    code, text = outcome(Exists(path), capsys, words)
    assert code == 1
    option = "--html" if words[0] == "list" else "-o"
    assert text.endswith(
        f"already exists; choose another path with {option}, or replace it with --force; for "
        f"example: {beside}\n"
    )


def test_a_remedy_is_an_argument_in_python_and_an_option_in_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        str(Exists("x")) == "x already exists; choose another path, or replace it with force=True"
    )
    run = tmp_path / "x.run"
    (run / "checkpoint-1").mkdir(parents=True)
    mark_workspace(run, "run")
    (run / "run.json").write_text('{"finished": false}')
    with pytest.raises(Refused) as caught:
        check_start(tmp_path / "x", Run(), force=False)
    assert str(caught.value).endswith(
        "continue it with Run(resume=True) or start over with force=True"
    )
    assert outcome(caught.value, capsys)[1].endswith(
        "continue it with --resume or start over with --force\n"
    )


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_says_how_to_go_on(
    interrupt: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = "interrupted; there is nothing to resume\n"
    kept = "interrupted; continue with: lgzoo finetune --resume\n"
    assert outcome(interrupt, capsys, ["finetune"]) == (130, nothing)
    assert outcome(interrupt, capsys, ["finetune", "--resume"]) == (130, kept)
    assert outcome(interrupt, capsys, ["list"]) == (130, "interrupted\n")
    assert outcome(interrupt, capsys, ["bench"]) == (
        130,
        "interrupted; the same command continues\n",
    )
    interrupt.add_note(CAN_RESUME)
    assert outcome(interrupt, capsys, ["finetune"]) == (130, kept)
    words = ["finetune", "my model", "--force", "-o", "new", "--", "-x"]
    again = "lgzoo finetune 'my model' -o new --resume -- -x"
    assert outcome(interrupt, capsys, words) == (130, f"interrupted; continue with: {again}\n")


@pytest.mark.parametrize(
    ("step", "end"),
    [("prepare_training", "there is nothing to resume"), ("judge", "continue with: ")],
)
def test_an_interrupt_offers_to_resume_only_what_was_saved(
    step: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    spec = ViTSpec(layers=1, width=8, heads=2, image_size=16, patch_size=8)
    assemble(spec, {}, seed=0).save(Path("model"))
    monkeypatch.setattr(tuning, step, interrupt)
    brief = "--epochs 1 --images 16 --batch-size 8 --threads 1 -q"
    result = CliRunner().invoke(main, f"finetune model --task digits {brief}".split())
    assert result.exit_code == 130
    assert result.stderr.split("\n")[-2].startswith(f"interrupted; {end}")
    assert Path("finetuned.run").is_dir() == (step == "judge")


def test_an_interrupt_that_a_library_turns_into_an_error_is_still_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def import_something(_: list[str]) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half imported") from None

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_guarded(import_something, ["plan"]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "interrupted\n"


SLOW_TO_STOP = """
import signal, sys, time
from learngene_zoo.cli.process.guard import run_guarded

def call(_):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)

sys.exit(run_guarded(call, ["finetune"]))
"""


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_and_without_a_traceback() -> None:
    process = subprocess.run(
        [sys.executable, "-c", SLOW_TO_STOP], capture_output=True, text=True, timeout=50
    )
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


TERMINATED_TWICE = """
import os, signal, sys
from learngene_zoo.cli.process.guard import run_guarded

def call(_):
    if os.fork() == 0:  # as a loader's process
        os.kill(os.getpid(), signal.SIGTERM)
        print("the forked process goes on")
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGTERM)  # does not act
        print("cleaned up", flush=True)
        raise

sys.exit(run_guarded(call, ["finetune"]))
"""


def test_a_termination_is_an_interrupt_with_another_exit_code() -> None:
    process = subprocess.run(
        [sys.executable, "-c", TERMINATED_TWICE], capture_output=True, text=True, timeout=50
    )
    expected = (143, "143\ncleaned up\n", "interrupted; there is nothing to resume\n")
    assert (process.returncode, process.stdout, process.stderr) == expected


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_ctrl_c_while_libraries_are_imported(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "learngene_zoo",
        "extract",
        "first_k",
        "-o",
        str(tmp_path / "new"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        while (
            process.poll() is None
            and "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        ):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, printed = process.communicate(timeout=50)
    assert (process.returncode, printed.strip()) == (130, "interrupted; there is nothing to resume")


def test_a_reader_that_leaves_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = f"{sys.executable} -m learngene_zoo list --all | head -1"
    process = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=50
    )
    assert (
        len(process.stdout.splitlines()),
        process.stderr.count("Traceback"),
        process.stderr.count("error"),
    ) == (1, 0, 0)


TERMINATED_IN_THE_BACKGROUND = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of a command with & in a script
from learngene_zoo.cli.process.guard import run_guarded
from learngene_zoo.training.checkpoint import defer_interrupts

def call(_):
    signal.raise_signal(signal.SIGINT)
    print("ignored", flush=True)
    with defer_interrupts(True) as is_ending:
        signal.raise_signal(signal.SIGTERM)
        print("saved after this step:", is_ending(), flush=True)

code = run_guarded(call, ["bench"])
signal.raise_signal(signal.SIGINT)
sys.exit(code)
"""


@pytest.mark.slow
def test_a_termination_acts_in_the_background_where_interrupts_are_ignored() -> None:
    process = subprocess.run(
        [sys.executable, "-c", TERMINATED_IN_THE_BACKGROUND],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (process.returncode, process.stdout, process.stderr) == (
        143,
        "ignored\nsaved after this step: True\n",
        "interrupted; the same command continues\n",
    )
