"""What is equal in all arms that are compared: size, budget, split and metric."""

from typing import NamedTuple

SCRATCH = "scratch"  # the method of the baseline arms


class Condition(NamedTuple):
    """What is equal in all arms that are compared."""

    layers: int
    width: int
    size: str  # "" if layers and width name it
    epochs: int
    split: str
    metric: str

    @property
    def named(self) -> str:
        """The size, for a column called `layers`."""
        return f"{self.layers} ({self.size})" if self.size else f"{self.layers}"

    @property
    def in_words(self) -> str:
        """The size in a sentence: `6 layers`, or how the expander's settings name it."""
        return self.size or f"{self.layers} layers"
