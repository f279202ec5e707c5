"""A zoo of learngenes: Vision Transformers of any size from one pretrained ancestry model.

    import learngene_zoo as lg

    lg.extract("lsamd", out="learngene")
    model = lg.expand("learngene", layers=7).model()

Importing this package imports nothing else: each name is fetched from its module when it is first
used. The names and their modules are defined once, in the stub beside this file, which type
checkers read too; `learngene_zoo.plugin` works in the same way.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from learngene_zoo.version import __version__ as __version__


def read_stub(module: str) -> dict[str, tuple[str, str]]:
    """Return the module and the original name of every name of a facade.

    `module` is the facade's file.
    """
    stub = ast.parse(Path(module).with_suffix(".pyi").read_bytes()).body
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in stub
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_HOME_OF = read_stub(__file__)
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name][0]), name)


def __dir__() -> list[str]:
    return __all__
