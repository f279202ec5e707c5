"""The contracts of plugins, as functions that belong into the tests of every plugin.

    from learngene_zoo.testing import check_method, check_suite
    from my_plugin import METHOD, SUITE

    def test_contracts():
        check_method(METHOD)
        check_suite(SUITE)

Each raises `AssertionError`, whose message names the law that is broken, and the errors of the plugin itself.
"""

from __future__ import annotations

from learngene_zoo.testing.method import (
    TinySplit,
    check_extraction,
    check_family,
    check_members,
    check_method,
    check_outline,
    check_record,
    check_settings,
    tiny_ancestry,
    tiny_task,
)
from learngene_zoo.testing.suite import check_suite

__all__ = [
    "TinySplit",
    "check_extraction",
    "check_family",
    "check_members",
    "check_method",
    "check_outline",
    "check_record",
    "check_settings",
    "check_suite",
    "tiny_ancestry",
    "tiny_task",
]
