"""Auto-LG: keep the blocks of the ancestry model that are most similar to those of a small model.

Wang, Yang, Lin, Wang and Geng, Learngene: Inheriting Condensed Knowledge from the Ancestry Model to
Descendant Models, arXiv 2305.02279. The small model, the pseudo descendant model, has M blocks and
the ancestry model's width. The score of block i of the ancestry model is

    score_i = mean over j of similarity_ij        j = 1, ..., M

with one of two similarities (`modules/auto_lg.py`):

    cka     train the small model on the task alone; then linear CKA of the two blocks' outputs,
            averaged over tokens, on some images
    meta    while the small model is trained, a meta-network weights the pairs of blocks to match,
            and is trained by the effect of the matching on the task's loss

The n blocks with the highest scores are kept. A descendant has them in their order, then random
blocks. In the authors' code for a later comparison, Cluster-Learngene's, the kept blocks are the
first six: `--keep 1,2,3,4,5,6`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

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
    adapt_rates,
    check_bounds,
    compute_once,
    derive_seed,
    parse_details,
)
from lgzoo_baselines.blocks.vanilla_lg import (
    VanillaLgDetails,
    VanillaLgExpander,
    check_count,
    select_blocks,
)
from lgzoo_baselines.trained.pretrain_finetune import PAPER, SMOKE, TRAINING

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Json, Run, Spec, StateDict, Task

Criterion = Literal["cka", "meta"]
BATCH_SIZE = 64  # images that are compared together


@dataclass(frozen=True, kw_only=True)
class AutoLgComparison:
    """How the small model is trained and compared with the ancestry model."""

    criterion: Annotated[
        Criterion,
        "similarity of blocks: linear CKA after the training of the small model, "
        "or the shares of a meta-network during it",
    ] = "meta"
    pseudo_layers: Annotated[
        int, "layers of the small model (pseudo descendant model)", Bounds(least=1)
    ] = 3
    init: Annotated[Literal["timm", "fan_in"], "initialisation of the small model"] = "timm"
    training: Recipe = TRAINING
    compared: Annotated[int, "number of training images for CKA", Bounds(least=2)] = 500
    inner_steps: Annotated[
        int,
        "gradient steps on the matching loss before one on the task, through "
        "which the meta-network is trained",
        Bounds(least=1),
    ] = 2
    inner_lr: Annotated[
        float, "learning rate of these steps (plain gradient descent)", Bounds(above=0)
    ] = 0.1

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class AutoLgExtractor(Extractor):
    """Train a small model on the task, and keep the blocks that it resembles most."""

    count: Annotated[int, "number of blocks to keep", Bounds(least=1)] = 6
    keep: Annotated[
        tuple[int, ...] | None,
        "skip the comparison and keep these blocks, counted from 1",
        Bounds(least=1),
    ] = None
    each: AutoLgComparison = field(default=AutoLgComparison(), metadata=FLAT)

    def adapt(self, ancestries: Sequence[Spec]) -> Self:
        """Return the settings with learning rates for the width of the ancestry model."""
        return adapt_rates(self, ancestries, random_rates=["lr"])

    def needs_tasks(self) -> bool:
        """Return False for blocks that are named."""
        return self.keep is None

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape, and the blocks if they are named.

        Raises `WrongCall` for blocks that the ancestry model does not have.
        """
        spec, blocks = ancestries[0], tuple(sorted(set(self.keep or ())))
        if blocks and blocks[-1] > spec.layers:
            raise WrongCall(
                f"keep names block {blocks[-1]}; the ancestry model has {spec.layers} blocks"
            )
        if self.keep == ():
            raise WrongCall("keep is empty; name the blocks to keep, as 1,2,3")
        config = LearngeneConfig(spec=spec)
        if blocks:
            return config.with_details(VanillaLgDetails(kept=blocks))
        check_count(self.count, spec)
        return config

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Return the cost of the small model's training.

        With a meta-network its inner steps are added, which count as two passes each.
        """
        if self.keep is not None:
            return []
        each, is_meta = self.each, self.each.criterion == "meta"
        count = min(each.training.images or images[0], images[0]) * each.training.epochs
        passes = 1 + (2 * each.inner_steps + 3 if is_meta else 0)
        frozen = ancestries[0].layers if is_meta else 0
        return [Work(images=count, trained=passes * each.pseudo_layers, frozen=frozen)]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the named blocks, or those of the comparison, a part of the run."""
        ancestry, config = ancestries[0], self.outline([ancestries[0].spec])
        if self.keep is None:
            part, settings = run.part("pseudo-descendant"), self.each
            start = build_pseudo_descendant(settings, ancestry, tasks[0], part.seed)
            inputs = [start, ancestry, tasks[0]]
            metrics = compute_once(
                part, "auto_lg.similarity", train_and_compare, settings, inputs
            ).record
            blocks = choose_highest(metrics["scores"], self.count)
            config = replace(config, metrics=metrics).with_details(VanillaLgDetails(kept=blocks))
        blocks = parse_details(config, VanillaLgDetails).kept
        return Learngene(config=config, state=select_blocks(ancestry.state, ancestry.spec, blocks))


def build_pseudo_descendant(
    settings: AutoLgComparison, ancestry: Ancestry, task: Task, seed: int
) -> Descendant:
    """Return a small model with random weights, of the ancestry model's width.

    Args:
        settings: the number of layers and the initialisation.
        ancestry: gives the width and the format of the images.
        task: gives the classes.
        seed: of the part of the run.
    """
    from learngene_zoo.plugin import assemble

    record = ancestry.record
    return assemble(
        ancestry.spec.with_(layers=settings.pseudo_layers, classes=task.classes, dense=task.dense),
        {},
        seed=derive_seed(seed, "init"),
        scheme=settings.init,
        mean=record.mean,
        std=record.std,
        view=record.view,
    )


def train_and_compare(
    settings: AutoLgComparison, start: Descendant, ancestry: Ancestry, task: Task, run: Run
) -> tuple[StateDict, Json]:
    """Return no tensors, and the resemblance of the blocks of the ancestry and the small model.

    Args:
        settings: how the small model is trained and compared.
        start: the small model before its training.
        ancestry: the ancestry model.
        task: the task that the small model learns.
        run: gives the device, the seed and the folder of checkpoints.
    """
    from learngene_zoo.plugin import (
        Teacher,
        load_training_images,
        make_objective,
        measure_validation,
        open_device,
        sample_images,
        train,
    )
    from lgzoo_baselines.modules.auto_lg import MetaMatching, compute_cka

    recipe, images, device = settings.training, start.input_format, open_device(run)
    model = start.model()
    teacher = Teacher(ancestry.model().to(device), range(ancestry.spec.layers))
    objective = make_objective(task, model, recipe, derive_seed(run.seed, "attributes"))
    meta = MetaMatching(objective, model, teacher, settings.inner_steps, settings.inner_lr)
    is_meta = settings.criterion == "meta"
    loader = load_training_images(task, images, recipe, run)
    label = f"pseudo-descendant on {task.name}"
    for _ in train(meta if is_meta else objective, loader, recipe, run, label=label):
        pass
    compared = sample_images(
        task,
        "train",
        images,
        run,
        images=settings.compared,
        batch_size=BATCH_SIZE,
        seed=derive_seed(run.seed, "compared"),
    )
    batches = (batch._replace(inputs=batch.inputs.to(device)) for batch in compared.epoch(0))
    resemblance_LM = (
        meta.average_shares(batches) if is_meta else compute_cka(model, teacher, batches)
    )
    return {}, {
        **measure_validation(model, task, images, recipe, run),
        "training_images": loader.images,
        "scores": resemblance_LM.mean(dim=1).tolist(),
        "resemblance": resemblance_LM.tolist(),
    }


def choose_highest(scores: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the blocks with the highest scores, counted from 1, ascending.

    Of equal ones the earlier block is chosen.
    """
    order = sorted(range(len(scores)), key=lambda block: (-scores[block], block))
    return tuple(sorted(block + 1 for block in order[:count]))


_MINI = replace(
    TRAINING, epochs=1, images=24_000, batch_size=64, lr=2e-3, warmup=0.05, weight_decay=0.05
)
AUTO_LG = Method(
    name="auto_lg",
    title=(
        "the ancestry model's blocks most similar to those of a small model "
        "trained on the task, followed by random blocks"
    ),
    paper=(
        "Wang, Yang, Lin, Wang, Geng. Learngene: Inheriting Condensed Knowledge from the Ancestry "
        "Model to Descendant Models. arXiv 2305.02279"
    ),
    expander=VanillaLgExpander(place="first"),
    presets={
        "mini": AutoLgExtractor(
            each=AutoLgComparison(criterion="cka", init="fan_in", training=_MINI)
        ),
        "paper": AutoLgExtractor(each=AutoLgComparison(training=PAPER)),
        "smoke": AutoLgExtractor(
            count=2,
            each=AutoLgComparison(
                criterion="cka", pseudo_layers=1, init="fan_in", training=SMOKE, compared=24
            ),
        ),
    },
    families=("vit", "eva"),
    tasks="one",
    details=VanillaLgDetails,
)
