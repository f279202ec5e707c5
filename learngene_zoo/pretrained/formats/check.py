"""Compare a written folder with the model, by the outputs for a few images."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from learngene_zoo.errors import TrainingFailed
from learngene_zoo.families.picture_spec import require_pictures
from learngene_zoo.families.tensors import build_model
from learngene_zoo.pretrained.formats.layout import DINOV2, Convertible, PackageLayout

NUM_IMAGES = 2
TOLERANCE = 1e-3  # of the largest output


def is_installed(layout: PackageLayout) -> bool:
    """Return whether the package that opens a layout is installed."""
    name = layout.name.partition(":")[0]
    return name == DINOV2 or find_spec(name) is not None


def measure_difference(model: Convertible, layout: PackageLayout, folder: Path) -> float:
    """Return the largest difference of an output of the written folder from that of the model.

    Raises `TrainingFailed` if it is more than rounding.
    """
    spec = require_pictures(model.spec)
    size = (NUM_IMAGES, spec.channels, spec.image_size, spec.image_size)
    images_BCHW = torch.randn(size, generator=torch.Generator().manual_seed(0))
    expected = read_outputs(model, images_BCHW)
    with _silence(), torch.random.fork_rng(devices=[]):
        outputs = layout.open_files(folder, spec, images_BCHW)
    largest = 0.0
    for name, tensor in outputs.items():
        difference = float((tensor - expected[name]).abs().max())
        limit = TOLERANCE * max(1.0, float(expected[name].abs().max()))
        if not difference <= limit:
            raise TrainingFailed(
                f"the {name} of {layout.name} differ by {difference:.2g} from those of "
                f"{model.name} (at most {limit:.2g} is rounding); nothing was written"
            )
        largest = max(largest, difference)
    return largest


def read_outputs(model: Convertible, images_BCHW: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return the tokens, the pooled tokens and the logits of a model."""
    module: Any = build_model(model.spec, model.state).eval()
    with torch.no_grad():
        tokens_BND = module.forward_features(images_BCHW)
        return {
            "tokens": tokens_BND,
            "pooled": module.forward_head(tokens_BND, pre_logits=True),
            "logits": module.forward_head(tokens_BND),
        }


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard the progress bars and messages of the other package."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
