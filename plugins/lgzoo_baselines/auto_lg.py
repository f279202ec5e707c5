"""Auto-LG: the blocks of the ancestry model that a small model, trained on the same task, comes to resemble.

Wang, Yang, Lin, Wang and Geng, Learngene: Inheriting Condensed Knowledge from the Ancestry Model to Descendant Models, arXiv 2305.02279. The small
model, the pseudo-descendant, has M blocks and the ancestry's width. How much block i of the ancestry resembles the small model,

    score_i = mean over j of resemblance_ij        j = 1, ..., M

is found in one of two ways (`resemblance.py`):

    cka     the small model learns the task alone; then linear CKA of the two blocks' outputs, means over tokens, over some images
    meta    while it learns, a meta-network decides which block it should match, and learns from what matching does to the task's loss

The n blocks with the highest scores are kept. A descendant has them in their order, then random blocks. In the comparisons of its
authors' later papers it comes down to the first six blocks: `--keep 1,2,3,4,5,6`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    Bounds,
    Extractor,
    Learngene,
    LearngeneConfig,
    Method,
    Recipe,
    Work,
    WrongCall,
    check_bounds,
    derive_seed,
    once,
)
from lgzoo_baselines.pretrain_finetune import PAPER, SMOKE, TRAINING
from lgzoo_baselines.vanilla_lg import Complete, Details, check_count, of_blocks

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Task

Criterion = Literal["cka", "meta"]
AT_ONCE = 64  # images


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """How the small model is made and compared with the ancestry model."""

    criterion: Annotated[Criterion, "linear CKA after its training, or a meta-network during it"] = "meta"
    pseudo_layers: Annotated[int, "layers of the small model", Bounds(least=1)] = 3
    init: Annotated[Literal["timm", "fan_in"], "the weights that its training starts from"] = "timm"
    training: Recipe = TRAINING
    compared: Annotated[int, "training images that the resemblance is found on", Bounds(least=2)] = 500
    inner_steps: Annotated[
        int, "steps of matching, before one on the task, that the meta-network learns from", Bounds(least=1)
    ] = 2
    inner_lr: Annotated[float, "their learning rate, of plain gradient descent", Bounds(above=0)] = 0.1

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class KeepResembled(Extractor):
    """Train a small model on the task, and keep the blocks that it resembles most."""

    count: Annotated[int, "blocks to keep", Bounds(least=1)] = 6
    keep: Annotated[tuple[int, ...] | None, "skip the comparison and keep these blocks (1-based)", Bounds(least=1)] = (
        None
    )
    each: Comparing = field(default=Comparing(), metadata=FLAT)

    def needs_tasks(self) -> bool:
        """Not for blocks that are named."""
        return self.keep is None

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape, and the blocks if they are named. Raises `WrongCall` for those that it does not have."""
        spec, kept = ancestries[0], tuple(sorted(set(self.keep or ())))
        if kept and kept[-1] > spec.layers:
            raise WrongCall(f"keep names block {kept[-1]}; the ancestry model has {spec.layers} blocks")
        if self.keep == ():
            raise WrongCall("keep is empty; name the blocks to keep, as 1,2,3")
        if not kept:
            check_count(self.count, spec)
        return LearngeneConfig(method="auto_lg", spec=spec, details=Details(kept=kept).json())

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """The small model's training, and with a meta-network its inner steps, which count as two passes each."""
        if self.keep is not None:
            return []
        each, meta = self.each, self.each.criterion == "meta"
        shown = min(each.training.images or images[0], images[0]) * each.training.epochs
        passes = 1 + (2 * each.inner_steps + 3 if meta else 0)
        return [Work(images=shown, trained=passes * each.pseudo_layers, frozen=ancestries[0].layers if meta else 0)]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """The comparison is a part of the run."""
        ancestry, config = ancestries[0], self.outline([ancestries[0].spec])
        if self.keep is not None:
            kept = Details(**config.details).kept
        else:
            found = self.compare(ancestry, tasks[0], run.part("pseudo-descendant"))
            kept = highest(found["scores"], self.count)
            config = replace(config, details=Details(kept=kept).json(), metrics=found)
        return Learngene(config=config, state=of_blocks(ancestry.state, ancestry.spec, kept))

    def compare(self, ancestry: Ancestry, task: Task, part: Run) -> Json:
        """What `compared` finds for a small model of the ancestry's width."""
        from learngene_zoo.plugin import assemble

        record, each = ancestry.record, self.each
        spec = ancestry.spec.with_(layers=each.pseudo_layers, classes=task.classes, dense=task.dense)
        seed = derive_seed(part.seed, "init")
        start = assemble(spec, {}, seed=seed, scheme=each.init, mean=record.mean, std=record.std, view=record.view)
        return once(part, "auto_lg.similarity", compared, each, [start, ancestry, task]).record


def highest(scores: Sequence[float], count: int) -> tuple[int, ...]:
    """The blocks with the highest scores, counted from 1, ascending; of equal ones the earlier."""
    order = sorted(range(len(scores)), key=lambda block: (-scores[block], block))
    return tuple(sorted(block + 1 for block in order[:count]))


def compared(
    settings: Comparing, start: Descendant, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """The resemblance of every block of the ancestry to every one of the small model, after its training; no tensors."""
    from learngene_zoo.plugin import Loader, Teacher, evaluate, objective_for, open_device, train, training_images
    from lgzoo_baselines.resemblance import MetaMatching, cka_of

    recipe, images, device = settings.training, start.input_format, open_device(run)
    model, teacher = start.model(), Teacher(ancestry.model().to(device), range(ancestry.spec.layers))
    objective = objective_for(task, model, recipe, derive_seed(run.seed, "attributes"))
    meta = MetaMatching(objective, model, teacher, settings.inner_steps, settings.inner_lr)
    trained = meta if settings.criterion == "meta" else objective
    loader = training_images(task, images, recipe, run)
    for _ in train(trained, loader, recipe, run, label=f"pseudo-descendant on {task.name}"):
        pass
    seed, count = derive_seed(run.seed, "compared"), settings.compared
    some = Loader(task, "train", images, batch_size=AT_ONCE, seed=seed, images=count, drop_last=False)
    batches = (batch._replace(images=batch.images.to(device)) for batch in some.epoch(0))
    matrix = meta.mean_shares(batches) if settings.criterion == "meta" else cka_of(model, teacher, batches)
    found = evaluate(model, task, "validation", images, run)
    metrics = {f"validation_{found.metric}": found.value, "validation_images": found.images}
    scores = matrix.mean(dim=1).tolist()
    return {}, {**metrics, "training_images": loader.images, "scores": scores, "resemblance": matrix.tolist()}


_MINI = replace(TRAINING, epochs=1, images=24_000, batch_size=64, lr=2e-3, warmup=0.05, weight_decay=0.05)
AUTO_LG = Method(
    name="auto_lg",
    title="the blocks that a small model of the same task comes to resemble, before random ones",
    paper=(
        "Wang, Yang, Lin, Wang, Geng. Learngene: Inheriting Condensed Knowledge from the Ancestry Model to Descendant Models. "
        "arXiv 2305.02279"
    ),
    expander=Complete(place="first"),
    presets={
        "mini": KeepResembled(each=Comparing(criterion="cka", init="fan_in", training=_MINI)),
        "paper": KeepResembled(each=Comparing(training=PAPER)),
        "smoke": KeepResembled(
            count=2, each=Comparing(criterion="cka", pseudo_layers=1, init="fan_in", training=SMOKE, compared=24)
        ),
    },
    families=("vit", "eva"),
    tasks="one",
    details=Details,
)
