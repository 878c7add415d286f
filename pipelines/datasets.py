"""The table of the standard datasets: one entry each.

A new dataset is one entry here and one reader function in `pipelines.sources`.
"""

from pipelines.registry import Registry
from pipelines.sources import Dataset, Triple


def _per_255(red: float, green: float, blue: float) -> Triple:
    return (red / 255, green / 255, blue / 255)


DATASETS: Registry[Dataset] = Registry("dataset")

DIGITS = tuple("0123456789")

for _entry in (
    Dataset(
        name="digits",
        description="handwritten digits that come with scikit-learn: no download, for first steps",
        terms="UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
        reader="pipelines.sources.digits:source",
        classes=10,
        class_names=DIGITS,
        size=16,
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
        terms="no license is stated; its author asks to cite Krizhevsky, 2009",
        reader="pipelines.sources.cifar:source",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar-10-batches-py",
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        archive="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
        classes=10,
        size=32,
        train=50_000,
        test=10_000,
        mean=_per_255(125.3, 123.0, 113.9),
        std=_per_255(63.0, 62.1, 66.7),
    ),
    Dataset(
        name="cifar100",
        description="small photographs of a hundred kinds of thing",
        terms="no license is stated; its author asks to cite Krizhevsky, 2009",
        reader="pipelines.sources.cifar:source",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar-100-python",
        files={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
        archive="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        classes=100,
        size=32,
        train=50_000,
        test=10_000,
        mean=_per_255(129.3, 124.1, 112.4),
        std=_per_255(68.2, 65.4, 70.4),
    ),
    Dataset(
        name="svhn",
        description="house numbers from street photographs, with the extra training images",
        terms="for non-commercial use only; its authors ask to cite Netzer et al., 2011",
        reader="pipelines.sources.svhn:source",
        page="http://ufldl.stanford.edu/housenumbers",
        folder="svhn",
        files={
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            "extra_32x32.mat": "a93ce644f1a588dc4d68dda5feec44a7",
        },
        optional=("extra_32x32.mat",),
        classes=10,
        class_names=DIGITS,
        size=32,
        train=604_388,
        test=26_032,
        mean=(0.4380, 0.4440, 0.4730),
        std=(0.1751, 0.1771, 0.1744),
    ),
    Dataset(
        name="stl10",
        description="5,000 labeled and 100,000 unlabeled photographs of ten kinds of thing",
        terms="taken from ImageNet, whose terms hold; its authors ask to cite Coates et al., 2011",
        reader="pipelines.sources.stl10:source",
        page="https://cs.stanford.edu/~acoates/stl10",
        folder="stl10_binary",
        files={
            "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
            "train_y.bin": "5a34089d4802c674881badbb80307741",
            "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
            "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
            "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
        },
        archive="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        archive_md5="91f7769df0f17e558f3565bffb0c7dfb",
        classes=10,
        size=96,
        train=105_000,
        test=8_000,
        mean=_per_255(112.4, 109.1, 98.6),
        std=_per_255(68.4, 66.6, 68.5),
    ),
    Dataset(
        name="imagenet",
        description="ILSVRC 2012: photographs of a thousand kinds of thing",
        terms="for non-commercial research and teaching, under the terms of image-net.org",
        reader="pipelines.sources.imagenet:source",
        page="https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
        classes=1_000,
        size=224,
        train_size=256,
        train=1_281_167,
        test=50_000,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
):
    DATASETS.add(_entry.name, _entry)
