"""The architectures that a hypernetwork is trained on: drawn by a rule, kept as configurations, never as models. Cold.

LoGAH's ViTs-1K (Zhou et al., "LoGAH: Predicting 774-Million-Parameter Transformers using Graph HyperNetworks with 1/100
Parameters", 2024), the wider variant of it that TAL is trained on, and the deeper set of TAL+. All three draw, each number
uniformly from its choices: layers, a width that so many layers may have, heads, the patches' size.

The papers' sets are the first 1000 draws with seed 1 of numpy's legacy generator, whose numbers will never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Literal

from learngene_zoo.plugin import ViTSpec, WrongCall, derive_seed, unknown

SetName = Literal["vits-1k", "tal", "tal+"]

COUNT, SEED = 1000, 1  # of the papers' sets
PAPER_WIDTH = 768  # of the largest model of TAL+'s set, ViT-Base: what widths are scaled against
_SIZE = re.compile(r"(\d+)(?:x(\d+))?|x(\d+)")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What one draw chooses from."""

    widths: Mapping[int, tuple[int, ...]]  # by layers, which are its keys
    patch_sizes: tuple[int, ...]
    image_size: int
    classes: int
    channels: int = 3
    head_width: int | None = None  # None: several counts of heads, by the papers' rule

    def heads(self, width: int) -> tuple[int, ...]:
        """The counts of heads that a width may have. The papers' widths are multiples of 32."""
        if self.head_width:
            return (width // self.head_width,)
        return (3, 6, 12) if width % 12 == 0 else (4, 8)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Every (layers, width)."""
        return tuple((layers, width) for layers, widths in self.widths.items() for width in widths)


def _by_depth(
    layers: range, three: Sequence[int], up_to_five: Sequence[int], more: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    return {n: tuple(three if n == 3 else up_to_five if n <= 5 else more) for n in layers}


def _multiples(least: int, most: int, step: int) -> range:
    return range(least, most + step, step)


# Least and most width of 3 layers, of 4 and 5, and of more; the step between widths; the layers.
_FORMS: dict[SetName, tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], int, range]] = {
    "vits-1k": (((384, 512), (256, 384), (128, 256)), 32, range(3, 10)),
    "tal": (((192, 512), (256, 512), (256, 768)), 32, range(3, 10)),
    "tal+": (((192, 768), (192, 768), (192, 768)), 64, range(3, 13)),
}


def rule_of(name: SetName) -> Rule:
    """The rule of a paper's set, at the size that the official code draws it for: images of 32 pixels, ten classes.

    Raises `WrongCall` for a set that does not exist.
    """
    bounds, step, layers = _form(name)
    widths = _by_depth(layers, *(_multiples(least, most, step) for least, most in bounds))
    return Rule(widths=widths, patch_sizes=(2, 4), image_size=32, classes=10)


def scaled(name: SetName, ancestry: ViTSpec) -> Rule:
    """A set of the same form in an ancestry model's measure: its head width, its patches, images and classes.

    Widths are whole heads. Their bounds are to the ancestry's width as the paper's are to 768, rounded up to a head, so
    that an ancestry of 768 in 12 heads gives TAL+'s own widths. Layers stay the paper's. Raises `WrongCall` as `rule_of`.
    """
    bounds, _, layers = _form(name)
    unit = ancestry.head_width
    widths = _by_depth(
        layers,
        *(_multiples(_heads(least, ancestry) * unit, _heads(most, ancestry) * unit, unit) for least, most in bounds),
    )
    return Rule(
        widths=widths,
        patch_sizes=(ancestry.patch_size,),
        image_size=ancestry.image_size,
        classes=ancestry.classes,
        channels=ancestry.channels,
        head_width=unit,
    )


def _heads(width: int, ancestry: ViTSpec) -> int:
    """The heads of a paper's width in an ancestry model's measure, rounded up."""
    return -(-width * ancestry.heads // PAPER_WIDTH)


def _form(name: SetName) -> tuple[Sequence[tuple[int, int]], int, range]:
    if name not in _FORMS:
        raise unknown("set of architectures", name, _FORMS)
    return _FORMS[name]


def draws(rule: Rule, seed: int = SEED) -> Iterator[ViTSpec]:
    """Architectures without end, in the order of the official generators."""
    from numpy.random import RandomState

    random = RandomState(seed)
    layers = list(rule.widths)
    while True:
        depth = layers[random.randint(len(layers))]
        width = int(random.choice(rule.widths[depth]))
        yield ViTSpec(
            layers=depth,
            width=width,
            heads=int(random.choice(rule.heads(width))),
            patch_size=int(random.choice(rule.patch_sizes)),
            image_size=rule.image_size,
            classes=rule.classes,
            channels=rule.channels,
        )


def architectures(
    rule: Rule, *, hold_out: Sequence[str] = (), count: int = COUNT, seed: int = SEED
) -> tuple[ViTSpec, ...]:
    """The first `count` draws that are not held out. A size that is drawn twice is there twice.

    `hold_out` names sizes never to be drawn: `12x96` (layers x width), `12` (layers, of any width) or `x96` (the width, at
    any depth). Raises `WrongCall` for what names no size, and if every size is held out.
    """
    out = [_held_out(text) for text in hold_out]

    def kept(layers: int, width: int) -> bool:
        return not any(depth in (None, layers) and wide in (None, width) for depth, wide in out)

    if not any(kept(*size) for size in rule.sizes):
        raise WrongCall(f"every architecture of the set is held out by {', '.join(hold_out)}; hold out fewer")
    return tuple(islice((spec for spec in draws(rule, seed) if kept(spec.layers, spec.width)), count))


def _held_out(text: str) -> tuple[int | None, int | None]:
    """Layers and width that a size names; None: any."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise WrongCall(f"{text!r} names no size to hold out; write 12x96 (layers x width), 12 (layers) or x96 (width)")
    layers, width, alone = (int(group) if group else None for group in match.groups())
    return layers, alone if width is None else width


def at(specs: Sequence[ViTSpec], seed: int, index: int) -> ViTSpec:
    """The architecture of the training's draw number `index`: a function of these three alone.

    The set is gone through again and again, each pass in an order of its own, as the official data loader does.
    """
    passed, place = divmod(index, len(specs))
    return specs[_order(len(specs), seed, passed)[place]]


@lru_cache(maxsize=8)
def _order(count: int, seed: int, passed: int) -> tuple[int, ...]:
    return tuple(sorted(range(count), key=lambda number: derive_seed(seed, "architecture", passed, number)))


def presented(specs: Sequence[ViTSpec], like: ViTSpec) -> tuple[ViTSpec, ...]:
    """The same architectures for the images, patches and classes of `like`."""
    return tuple(
        replace(
            spec,
            image_size=like.image_size,
            patch_size=like.patch_size,
            classes=like.classes,
            channels=like.channels,
        )
        for spec in specs
    )
