"""Determine which folders of a data set are splits, and which are classes.

A folder is a split if its name contains a word for a split (`seg_train`, `Testing`, `val2017`) and
it contains class folders. A folder with such a name that contains images itself, beside other class
folders, is a class: locomotives may be called `train`. If the folders can be read in two ways,
nothing is guessed: the error shows the option to type. `train=a+b,test=c` after the path of a
folder names the splits, and `train=.` makes the folder itself the training split, whose subfolders
are the classes.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.tasks.listing import is_folder, is_picture, scan_folder
from learngene_zoo.tasks.splits.roles import find_roles, split_name
from learngene_zoo.tasks.task import SPLITS
from learngene_zoo.text import name_option

OPTIONS = re.compile(r":(?=[A-Za-z]+=)")  # the start of possible options
NEXT_OPTION = re.compile(r",(?=[A-Za-z]+=)")
MAX_SHOWN = 4  # names in a message


@dataclass(frozen=True)
class Layout:
    """The folders of each split, and notes for the user about how they were determined."""

    splits: Mapping[str, tuple[Path, ...]]
    notes: tuple[str, ...] = ()
    is_named: bool = False  # whether the user named the splits, so that no check is needed


@dataclass(frozen=True)
class FolderNode:
    """A folder and the entries directly in it."""

    path: Path

    @cached_property
    def entries(self) -> list[os.DirEntry[str]]:
        """All files and folders except hidden ones, by name."""
        return scan_folder(self.path)

    @cached_property
    def folders(self) -> list["FolderNode"]:
        """The folders in it, including those behind links."""
        return [FolderNode(Path(entry.path)) for entry in self.entries if is_folder(entry)]

    @cached_property
    def has_pictures(self) -> bool:
        """Whether there are images directly in it."""
        return any(not is_folder(entry) and is_picture(entry.path) for entry in self.entries)

    @cached_property
    def roles(self) -> list[str]:
        """The splits that its name contains."""
        return find_roles(self.path.name)

    @property
    def is_nested(self) -> bool:
        """Whether it contains folders and no images beside them."""
        return bool(self.folders) and not self.has_pictures

    @cached_property
    def is_bare(self) -> bool:
        """Whether its name is only that of a split."""
        return split_name(self.path.name) in SPLITS

    def holds_pictures(self) -> bool:
        """Return whether there is an image in the folder or below it."""
        return self.first_picture() is not None

    def first_picture(self) -> str | None:
        """Return the name of an image in the folder or below it; None if there is none."""
        entries = (
            entry for folder in self.walk() if folder.has_pictures for entry in folder.entries
        )
        return next(
            (entry.name for entry in entries if not is_folder(entry) and is_picture(entry.path)),
            None,
        )

    def walk(self) -> Iterator["FolderNode"]:
        """Yield this folder and those below it, each once; links are followed."""
        visited: set[str] = set()
        waiting = [self]
        while waiting:
            folder = waiting.pop()
            real = os.path.realpath(folder.path)
            if real not in visited:
                visited.add(real)
                yield folder
                waiting.extend(folder.folders)


def normalize_name(name: str) -> str:
    """Return a name in composed Unicode form (NFC), in which names that look equal are equal."""
    return unicodedata.normalize("NFC", name)


def split_reference(reference: str) -> tuple[Path, dict[str, list[str]]]:
    """Parse `PATH` or `PATH:train=a+b,test=c` into the path and the folders of each named split.

    A path that exists takes precedence over options: PATH is the longest beginning that is a file
    or folder, and `a+b` one folder in PATH if there is one of that name. So names may contain `=`,
    `,` and `+`, except for a comma before a word and `=`.

    Raises `WrongCall` for a split that does not exist or has no folder.
    """
    path, options = _split_options(reference)
    roles: dict[str, list[str]] = {}
    for pair in NEXT_OPTION.split(options) if options else ():
        word, _, folders = pair.partition("=")
        split = split_name(word)
        if split not in SPLITS or split in roles:
            raise WrongCall(
                f"folder:{reference}: expected train=, validation= or test=, each once, got {word}="
            )
        roles[split] = _split_names(path, folders)
        if "" in roles[split]:
            raise WrongCall(f"folder:{reference}: {word}= names no folder; write {word}=FOLDER")
    if options and "train" not in roles:
        raise WrongCall(f"folder:{reference} names no training folder; add train=FOLDER")
    return path, roles


def _split_options(reference: str) -> tuple[Path, str]:
    """Return the path and the options of a reference; the options of a missing path are all."""
    ends = [match.start() for match in OPTIONS.finditer(reference)]
    paths = {end: Path(os.path.expanduser(reference[:end])) for end in [len(reference), *ends]}
    existing = [end for end, path in paths.items() if os.path.exists(path)]
    end = max(existing) if existing else min(paths)
    return paths[end], reference[end + 1 :]


def _split_names(top: Path, names: str) -> list[str]:
    """Return the names that are joined by `+`; the longest ones that are folders in `top`."""
    parts = names.split("+")
    divided = []
    while parts:
        ends = range(len(parts), 1, -1)
        end = next((end for end in ends if os.path.isdir(top / "+".join(parts[:end]))), 1)
        divided.append("+".join(parts[:end]))
        parts = parts[end:]
    return divided


def find_layout(reference: str, unused: Collection[str] = ()) -> Layout:
    """Return the folders of the splits of `PATH` or `PATH:train=a+b,test=c`.

    Folders of `unused` splits are not read. Raises `BadData` for a folder that is missing, or that
    can be read in two ways; the message shows the option to type.
    """
    top, roles = split_reference(reference)
    if not top.is_dir():
        raise BadData(
            f"there is no folder {top}; give one with a subfolder of images for each class"
        )
    if roles:
        named = {split: tuple(top / name for name in names) for split, names in roles.items()}
        missing = next(
            (folder for folders in named.values() for folder in folders if not folder.is_dir()),
            None,
        )
        if missing is not None:
            raise BadData(
                f"there is no folder {missing}; name folders in {top}, or . for {top} itself"
            )
        return Layout(named, is_named=True)
    base = _unwrap(FolderNode(top))
    layout = _find_splits(base, str(top), unused)
    is_wrapped = base.path != top and set(layout.splits) == {"train"}
    notes = (f"the classes are read from {base.path}",) if is_wrapped else ()
    return Layout(_unwrap_splits(layout.splits), (*notes, *layout.notes))


def _unwrap_splits(splits: Mapping[str, Sequence[Path]]) -> dict[str, tuple[Path, ...]]:
    """Return the folders of the splits without wrapper folders.

    Wrappers are folders with the same split's name, or a single folder inside every split.
    """
    inner = {
        split: [_unwrap_own(FolderNode(path), split) for path in paths]
        for split, paths in splits.items()
    }
    unwrapped = {
        split: [_unwrap(folder, [split]) for folder in folders] for split, folders in inner.items()
    }
    is_wrapped = all(
        before.path != after.path for s in inner for before, after in zip(inner[s], unwrapped[s])
    )
    chosen = unwrapped if is_wrapped else inner
    return {split: tuple(folder.path for folder in folders) for split, folders in chosen.items()}


def _unwrap_own(folder: FolderNode, split: str) -> FolderNode:
    """Return the innermost of nested folders with the same split's name (`seg_train/seg_train`)."""
    while folder.is_nested and len(folder.folders) == 1 and folder.folders[0].roles == [split]:
        if (
            not folder.folders[0].is_nested
            or folder.folders[0].path.resolve() == folder.path.resolve()
        ):
            break
        folder = folder.folders[0]
    return folder


def _unwrap(folder: FolderNode, role: Sequence[str] = ()) -> FolderNode:
    """Return the folder that contains the splits or classes: single nested folders are wrappers.

    A split is not a wrapper, unless it lies in one of the same `role` (`seg_train/seg_train`).
    """
    while folder.is_nested and len(folder.folders) == 1:
        inner = folder.folders[0]
        holds_splits = any(child.roles for child in inner.folders)
        is_split = bool(inner.roles) and inner.roles != list(role) and not holds_splits
        is_loop = inner.path.resolve() in (folder.path.resolve(), *folder.path.resolve().parents)
        if not inner.is_nested or is_split or is_loop:
            break
        folder = inner
    return folder


def _find_splits(base: FolderNode, top: str, unused: Collection[str]) -> Layout:
    children = base.folders
    candidates = [child for child in children if child.roles and child.folders]
    splits = candidates if _are_splits(candidates, children) else []
    if splits:
        return _check_splits(base, splits, top, unused)
    loose = [child for child in children if child.has_pictures]
    bare = {role for child in loose if child.is_bare for role in child.roles}
    if loose and (
        len(bare) > 1
        or (bare and all(child.roles for child in loose) and len(loose) == len(children))
    ):
        names = ", ".join(child.path.name for child in loose if child.roles)
        raise BadData(
            f"{base.path}: the folders {names} contain images but no class folders; sort them into "
            "one folder for each class"
        )
    return Layout({"train": (base.path,)})


def _are_splits(candidates: Sequence[FolderNode], children: Sequence[FolderNode]) -> bool:
    """Return whether these candidates, folders named like splits, are splits and not classes."""
    if not candidates:
        return False
    nested = [child for child in candidates if child.is_nested]
    classes = [child for child in children if child.has_pictures and not child.roles]
    if len(candidates) == 1 and classes and not candidates[0].is_bare:
        return False  # "toy train" beside "toy car"
    if nested:
        return True
    names = Counter(inner.path.name for child in candidates for inner in child.folders)
    return (
        len({role for child in candidates for role in child.roles}) > 1 and max(names.values()) > 1
    )


def _check_splits(
    base: FolderNode, splits: Sequence[FolderNode], top: str, unused: Collection[str]
) -> Layout:
    """Return the layout of these folders.

    Raises `BadData` if a name contains several splits, two names contain the same one, or there is
    no training folder.
    """
    folders: dict[str, FolderNode] = {}
    for child in splits:
        if len(child.roles) > 1:
            raise BadData(
                f"{child.path}: the name contains {' and '.join(child.roles)}; "
                "rename it, or name the splits: "
                f"{_format_task_option(top, {'train': [_make_relative(child, top)]})}"
            )
        before = folders.setdefault(child.roles[0], child)
        if before is not child:
            pair = {child.roles[0]: [_make_relative(before, top), _make_relative(child, top)]}
            raise BadData(
                f"{before.path} and {child.path} are both named as {child.roles[0]}; "
                "choose one of them, or name both: "
                f"{_format_task_option(top, {'train': ['FOLDER'], **pair})}"
            )
    if "train" not in folders:
        roles = {split: [_make_relative(child, top)] for split, child in folders.items()}
        got = ", ".join(f"{child.path.name}/" for child in folders.values())
        first = roles.get("validation") or next(iter(roles.values()))
        rest = {split: paths for split, paths in roles.items() if paths != first}
        raise BadData(
            f"{base.path} has no training folder, only {got}; "
            f"name the training folder: {_format_task_option(top, {'train': first} | rest)}"
        )
    ignored = [child for child in base.folders if child.roles and set(child.roles) <= set(unused)]
    notes = _check_others(base, folders, ignored, top)
    return Layout({split: (folders[split].path,) for split in SPLITS if split in folders}, notes)


def _check_others(
    base: FolderNode, folders: Mapping[str, FolderNode], ignored: Sequence[FolderNode], top: str
) -> tuple[str, ...]:
    """Return a note about images beside the splits. Raises `BadData` if they may belong to one."""
    used = [*folders.values(), *ignored]
    unused = [child for child in base.folders if child not in used and child.holds_pictures()]
    if not unused:
        return ()
    line = _format_task_option(
        top, {split: [_make_relative(child, top)] for split, child in folders.items()}
    )
    classes = {
        _normalize_key(inner.path.name)
        for child in folders.values()
        for inner in _unwrap(child).folders
    }
    for other in unused:
        shared = classes & {_normalize_key(inner.path.name) for inner in _unwrap(other).folders}
        if other.roles and not shared:
            raise BadData(
                f"{other.path} contains images ({other.first_picture()}) but no class folders; "
                f"sort them into one folder for each class, or leave it out: {line}"
            )
        if len(folders) == 1 or shared:
            raise BadData(
                f"{base.path} has a folder {other.path.name!r} beside "
                f"{folders['train'].path.name}/; "
                f"only training, validation and test folders belong there; to leave it out: {line}"
            )
    names = ", ".join(child.path.name for child in unused[:MAX_SHOWN])
    return (f"the images in {names} are left out: the name contains no split",)


def check_shared_names(inner: Mapping[str, Iterable[str]], layout: Layout, top: str) -> None:
    """Check that most class folders do not contain subfolders of the same names.

    Such folders may be splits or years instead of classes.

    Args:
        inner: the names of the subfolders with images, by the path of their class folder.
        layout: the folders of the splits.
        top: the folder that the user named.

    Raises:
        BadData: with the options to type.
    """
    names = {
        folder: {_normalize_key(name): name for name in children}
        for folder, children in inner.items()
    }
    count = Counter(key for by_key in names.values() for key in by_key)
    sharing = [folder for folder, by_key in names.items() if any(count[key] > 1 for key in by_key)]
    if len(sharing) <= len(names) / 2:
        return
    shared = sorted(
        {name for by_key in names.values() for key, name in by_key.items() if count[key] > 1}
    )
    first, *rest = (os.path.relpath(folder, top) for folder in sharing)
    as_splits = _format_task_option(top, {"train": [first, *rest[:-1]], "test": rest[-1:]})
    as_classes = _format_task_option(
        top,
        {
            split: [os.path.relpath(folder, top) for folder in folders]
            for split, folders in layout.splits.items()
        },
    )
    raise BadData(
        f"{os.path.dirname(sharing[0])}: the folders "
        f"{_show_names([os.path.basename(folder) for folder in sharing])} hold the "
        f"same subfolders ({_show_names(shared)}), so it is not clear that they are classes; "
        + (f"if they are splits: {as_splits}; " if len(layout.splits) == 1 else "")
        + f"if they are classes: {as_classes}"
    )


def _normalize_key(name: str) -> str:
    return normalize_name(name).casefold()


def _show_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def _make_relative(folder: FolderNode, top: str) -> str:
    return os.path.relpath(folder.path, top)


def _format_task_option(top: str, roles: Mapping[str, Sequence[str]]) -> str:
    """Return the option with which a user names the splits."""
    ordered = ",".join(f"{split}={'+'.join(roles[split])}" for split in SPLITS if split in roles)
    return name_option("task", f"folder:{top}:{ordered}")
