"""The expander of TAL, LoGAH, GHN-3 and PITH: predict the weights of a plain model of any size.

The hypernetwork reads the target's graph and, if it has a task layer, the embedding of the task.
Nothing of this is stored, and the seed is used for a `fresh` head and for `post` only: one
learngene and one target give one model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from learngene_zoo.plugin import (
    BadFile,
    Bounds,
    Expander,
    Member,
    WrongCall,
    name_option,
    open_task,
    parse_details,
)
from lgzoo_tal.architectures import list_widths
from lgzoo_tal.hypernet_spec import (
    TASKS,
    HypernetDetails,
    Post,
    check_target,
    is_inheriting,
    select_hypernet_names,
)

if TYPE_CHECKING:
    import torch

    from learngene_zoo.plugin import Descendant, Learngene, LearngeneConfig, Run, Spec, Target
    from lgzoo_tal.modules.hypernet import Hypernet
    from lgzoo_tal.modules.text_embeddings import Tables


@dataclass(frozen=True, kw_only=True)
class HypernetExpander(Expander):
    """Predict every weight of a model."""

    axes = frozenset({"layers", "width", "heads", "mlp_ratio", "classes", "image_size"})

    embedding_images: Annotated[
        int,
        "number of training images for the embedding of an unseen task",
        Bounds(least=1),
    ] = 500
    head: Annotated[
        Literal["predicted", "fresh"], "the classifier: predicted, or randomly initialised"
    ] = "predicted"
    post: Annotated[
        Post,
        "change of the predicted weights before fine-tuning, as in GHN-3: add "
        "noise, or orthogonalise (accuracy at chance until fine-tuned)",
    ] = "none"

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth of the training architectures with every width up to the ancestry's.

        Widths are multiples of its head width. Other sizes can be built as well: deeper, wider,
        with other heads or MLP ratios.
        """
        min_layers, max_layers = parse_details(config, HypernetDetails).layers
        sizes = [
            (layers, width)
            for layers in range(min_layers, max_layers + 1)
            for width in list_widths(config.spec)
        ]
        unit = config.spec.head_width
        return [
            Member(spec=config.spec.with_(layers=layers, width=width, heads=width // unit))
            for layers, width in sizes
        ]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Predict the weights of the target.

        Raises `WrongCall` for a size that the decoder cannot reach and for a task that cannot be
        embedded.
        """
        from learngene_zoo.plugin import assemble
        from lgzoo_tal.modules.hypernet import predict_tensors
        from lgzoo_tal.modules.inheritance import read_inheritance
        from lgzoo_tal.modules.tensors import process_tensors

        config, details = learngene.config, parse_details(learngene.config, HypernetDetails)
        spec = derive_spec(target, config.spec)
        check_target(details.hypernetwork, spec, config.spec)
        hypernet = load_hypernet(learngene, details, details.find_owner(target.task))
        if details.hypernetwork.decoder == "projected":
            hypernet.inheritance = read_inheritance(learngene, details.hypernetwork, run)
        if is_inheriting(details.hypernetwork):
            hypernet.tables = read_tables_of(learngene)
        embedding, origin = get_embedding(
            learngene, details, target.task, self.embedding_images, run
        )
        tensors = predict_tensors(hypernet, spec, embedding, run, head=self.head == "predicted")
        tensors = process_tensors(tensors, self.post, run.seed, spec)
        descendant = assemble(spec, tensors, seed=run.seed, provenance={"embedding": origin})
        return replace(descendant, inherited=descendant.inherited - {"cls_token"})  # always zeros


def derive_spec(target: Target, spec: Spec) -> Spec:
    """Return the shape of a target.

    If only its width is set, heads keep the width that they have in `spec`. Raises `WrongCall`.
    """
    if target.dense:
        raise WrongCall("hypernetworks predict no dense head; choose a classification task")
    target = target if target.width is None else target.whole_heads(spec)
    return target.apply(spec)


def read_tables_of(learngene: Learngene) -> Tables:
    """Return the embeddings that predicted text models inherit. Raises `BadFile`."""
    from lgzoo_tal.modules.text_embeddings import read_tables

    where = str(learngene.folder or "the learngene")
    return read_tables(learngene.state, learngene.config.spec, where)


def load_hypernet(learngene: Learngene, details: HypernetDetails, owner: str | None) -> Hypernet:
    """Load the frozen hypernetwork of a task, or the only one (None).

    Args:
        learngene: of TAL, LoGAH, GHN-3 or PITH.
        details: its details.
        owner: a task, or None.

    Raises:
        BadFile: if its tensors do not fit the details.
    """
    from lgzoo_tal.modules.hypernet import build_frozen_hypernet

    names = select_hypernet_names(learngene.state, owner)
    try:
        return build_frozen_hypernet(
            details.hypernetwork,
            {official: learngene.state[name] for official, name in names.items()},
        )
    except BadFile as error:
        raise BadFile(f"{learngene.folder or 'the learngene'}: {error}") from error


def get_embedding(
    learngene: Learngene, details: HypernetDetails, task: str | None, images: int, run: Run
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Return the embedding that a task's model is predicted with, and its origin.

    That of a task of the extraction is stored. Any other task is embedded now by the ancestry model
    that the learngene records; without a task it is the mean of the stored embeddings.

    Args:
        learngene: of TAL, LoGAH or GHN-3.
        details: its details.
        task: the task's name, or None.
        images: the largest number of training images that another task is embedded from.
        run: how to compute.

    Returns:
        The embedding, None for a hypernetwork without a task layer; and its origin.

    Raises:
        WrongCall: if there is nothing to compute an embedding from.
        BadFile: if a stored embedding or the ancestry model does not fit.
    """
    import torch

    size = details.hypernetwork.task
    if size is None:
        return None, {"from": "no task layer"}
    if task is None:
        stored = [
            read_embedding(learngene, name, size) for name in details.tasks or details.embedded
        ]
        if not stored:
            raise WrongCall(
                f"this learngene stores no task embedding; choose one with {name_option('task')}"
            )
        return torch.stack(stored).mean(dim=0), {"from": "the mean of the learngene's tasks"}
    if task in details.embedded:
        return read_embedding(learngene, task, size), {"from": "the learngene", "task": task}
    from lgzoo_tal.modules.embedding import compute_embedding, open_recorded_ancestry

    ancestry = open_recorded_ancestry(learngene.config, run)
    if ancestry.spec.width != size:
        raise BadFile(
            f"the learngene's ancestry model has {ancestry.spec.width} features, but its task "
            f"layer takes {size}; extract it again"
        )
    opened_task = open_task(task, offline=run.offline)
    count = min(images, opened_task.sizes["train"])
    if not count:
        raise WrongCall(
            f"{task} has no training images to compute an embedding from; choose one of "
            f"{', '.join(details.embedded)}"
        )
    embedding = compute_embedding(ancestry.model(), opened_task, ancestry.input_format, run, images)
    return embedding, {"from": "training images", "images": count}


def read_embedding(learngene: Learngene, task: str, size: int) -> torch.Tensor:
    """Return a task's embedding (size,) in a learngene, float32.

    Args:
        learngene: the learngene.
        task: the task's name.
        size: the expected size.

    Raises:
        BadFile: if it is missing or has another shape.
    """
    name = f"{TASKS}{task}"
    source = str(learngene.folder or "the learngene")
    if name not in learngene.state:
        raise BadFile(
            f"{source} lacks the embedding {name}, which its details list; extract or fetch it "
            "again"
        )
    tensor = learngene.state[name].float()
    if tuple(tensor.shape) != (size,):
        raise BadFile(
            f"{source}: expected the embedding {name} to have shape ({size},), got "
            f"{tuple(tensor.shape)}"
        )
    return tensor
