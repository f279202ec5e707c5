"""Draw the architectures that a hypernetwork is trained on: by a rule, as configurations only.

LoGAH's ViTs-1K (Zhou et al., "LoGAH: Predicting 774-Million-Parameter Transformers using Graph
HyperNetworks with 1/100 Parameters", 2024), the wider variant that TAL is trained on, and the
deeper set of TAL+. All three sample uniformly the number of layers, a width among those for that
depth, the number of heads and the patch size. LoGAH's GPTS-1K, for GPT-2, samples layers and width.

The papers' sets are the first 1000 samples with seed 1 of numpy's legacy generator, whose numbers
never change.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

from learngene_zoo.plugin import (
    Spec,
    TextSpec,
    ViTSpec,
    WrongCall,
    derive_seed,
    refuse_unknown,
    require_pictures,
)

SetName = Literal["vits-1k", "tal", "tal+", "gpts-1k"]
COUNT, SEED = 1000, 1  # of the papers' sets
PAPER_WIDTH = 768  # of the largest model of TAL+'s set, ViT-Base: widths are scaled relative to it
_SIZE = re.compile(r"(\d+)(?:x(\d+))?|x(\d+)")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The choices of one draw."""

    spec: Spec  # everything else of an architecture
    widths: Mapping[int, tuple[int, ...]]  # by number of layers
    patch_sizes: tuple[int, ...]  # none for text models
    head_width: int | None = None  # None: several numbers of heads, by the papers' rule
    heads: int | None = None  # the same number at every width; None: it depends on the width

    def list_num_heads(self, width: int) -> tuple[int, ...]:
        """Return the numbers of heads for a width. The papers' widths are multiples of 32."""
        if self.heads:
            return (self.heads,)
        if self.head_width:
            return (width // self.head_width,)
        return (3, 6, 12) if width % 12 == 0 else (4, 8)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return every (layers, width)."""
        return tuple((layers, width) for layers, widths in self.widths.items() for width in widths)


# Least and most width of 3 layers, of 4 and 5, and of more; the layers.
FORMS: dict[SetName, tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], range]] = {
    "vits-1k": (((384, 512), (256, 384), (128, 256)), range(3, 10)),
    "tal": (((192, 512), (256, 512), (256, 768)), range(3, 10)),
    "tal+": (((192, 768), (192, 768), (192, 768)), range(3, 13)),
}


# GPTS-1K, in steps of 8; every architecture has 8 heads.
GPTS_BOUNDS, GPTS_LAYERS = ((176, 256), (128, 176), (72, 176)), range(3, 10)


def build_gpts_rule(ancestry: Spec) -> Rule:
    """Return the rule of GPTS-1K, with the ancestry model's vocabulary and positions."""
    bounds = {layers: GPTS_BOUNDS[(layers > 3) + (layers > 5)] for layers in GPTS_LAYERS}
    widths = {layers: tuple(range(low, high + 1, 8)) for layers, (low, high) in bounds.items()}
    return Rule(spec=derive_plain_spec(ancestry), widths=widths, patch_sizes=(), heads=8)


def scale_rule(name: SetName, ancestry: Spec) -> Rule:
    """Return the rule of a paper's set with an ancestry model's head width, patches and images.

    Widths are multiples of the head width. Their bounds relate to the ancestry's width as the
    paper's do to 768, rounded up to a whole head, so an ancestry of width 768 with 12 heads gives
    TAL+'s own widths. Depths are the paper's. Raises `WrongCall` for an unknown name.
    """
    of_texts = isinstance(ancestry, TextSpec)
    if name == "gpts-1k":
        if not of_texts:
            raise WrongCall(f"{name} is a set of text models; choose one of {', '.join(FORMS)}")
        return build_gpts_rule(ancestry)
    if name not in FORMS:
        raise refuse_unknown("set of architectures", name, FORMS)
    bounds, depths = FORMS[name]
    unit = ancestry.head_width

    def scale_widths(layers: int) -> tuple[int, ...]:
        low, high = (
            -(-width * ancestry.heads // PAPER_WIDTH)
            for width in bounds[(layers > 3) + (layers > 5)]
        )
        return tuple(range(low * unit, (high + 1) * unit, unit))

    widths = {layers: scale_widths(layers) for layers in depths}
    return Rule(
        spec=derive_plain_spec(ancestry),
        widths=widths,
        patch_sizes=() if of_texts else (require_pictures(ancestry).patch_size,),
        head_width=unit,
    )


def draw_specs(rule: Rule, seed: int = SEED) -> Iterator[Spec]:
    """Yield architectures without end, in the order of the official generators."""
    from numpy.random import RandomState

    random = RandomState(seed)
    layers = list(rule.widths)
    while True:
        depth = layers[random.randint(len(layers))]
        width = int(random.choice(rule.widths[depth]))
        heads = rule.heads or int(random.choice(rule.list_num_heads(width)))
        patches = {"patch_size": int(random.choice(rule.patch_sizes))} if rule.patch_sizes else {}
        yield rule.spec.with_(layers=depth, width=width, heads=heads, **patches)


def draw_architectures(
    rule: Rule, *, hold_out: Sequence[str] = (), count: int = COUNT, seed: int = SEED
) -> tuple[Spec, ...]:
    """Return the first draws that are not held out, with repetitions.

    Args:
        rule: the choices.
        hold_out: sizes: `12x96` (layers x width), `12` (layers, with any width) or `x96` (a width,
            at any depth).
        count: the number of architectures.
        seed: of the draws.

    Raises:
        WrongCall: for anything else than a size, and if every size is held out.
    """
    allowed = frozenset(_list_allowed_sizes(rule, hold_out))
    return tuple(
        islice(
            (spec for spec in draw_specs(rule, seed) if (spec.layers, spec.width) in allowed), count
        )
    )


def compute_mean_size(rule: Rule, hold_out: Sequence[str]) -> float:
    """Return the expected layers x width of a draw.

    Args:
        rule: the choices.
        hold_out: as in `draw_architectures`, which raises the same errors.
    """
    sizes = _list_allowed_sizes(rule, hold_out)
    # Layers are drawn first, so a size is less probable if its layers have more widths.
    weights = [1 / len(rule.widths[layers]) for layers, _ in sizes]
    total = sum(
        weight * layers * width for weight, (layers, width) in zip(weights, sizes, strict=True)
    )
    return total / sum(weights)


def _list_allowed_sizes(rule: Rule, hold_out: Sequence[str]) -> list[tuple[int, int]]:
    excluded = [_parse_size(text) for text in hold_out]
    allowed = [
        (layers, width)
        for layers, width in rule.sizes
        if not any(depth in (None, layers) and wide in (None, width) for depth, wide in excluded)
    ]
    if not allowed:
        raise WrongCall(
            f"{', '.join(hold_out)} hold out every architecture of the set; hold out fewer"
        )
    return allowed


def _parse_size(text: str) -> tuple[int | None, int | None]:
    """Return the layers and the width of a size; None stands for any."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise WrongCall(
            "expected a size to hold out: 12x96 (layers x width), 12 (layers) or x96 (width), got "
            f"{text!r}"
        )
    layers, width, only_width = (int(group) if group else None for group in match.groups())
    return layers, only_width if width is None else width


def pick_architecture(specs: Sequence[Spec], seed: int, index: int) -> Spec:
    """Return the architecture number `index` of a training: a function of the arguments alone.

    The set is traversed again and again, each time in another order, as the official data loader
    does.

    Args:
        specs: the set.
        seed: of the orders.
        index: counted from 0 over the whole training.
    """
    epoch, position = divmod(index, len(specs))
    return specs[_shuffle_indices(len(specs), seed, epoch)[position]]


@lru_cache(maxsize=8)
def _shuffle_indices(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(
        sorted(range(count), key=lambda number: derive_seed(seed, "architecture", epoch, number))
    )


def draw_training_set(name: SetName, hold_out: Sequence[str], ancestry: Spec) -> tuple[Spec, ...]:
    """Return the architectures of training.

    Args:
        name: a set of a paper.
        hold_out: the sizes to leave out, as in `draw_architectures`.
        ancestry: the shape that the set is scaled to.

    Raises:
        WrongCall: as `scale_rule` and `draw_architectures` do.
    """
    return draw_architectures(scale_rule(name, ancestry), hold_out=hold_out)


def derive_plain_spec(ancestry: Spec) -> Spec:
    """Return the plain model, as hypernetworks predict it, with an ancestry's size and inputs.

    None of a ViT's tensors is inherited, so neither are its LayerScale, registers and so on. A
    text model is of the ancestry model's kind.
    """
    if isinstance(ancestry, TextSpec):
        return ancestry.with_(classes=max(ancestry.classes, 1))
    ancestry = require_pictures(ancestry)
    return ViTSpec(
        layers=ancestry.layers,
        width=ancestry.width,
        heads=ancestry.heads,
        classes=max(ancestry.classes, 1),
        image_size=ancestry.image_size,
        patch_size=ancestry.patch_size,
        channels=ancestry.channels,
        mlp_ratio=ancestry.mlp_ratio,
    )


def list_widths(ancestry: Spec) -> range:
    """Return every multiple of the ancestry's head width, up to its own width."""
    return range(ancestry.head_width, ancestry.width + 1, ancestry.head_width)
