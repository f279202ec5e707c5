"""`import learngene_zoo` provides the public names and imports nothing heavy."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

import learngene_zoo


def test_every_public_name_is_there() -> None:
    for name in learngene_zoo.__all__:
        assert getattr(learngene_zoo, name) is not None
    assert dir(learngene_zoo) == sorted(learngene_zoo.__all__)
    with pytest.raises(AttributeError, match="nothing_like_that"):
        _ = learngene_zoo.nothing_like_that


def test_importing_it_imports_nothing_else() -> None:
    code = (
        "import sys, learngene_zoo; print([n for n in sys.modules if n.startswith('learngene_zoo')"
        " or n in ('torch', 'click')])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert set(ast.literal_eval(process.stdout)) == {"learngene_zoo", "learngene_zoo.version"}
