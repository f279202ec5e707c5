"""The estimated work of closed-form methods is near the multiply-adds that are done.

Products in float64 count twice in the estimate, and factors count, so it is larger.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.utils.flop_counter import FlopCounterMode

import learngene_zoo as lg
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import Work
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member, Target
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task

SPEC = ViTSpec(layers=4, width=64, heads=4, classes=3, image_size=16, patch_size=8)
RUN = Run(threads=1, device="cpu")


def count(work: Work, spec: ViTSpec) -> float:
    """Return the multiply-adds of an estimate, with its passes through a model of this shape."""
    passes = work.images * work.frozen / spec.layers
    return work.solved + passes * Member(spec=spec).cost().flops


def measure(function: Callable[[], object]) -> float:
    """Return the multiply-adds of products, without those of factors and their solutions."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize(
    ("name", "target", "shape"),
    [
        ("closed_form", Target(layers=2, width=32), {"layers": 2, "width": 32, "heads": 2}),
        ("closed_form", Target(layers=2), {"layers": 2}),
        ("pruning", Target(heads=2, mlp_ratio=2.0), {"heads": 2, "mlp_ratio": 2.0}),
    ],
)
def test_the_estimate_is_half_to_three_times_the_products(
    name: str, target: Target, shape: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )
    ancestry, task, method = make_tiny_ancestry(spec=SPEC), make_tiny_task(), METHODS.load(name)
    images = [task.sizes["train"]]
    learngenes: list[lg.Learngene] = []
    extraction = measure(lambda: learngenes.append(method.extractor([ancestry], [task], RUN)))
    (work,) = method.extractor.work([SPEC], images)
    assert 0.5 * extraction < count(work, SPEC) < 3 * extraction
    (learngene,) = learngenes
    expansion = measure(lambda: method.expander(learngene, target, RUN))
    if name == "closed_form":  # streams are not kept, so the expansion records them again
        expansion -= images[0] * Member(spec=SPEC).cost().flops
    (work,) = method.expander.work(learngene.config, SPEC.with_(**shape), images)
    assert 0.5 * expansion < count(work, SPEC) < 3 * expansion
