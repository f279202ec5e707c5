"""The catalogue's rows of the papers' data sets. Cold.

Sizes are those after opening: where a data set has no validation split, a tenth of train is cut out for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from learngene_zoo.plugin import Entry, split_sizes

OPENING = "lgzoo_papers.opening"
ARCHIVE_SIDE = 64  # the archive's pictures have a shorter side of 72 pixels
ARCHIVE_SOURCE = "Visual Decathlon archive 1.0 (test labels withheld: its validation split is the test)"
WITHHELD = "The archive withholds test labels: its validation split is the test, validation is cut from train"
RESEARCH = "non-commercial research (ImageNet's terms)"


def cut(train: int, test: int) -> Mapping[str, int]:
    """Sizes of a data set without a validation split: a tenth of train is cut out."""
    validation = round(0.1 * train)
    return split_sizes(train - validation, validation, test)


def _decathlon(
    name: str, what: str, classes: int, train: int, test: int, *, flip: bool = True, licence: str = "unknown"
) -> Entry:
    return Entry(
        name=f"decathlon-{name}",
        title=f"{what} of the Visual Decathlon",
        classes=classes,
        sizes=cut(train, test),
        licence=licence,
        module=OPENING,
        flip=flip,
        image_size=ARCHIVE_SIDE,
        source=ARCHIVE_SOURCE,
        description=f"{what} as in the Visual Decathlon, from LGZOO_DECATHLON. {WITHHELD}.",
    )


def _paper(
    name: str,
    title: str,
    classes: int,
    sizes: Mapping[str, int],
    description: str,
    *,
    licence: str = "unknown",
    image_size: int = 224,
    segmentation: bool = False,
) -> Entry:
    return Entry(
        name=name,
        title=title,
        kind="segmentation" if segmentation else "classification",
        classes=classes,
        sizes=sizes,
        licence=licence,
        module=OPENING,
        flip=True,
        image_size=image_size,
        source=title,
        description=description,
    )


DECATHLON = (
    _decathlon("aircraft", "FGVC-Aircraft", 100, 3_334, 3_333),
    _decathlon("cifar100", "CIFAR-100", 100, 40_000, 10_000),
    _decathlon("daimlerpedcls", "Daimler pedestrians", 2, 23_520, 5_880),
    _decathlon("dtd", "Describable Textures", 47, 1_880, 1_880),
    _decathlon("gtsrb", "German traffic signs", 43, 31_367, 7_842, flip=False),
    _decathlon("imagenet12", "ImageNet", 1_000, 1_232_167, 49_000, licence=RESEARCH),
    _decathlon("omniglot", "Omniglot", 1_623, 19_476, 6_492, flip=False),
    _decathlon("svhn", "Street View House Numbers", 10, 47_217, 26_040, flip=False),
    _decathlon("ucf101", "UCF101 dynamic images", 101, 7_629, 1_908),
    _decathlon("vgg-flowers", "VGG-Flowers", 102, 1_020, 1_020),
)

LSAMD = (
    _paper(
        "tiny-imagenet",
        "Tiny ImageNet",
        200,
        cut(100_000, 10_000),
        "Photographs of 200 kinds of thing, 64 x 64, from the Hub; its validation split is the test.",
        image_size=64,
    ),
    _paper(
        "inat2019",
        "iNaturalist 2019",
        1_010,
        split_sizes(193_135, 21_459, 53_649),
        "Photographs of 1,010 species, from LGZOO_INAT2019; the Hub has no copy.",
    ),
    _paper("food101", "Food-101", 101, cut(75_750, 25_250), "Photographs of 101 dishes, from the Hub."),
    _paper("cars", "Stanford Cars", 196, cut(8_144, 8_041), "Photographs of 196 models of car, from the Hub."),
    _paper(
        "flowers102",
        "Oxford Flowers-102",
        102,
        split_sizes(1_020, 1_020, 6_149),
        "Photographs of 102 kinds of flower, ten of each to train on, from the Hub.",
    ),
    _paper(
        "pets",
        "Oxford-IIIT Pet",
        37,
        cut(3_680, 3_669),
        "Photographs of 37 breeds of cat and dog, from the Hub.",
        licence="CC-BY-SA-4.0",
    ),
    _paper(
        "dtd",
        "Describable Textures",
        47,
        split_sizes(1_880, 1_880, 1_880),
        "Photographs of textures by 47 words, the first of its ten splits, from the Hub.",
        licence="CC-BY-4.0",
    ),
    _paper(
        "caltech101",
        "Caltech-101",
        101,
        cut(6_942, 1_735),
        "Photographs of 101 kinds of object, from the Hub; the split is the uploader's.",
        licence="CC-BY-4.0",
    ),
    _paper(
        "ade20k",
        "ADE20K SceneParse150",
        150,
        cut(20_210, 2_000),
        "Scenes with masks of 150 classes, from LGZOO_ADE20K; its validation split is the test.",
        segmentation=True,
    ),
    _paper(
        "voc2012",
        "PASCAL VOC 2012",
        21,
        cut(10_582, 1_449),
        "Photographs with masks of 20 kinds of thing and background, from LGZOO_VOC2012 or the Hub; its validation "
        "split is the test.",
        segmentation=True,
    ),
)

UNSEEN = (
    _paper(
        "fer2013",
        "FER2013",
        7,
        cut(28_709, 7_178),
        "Faces with seven expressions, 48 x 48 grey, from the Hub.",
        image_size=48,
    ),
    _paper(
        "ham10000",
        "HAM10000",
        7,
        split_sizes(9_577, 2_492, 1_285),
        "Dermatoscopic pictures of seven kinds of skin lesion, from the Hub.",
    ),
)

IMAGENET = _paper(
    "imagenet-1k",
    "ImageNet-1K (ILSVRC 2012)",
    1_000,
    cut(1_281_167, 50_000),
    "Photographs of 1,000 kinds of thing, from LGZOO_IMAGENET or, once its terms are accepted, the Hub.",
    licence=RESEARCH,
)

PAPERS: tuple[Entry, ...] = (*DECATHLON, *LSAMD, *UNSEEN, IMAGENET)
