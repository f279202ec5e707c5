"""What must be known to read a bench's tables: said in the Markdown, on the page, and in the documentation. Cold."""

READING = {
    "over scratch": "*Over scratch*: the difference to the stronger of the scratch arms: the one with the higher mean over seeds, "
    "chosen for each task, size and budget by itself.",
    "inherited": "*Inherited*: the difference to the arm's own control `shuffled`, whose inherited tensors hold the same numbers in "
    "another order. The control `stem` inherits only what comes before and after the blocks.",
    "untrained": "*Untrained*: the metric before any training, with a fresh head. *Probe*: the share of images that lie nearest to "
    "the mean of their own class, by their features before any training.",
    "epochs": "Every number of epochs is a training of its own, with its own complete schedule.",
    "intervals": "Intervals hold 95 %. Those of average gains speak of other tasks and other seeds; all others speak of other "
    "seeds on these tasks.",
}
