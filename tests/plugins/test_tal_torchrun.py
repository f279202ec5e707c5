"""Two processes train a hypernetwork as one does, and embed a task as one does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from learngene_zoo.storage import Tensors

NO_GRADIENT = "attn.proj_e.2.bias"  # one number for each head, added to the logits of all its edges
PROGRAM = """
import sys
from pathlib import Path

import torch
from tal_toy import build_ancestry, build_extractor, build_tasks

from learngene_zoo.storage import write_tensors
from learngene_zoo.runs.run import is_first, join
from learngene_zoo.runs.run import Run

torch.set_num_threads(1)
join("cpu")
# Without attributes: one that half of the images lack has another mean in each process.
run = Run(seed=1, folder=Path(sys.argv[1]) / "run")
made = build_extractor(attributes=False)([build_ancestry()], build_tasks(), run)
if is_first():
    write_tensors(Path(sys.argv[1]) / "tal.safetensors", made.state)
print("made", flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_equal_one(
    tmp_path: Path, checkout: Path, torchrun: Callable[[list[str], Callable[[str], bool]], str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(checkout / 'tests' / 'plugins')!r})\n{PROGRAM}"
    )
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    path = {"PYTHONPATH": f"{checkout}:{checkout / 'plugins'}", "OMP_NUM_THREADS": "1"}
    alone = [sys.executable, str(program), str(tmp_path / "one")]
    subprocess.run(alone, env=path, check=True, capture_output=True, text=True, timeout=200)
    torchrun([str(program), str(tmp_path / "two")], lambda output: output.count("made") == 2)
    ours, theirs = (Tensors(tmp_path / folder / "tal.safetensors") for folder in ("one", "two"))
    assert set(ours) == set(theirs)
    # The mean: AdamW takes whole steps even where a gradient is nothing but rounding. All of a
    # gradient is, where it is zero but for rounding: of what is added to all logits of a softmax.
    apart = {
        name: (ours[name] - theirs[name]).abs().mean().item()
        for name in ours
        if not name.endswith(NO_GRADIENT)
    }
    assert len(apart) == len(ours) - 1
    assert max(apart.values()) < 5e-5, max(apart, key=lambda name: apart[name])
