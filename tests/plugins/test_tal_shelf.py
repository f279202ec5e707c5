"""The hypernetworks on the shelf: TAL's models are ready, offline, for known and other tasks.

No block of any is dead.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer

from learngene_zoo import lifecycle, torch_hub
from learngene_zoo.artifacts.descendant import apply_control
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.shelf import find
from learngene_zoo.method.installed import parse_details
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import SOURCE_TASK, find_suite, open_task
from learngene_zoo.tasks.loader import Loader
from learngene_zoo.training.evaluate import evaluate
from lgzoo_tal.hypernet_spec import HypernetDetails
from lgzoo_tal.modules.forms import WRITERS

OFFLINE = Run(threads=1, offline=True, progress=False)


@pytest.fixture(scope="module")
def learngene() -> Learngene:
    return load_learngene(find("tal"))


def test_it_knows_the_source_task_and_every_task_of_the_suite_that_is_not_left_out(
    learngene: Learngene,
) -> None:
    details, mini = parse_details(learngene.config, HypernetDetails), find_suite("mini")
    assert details.tasks == tuple(task for task in mini.tasks if task not in mini.left_out)
    assert details.embedded == (SOURCE_TASK, *details.tasks)
    assert sum(path.stat().st_size for path in find("tal").iterdir()) < 12e6


def test_torch_hub_gives_a_ready_model_of_any_size() -> None:
    model = torch_hub.method_vit("tal", "signs", layers=6, width=64)
    assert isinstance(model, VisionTransformer)
    assert (len(model.blocks), model.embed_dim, model.num_classes, model.training) == (
        6,
        64,
        43,
        False,
    )
    again = torch_hub.method_vit("tal", "signs", layers=6, width=64, seed=7)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), again(images))


@pytest.mark.parametrize("task", ["signs", "numbers"])
@pytest.mark.parametrize(("layers", "width"), [(3, 64), (7, 96), (12, 96)])
def test_an_untrained_model_knows_its_task(
    learngene: Learngene, task: str, layers: int, width: int
) -> None:
    descendant = lifecycle.expand(learngene, layers=layers, width=width, task=task, run=OFFLINE)
    data = open_task(task)
    right = evaluate(
        descendant.model(), data, "validation", descendant.input_format, OFFLINE, images=300
    ).value
    by_chance = evaluate(
        apply_control(descendant, "shuffled", 0).model(),
        data,
        "validation",
        descendant.input_format,
        OFFLINE,
        images=300,
    ).value
    assert right > 4 / data.classes
    assert by_chance < right / 2


@pytest.mark.slow
@pytest.mark.parametrize("task", ["signs", "numbers", "textures"])
def test_most_of_what_a_deep_model_knows_needs_its_later_blocks(
    learngene: Learngene, task: str
) -> None:
    """(whole - zeroed) / (whole - chance) >= 1/2.

    Blocks 3 to 11 of the zeroed model add nothing to the stream.
    """
    descendant, data = (
        lifecycle.expand(learngene, layers=12, width=96, task=task, run=OFFLINE),
        open_task(task),
    )
    silent = {f"blocks.{block}.{writer}" for block in range(3, 12) for writer in WRITERS}
    zeroed = descendant.with_state(
        {name: t * 0 if name in silent else t for name, t in descendant.state.items()}
    )
    complete, without = (
        evaluate(
            candidate.model(), data, "validation", candidate.input_format, OFFLINE, images=500
        ).value
        for candidate in (descendant, zeroed)
    )
    assert complete - without >= (complete - 1 / data.classes) / 2 > 0


@pytest.mark.parametrize(
    ("method", "layers"), [("tal", 12), ("tal", 16), ("tal", 18), ("logah", 12), ("ghn3", 12)]
)
def test_no_block_is_dead(method: str, layers: int) -> None:
    """Each adds at least a twentieth to the differences between pictures, of the class token.

    16 and 18 layers are deeper than any model of the training.
    """
    descendant, data = (
        lifecycle.expand(find(method), layers=layers, width=96, task="signs", run=OFFLINE),
        open_task("signs"),
    )
    images = next(
        iter(Loader(data, "validation", descendant.input_format, batch_size=64).epoch(0))
    ).inputs
    before, shares = descendant.model().patch_embed(images), []
    with torch.no_grad():
        before = descendant.model()._pos_embed(before)
        for block in descendant.model().blocks:
            after = block(before)
            added, stream = (
                (tokens[:, 0] - tokens[:, 0].mean(0)).std() for tokens in (after - before, before)
            )
            shares.append(float(added / stream.clamp(min=1e-6)))
            before = after
    assert min(shares) > 0.05, [f"{share:.3f}" for share in shares]


def test_an_unseen_folder_is_embedded_and_gets_weights_of_its_own(
    learngene: Learngene, tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    for name, light in (("dark", 40), ("light", 200)):
        for split in ("train", "test"):
            folder = tmp_path / "mine" / split / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = draw.integers(0, 50, (40, 40, 3)) + light
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{number}.png")
    descendant = lifecycle.expand(
        learngene, layers=6, task=f"folder:{tmp_path / 'mine'}", run=OFFLINE
    )
    assert descendant.spec.classes == 2
    assert descendant.provenance["embedding"] == {
        "from": "training images",
        "images": 11,
    }  # one of twelve is a validation image
    known = lifecycle.expand(learngene, layers=6, task="figures", run=OFFLINE)
    assert not torch.equal(
        descendant.state["blocks.0.attn.qkv.weight"], known.state["blocks.0.attn.qkv.weight"]
    )


@pytest.mark.slow
def test_it_can_be_drawn(tmp_path: Path) -> None:
    assert lifecycle.plot("tal", tmp_path / "tal.png").stat().st_size > 20_000
