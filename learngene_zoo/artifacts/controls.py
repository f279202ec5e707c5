"""Controls: a descendant without what it inherited, in one way or another, and otherwise the same.

What a method gains over its control `shuffled` is inherited knowledge; what that control gains over random weights is the scale
of the inherited numbers. What the control `stem` gains comes from the patch embedding, tokens, positions and final norm alone.
"""

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.records import CONTROLS, Control
from learngene_zoo.errors import unknown
from learngene_zoo.families import tensors
from learngene_zoo.families.family import table_of
from learngene_zoo.families.tensors import initial


def controlled(descendant: Descendant, control: Control, seed: int) -> Descendant:
    """The descendant under a control; what it did not inherit stays. Raises `WrongCall` for a control that does not exist.

    `shuffled` permutes the entries of every inherited tensor; `stem` keeps the inherited stem and final norm and draws every
    other inherited tensor. Both are functions of the seed.
    """
    if control not in CONTROLS:
        raise unknown("control", control, CONTROLS)
    return {"shuffled": _shuffled, "stem": _stem_only}[control](descendant, seed)


def _shuffled(descendant: Descendant, seed: int) -> Descendant:
    return descendant.with_state(tensors.shuffled(descendant.state, descendant.inherited, seed))


def _stem_only(descendant: Descendant, seed: int) -> Descendant:
    table = table_of(descendant.spec)
    kept = {name for name in descendant.inherited if table.is_stem(name) or table.is_final_norm(name)}
    drawn = initial(descendant.spec, seed, names=descendant.inherited - kept)
    return descendant.with_state({**descendant.state, **drawn}, inherited=frozenset(kept))
