"""`Place`: where a data set of the papers is found: in a folder of the user's, in the Visual
Decathlon's archive, or on the Hub.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from learngene_zoo.plugin import BadData, HubSource

NO_TEST = (
    "its test labels are withheld: its validation split is used for testing, and validation images"
    " are taken from train"
)
# The folder in which the Visual Decathlon's devkit and data are unpacked
ARCHIVE = "LGZOO_DECATHLON"
DECATHLON_DEVKIT = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-devkit.tar.gz"
DECATHLON_DATA = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-data.tar.gz"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Locations of one data set.

    The user's folder is used first, then the Decathlon's archive, then the Hub.
    """

    hub: str | None = None  # org/name[:config][@revision]
    # First digits of the commit that was reviewed, if the revision is a branch that can move
    pin: str = ""
    # For each split, the stored split that is used for it
    roles: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None  # the label column, if the features do not determine it
    # The environment variable that names the user's folder; "": no folder is supported
    variable: str = ""
    usual: str = ""  # the default folder if the variable is not set
    # Layout of the folder; None: no folder is supported, and the Hub's small images are used at the
    # catalogue's size.
    layout: Literal["classes", "inaturalist", "ade20k", "voc", "idx"] | None = "classes"
    archived: str = ""  # name in the Visual Decathlon's archive
    also_classes: tuple[int, ...] = ()  # further accepted numbers of classes
    note: str = ""  # differences that matter in a comparison with a paper
    advice: str = ""  # how to get the data set if it cannot be downloaded

    def folder(self) -> Path | None:
        """Return the user's folder; None if there is none.

        Raises `BadData` if the environment variable does not name a folder.
        """
        named = os.environ.get(self.variable) if self.variable else None
        if named:
            return find_folder(self.variable, named)
        return Path(self.usual) if self.usual and Path(self.usual).is_dir() else None

    def archive(self) -> Path | None:
        """Return the folder of the Visual Decathlon's archive if it has this data set, else None.

        A data set that the Hub does not have is opened there in any case: the error names what is
        missing. Raises `BadData` as `folder` does.
        """
        named = os.environ.get(ARCHIVE) if self.archived else None
        top = find_folder(ARCHIVE, named) if named else None
        if top is None or self.hub is None or find_images(top, self.archived) is not None:
            return top
        return None

    def hub_source(self) -> HubSource | None:
        """Return the data set's source on the Hub; None if it has no copy."""
        if self.hub is None:
            return None
        return HubSource(
            reference=self.hub,
            pin=self.pin,
            roles=self.roles,
            label=self.label,
            also_classes=self.also_classes,
            alternative=f"set {self.variable} to a folder of it" if self.variable else "",
        )


def find_folder(variable: str, named: str) -> Path:
    """Return the folder that an environment variable names. Raises `BadData` if there is none."""
    path = Path(os.path.expanduser(named))
    if not path.is_dir():
        raise BadData(f"{variable} is {named!r}, which is not a folder; correct it or unset it")
    return path


def find_base(top: Path) -> Path:
    """Return the folder of the devkit's content in the folder that the archive is unpacked in."""
    return top / "decathlon-1.0" if (top / "decathlon-1.0").is_dir() else top


def find_images(top: Path, name: str) -> Path | None:
    """Return the folder with the images of a data set, unpacked or in a tar file; None without.

    Args:
        top: the folder that the archive is unpacked in.
        name: the archive's name of the data set.
    """
    base = find_base(top)
    for folder in (base / "data", base, top):
        if (folder / name).is_dir() or (folder / f"{name}.tar").is_file():
            return folder
    return None
