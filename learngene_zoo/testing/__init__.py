"""The contracts of plugins, as functions that belong in the tests of every plugin.

    from learngene_zoo.testing import check_method, check_suite
    from my_plugin import METHOD, SUITE

    def test_contracts():
        check_method(METHOD)
        check_suite(SUITE)

Each raises `AssertionError`, whose message names the broken law; an error that the plugin raised is
its cause.
"""

from typing import Any

from learngene_zoo.errors import warn_of_new_name
from learngene_zoo.testing.laws import make_tiny_ancestry, make_tiny_task
from learngene_zoo.testing.method import check_method
from learngene_zoo.testing.suite import check_suite

__all__ = ["check_method", "check_suite", "make_tiny_ancestry", "make_tiny_task"]


def __getattr__(name: str) -> Any:
    if name not in ("tiny_ancestry", "tiny_task"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[warn_of_new_name(__name__, name, f"make_{name}")]
