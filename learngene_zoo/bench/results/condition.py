"""The condition of a comparison, equal in all its arms: size, budget, split and metric."""

from typing import NamedTuple

SCRATCH = "scratch"  # the method of the baseline arms


class Condition(NamedTuple):
    """The size, budget, split and metric that all compared arms share."""

    layers: int
    width: int
    size: str  # "" if layers and width name it
    epochs: int
    split: str
    metric: str

    @property
    def size_label(self) -> str:
        """Return the size, for a column called `layers`."""
        return f"{self.layers} ({self.size})" if self.size else f"{self.layers}"

    @property
    def size_in_words(self) -> str:
        """Return the size for a sentence: `6 layers`, or the expander's settings that name it."""
        return self.size or f"{self.layers} layers"
