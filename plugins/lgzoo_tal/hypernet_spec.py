"""`HypernetSpec`, the settings that determine a hypernetwork, and the models it can predict; the
`details` of a learngene of hypernetworks, and the names of its tensors.

GHN-3 (Knyazev et al., "Can We Scale Transformers to Predict Parameters of Diverse ImageNet
Models?", 2023) has a convolutional decoder, LoGAH (Zhou et al., 2024) a low-rank one; TAL is
LoGAH's with a task layer in each layer of its encoder; PITH has a low-rank decoder and a second one
for the projections of the ancestry model's matrices. The tensors of a learngene are

    encoder.NAME    the graph encoder, task layers included: the learngene in the paper's sense
    decoder.NAME    the layers that turn a node into a tensor
    tasks.TASK      a task's embedding
    ancestry.NAME   a tensor of the ancestry model, by its name: of PITH, and the embeddings of
                    words and positions that text models inherit

NAME is the tensor's name in the papers' released code. If there is a hypernetwork for each task,
the names of its tensors begin with `hypernets.TASK.`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from learngene_zoo.plugin import (
    LIMITS,
    OMIT_DEFAULT,
    BadFile,
    Bounds,
    Spec,
    TaskRecord,
    TextSpec,
    ViTSpec,
    WrongCall,
    check_bounds,
    name_option,
    require_pictures,
)

Decoder = Literal["conv", "low_rank", "projected"]
Start = Literal["noise", "projections"]
TaskForm = Literal["residual", "plain"]
TaskPlace = Literal["layers", "graph"]

# Rows of the encoder's embedding tables.
DEGREES, INPUT_DISTANCES, EDGES = 101, 1001, 257
CUTOFF = 50  # the longest path that counts, in the released code

# The modules and parameters of a decoder in the released code.
DECODERS = ("decoder", "decoderpq", "decoder_1d", "bias_class", "fusion_weight")
TASKS = "tasks."
ANCESTRY = "ancestry."

# Upper bounds are far beyond any published hypernetwork: they refuse a config.json that would
# exhaust the memory.
Hidden = Annotated[int, "width of the encoder", Bounds(least=1, most=4096)]
Layers = Annotated[int, "layers of the encoder", Bounds(least=1, most=256)]
Heads = Annotated[int, "attention heads of the encoder", Bounds(least=1, most=256)]
Rank = Annotated[int, "largest rank of a predicted matrix", Bounds(least=1, most=4096)]
Widest = Annotated[
    int,
    "largest number of channels that the decoder predicts; wider tensors are tiled",
    Bounds(least=1, most=65536),
]
Chunk = Annotated[
    int, "rows of each factor that the decoder predicts", Bounds(least=1, most=4_000_000)
]
# The change of predicted weights, see `process_tensors`.
Post = Literal["none", "noise", "orthogonal"]
Form = Annotated[
    Literal["published", "centred"],
    "published, or centred, which learns more from few images, especially "
    "with a convolutional decoder",
]
Places = Annotated[
    Literal["input", "relative"],
    "position encoding of nodes: the distance from the input, as published, "
    "or the node's role and the relative position of its block",
]
Writers = Annotated[
    Literal["published", "by_depth"],
    "scale of the layers that write into the residual stream: as decoded, or "
    "times sqrt(3 / layers)",
]
Cutoff = Annotated[
    int,
    "longest path between two nodes that counts; 50 in the released code, of GPT-2 medium, large "
    "and xl the longest are 57, 81 and 105",
    Bounds(least=1, most=EDGES - 3),
]
Embeddings = Annotated[
    Literal["inherited", "predicted"],
    "embeddings of words and positions of a text model: the ancestry model's, narrowed, or "
    "predicted, as published: words whose numbers differ by the largest number of channels have "
    "the same",
]
Scale = Annotated[
    Literal["fan_in", "std"],
    "scale of the matrices of a text model: by their inputs, as of images, or a standard "
    "deviation of 0.02, as published",
]


@dataclass(frozen=True, kw_only=True)
class HypernetSpec:
    """Everything that determines a hypernetwork's tensors and its function.

    Raises `WrongCall` for impossible numbers.
    """

    hidden: Hidden
    layers: Layers
    heads: Heads
    decoder: Decoder
    rank: Annotated[
        int | None, "rank of the matrices of a low-rank decoder", Bounds(least=1, most=4096)
    ] = None
    widest: Widest = 2048  # max_shape in the released code
    chunk: Chunk = 2048 * 16  # ck in the released code; read by a low-rank decoder only
    classes: Annotated[
        int,
        "number of classes in the encoder's shapes and of a convolutional decoder's classifier",
        Bounds(least=1, most=10**6),
    ] = 1000
    spatial: Annotated[
        int, "rows and columns of the largest kernel that is not interpolated", Bounds(least=1)
    ] = 16
    task: Annotated[
        int | None,
        "dimension of the task embedding; None: no task layer",
        Bounds(least=1, most=LIMITS["width"]),
    ] = None
    task_form: TaskForm = (
        "residual"  # (1 + gamma) f + beta, which starts as f; or gamma f + beta, as printed
    )
    task_place: TaskPlace = (
        "layers"  # in every layer, after its first norm; or once, before the first layer
    )
    task_normalised: bool = False  # whether a task embedding is scaled to a root mean square of 1
    form: Form = "published"
    places: Places = "input"
    writers: Writers = "published"
    # Of a projected decoder: P and Q start at noise, or at the principal directions.
    start: Start = field(default="noise", metadata=OMIT_DEFAULT)
    # The inputs of the predicted models. The other fields but the cutoff are for texts alone.
    inputs: Literal["images", "texts"] = field(default="images", metadata=OMIT_DEFAULT)
    cutoff: Cutoff = field(default=CUTOFF, metadata=OMIT_DEFAULT)
    embeddings: Embeddings = field(default="inherited", metadata=OMIT_DEFAULT)
    scale: Scale = field(default="fan_in", metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.hidden % 4 or self.hidden % self.heads:
            raise WrongCall(
                f"the hypernetwork's width is {self.hidden}; it must be a multiple of 4 and of its "
                f"{self.heads} heads"
            )
        if (self.rank is not None) != (self.decoder != "conv"):
            raise WrongCall(
                f"rank is {self.rank} with decoder {self.decoder!r}; only a low-rank decoder has a "
                "rank"
            )
        if self.start != "noise" and self.decoder != "projected":
            raise WrongCall(
                f"start is {self.start} with decoder {self.decoder!r}; only a projected decoder "
                "has projections"
            )

    def with_(self, **changes: Any) -> HypernetSpec:
        """Return this spec with other values."""
        return replace(self, **changes)

    def for_inputs(self, ancestry: Spec) -> HypernetSpec:
        """Return this spec for models of the ancestry model's family.

        The settings for texts have their defaults in a hypernetwork for images.
        """
        if isinstance(ancestry, TextSpec):
            return self.with_(inputs="texts")
        return self.with_(embeddings="inherited", scale="fan_in")

    def without_task_layer(self) -> HypernetSpec:
        """Return this spec as stage 1 trains it."""
        return replace(
            self, task=None, task_form="residual", task_place="layers", task_normalised=False
        )


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Size of a hypernetwork with LoGAH's low-rank decoder."""

    hidden: Hidden = 64
    layers: Layers = 3
    heads: Heads = 8
    rank: Rank = 32
    widest: Widest = 2048
    chunk: Chunk = 2048 * 16
    form: Form = "published"
    places: Places = "input"
    writers: Writers = "published"
    cutoff: Cutoff = field(default=CUTOFF, metadata=OMIT_DEFAULT)
    embeddings: Embeddings = field(default="inherited", metadata=OMIT_DEFAULT)
    scale: Scale = field(default="fan_in", metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        self.build_spec()  # refuses impossible sizes

    def build_spec(self) -> HypernetSpec:
        """Return the spec of the hypernetwork, without a task layer."""
        return HypernetSpec(decoder="low_rank", **vars(self))


@dataclass(frozen=True, kw_only=True)
class Conv:
    """Size of a hypernetwork with GHN-3's convolutional decoder.

    The decoder makes as many channels as the encoder is wide.
    """

    hidden: Hidden = 64
    layers: Layers = 3
    heads: Heads = 8
    form: Form = "published"
    places: Places = "input"
    writers: Writers = "published"
    cutoff: Cutoff = field(default=CUTOFF, metadata=OMIT_DEFAULT)
    embeddings: Embeddings = field(default="inherited", metadata=OMIT_DEFAULT)
    scale: Scale = field(default="fan_in", metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        self.build_spec()  # refuses impossible sizes

    def build_spec(self) -> HypernetSpec:
        """Return the spec of the hypernetwork, without a task layer."""
        return HypernetSpec(decoder="conv", widest=self.hidden, **vars(self))


def count_decoded_channels(size: int, widest: int) -> int:
    """Return the channels that are decoded for a tensor of `size` channels.

    This is m(n, j) of the released code. It takes few values: four thirds of a multiple of three,
    and all channels from half of the widest on.
    """
    channels = min(size, widest)
    if channels % 3 == 0:
        channels = channels * 4 // 3
    return widest if channels >= widest / 2 else channels


def count_half(spec: HypernetSpec, size: int) -> int:
    """Return the rows for norms' weights of `size` numbers, which precede the rows for biases.

    The released code of PITH decodes as many as there are, that of LoGAH rounds up.
    """
    if spec.decoder == "projected":
        return min(size, spec.widest)
    return count_decoded_channels(size, spec.widest)


def check_target(spec: HypernetSpec, target: Spec, ancestry: Spec | None = None) -> None:
    """Check that a model can be predicted.

    Args:
        spec: the hypernetwork.
        target: the model.
        ancestry: the shape of the ancestry model, whose embeddings a text model inherits.

    Raises:
        WrongCall: as `check_picture_target` and `check_text_target` do.
    """
    if spec.inputs == "images":
        check_picture_target(spec, target)
    else:
        check_text_target(spec, target, ancestry)


def check_picture_target(spec: HypernetSpec, target: Spec) -> None:
    """Check that an image model can be predicted.

    Raises `WrongCall` for an image of one patch, and if a low-rank decoder's factors have too few
    rows for a tensor.
    """
    target = require_pictures(target)
    if target.patches == 1:
        raise WrongCall(
            f"an image of {target.image_size} pixels is a single patch, whose position cannot be "
            "predicted; choose an image size "
            f"of at least {2 * target.patch_size}"
        )
    rows = count_rows(spec, target)
    too_large = next((name for name, needed in rows.items() if needed > spec.chunk), None)
    if too_large is not None:
        raise WrongCall(
            f"{too_large} would need {rows[too_large]} rows of the low-rank decoder's factors, "
            f"which have {spec.chunk}; choose a narrower model or another patch size, or extract "
            f"with a larger {name_option('hypernet_chunk')}"
        )


def list_obstacles(spec: ViTSpec) -> list[str]:
    """Return the differences of a ViT from a plain one with a class token and at least one class.

    torchvision's ViTs have none of them.
    """
    obstacles = {
        "blocks of several sizes": not spec.plain,
        "a dense head": spec.dense,
        "no classes": spec.classes == 0,
        "layer scale": spec.layer_scale is not None,
        "register tokens": spec.registers > 0,
        "norms of queries and keys": spec.qk_norm,
        "no bias of queries, keys and values": not spec.qkv_bias,
        "no bias of its projections": not spec.proj_bias,
        "a norm before its blocks": spec.pre_norm,
        "another pooling than the class token": spec.pool != "token",
        "no position of its class token": spec.no_embed_class,
        "no norm before its head": not spec.norms_before_pool,
        "another MLP than two layers": spec.mlp != "mlp",
        "another activation than GELU": spec.activation != "gelu",
        "other norms than LayerNorm with an epsilon of 1e-06": (
            (spec.norm, spec.norm_eps) != ("layer", 1e-6)
        ),
        "norms after attention and MLP": spec.post_norm,
        "further norms": spec.embed_norm or spec.scale_norms,
    }
    return [obstacle for obstacle, is_present in obstacles.items() if is_present]


def check_text_target(spec: HypernetSpec, target: Spec, ancestry: Spec | None = None) -> None:
    """Check that a text model can be predicted.

    Args:
        spec: the hypernetwork.
        target: the model.
        ancestry: the shape of the ancestry model, whose embeddings are inherited; None: unknown.

    Raises:
        WrongCall: for a model of another family, for one that is wider than the inherited
            embeddings, and if a low-rank decoder's factors have too few rows for a bias.
    """
    if ancestry is not None and target.family != ancestry.family:
        raise WrongCall(
            f"this hypernetwork predicts models of the family {ancestry.family!r}, not"
            f" {target.family!r}"
        )
    if ancestry is not None and is_inheriting(spec) and target.width > ancestry.width:
        raise WrongCall(
            f"width is {target.width}, and the embeddings are inherited from an ancestry model of"
            f" width {ancestry.width}; choose a narrower model, or extract with"
            f" {name_option('hypernet_embeddings', 'predicted')}"
        )
    rows = count_rows(spec, target)
    too_large = next((name for name, needed in rows.items() if needed > spec.chunk), None)
    if too_large is not None:
        raise WrongCall(
            f"{too_large} would need {rows[too_large]} rows of the low-rank decoder's factors, "
            f"which have {spec.chunk}; choose a narrower model, or extract with a larger "
            f"{name_option('hypernet_chunk')}"
        )


def count_rows(spec: HypernetSpec, target: Spec) -> dict[str, int]:
    """Return the rows of a low-rank decoder's factors that tensors of a model need, by a
    description of the tensor; {} for a convolutional decoder.

    Matrices of linear layers need no more than a bias. Of a text model, embeddings are
    inherited or tiled.
    """
    if spec.decoder == "conv":
        return {}
    rows = {}
    biases = [("a bias", size) for size in (target.width, 3 * target.width, target.hidden)]
    if spec.inputs == "images":
        target = require_pictures(target)
        patch_size, width, channels = target.patch_size, target.width, target.channels
        side = target.image_size // patch_size
        rows = {
            f"patches of {patch_size} pixels at a width of {width}": min(width, spec.widest)
            * patch_size,
            f"{channels} channels in patches of {patch_size} pixels": channels * patch_size,
            f"{side} x {side} patches at a width of {width}": width * side,
        }
        biases.append(("a head's bias", target.classes))
    for name, size in biases:
        rows[f"{name} of {size} numbers"] = count_half(spec, size) + min(size, spec.widest)
    return rows


@dataclass(frozen=True, kw_only=True)
class Release:
    """The origin of a released checkpoint."""

    reference: str
    sha256: str
    revision: str | None = None
    licence: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class HypernetDetails:
    """The hypernetworks of a learngene and their training.

    Raises `WrongCall` for impossible depths.
    """

    hypernet: HypernetSpec | None = None  # None before a released checkpoint was read
    layers: tuple[int, int] = (3, 12)  # of the shallowest and the deepest training architecture
    tasks: tuple[str, ...] = ()  # of stage 2, in order
    apart: bool = False  # whether each of them has a hypernetwork of its own
    embedded: tuple[str, ...] = ()  # the tasks whose embedding is stored
    source: TaskRecord | None = None  # the task of stage 1
    released: Release | None = None

    def __post_init__(self) -> None:
        min_layers, max_layers = self.layers
        if not 1 <= min_layers <= max_layers <= LIMITS["layers"]:
            raise WrongCall(
                f"layers is {list(self.layers)}; expected two ascending numbers from 1 to "
                f"{LIMITS['layers']}"
            )

    @property
    def hypernetwork(self) -> HypernetSpec:
        """Return the spec of the hypernetwork. Raises `BadFile` without one."""
        if self.hypernet is None:
            raise BadFile(
                "the learngene's details describe no hypernetwork; extract or fetch it again"
            )
        return self.hypernet

    def find_owner(self, task: str | None) -> str | None:
        """Return the task whose hypernetwork serves `task`; None if all tasks share one.

        Raises `WrongCall` if none does.
        """
        if not self.apart or task in self.tasks:
            return task if self.apart else None
        if len(self.tasks) == 1:
            return self.tasks[0]
        raise WrongCall(
            f"this learngene has a hypernetwork for each of {', '.join(self.tasks)}, and none for "
            f"{task or 'no task'}; choose one of them with {name_option('task')}"
        )


def is_inheriting(spec: HypernetSpec) -> bool:
    """Return whether predicted models have the ancestry model's embeddings of words."""
    return spec.inputs == "texts" and spec.embeddings == "inherited"


def to_learngene_name(official: str) -> str:
    """Return the learngene's name of a tensor, from that in the released code."""
    part = "decoder" if official.partition(".")[0] in DECODERS else "encoder"
    return f"{part}.{official}"


def to_official_name(name: str) -> str:
    """Return the inverse of `to_learngene_name`."""
    return name.partition(".")[2]


def is_encoder(official: str) -> bool:
    """Return whether a tensor is the encoder's."""
    return to_learngene_name(official).startswith("encoder.")


def get_prefix(task: str | None) -> str:
    """Return the prefix of the tensors of a task's own hypernetwork.

    It is empty for None, the only hypernetwork.
    """
    return "" if task is None else f"hypernets.{task}."


def select_hypernet_names(names: Iterable[str], task: str | None) -> dict[str, str]:
    """Return the tensors of one hypernetwork among `names`.

    The keys are the released code's names, the values the learngene's.
    """
    prefix = get_prefix(task)
    selected = [
        name for name in names if name.startswith((f"{prefix}encoder.", f"{prefix}decoder."))
    ]
    return {to_official_name(name.removeprefix(prefix)): name for name in selected}
