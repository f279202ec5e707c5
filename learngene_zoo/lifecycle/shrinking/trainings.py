"""Which epoch of the fine-tuning of a candidate `shrink` keeps, and the sentences about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learngene_zoo.lifecycle.training_warnings import describe_choice, describe_few


@dataclass(frozen=True, kw_only=True)
class ShrinkTraining:
    """The fine-tuning of a candidate."""

    candidate: str  # method and size, as in the table
    kept_epoch: int  # 0: the model before training
    epochs: int
    choice: str = ""  # why this epoch is kept; "" for the model before training
    few: str = ""  # the number of validation samples, if it is small
    has_ridge_head: bool = True  # before training
    warning: str = ""  # of a training that diverged or learnt nothing, with advice

    @property
    def start(self) -> str:
        """The name of the model before training."""
        return "the ridge head before training" if self.has_ridge_head else "the start"

    def describe(self) -> str:
        """Describe which epoch is kept, and by how many validation samples if these are few.

        Of a training that failed, return its warning, with the advice of `finetune`.
        """
        if self.warning:
            return f"{self.candidate}: {self.warning}"
        if self.kept_epoch:
            choice = self.choice or f"epoch {self.kept_epoch} of {self.epochs} is kept"
            return f"{self.candidate}: {choice}"
        result = f"a worse result on {self.few}," if self.few else "a worse validation result"
        return (
            f"{self.candidate}: every epoch has {result} than {self.start} (epoch 0), which is kept"
        )


def summarise_training(
    candidate: str, provenance: Mapping[str, Any], noun: str
) -> ShrinkTraining | None:
    """Return the facts of a fine-tuning; None without training.

    Args:
        candidate: method and size.
        provenance: of the fine-tuned model.
        noun: the word for one sample, "image" or "text".
    """
    metrics, head = provenance["metrics"], provenance.get("head") or {}
    if not metrics["epochs"] or "kept_epoch" not in metrics:
        return None
    epoch = metrics["kept_epoch"]
    return ShrinkTraining(
        candidate=candidate,
        kept_epoch=epoch,
        epochs=metrics["epochs"],
        choice=describe_choice(epoch, metrics, noun) if epoch else "",
        few=describe_few(metrics, noun),
        has_ridge_head=head.get("init") == "ridge",
        warning=str(metrics.get("warning", "")),
    )
