"""Pretrain-finetune: every size trained from scratch on the source task, and all of them stored.

What learngenes are to replace: the upper bound in accuracy and in storage (LSAMD, section "Experiments": 787 M parameters
for 5 to 15 layers). Fine-tuning is what `lgzoo finetune` does with any descendant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Json, Learngene, Method, Part, Recipe, Spec, Work, derive_seed, once
from lgzoo_baselines.stored_sizes import MINI, PAPER, SMOKE, TRAINING, Details, Sizes, Take, stored, work_of

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class Pretrain(Sizes):
    """Train a model of each depth on the source task; of the ancestry model only the shape is used."""

    method = "pretrain_finetune"

    training: Recipe = TRAINING

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One training for each depth."""
        return work_of(self.depths, self.training, images[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Train them one after the other, each a part of the run; their heads are dropped."""
        from learngene_zoo.plugin import assemble

        ancestry, task = ancestries[0], tasks[0]
        mean, std = ancestry.record.mean, ancestry.record.std
        trained: dict[int, Part] = {}
        for layers in sorted(self.depths):
            part = run.part(f"layers-{layers}")
            spec = ancestry.spec.with_(layers=layers, classes=task.classes, dense=task.dense)
            start = assemble(spec, {}, seed=derive_seed(part.seed, "init"), scheme=self.init, mean=mean, std=std)
            trained[layers] = once(part, pretrained, self.training, [start, task])
        return stored(self.outline([ancestry.spec]), trained, {})


def pretrained(recipe: Recipe, start: Descendant, task: Task, run: Run) -> tuple[StateDict, Json]:
    """The tensors of one trained model, without its head, and its metrics."""
    from learngene_zoo.plugin import fit, without_head

    model = fit(start, task, recipe, run)
    return without_head(model.state, model.spec), dict(model.provenance["metrics"])


PRETRAIN_FINETUNE = Method(
    name=Pretrain.method,
    title="pretrain every size from scratch and store them all: the upper bound",
    paper="",
    expander=Take(),
    presets={
        "mini": Pretrain(init="fan_in", training=MINI),
        "paper": Pretrain(depths=tuple(range(5, 16)), training=PAPER),
        "smoke": Pretrain(depths=(1, 2), init="fan_in", training=SMOKE),
    },
    tasks="one",
    details=Details,
)
