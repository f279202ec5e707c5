"""torch.hub entries: `torch.hub.load("OWNER/learngene_zoo:v1.0.0", "lsamd_vit", task="digits",
layers=7, trust_repo=True)`.

Every method METHOD with a learngene in `cards/` has an entry `METHOD_vit`; `descendant` builds from
any learngene, of images or of texts. What comes back is a plain timm `VisionTransformer`, or our
subclass of it if its blocks have two widths; of texts it is a model of transformers. Nothing but
the standard library is imported here, so that torch.hub can report a missing dependency; and our
packages are found by name, so that `sys.path` stays unchanged and imports still work after `load`
has returned.
"""

import importlib.abc as _abc
import importlib.machinery as _machinery
import importlib.util as _util
import sys as _sys
import warnings as _warnings
from pathlib import Path as _Path
from typing import Any as _Any

dependencies = ["torch", "timm", "safetensors", "huggingface_hub"]

_ROOT = _Path(__file__).resolve().parent
# torch.hub runs this file anew on every call; what must be remembered between calls is kept with
# the interpreter.
_warned: set[str] = _sys.__dict__.setdefault("_learngene_zoo_warned", set())


class _Checkout(_abc.MetaPathFinder):
    """Finds exactly our own packages, in this checkout."""

    def __init__(self, root: _Path) -> None:
        self.learngene_zoo_checkout = root  # how a later hubconf recognises an earlier one's finder
        plugins = sorted((root / "plugins").glob("*/__init__.py"))
        self.packages = {
            file.parent.name: file for file in [root / "learngene_zoo" / "__init__.py", *plugins]
        }

    def find_spec(
        self, fullname: str, path: _Any = None, target: _Any = None
    ) -> _machinery.ModuleSpec | None:
        """The package of that name, if it is one of ours.

        What lies inside it is found the ordinary way.
        """
        file = self.packages.get(fullname)
        if file is None:
            return None
        return _util.spec_from_file_location(
            fullname, file, submodule_search_locations=[str(file.parent)]
        )


class _AnotherCopy(_abc.MetaPathFinder):
    """Finds our own packages anywhere but in this checkout, which torch.hub puts on `sys.path`
    while it loads.
    """

    def __init__(self, checkout: _Checkout) -> None:
        self.learngene_zoo_not_from = _ROOT
        self.names = set(checkout.packages)

    def find_spec(
        self, fullname: str, path: _Any = None, target: _Any = None
    ) -> _machinery.ModuleSpec | None:
        """The package of that name, if it is one of ours."""
        if fullname not in self.names:
            return None
        places = [place for place in _sys.path if _Path(place).resolve() != _ROOT]
        return _machinery.PathFinder.find_spec(fullname, places)


def _elsewhere(checkout: _Checkout) -> str | None:
    """Where another copy of our packages is loaded from, if one is."""
    for name, file in checkout.packages.items():
        origin = getattr(_sys.modules.get(name), "__file__", None)
        if origin and _Path(origin).resolve() != file:
            return str(_Path(origin).parent)
    return None


def _use_this_checkout() -> None:
    """All of our packages come from one place: this checkout, or wherever the first of them was
    loaded from.
    """
    checkout = _Checkout(_ROOT)
    ours = [finder for finder in _sys.meta_path if hasattr(finder, "learngene_zoo_checkout")]
    other = _elsewhere(checkout)
    if other is not None:
        if not any(
            getattr(finder, "learngene_zoo_not_from", None) == _ROOT for finder in _sys.meta_path
        ):
            _sys.meta_path.insert(len(ours), _AnotherCopy(checkout))
        if str(_ROOT) not in _warned:
            _warnings.warn(
                f"learngene_zoo is already loaded from {other}; that copy is used, not {_ROOT}",
                stacklevel=2,
            )
            _warned.add(str(_ROOT))
        return
    if [finder.learngene_zoo_checkout for finder in ours] != [_ROOT]:
        _sys.meta_path[:] = [checkout, *(finder for finder in _sys.meta_path if finder not in ours)]


_use_this_checkout()


def lsamd_vit(task: str | None = None, *, pretrained: bool = True, **options: _Any) -> _Any:
    """A Vision Transformer of any depth from an LSAMD learngene.

    task: a task of the catalogue ("digits"), or a folder of your own ("folder:PATH"), which sets
        the number of classes. Without a task and without classes the model has the head of the
        learngene; if it has none, the outputs are features, as with timm's num_classes=0.
    pretrained: False gives the same size with random weights.
    options: layers (depth), classes (num_classes), image_size (img_size); max_params, max_flops,
        max_latency; learngene (a folder, a name on the shelf or organisation/name@revision;
        default: the bundled one); seed of the new head; control ("shuffled" or "stem" destroys what
        was inherited); device.

    A head for a task is random and has to be fine-tuned: the blocks are inherited, the classes are
    not, and a warning says so. `model.label_names` are the names of the classes, where they are
    known.
    """
    from learngene_zoo.torch_hub import method_vit

    return method_vit("lsamd", task, pretrained=pretrained, **options)


def pool_vit(task: str | None = None, *, pretrained: bool = True, **options: _Any) -> _Any:
    """A Vision Transformer along a path through a learngene pool: `low` blocks of the narrow model,
    `high` of the wide one.

    task, pretrained, options: as for `lsamd_vit`; and low and high. Without these two it is the
        path with the most parameters that has the given number of layers, or that fits the budget.
        A path through both models is timm's VisionTransformer with a linear layer between two of
        its blocks.

    Its head knows the task that the pool was extracted from, if that is the one named; else it is
    random, and a warning says so.
    """
    from learngene_zoo.torch_hub import method_vit

    return method_vit("pool", task, pretrained=pretrained, **options)


def tal_vit(task: str | None = None, *, pretrained: bool = True, **options: _Any) -> _Any:
    """A Vision Transformer of any size whose weights are predicted for a task, ready without
    training.

    task, pretrained, options: as for `lsamd_vit`; and width (embed_dim), heads (num_heads). Tasks
        of the extraction are stored in the learngene; for any other task the ancestry model first
        embeds some of its training images.

    Its head is predicted with the rest: it knows the tasks of the extraction, and hardly more than
    chance of any other.
    """
    from learngene_zoo.torch_hub import method_vit

    return method_vit("tal", task, pretrained=pretrained, **options)


def descendant(
    learngene: str, task: str | None = None, *, pretrained: bool = True, **options: _Any
) -> _Any:
    """A model from any learngene: a folder, a name on the shelf, or organisation/name@revision on
    the Hub. It is a Vision Transformer of timm; from a learngene of a text model it is a model of
    transformers with a `tokenizer`, which needs transformers and tokenizers.

    task, pretrained, options: as for `lsamd_vit`; also width (embed_dim), heads (num_heads),
        mlp_ratio and the settings of the expander of the method that made the learngene, where it
        has them.

    A head that the learngene does not have for the task is random, and a warning says so;
    `model.label_names` are its classes.
    """
    from learngene_zoo.torch_hub import build

    return build(learngene, task, pretrained=pretrained, **options)


def __getattr__(name: str) -> _Any:
    if name.startswith("_") or not name.endswith("_vit"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from learngene_zoo.torch_hub import load_entry

    return load_entry(name)


def __dir__() -> list[str]:
    from learngene_zoo.torch_hub import list_entries

    return sorted({*globals(), *list_entries()})
