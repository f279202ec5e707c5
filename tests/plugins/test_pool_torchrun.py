"""Two processes train a pool as one does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from learngene_zoo.storage import Tensors

PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path

import torch

from learngene_zoo.storage import write_tensors
from learngene_zoo.runs.run import is_first, join
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training.distillation import Teacher
from lgzoo_pool.pool import POOL

torch.set_num_threads(1)
out = Path(sys.argv[1])
seen, original = [], Teacher.__call__


def counted(self, batch):
    seen.append(len(batch.inputs))
    return original(self, batch)


Teacher.__call__ = counted
join("cpu")
ancestry = replace(make_tiny_ancestry(classes=3), class_names=make_tiny_task().class_names)
settings = {"epochs": 2, "tuning_epochs": 2}
made = with_settings(POOL.presets["smoke"], settings)([ancestry], [make_tiny_task()], Run(seed=1, folder=out / "run"))
if is_first():
    write_tensors(out / "pool.safetensors", made.state)
print(f"images {sum(seen)}", flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_equal_one(
    tmp_path: Path, checkout: Path, torchrun: Callable[[list[str], Callable[[str], bool]], str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    path = {"PYTHONPATH": f"{checkout}:{checkout / 'plugins'}", "OMP_NUM_THREADS": "1"}
    alone = [sys.executable, str(program), str(tmp_path / "one")]
    alone_output = subprocess.run(
        alone, env=path, check=True, capture_output=True, text=True, timeout=200
    ).stdout
    output = torchrun([str(program), str(tmp_path / "two")], lambda output: "images" in output)
    ours, theirs = (Tensors(tmp_path / place / "pool.safetensors") for place in ("one", "two"))
    assert set(ours) == set(theirs)
    # The mean: AdamW takes whole steps even where a gradient is nothing but rounding, as that of
    # the keys' biases.
    apart = {name: (ours[name] - theirs[name]).abs().mean().item() for name in ours}
    assert max(apart.values()) < 5e-5, max(apart, key=lambda name: apart[name])
    counts = [
        sum(int(line.split()[1]) for line in text.splitlines() if "images" in line)
        for text in (alone_output, output)
    ]
    assert counts == [3 * 2 * 32] * 2
