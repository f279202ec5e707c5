"""A zoo of learngenes: Vision Transformers of any size from one pretrained ancestry model.

    import learngene_zoo as lg

    lg.extract("lsamd", out="learngene")
    model = lg.expand("learngene", layers=7).model()

Importing this imports nothing else; each name below is fetched from its module when it is first used.
"""

from typing import TYPE_CHECKING, Any

from learngene_zoo.version import __version__

if TYPE_CHECKING:
    from learngene_zoo.artifacts.descendant import Descendant as Descendant
    from learngene_zoo.artifacts.records import LearngeneConfig as LearngeneConfig
    from learngene_zoo.artifacts.shelf import Learngene as Learngene
    from learngene_zoo.artifacts.shelf import load as load
    from learngene_zoo.errors import ZooError as ZooError
    from learngene_zoo.families.vit.spec import ViTSpec as ViTSpec
    from learngene_zoo.lifecycle import evaluate as evaluate
    from learngene_zoo.lifecycle import expand as expand
    from learngene_zoo.lifecycle import extract as extract
    from learngene_zoo.lifecycle import finetune as finetune
    from learngene_zoo.lifecycle import plan as plan
    from learngene_zoo.lifecycle import plot as plot
    from learngene_zoo.lifecycle import train as train
    from learngene_zoo.method import Budget as Budget
    from learngene_zoo.method import Expander as Expander
    from learngene_zoo.method import Extractor as Extractor
    from learngene_zoo.method import Member as Member
    from learngene_zoo.method import Method as Method
    from learngene_zoo.method import Target as Target
    from learngene_zoo.runs.run import Run as Run
    from learngene_zoo.settings import Recipe as Recipe
    from learngene_zoo.tasks.catalogue import open_task as open_task

# Which module each public name lives in.
_HOMES = {
    "artifacts.descendant": ("Descendant",),
    "artifacts.records": ("LearngeneConfig",),
    "artifacts.shelf": ("Learngene", "load"),
    "errors": ("ZooError",),
    "families.vit.spec": ("ViTSpec",),
    "lifecycle": ("evaluate", "expand", "extract", "finetune", "plan", "plot", "train"),
    "method": ("Budget", "Expander", "Extractor", "Member", "Method", "Target"),
    "runs.run": ("Run",),
    "settings": ("Recipe",),
    "tasks.catalogue": ("open_task",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
