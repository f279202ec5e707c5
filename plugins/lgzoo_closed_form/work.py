"""Estimated work of closed-form extractions and expansions: passes, and multiply-adds.

They are those of products of recorded tokens with each other (Gram matrices), of layers applied to
recorded tokens, and of solving equations. Those in float64 count twice. Everything here is in plain
numbers.

Shapes: R recorded tokens, L blocks, D width, A the width of all heads together, H hidden neurons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learngene_zoo.plugin import Member, TextSpec, Work

if TYPE_CHECKING:
    from learngene_zoo.plugin import Spec
    from lgzoo_closed_form.calibration import Calibration

DOUBLE = 2  # multiply-adds in float32 that take as long as one in float64
EIGENVECTORS = 9  # of a symmetric (n, n) matrix take so many times n³ (Golub and Van Loan, 8.3)
MIN_COST_ROWS = 8192  # of recorded tokens by which runs are compared


def count_rows(spec: Spec, settings: Calibration, images: int) -> int:
    """Return the number of recorded tokens of so many training images, R."""
    is_text = isinstance(spec, TextSpec)
    tokens = settings.tokens if is_text else min(settings.tokens, spec.tokens)
    return min(settings.images, images) * tokens


def estimate_statistics(spec: Spec, settings: Calibration, images: int) -> Work:
    """Return the work of the costs of all runs and of the main directions, with a recording.

    The fc2 of each block is solved for the outputs of all later blocks.
    """
    rows, hidden, pairs = (
        count_rows(spec, settings, images),
        spec.hidden,
        spec.layers * (spec.layers - 1) / 2,
    )
    num_rows = max(MIN_COST_ROWS, 5 * hidden)
    used = rows / max(rows // num_rows, 1)
    solved = used * hidden * (spec.layers * (hidden / 2 + spec.width) + pairs * spec.width)
    # Cholesky factors; of few rows again, with an inverse, for the generalised cross-validation.
    factors = spec.layers * hidden**3 * (1 / 6 if used >= num_rows else 2 / 3)
    solved += DOUBLE * (factors + pairs * 2 * hidden**2 * spec.width)
    solved += count_directions(spec, rows)
    count = min(settings.images, images)
    return Work(images=count, trained=0, frozen=spec.layers, solved=solved)


def count_directions(spec: Spec, rows: int) -> float:
    """Return the multiply-adds of the main directions of the streams."""
    width = spec.width
    return (2 * spec.layers + 1) * rows * width**2 + DOUBLE * EIGENVECTORS * width**3


def estimate_solutions(ancestry: Spec, spec: Spec, settings: Calibration, images: int) -> Work:
    """Return the work of solving a descendant, with its passes over the images.

    Args:
        ancestry: the shape of the ancestry model.
        spec: the shape of the descendant.
        settings: how many images and tokens are recorded.
        images: how many training images there are.
    """
    rows = count_rows(ancestry, settings, images)
    before, width, heads_width, hidden = ancestry.width, spec.width, spec.heads_width, spec.hidden
    is_narrow = width < before
    layers = (  # inputs, outputs
        (width, 3 * heads_width),
        (heads_width, width),
        (width, hidden),
        (hidden, width),
    )
    count: float = (
        rows * before * (3 * heads_width + hidden)
    )  # the teacher's queries, keys, ... and fc1
    count += rows * width * hidden  # the inputs of fc2
    for inputs, outputs in layers:
        count += rows * (inputs**2 / 2 + inputs * outputs)
        count += DOUBLE * (inputs**3 / 6 + 2 * inputs**2 * outputs)
    if is_narrow:  # heads and neurons are selected, and targets narrowed
        count += DOUBLE * rows * ancestry.heads_width**2 / 2 + rows * before * ancestry.hidden
        count += 2 * rows * before * width
    directions = count_directions(ancestry, rows) if is_narrow else 0.0
    passed = min(settings.images, images)
    solved = spec.layers * count + directions + passed * Member(spec=spec).cost().flops
    return Work(images=passed, trained=0, solved=solved)


def estimate_scores(spec: Spec, settings: Calibration, images: int) -> Work:
    """Return the work of the energies of all heads and neurons."""
    rows = count_rows(spec, settings, images)
    solved = DOUBLE * spec.layers * rows * spec.heads_width**2 / 2
    count = min(settings.images, images)
    return Work(images=count, trained=0, frozen=spec.layers, solved=solved)


def estimate_compensation(ancestry: Spec, spec: Spec, settings: Calibration, images: int) -> Work:
    """Return the work of a compensation, with its pass over the images.

    Args: as `estimate_solutions`.
    """
    rows, solved = count_rows(ancestry, settings, images), 0.0
    for inputs, kept in (
        (ancestry.heads_width, spec.heads_width),
        (ancestry.hidden, spec.hidden),
    ):
        removed = inputs - kept
        solved += rows * inputs**2 / 2 + kept**3 / 6 + removed * kept * (kept + ancestry.width)
    solved *= DOUBLE * ancestry.layers
    count = min(settings.images, images)
    return Work(images=count, trained=0, frozen=ancestry.layers, solved=solved)
