"""Random numbers as a function of the step: no generator's state is ever saved."""

from __future__ import annotations

import random

import numpy as np
import torch

from learngene_zoo.processes import rank
from learngene_zoo.run import derive_seed


def seed_step(seed: int, step: int) -> None:
    """Seed torch (all devices), numpy and random for one step of this process."""
    value = derive_seed(seed, "step", step, rank())
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
