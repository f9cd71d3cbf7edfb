import pytest

from gart.datasets import load
from gart.errors import GartError


def names(views):
    return [int(view.name[4:7]) for view in views]


def listed(*numbers):
    return "".join(f"IMG_{i:03d}.png\n" for i in numbers)


@pytest.fixture
def folder(colmap):
    return colmap(count=18).write()


def test_every_eighth_name_is_held_out_whatever_the_order_in_the_file(folder):
    capture = load(str(folder))
    assert names(capture.test) == [0, 8, 16]
    assert names(capture.train) == [i for i in range(18) if i % 8]
    assert capture.metadata["split"] == "every 8th by name"


def test_split_txt_decides_and_leaves_out_what_it_does_not_name(folder):
    lines = ["test IMG_003.png", "", "train  IMG_009.png ", "train\tIMG_005.png"]
    (folder / "split.txt").write_text("\n".join(lines))
    (folder / "test_list.txt").write_text(listed(1))  # split.txt goes first
    capture = load(str(folder))
    assert names(capture.test) == [3]
    assert names(capture.train) == [5, 9]
    assert capture.metadata["split"] == "split.txt"
    assert capture.metadata["unlisted"] == 15


@pytest.mark.parametrize(
    ("file", "content", "train", "test"),
    [
        ("split.txt", "test IMG_003.png", [*range(3), *range(4, 18)], [3]),
        ("split.txt", "train IMG_003.png", [3], [*range(3), *range(4, 18)]),
        ("test_list.txt", listed(2, 4), [0, 1, 3, *range(5, 18)], [2, 4]),
        ("train_list.txt", listed(2, 4), [2, 4], [0, 1, 3, *range(5, 18)]),
        ("test_list.txt", "", [*range(18)], []),
    ],
)
def test_where_one_set_is_listed_the_rest_is_the_other(folder, file, content, train, test):
    (folder / file).write_text(content)
    capture = load(str(folder))
    assert (names(capture.train), names(capture.test)) == (train, test)
    assert capture.metadata["split"] == file


def test_train_and_test_lists_together(folder):
    (folder / "train_list.txt").write_text(listed(1, 2))
    (folder / "test_list.txt").write_text(listed(3))
    capture = load(str(folder))
    assert (names(capture.train), names(capture.test)) == ([1, 2], [3])
    assert capture.metadata["split"] == "train_list.txt and test_list.txt"
    assert capture.metadata["unlisted"] == 15


@pytest.mark.parametrize("file", ["split.txt", "test_list.txt"])
def test_unknown_names_are_named(folder, file):
    prefix = "test " if file == "split.txt" else ""
    wrong = [f"{prefix}gone_{i}.png" for i in range(7)]
    (folder / file).write_text("\n".join([f"{prefix}IMG_001.png", *wrong]))
    with pytest.raises(
        GartError,
        match=rf"{file} names photographs that are not posed: gone_0.png, .*gone_4.png and 2 more",
    ):
        load(str(folder))


def test_a_photograph_in_both_sets(folder):
    (folder / "split.txt").write_text("train IMG_001.png\ntest IMG_001.png\n")
    with pytest.raises(GartError, match=r"both train and test \(split.txt\): IMG_001.png"):
        load(str(folder))


@pytest.mark.parametrize("line", ["IMG_001.png", "val IMG_001.png", "train"])
def test_a_malformed_line(folder, line):
    (folder / "split.txt").write_text(f"test IMG_000.png\n{line}\n")
    with pytest.raises(GartError, match=rf"split.txt has the line '{line}'; expected `train NAME`"):
        load(str(folder))


def test_nothing_to_train_on(colmap):
    folder = colmap(count=1).write()
    with pytest.raises(GartError, match=r"has 1 posed photographs and none to train on"):
        load(str(folder))


@pytest.mark.parametrize(
    ("content", "message"), [(b"\n", "is empty; list photographs in it"), (b"\xff\xfe", "the line")]
)
def test_a_split_file_that_says_nothing(folder, content, message):
    (folder / "split.txt").write_bytes(content)
    with pytest.raises(GartError, match=rf"split.txt .*{message}"):
        load(str(folder))
