"""Stacked: more layers than the ancestry model has, by repeating its blocks; nothing is trained.

From the ancestry model's first b blocks (all L unless `--base` names fewer) a descendant of k layers has, for i = 0, ..., k - 1,

    stack         block i mod b            0 1 2 0 1 2    (Gong et al., 2019: a trained stack is put on itself)
    interlace     block floor(i b / k)     0 0 1 1 2 2    (each block followed by its copies)

The papers train between doublings; here the larger model is only started so, as by whoever grows a model once. Descendants of up to
b layers are `first_k` and, interlaced, about `evenly_spaced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import Bounds, Expander, LearngeneConfig, Member, Method, Target, WrongCall
from lgzoo_baselines.block_choice import Keep, taken

if TYPE_CHECKING:
    from learngene_zoo.plugin import Descendant, Learngene, Run

Order = Literal["stack", "interlace"]


def sources(base: int, layers: int, order: Order) -> list[int]:
    """The block, counted from 0, that each layer copies."""
    return [i % base if order == "stack" else i * base // layers for i in range(layers)]


class KeepForStacking(Keep):
    """Keep the ancestry model for `stacked`."""

    method = "stacked"


@dataclass(frozen=True, kw_only=True)
class Stack(Expander):
    """Repeat the ancestry model's blocks."""

    order: Annotated[Order, "repeat the whole stack, or each block by itself"] = "stack"
    base: Annotated[int | None, "repeat the first N blocks only (default: all)", Bounds(least=1)] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth up to twice the ancestry model's. Deeper ones can be built by name."""
        return [Member(spec=config.spec.with_(layers=layers)) for layers in range(1, 2 * config.spec.layers + 1)]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """The repeated blocks, positions resized, a new head. Raises `WrongCall` for more blocks to repeat than there are."""
        whole = learngene.config.spec
        spec, base = target.apply(whole), self.base or whole.layers
        if base > whole.layers:
            raise WrongCall(f"base is {base}; the ancestry model has {whole.layers} blocks")
        return taken(learngene, spec, sources(base, spec.layers, self.order), run)


STACKED = Method(
    name="stacked",
    title="more layers by repeating the ancestry model's blocks",
    paper="Gong, He, Li, Qin, Wang, Liu. Efficient Training of BERT by Progressively Stacking. ICML 2019",
    expander=Stack(),
    presets={"mini": KeepForStacking(), "paper": KeepForStacking(), "smoke": KeepForStacking()},
    families=("vit", "eva"),
    tasks="none",
)
