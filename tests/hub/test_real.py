"""`benchmarks/real.py` from beginning to end, with random weights under timm's names and small
copies of public data sets.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save
from standin import StandIn

import learngene_zoo as lg
from learngene_zoo.artifacts.learngene import read_config
from learngene_zoo.bench.results.rows import read_rows
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.timm_config import read_architecture
from learngene_zoo.tasks.catalogue import find_entry

ROOT = Path(__file__).resolve().parents[2]
MODEL = "deit_tiny_patch16_224.fb_in1k"
SMALL = [
    f"timm:{MODEL}",
    "--image-size",
    "32",
    "--seen",
    "dtd",
    "--task",
    "pets",
    "--layers",
    "5,6",
    "--epochs",
    "1",
    "--images",
    "16",
    "--batch-size",
    "8",
    "--set",
    "top=5",
    "--set",
    "epochs=1",
    "--set",
    "images=16",
    "--set",
    "batch_size=8",
    "--workers",
    "0",
    "--device",
    "cpu",
]
TRAININGS = 12 + 12  # six arms: at one depth with two learning rates, and at two depths


@pytest.fixture(scope="module")
def real() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("real")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write copies of two data sets, with all classes and one image of each in every split."""
    pixels = np.random.default_rng(0)
    for task in ("dtd", "pets"):
        entry = find_entry(task)
        assert entry is not None
        monkeypatch.setenv(f"LGZOO_{task.upper()}", str(tmp_path / task))
        for split in ("train", "validation", "test"):
            for label in range(entry.classes):
                folder = tmp_path / task / split / f"{label:03}"
                folder.mkdir(parents=True)
                Image.fromarray(pixels.integers(0, 256, (12, 20, 3), dtype=np.uint8)).save(
                    folder / "0.jpg"
                )


def test_the_card_names_the_call_without_what_changes_no_number(real: ModuleType) -> None:
    words = [
        "dinov2-small",
        "--task",
        "pets,dtd",
        "--rates",
        "1e-4",
        "--set",
        "keep=1,2",
        "--yes",
        "-o",
        "somewhere",
    ]
    job = real.Job(
        real.make_parser().parse_args(words), real.ANCESTRIES["dinov2-small"], real.Run()
    )
    assert (
        job.command
        == "python benchmarks/real.py dinov2-small --set keep=1,2 --task pets,dtd --rates 0.0001"
    )
    assert real.make_parser().parse_args(job.command.split()[2:]).rates == (1e-4,)


def test_the_size_of_data_is_what_the_hub_lists(
    real: ModuleType, hub: StandIn, data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, calls = real.real_plan.describe_data_size, []

    def listed(
        self: Any, name: str, *, revision: str | None, files_metadata: bool
    ) -> SimpleNamespace:
        calls.append((name, revision, files_metadata))
        return SimpleNamespace(siblings=[SimpleNamespace(size=2_500), SimpleNamespace(size=None)])

    assert size("cars", False) == "size unknown", "the stand-in has no data sets"
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", listed)
    assert [size(task, False) for task in ("decathlon-svhn", "decathlon-aircraft")] == [
        "2.50KB"
    ] * 2
    assert calls == [
        ("ufldl-stanford/svhn", None, True),
        ("HuggingFaceM4/FGVC-Aircraft", "refs/pr/1", True),
    ]
    assert (size("pets", False), size("cars", True), len(calls)) == (
        "not from the Hub",
        "size unknown",
        2,
    )


def test_who_is_contacted_and_which_paths_become_public_is_told_first(
    real: ModuleType, hub: StandIn, data: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real.main([*SMALL, "--speed", "10", "--publish", "me/real"])
    reads, publishes, *rest = capsys.readouterr().out.splitlines()
    host = hub.url.removeprefix("http://")
    assert reads == f"contacts {host} for timm/{MODEL}"
    paths = f"folder:{tmp_path / 'dtd'}, folder:{tmp_path / 'pets'}"
    assert (
        publishes
        == f"publishes me/real on {host}, for everyone to read; paths of this machine on its card:"
        f" {paths}"
    )
    assert rest[-1] == "nothing is started without --yes"
    assert hub.repos == {}, "nothing was published"


@pytest.mark.slow
def test_what_it_takes_is_told_for_every_ancestry_model(
    real: ModuleType,
    data: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in real.ANCESTRIES:
        real.main([name, "--speed", "1000", "--offline"])
        message = capsys.readouterr().out
        # 50 epochs of the training images of cifar100, food101 and dtd; 20 of those of flowers102,
        # pets and cars, at 3 depths in 6 arms
        assert f"{50 * (45_000 + 68_175 + 1_880) / 1e6:.2f}M" in message
        assert f"{20 * 18 * (1_020 + 3_312 + 7_330) / 1e6:.2f}M" in message
        assert "5, 9, 12 layers" in message
        assert real.ANCESTRIES[name] in message
        assert "cars (size unknown)" in message
        assert "pets (not from the Hub)" in message
        assert "nothing is started" in message
    real.main(["deit-base", "--speed", "1000", "--offline", "--layers", "5,99"])
    message = capsys.readouterr()
    assert "; 5 layers" in message.out
    assert "not 99 layers; skipped" in message.err
    for words, why in (
        (["--method", "pool"], "pool does not support models of the family 'eva'"),
        (["--task", "petz"], "no task named 'petz'"),
        (["--set", "tops=3"], "no setting named 'tops'"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{why}"):
            real.main(["dinov3-small", "--speed", "1000", "--offline", *words])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dtd", "pets"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_from_timm_to_the_hub_with_a_kill_between(hub: StandIn, data: None, tmp_path: Path) -> None:
    spec = read_architecture(MODEL)
    commit = hub.put(f"timm/{MODEL}", {"model.safetensors": save(dict(initialise(spec, 0)))})
    call = [
        sys.executable,
        str(ROOT / "benchmarks" / "real.py"),
        *SMALL,
        "--speed",
        "10",
        "--yes",
        "-o",
        "out",
    ]
    environment = {
        **os.environ,
        **hub.environment(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
    }
    results = tmp_path / "out" / "results.jsonl"
    first = subprocess.Popen(
        call, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        while first.poll() is None and (
            not results.exists() or results.read_bytes().count(b"\n") < 3
        ):
            time.sleep(0.05)
    finally:
        first.send_signal(signal.SIGKILL)
        told, _ = first.communicate()
    assert first.returncode == -signal.SIGKILL, told.decode()
    begun = read_rows(results)
    call += ["--publish", "me/real"]
    second = subprocess.run(
        call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[-1] == f"{hub.url}/me/real/tree/{hub.repos['me/real'].head}"
    rows = read_rows(results)
    assert rows[: len(begun)] == begun
    assert len({row.key for row in rows}) == len(rows) == TRAININGS
    assert "extracting lsamd" not in second.stderr
    assert (tmp_path / "out" / "report.html").is_file()

    fetched = lg.fetch("me/real@main")
    config = read_config(fetched)
    (ancestry,) = config.ancestries
    assert (ancestry.source, ancestry.revision, ancestry.spec.image_size) == (
        f"timm:{MODEL}",
        commit,
        32,
    )
    assert [task.name for task in config.tasks] == ["dtd"]
    assert config.card is not None
    assert config.card.worth is not None
    assert [(row.task, row.layers) for row in config.card.worth.rows] == [("pets", 5), ("pets", 6)]
    for row in config.card.worth.rows:
        assert list(row.accuracy) == [
            "descendant",
            "shuffled",
            "stem",
            "stem_fan_in",
            "scratch timm",
            "scratch fan_in",
        ]
        assert row.images == 37
    page = (fetched / "README.md").read_text(encoding="utf-8")
    assert "## Evaluation results" in page
    assert f"real.py timm:{MODEL} --set top=5" in page
    assert lg.expand(fetched, layers=7, task="pets").spec.classes == 37
