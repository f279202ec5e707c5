"""The names that an author of a plugin imports: `from learngene_zoo.plugin import Method, ...`.

One facade for methods and for suites of tasks, with stable names. Importing it costs nothing: each
name is fetched from its module when it is first used, so a cold module of a plugin stays cold as
long as it uses hot names inside its functions. The names and their modules are defined once, in
`plugin.pyi`, which type checkers read too.
"""

from importlib import import_module
from typing import Any

from learngene_zoo import homes

_HOME_OF = homes(__file__)
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
