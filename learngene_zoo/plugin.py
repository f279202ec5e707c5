"""Everything that an author of a plugin imports: `from learngene_zoo.plugin import Extractor, Expander, Method, ...`.

One facade for methods and for suites of tasks, with names that stay. Importing it costs nothing: each name is fetched
from its module when it is first used, so a cold module of a plugin stays cold as long as it takes hot names inside its
functions. Which names there are, and where they come from, is said once: by `plugin.pyi`, which type checkers read too.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _homes() -> dict[str, tuple[str, str]]:
    """For every name its module, and what it is called there."""
    imports = ast.parse(Path(__file__).with_suffix(".pyi").read_bytes()).body
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_HOME_OF = _homes()
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, original = _HOME_OF[name]
    if home == "learngene_zoo":  # a module of the package, which is a name of the facade as a whole
        return import_module(f"{home}.{original}")
    return getattr(import_module(home), original)


def __dir__() -> list[str]:
    return __all__
