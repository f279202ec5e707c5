"""Complete stories in separate processes: a round trip, and a sample of the fault matrix."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from standin import StandIn

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.families.eva.names import ARCHITECTURES
from learngene_zoo.method.installed import METHODS
from learngene_zoo.settings import with_settings

Lgzoo = Callable[..., SimpleNamespace]  # what the fixture `lgzoo` is
HERE = Path(__file__).resolve().parent
SAMPLE = 92  # every so manieth case of the matrix: under a minute


def process(code: str, hub: StandIn, tmp_path: Path, path: str = "") -> str:
    """Run a process with the stand-in's address, an empty cache and this checkout; return its
    output.
    """
    environment = {
        **os.environ,
        **hub.environment(tmp_path / "home"),
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
    }
    folder = tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def code_that_opens(name: str, size: int, wanted: Path) -> str:
    """Return code that opens a model of the Hub in timm, and prints the difference from the
    expected output.
    """
    return f"""
        import sys, timm, torch
        model = timm.create_model("hf-hub:{name}", pretrained=True).eval()
        images = torch.linspace(-1, 1, 2 * 3 * {size} * {size}).reshape(2, 3, {size}, {size})
        print(float((model(images) - torch.load({str(wanted)!r})).abs().max()))
        assert not [name for name in sys.modules if name.startswith(("learngene", "lgzoo"))]
        """


@pytest.mark.slow
def test_there_and_back(
    hub: StandIn, lgzoo: Lgzoo, made: SimpleNamespace, tmp_path: Path, checkout: Path
) -> None:
    # publish, fetch, expand, publish again
    assert lgzoo("publish", made.learngene, "me/learngene", "--tag", "v1.0").code == 0
    fetched = Path(lgzoo("fetch", "me/learngene@v1.0").out.strip())
    assert lgzoo("expand", "me/learngene@v1.0", "--layers", "3", "-o", tmp_path / "three").code == 0
    assert lgzoo("publish", tmp_path / "three", "me/three", "--tag", "v1.0").code == 0
    images = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)
    expected = lg.expand(fetched, layers=3).model()(images).detach()
    torch.save(expected, tmp_path / "wanted.pt")
    # torch.hub builds the same from a bare checkout, whose learngene is the one on the Hub
    copy = tmp_path / "checkout"
    for part in ("hubconf.py", "pyproject.toml"):
        copy.mkdir(exist_ok=True)
        shutil.copy(checkout / part, copy / part)
    for part in ("learngene_zoo", "plugins", "cards"):
        shutil.copytree(checkout / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    opened = code_that_opens("me/three@v1.0", 16, tmp_path / "wanted.pt")
    loaded = f"""
        import torch
        model = torch.hub.load({str(copy)!r}, "lsamd_vit", learngene="me/learngene@v1.0", layers=3, classes=5, source="local")
        images = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)
        print(float((model(images) - torch.load({str(tmp_path / "wanted.pt")!r})).abs().max()))
        """
    # timm opens the model without this package, before torch.hub imports it
    differences = process(opened + loaded, hub, tmp_path).split()
    assert [float(difference) for difference in differences] == [0, 0]
    # and once more without the Hub
    before = len(hub.requests)
    offline = loaded.replace(
        "import torch", "import os; os.environ['HF_HUB_OFFLINE'] = '1'\n        import torch", 1
    )
    assert float(process(offline, hub, tmp_path)) == 0
    assert len(hub.requests) == before


@pytest.mark.exhaustive
def test_a_model_of_the_family_eva_is_published_and_opened_by_timm(
    hub: StandIn, lgzoo: Lgzoo, tmp_path: Path
) -> None:
    spec = ARCHITECTURES["eva02_tiny_patch14_336"].with_(
        layers=2, width=24, heads=2, image_size=28, classes=5
    )
    ancestry = assemble(spec, {}, seed=5).save(tmp_path / "ancestry")
    keep = with_settings(METHODS.load("lsamd").extractor, {"keep": (1, 2)})
    lg.extract("lsamd", ancestries=[str(ancestry)], extractor=keep, out=tmp_path / "learngene")
    model = lg.expand(tmp_path / "learngene", layers=2, classes=5, out=tmp_path / "two")
    assert lgzoo("publish", tmp_path / "learngene", "me/learngene", "--tag", "v1.0").code == 0
    assert lgzoo("publish", tmp_path / "two", "me/two", "--tag", "v1.0").code == 0
    images = torch.linspace(-1, 1, 2 * 3 * 28 * 28).reshape(2, 3, 28, 28)
    torch.save(model.model()(images).detach(), tmp_path / "wanted.pt")
    assert (
        float(process(code_that_opens("me/two@v1.0", 28, tmp_path / "wanted.pt"), hub, tmp_path))
        == 0
    )
    assert (
        lgzoo(
            "expand",
            "me/learngene@v1.0",
            "--layers",
            "2",
            "--classes",
            "5",
            "-o",
            tmp_path / "again",
        ).code
        == 0
    )
    assert lg.load(tmp_path / "again").identity == model.identity


def run_matrix(checkout: Path, *words: str) -> str:
    """Return the last line that the matrix prints."""
    path = os.pathsep.join([str(checkout), str(checkout / "plugins")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, str(HERE / "matrix.py"), *words],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_sample_of_the_fault_matrix(checkout: Path) -> None:
    assert run_matrix(checkout, "--every", str(SAMPLE)).endswith(" 0 were wrong")


@pytest.mark.exhaustive
def test_the_fault_matrix(checkout: Path) -> None:
    assert run_matrix(checkout).endswith(" 0 were wrong")
