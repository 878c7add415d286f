"""The table of the standard data sets: what is known of each before a byte is read."""

from dataclasses import dataclass

from pipelines.registry import Registry

Triple = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What training and conversion need to know of one data set."""

    name: str
    description: str
    terms: str  # under which its publisher gives it away, told once by `convert`
    classes: int
    class_names: tuple[str, ...] | None = None  # None where the publisher's files name them
    size: int  # side of a view
    train_size: int  # side of a stored training image
    test_size: int
    train: int  # how many images
    test: int
    mean: Triple  # of pixels in 0..1
    std: Triple
    flip: bool  # whether the mirror image is as good an example
    padding: int  # reflected border of the weak view's random crop
    resize: str = "squash"


def _per_255(red: float, green: float, blue: float) -> Triple:
    return (red / 255, green / 255, blue / 255)


DATASETS: Registry[Dataset] = Registry("data set")

DIGITS = tuple("0123456789")

for _entry in (
    Dataset(
        name="digits",
        description="handwritten digits that come with scikit-learn: no download, for first steps",
        terms="UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
        classes=10,
        class_names=DIGITS,
        size=16,
        train_size=16,
        test_size=16,
        train=1_437,
        test=360,
        mean=(0.3098, 0.3098, 0.3098),
        std=(0.3476, 0.3476, 0.3476),
        flip=False,
        padding=2,
    ),
    Dataset(
        name="cifar10",
        description="small photographs of ten kinds of thing",
        terms="no licence is stated; its author asks to cite Krizhevsky, 2009",
        classes=10,
        size=32,
        train_size=32,
        test_size=32,
        train=50_000,
        test=10_000,
        mean=_per_255(125.3, 123.0, 113.9),
        std=_per_255(63.0, 62.1, 66.7),
        flip=True,
        padding=4,
    ),
    Dataset(
        name="cifar100",
        description="small photographs of a hundred kinds of thing",
        terms="no licence is stated; its author asks to cite Krizhevsky, 2009",
        classes=100,
        size=32,
        train_size=32,
        test_size=32,
        train=50_000,
        test=10_000,
        mean=_per_255(129.3, 124.1, 112.4),
        std=_per_255(68.2, 65.4, 70.4),
        flip=True,
        padding=4,
    ),
    Dataset(
        name="svhn",
        description="house numbers from street photographs, with the extra training images",
        terms="for non-commercial use only; its authors ask to cite Netzer et al., 2011",
        classes=10,
        class_names=DIGITS,
        size=32,
        train_size=32,
        test_size=32,
        train=604_388,
        test=26_032,
        mean=(0.4380, 0.4440, 0.4730),
        std=(0.1751, 0.1771, 0.1744),
        flip=True,
        padding=4,
    ),
    Dataset(
        name="stl10",
        description="5,000 labelled and 100,000 unlabelled photographs of ten kinds of thing",
        terms="taken from ImageNet, whose terms hold; its authors ask to cite Coates et al., 2011",
        classes=10,
        size=96,
        train_size=96,
        test_size=96,
        train=105_000,
        test=8_000,
        mean=_per_255(112.4, 109.1, 98.6),
        std=_per_255(68.4, 66.6, 68.5),
        flip=True,
        padding=4,
    ),
    Dataset(
        name="imagenet",
        description="ILSVRC 2012: photographs of a thousand kinds of thing",
        terms="for non-commercial research and teaching, under the terms of image-net.org",
        classes=1_000,
        size=224,
        train_size=256,
        test_size=224,
        train=1_281_167,
        test=50_000,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        flip=True,
        padding=4,
    ),
):
    DATASETS.add(_entry.name, _entry)
