"""Memory of freed tensors: kept by runs on a processor, unless the user has set glibc's options."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Frees and needs a tensor of 100 MB again and again; prints the page faults of each time.
CODE = """
import resource, sys
import torch
from learngene_zoo.runs.memory import keep_freed_memory
from learngene_zoo.runs.run import Run, open_device

if sys.argv[1] == "opened":
    open_device(Run(device="cpu"))
for repeat in range(20):  # the first ones get new memory
    if repeat == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensor = torch.ones(25_000_000)
    del tensor
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(int(keep_freed_memory()), faults // 10)
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has these settings"
)


def count_faults(word: str, **environment: str) -> tuple[int, int]:
    """Return whether memory is kept at the end, and the page faults of one tensor."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
    kept = {name: text for name, text in os.environ.items() if name not in names}
    kept.pop("GLIBC_TUNABLES", None)
    process = subprocess.run(
        [sys.executable, "-c", CODE, word],
        env={**kept, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    first, second = map(int, process.stdout.split())
    return first, second


@pytest.mark.slow
def test_a_run_on_a_processor_keeps_freed_memory() -> None:
    assert count_faults("opened") == (1, 0)


@pytest.mark.slow
def test_options_of_the_user_are_kept() -> None:
    is_kept, faults = count_faults("opened", MALLOC_MMAP_THRESHOLD_="1000000")
    assert is_kept == 0
    assert faults > 0
