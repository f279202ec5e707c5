"""The embeddings of words and positions that predicted models inherit: `Tables`.

A low-rank hypernetwork decodes 2,048 rows and repeats them, so that words whose numbers differ by
2,048 have one embedding. Inherited embeddings are those of the ancestry model, projected to the
width of the predicted model:

    E' = E P^T    with P (d, D), LayerNorm exact within the first d - 1 principal directions

of the vectors e_w + p_n of all words w and positions n (see narrowing.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from learngene_zoo.plugin import BadFile, Spec, StateDict, get_shapes, get_table
from lgzoo_tal.hypernet_spec import ANCESTRY
from lgzoo_tal.modules.directions import sort_directions
from lgzoo_tal.modules.narrowing import build_projection

MAX_STORED = 2**26  # elements of narrowed embeddings in memory; a training has many widths


def list_embeddings(spec: Spec) -> list[str]:
    """Return the names of a model's embeddings: of words, then of positions."""
    return [kind.name for kind in get_table(spec).stem if kind.present(spec)]


def store_embeddings(state: StateDict, spec: Spec) -> StateDict:
    """Return the embeddings of an ancestry model by their names in a learngene."""
    return {f"{ANCESTRY}{name}": state[name] for name in list_embeddings(spec)}


def read_tables(state: StateDict, spec: Spec, where: str) -> Tables:
    """Return the embeddings that a learngene stores.

    Raises `BadFile` if one is missing or has another shape; `where` names the learngene.
    """
    expected = get_shapes(spec)
    for name in list_embeddings(spec):
        stored = state.get(f"{ANCESTRY}{name}")
        if stored is None or tuple(stored.shape) != expected[name]:
            raise BadFile(
                f"{where}: expected the embedding {ANCESTRY}{name} with shape {expected[name]};"
                " extract or fetch it again"
            )
    return Tables({name: state[f"{ANCESTRY}{name}"].float() for name in list_embeddings(spec)})


class Tables:
    """The embeddings of an ancestry model, for models of its width and narrower ones."""

    def __init__(self, tables: StateDict) -> None:
        self.tables = dict(tables)
        self._directions: Tensor | None = None
        self._narrowed: dict[int, StateDict] = {}

    def __deepcopy__(self, memo: object) -> Tables:
        return self  # never trained: the moving average of a hypernetwork has the same

    def narrow(self, width: int) -> StateDict:
        """Return the embeddings of a model of this width, by their names. Do not change them."""
        if width not in self._narrowed:
            if self._directions is None:
                self._directions = compute_directions(list(self.tables.values()))
            P_dD = build_projection(self._directions, width)
            narrowed = {
                name: table if len(P_dD) == table.shape[1] else table @ P_dD.T
                for name, table in self.tables.items()
            }
            self._narrowed[width] = narrowed
            while len(self._narrowed) > 1 and self._count_stored() > MAX_STORED:
                del self._narrowed[next(iter(self._narrowed))]  # the first that was built
        return self._narrowed[width]

    def _count_stored(self) -> int:
        return sum(table.numel() for state in self._narrowed.values() for table in state.values())


@torch.no_grad()
def compute_directions(tables: list[Tensor]) -> Tensor:
    """Return (D, D) the principal directions of all sums of a row of each table, as columns.

    Rows have mean 0 over their channels, as after a LayerNorm.
    """
    centred = [(table - table.mean(dim=1, keepdim=True)).double() for table in tables]
    means = [table.mean(dim=0) for table in centred]
    moments = [table.T @ table / len(table) for table in centred]
    # E (e + p)(e + p)^T for independent e and p
    total = sum(means[1:], means[0])
    moment_DD = sum(moments[1:], moments[0]) + torch.outer(total, total)
    moment_DD -= torch.stack([torch.outer(mean, mean) for mean in means]).sum(dim=0)
    return sort_directions(moment_DD)
