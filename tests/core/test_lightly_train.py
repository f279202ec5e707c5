"""The block of docs/heal.md that distils with LightlyTrain runs with a stand-in of its function."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import timm
import torch
from click.testing import CliRunner
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.cli.main import main
from learngene_zoo.runs.run import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "heal.md"
RUN = Run(threads=1, device="cpu")


def read_block() -> str:
    """Return the Python block of the section."""
    section = PAGE.read_text(encoding="utf-8").partition("## The same with LightlyTrain")[2]
    match = re.search(r"^```python\n(.*?)^```$", section, re.M | re.S)
    assert match is not None
    return match[1]


def read_features(model: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the patches (B, D, H, W) after the last block, as LightlyTrain reads them of timm."""
    (patches,) = model.forward_intermediates(
        images, indices=1, output_fmt="NCHW", intermediates_only=True, norm=True
    )
    return patches


class StandIn:
    """One step of distillation, with the parameters of `lightly_train.pretrain` that are used here.

    Other parameters of that function have defaults, too.
    """

    def __init__(self) -> None:
        self.images: list[Path] = []

    def pretrain(
        self,
        *,
        out: str,
        data: str,
        model: torch.nn.Module,
        method: str = "distillation",
        method_args: dict[str, Any] | None = None,
        epochs: int | str = "auto",
        batch_size: int = 128,
        transform_args: dict[str, Any] | None = None,
    ) -> None:
        assert method == "distillationv3", "which takes a module as its teacher"
        assert transform_args is not None
        assert method_args is not None
        assert set(transform_args) == {"image_size", "normalize"}
        assert set(transform_args["normalize"]) == {"mean", "std"}
        teacher = method_args["teacher"].eval().requires_grad_(False)
        for module in (model, teacher):
            assert any(kind.__module__.startswith("timm") for kind in type(module).__mro__)
            assert isinstance(module.num_features, int)
        self.images = sorted(Path(data).rglob("*.png"))
        size, norm = transform_args["image_size"], transform_args["normalize"]
        pixels = [np.asarray(Image.open(file).resize(size)) for file in self.images]
        images = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255
        mean, std = (torch.tensor(norm[name])[:, None, None] for name in ("mean", "std"))
        student, target = (read_features(m, (images - mean) / std) for m in (model, teacher))
        assert student.shape[2:] == target.shape[2:]
        student.square().mean().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step()
        Path(out, "exported_models").mkdir(parents=True)
        torch.save(model.state_dict(), Path(out, "exported_models", "exported_last.pt"))


@pytest.mark.slow
def test_the_block_of_the_page_distils_into_a_descendant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    Path("photos").mkdir()
    for number in range(4):
        pixels = draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(Path("photos", f"{number}.png"))
    start = lg.expand("first_k", layers=2, out="descendant", run=RUN)
    stand_in, module = StandIn(), ModuleType("lightly_train")
    module.pretrain = stand_in.pretrain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightly_train", module)
    exec(compile(read_block(), str(PAGE), "exec"), {"__name__": "__main__"})
    assert len(stand_in.images) == 4
    distilled: Any = lg.load("distilled")
    assert distilled.provenance["distilled"]["images"] == "photos"
    assert distilled.provenance["ancestries"] == start.provenance["ancestries"]
    changed = [
        name for name in start.state if not torch.equal(start.state[name], distilled.state[name])
    ]
    assert any(name.startswith("blocks.1.") for name in changed)
    assert "head.weight" not in changed
    images = torch.zeros(1, 3, 32, 32)
    theirs = timm.create_model("local-dir:distilled", pretrained=True).eval()
    assert torch.equal(theirs(images), distilled.model()(images))
    words = ["finetune", "distilled", "--task", "digits", "--epochs", "1", "--images", "20"]
    tuned = CliRunner().invoke(main, [*words, "--threads", "1", "-q"])
    assert tuned.exit_code == 0, tuned.output
