"""The suites of the papers' data sets: the Visual Decathlon, LSAMD's twelve tasks, TAL's unseen
tasks, and ImageNet.

Each row has the catalogue entry and the locations of the data. Sizes are those after opening: if a
data set has no validation split, a tenth of train is cut out for it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from learngene_zoo.plugin import Entry, HubSource, Suite, Task, split_sizes
from lgzoo_papers.places import ARCHIVE, DECATHLON_DATA, DECATHLON_DEVKIT, NO_TEST, Place

VALIDATION_AS_TEST = {"test": "validation"}
SAME_NAME = "the Hub's copy has other splits than the archive, and full-size images"
UNPACK = f"unpack {DECATHLON_DEVKIT} and {DECATHLON_DATA} and set {ARCHIVE} to the folder"
GATED = (
    "accept its terms at https://huggingface.co/datasets/ILSVRC/imagenet-1k and log in with `hf"
    " auth login`"
)
RESEARCH = "non-commercial research (ImageNet's terms)"
IMAGENET = Place(
    hub="ILSVRC/imagenet-1k",
    roles=VALIDATION_AS_TEST,
    variable="LGZOO_IMAGENET",
    note=NO_TEST,
    advice=(
        f"{GATED}, or set LGZOO_IMAGENET to a folder with train/<wnid>/*.JPEG and val/<wnid>/*.JPEG"
    ),
)


class Row(NamedTuple):
    """A task of the papers and the locations of its data."""

    entry: Entry
    place: Place


def cut(train: int, test: int) -> Mapping[str, int]:
    """Return the sizes of a data set whose validation split is a tenth cut out of train."""
    validation = round(0.1 * train)
    return split_sizes(train - validation, validation, test)


def _make_paper(
    name: str,
    title: str,
    classes: int,
    sizes: Mapping[str, int],
    description: str,
    place: Place,
    **changes: Any,
) -> Row:
    settings = {"licence": "unknown", "image_size": 224, "flip": True, "source": title, **changes}
    notes = (place.note,) if place.note else ()
    entry = Entry(
        name=name,
        title=title,
        classes=classes,
        sizes=sizes,
        description=description,
        notes=notes,
        **settings,
    )
    named = place.variable or "LGZOO_" + name.upper().replace("-", "_")
    return Row(entry, replace(place, variable=named) if place.layout else place)


def _make_decathlon(
    name: str, what: str, classes: int, sizes: Mapping[str, int], place: Place, **changes: Any
) -> Row:
    settings = {
        "image_size": 64,  # the archive's pictures have a shorter side of 72 pixels
        "source": (
            "Visual Decathlon archive 1.0 (test labels withheld: its validation split is the test)"
        ),
        **changes,
    }
    description = (
        f"{what} as in the Visual Decathlon, from {ARCHIVE}. Its test labels are withheld: its"
        " validation split is used for testing, and validation images are taken from train."
    )
    title, place = f"{what} of the Visual Decathlon", replace(place, archived=name)
    return _make_paper(f"decathlon-{name}", title, classes, sizes, description, place, **settings)


def _make_cifar(name: str, title: str, classes: int, what: str) -> Row:
    reference, sizes = f"uoft-cs/{name}", split_sizes(45_000, 5_000, 10_000)
    description, place = (
        f"Photographs of {what}, 32 x 32, from the Hub.",
        Place(hub=reference, layout=None),
    )
    return _make_paper(
        name, title, classes, sizes, description, place, image_size=32, source=reference
    )


DECATHLON_ROWS = (
    _make_decathlon(
        "aircraft",
        "FGVC-Aircraft",
        100,
        cut(3_334, 3_333),
        Place(
            hub="HuggingFaceM4/FGVC-Aircraft@refs/pr/1",
            pin="e18a7c9",
            label="variant",
            note=SAME_NAME,
        ),
    ),
    _make_decathlon(
        "cifar100",
        "CIFAR-100",
        100,
        cut(40_000, 10_000),
        Place(hub="uoft-cs/cifar100", label="fine_label", note=SAME_NAME),
    ),
    _make_decathlon(
        "daimlerpedcls",
        "Daimler pedestrians",
        2,
        cut(23_520, 5_880),
        Place(advice=f"the Hub has no copy of it; {UNPACK}"),
    ),
    _make_decathlon(
        "dtd",
        "Describable Textures",
        47,
        cut(1_880, 1_880),
        Place(hub="mcimpoi/dtd_split_1", note=SAME_NAME),
    ),
    _make_decathlon(
        "gtsrb",
        "German traffic signs",
        43,
        cut(31_367, 7_842),
        Place(hub="tanganke/gtsrb", note=SAME_NAME),
        flip=False,
    ),
    _make_decathlon(
        "imagenet12", "ImageNet", 1_000, cut(1_232_167, 49_000), IMAGENET, licence=RESEARCH
    ),
    _make_decathlon(
        "omniglot",
        "Omniglot",
        1_623,
        cut(19_476, 6_492),
        Place(hub="GATE-engine/omniglot", roles={"train": "full"}, note=SAME_NAME),
        flip=False,
    ),
    _make_decathlon(
        "svhn",
        "Street View House Numbers",
        10,
        cut(47_217, 26_040),
        Place(hub="ufldl-stanford/svhn:cropped_digits", note=SAME_NAME),
        flip=False,
    ),
    _make_decathlon(
        "ucf101",
        "UCF101 dynamic images",
        101,
        cut(7_629, 1_908),
        Place(advice=f"its dynamic images are in the archive only; {UNPACK}"),
    ),
    _make_decathlon(
        "vgg-flowers",
        "VGG-Flowers",
        102,
        cut(1_020, 1_020),
        Place(hub="dpdl-benchmark/oxford_flowers102", note=SAME_NAME),
    ),
)

LSAMD_ROWS = (
    _make_cifar("cifar100", "CIFAR-100", 100, "100 kinds of objects (the fine labels)"),
    _make_cifar("cifar10", "CIFAR-10", 10, "10 kinds of objects"),
    _make_paper(
        "tiny-imagenet",
        "Tiny ImageNet",
        200,
        cut(100_000, 10_000),
        "Photographs of 200 kinds of objects, 64 x 64, from the Hub; its validation split is used"
        " for testing.",
        Place(hub="zh-plus/tiny-imagenet", roles=VALIDATION_AS_TEST, note=NO_TEST),
        image_size=64,
    ),
    _make_paper(
        "inat2019",
        "iNaturalist 2019",
        1_010,
        split_sizes(193_135, 21_459, 53_649),
        "Photographs of 1,010 species, from LGZOO_INAT2019; the Hub has no copy.",
        Place(
            layout="inaturalist",
            note=(
                "a fifth of the labelled images of each class is used for testing; the paper does"
                " not state its split"
            ),
            advice=(
                "the Hub has no copy of it; download train_val2019.tar.gz of the iNaturalist 2019"
                " competition and set LGZOO_INAT2019 to the folder with 2019/<group>/<class>/*.jpg"
            ),
        ),
    ),
    _make_paper(
        "food101",
        "Food-101",
        101,
        cut(75_750, 25_250),
        "Photographs of 101 dishes, from the Hub.",
        Place(
            hub="ethz/food101",
            roles=VALIDATION_AS_TEST,
            note="its split called validation is used for testing",
        ),
    ),
    _make_paper(
        "cars",
        "Stanford Cars",
        196,
        cut(8_144, 8_041),
        "Photographs of 196 models of cars, from the Hub.",
        Place(hub="tanganke/stanford_cars"),
    ),
    _make_paper(
        "flowers102",
        "Oxford Flowers-102",
        102,
        split_sizes(1_020, 1_020, 6_149),
        "Photographs of 102 kinds of flowers, ten training images of each, from the Hub.",
        Place(
            hub="dpdl-benchmark/oxford_flowers102",
            note="LSAMD's paper states 2,040 and 818 images",
        ),
    ),
    _make_paper(
        "pets",
        "Oxford-IIIT Pet",
        37,
        cut(3_680, 3_669),
        "Photographs of 37 breeds of cats and dogs, from the Hub.",
        Place(hub="timm/oxford-iiit-pet", label="label"),
        licence="CC-BY-SA-4.0",
    ),
    _make_paper(
        "dtd",
        "Describable Textures",
        47,
        split_sizes(1_880, 1_880, 1_880),
        "Photographs of textures described by 47 words, the first of ten splits, from the Hub.",
        Place(
            hub="mcimpoi/dtd_split_1", note="LSAMD's paper trains on train and validation together"
        ),
        licence="CC-BY-4.0",
    ),
    _make_paper(
        "caltech101",
        "Caltech-101",
        101,
        cut(6_942, 1_735),
        "Photographs of 101 kinds of objects, from the Hub; the split is the uploader's.",
        Place(
            hub="Donghyun99/Caltech-101",
            also_classes=(102,),
            note="the split is the uploader's; copies with 102 classes include background",
        ),
        licence="CC-BY-4.0",
    ),
    _make_paper(
        "ade20k",
        "ADE20K SceneParse150",
        150,
        cut(20_210, 2_000),
        "Scenes with masks of 150 classes, from LGZOO_ADE20K; its validation split is used for"
        " testing.",
        Place(
            layout="ade20k",
            roles=VALIDATION_AS_TEST,
            note=NO_TEST,
            advice=(
                "the Hub has no complete copy of it; download ADEChallengeData2016.zip of the"
                " SceneParse150 challenge (sceneparsing.csail.mit.edu) and set LGZOO_ADE20K to the"
                " folder with images/ and annotations/"
            ),
        ),
        kind="segmentation",
    ),
    _make_paper(
        "voc2012",
        "PASCAL VOC 2012",
        21,
        cut(10_582, 1_449),
        "Photographs with masks of 20 kinds of objects and background, from LGZOO_VOC2012 or the"
        " Hub; its validation split is used for testing.",
        Place(hub="jxie/pascal-voc-2012", layout="voc", roles=VALIDATION_AS_TEST, note=NO_TEST),
        kind="segmentation",
    ),
)

TAL_UNSEEN_ROWS = (
    _make_paper(
        "fashion_mnist",
        "Fashion-MNIST",
        10,
        split_sizes(55_000, 5_000, 10_000),
        "Grey photographs of clothes, 28 x 28, from LGZOO_FASHION_MNIST, Debian's package or the"
        " Hub.",
        Place(
            hub="zalando-datasets/fashion_mnist",
            layout="idx",
            usual="/usr/share/datasets/fashion-mnist",
        ),
        licence="MIT",
        image_size=32,
        source="zalando-datasets/fashion_mnist",
    ),
    _make_paper(
        "fer2013",
        "FER2013",
        7,
        cut(28_709, 7_178),
        "Grey images of faces with seven expressions, 48 x 48, from the Hub.",
        Place(hub="clip-benchmark/wds_fer2013@refs/convert/parquet", label="cls"),
        image_size=48,
    ),
    _make_paper(
        "ham10000",
        "HAM10000",
        7,
        split_sizes(9_577, 2_492, 1_285),
        "Dermatoscopic images of seven kinds of skin lesions, from the Hub.",
        Place(
            hub="marmal88/skin_cancer",
            label="dx",
            note=(
                "the copy has 13,354 rows for 10,015 images: some occur twice, perhaps in two"
                " splits"
            ),
        ),
    ),
)

IMAGENET_1K = _make_paper(
    "imagenet-1k",
    "ImageNet-1K (ILSVRC 2012)",
    1_000,
    cut(1_281_167, 50_000),
    "Photographs of 1,000 kinds of objects, from LGZOO_IMAGENET or, once its terms are accepted,"
    " the Hub.",
    IMAGENET,
    licence=RESEARCH,
)

ROWS = {
    row.entry.name: row for row in (*DECATHLON_ROWS, IMAGENET_1K, *LSAMD_ROWS, *TAL_UNSEEN_ROWS)
}


def find_on_hub(entry: Entry) -> HubSource | None:
    """Return the source on the Hub from which an entry's data would be read now.

    None if the data is on this machine, or not on the Hub.
    """
    place = ROWS[entry.name].place
    return place.hub_source() if place.folder() is None and place.archive() is None else None


def open_task(entry: Entry, offline: bool) -> Task:
    """Open the task of an entry of these suites."""
    from lgzoo_papers.opening import open_from

    return open_from(ROWS[entry.name].place, entry, offline)


def _make_suite(name: str, title: str, rows: tuple[Row, ...], *beside: Row) -> Suite:
    """Build a suite; tasks in `beside` belong to it but are not run with it."""
    return Suite(
        name=name,
        title=title,
        entries=tuple(row.entry for row in (*rows, *beside)),
        tasks=tuple(row.entry.name for row in rows),
        open=open_task,
        hub=find_on_hub,
    )


DECATHLON = _make_suite(
    "decathlon", "the Visual Decathlon (TAL, TAL+)", DECATHLON_ROWS, IMAGENET_1K
)
LSAMD12 = _make_suite(
    "lsamd12", "LSAMD's ten classification and two segmentation tasks", LSAMD_ROWS
)
TAL_UNSEEN = _make_suite("tal_unseen", "TAL's unseen tasks", TAL_UNSEEN_ROWS)
