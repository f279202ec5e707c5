"""Where the papers' data sets are had: a folder of the user's own, an archive, or the Hub. Cold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from learngene_zoo.plugin import BadData, Unavailable

Layout = Literal["classes", "inaturalist", "ade20k", "voc", "idx"]
ARCHIVE = "LGZOO_DECATHLON"  # the folder where the Visual Decathlon's devkit and data are unpacked
GATED = "accept its terms at https://huggingface.co/datasets/ILSVRC/imagenet-1k and log in with `hf auth login`"
DECATHLON_DEVKIT = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-devkit.tar.gz"
DECATHLON_DATA = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-data.tar.gz"
UNPACK = f"unpack {DECATHLON_DEVKIT} and {DECATHLON_DATA} and set {ARCHIVE} to the folder"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one data set is had. Its own folder comes first, then the Decathlon's archive, then the Hub."""

    hub: str | None = None  # org/name[:config][@revision]
    pin: str = ""  # how the commit of that revision begins, where it was looked at
    roles: Mapping[str, str] = field(default_factory=dict)  # a split, and the stored split that plays its part
    label: str | None = None  # the label's column, where its features do not say
    layout: Layout | None = "classes"  # what a folder of the user's own looks like; None: there is no such folder
    variable: str = ""  # the environment variable that names that folder
    usual: str = ""  # where that folder is if the variable does not say
    also_classes: tuple[int, ...] = ()  # other numbers of classes that copies of it have
    note: str = ""  # what who compares with a paper should know
    advice: str = ""  # what to do where it cannot be had otherwise

    def folder(self) -> Path | None:
        """The user's own folder of it, None if there is none. Raises `BadData` if the variable names no folder."""
        named = os.environ.get(self.variable) if self.variable else None
        if named:
            return existing(self.variable, named)
        return Path(self.usual) if self.usual and Path(self.usual).is_dir() else None

    @contextmanager
    def or_a_folder(self) -> Iterator[None]:
        """Inside, what cannot be had is said with the folder that would do instead."""
        try:
            yield
        except Unavailable as error:
            if not self.variable:
                raise
            raise Unavailable(f"{error}; or set {self.variable} to a folder of it") from None


def existing(variable: str, named: str) -> Path:
    """The folder that an environment variable names. Raises `BadData` if it is none."""
    path = Path(named).expanduser()
    if not path.is_dir():
        raise BadData(f"{variable} is {named!r}, which is no folder; correct it or unset it")
    return path


def archive() -> Path | None:
    """Where the Visual Decathlon's archive is unpacked, None if nowhere. Raises `BadData` for what is no folder."""
    named = os.environ.get(ARCHIVE)
    return existing(ARCHIVE, named) if named else None


VALIDATION_AS_TEST = {"test": "validation"}
NO_TEST = "its test labels are withheld, so its validation split is the test and validation is cut from train"
SAME_NAME = "the Hub's copy has its own splits and full-size pictures, not the archive's"

IMAGENET = Place(
    hub="ILSVRC/imagenet-1k",
    roles=VALIDATION_AS_TEST,
    variable="LGZOO_IMAGENET",
    note=NO_TEST,
    advice=f"{GATED}, or set LGZOO_IMAGENET to a folder with train/<wnid>/*.JPEG and val/<wnid>/*.JPEG",
)

PLACES: dict[str, Place] = {
    "cifar10": Place(hub="uoft-cs/cifar10", layout=None),
    "cifar100": Place(hub="uoft-cs/cifar100", layout=None),
    "fashion_mnist": Place(
        hub="zalando-datasets/fashion_mnist",
        layout="idx",
        variable="LGZOO_FASHION_MNIST",
        usual="/usr/share/datasets/fashion-mnist",
    ),
    "decathlon-aircraft": Place(
        hub="HuggingFaceM4/FGVC-Aircraft@refs/pr/1", pin="e18a7c9", label="variant", note=SAME_NAME
    ),
    "decathlon-cifar100": Place(hub="uoft-cs/cifar100", label="fine_label", note=SAME_NAME),
    "decathlon-daimlerpedcls": Place(advice=f"the Hub has no copy of it; {UNPACK}"),
    "decathlon-dtd": Place(hub="mcimpoi/dtd_split_1", note=SAME_NAME),
    "decathlon-gtsrb": Place(hub="tanganke/gtsrb", note=SAME_NAME),
    "decathlon-imagenet12": IMAGENET,
    "decathlon-omniglot": Place(hub="GATE-engine/omniglot", roles={"train": "full"}, note=SAME_NAME),
    "decathlon-svhn": Place(hub="ufldl-stanford/svhn:cropped_digits", note=SAME_NAME),
    "decathlon-ucf101": Place(advice=f"its dynamic images are in the archive alone; {UNPACK}"),
    "decathlon-vgg-flowers": Place(hub="dpdl-benchmark/oxford_flowers102", note=SAME_NAME),
    "tiny-imagenet": Place(hub="zh-plus/tiny-imagenet", roles=VALIDATION_AS_TEST, note=NO_TEST),
    "inat2019": Place(
        layout="inaturalist",
        note="a fifth of its labelled pictures, by class, is the test; the paper does not say which it used",
        advice="the Hub has no copy of it; fetch train_val2019.tar.gz of the iNaturalist 2019 competition and set "
        "LGZOO_INAT2019 to the folder with 2019/<group>/<class>/*.jpg",
    ),
    "food101": Place(hub="ethz/food101", roles=VALIDATION_AS_TEST, note="its split called validation is the test"),
    "cars": Place(hub="tanganke/stanford_cars"),
    "flowers102": Place(hub="dpdl-benchmark/oxford_flowers102", note="LSAMD's paper counts 2,040 and 818 pictures"),
    "pets": Place(hub="timm/oxford-iiit-pet", label="label"),
    "dtd": Place(hub="mcimpoi/dtd_split_1", note="LSAMD's paper trains on train and validation together"),
    "caltech101": Place(
        hub="Donghyun99/Caltech-101", also_classes=(102,), note="its split is the uploader's; 102 classes: background"
    ),
    "ade20k": Place(
        layout="ade20k",
        roles=VALIDATION_AS_TEST,
        note=NO_TEST,
        advice="the Hub has no whole copy of it; fetch ADEChallengeData2016.zip of the SceneParse150 challenge "
        "(sceneparsing.csail.mit.edu) and set LGZOO_ADE20K to the folder with images/ and annotations/",
    ),
    "voc2012": Place(hub="jxie/pascal-voc-2012", layout="voc", roles=VALIDATION_AS_TEST, note=NO_TEST),
    "fer2013": Place(hub="clip-benchmark/wds_fer2013@refs/convert/parquet", label="cls"),
    "ham10000": Place(
        hub="marmal88/skin_cancer",
        label="dx",
        note="the copy has 13,354 rows of the 10,015 pictures, so some are there twice, perhaps in two splits",
    ),
    "imagenet-1k": IMAGENET,
}


def place_of(name: str) -> Place | None:
    """Where a task of the catalogue is had, None if it is made here. Every one has a variable of its own."""
    place = PLACES.get(name)
    if place is None or place.variable or place.layout is None:
        return place
    return Place(**{**vars(place), "variable": "LGZOO_" + name.upper().replace("-", "_")})
