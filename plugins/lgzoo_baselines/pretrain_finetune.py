"""Pretrain-finetune: every size trained from scratch on the source task, and all of them stored. Cold.

What learngenes are to replace: the upper bound in accuracy and in storage (LSAMD, section "Experiments": 787 M parameters
for 5 to 15 layers). Fine-tuning is what `lgzoo finetune` does with any descendant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.plugin import Extractor, Learngene, LearngeneConfig, Method, Recipe, ViTSpec
from lgzoo_baselines.stored_sizes import MINI, PAPER, SMOKE, TRAINING, Take, check_depths, outline_of, train_each

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Run, StateDict, Task


@dataclass(frozen=True, kw_only=True)
class Pretrain(Extractor):
    """Train a model of each depth on the source task; of the ancestry model only the shape is used."""

    depths: Annotated[tuple[int, ...], "how many layers the models have"] = (3, 6, 9, 12)
    init: Annotated[Literal["timm", "fan_in"], "the weights that training starts from"] = "timm"
    training: Recipe = TRAINING

    def __post_init__(self) -> None:
        check_depths(self.depths)

    def outline(self, ancestries: Sequence[ViTSpec]) -> LearngeneConfig:
        """The ancestry model's shape with the deepest of the depths."""
        return outline_of(PRETRAIN_FINETUNE.name, self.depths, ancestries[0])

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Train them one after the other; the heads are dropped."""
        train = partial(self._pretrained, ancestries[0], tasks[0])
        return train_each(self.outline([ancestries[0].spec]), train, run, {})

    def _pretrained(self, ancestry: Ancestry, task: Task, layers: int, run: Run) -> tuple[StateDict, dict[str, Any]]:
        """The tensors of one trained size, without its head, and its validation accuracy."""
        from learngene_zoo.plugin import assemble, derive_seed, fit, without_head

        start = assemble(
            ancestry.spec.with_(layers=layers, classes=task.classes, dense=task.dense),
            {},
            seed=derive_seed(run.seed, "init"),
            scheme=self.init,
            mean=ancestry.record.mean,
            std=ancestry.record.std,
        )
        trained = fit(start, task, self.training, run)
        return without_head(trained.state, trained.spec), dict(trained.provenance["metrics"])


PRETRAIN_FINETUNE = Method(
    name="pretrain_finetune",
    title="pretrain every size from scratch and store them all: the upper bound",
    paper="",
    expander=Take(),
    presets={
        "mini": Pretrain(init="fan_in", training=MINI),
        "paper": Pretrain(depths=tuple(range(5, 16)), training=PAPER),
        "smoke": Pretrain(depths=(1, 2), init="fan_in", training=SMOKE),
    },
    tasks="one",
)
