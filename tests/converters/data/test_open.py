"""What may be given as a calibration or evaluation set, and how each bad one is refused."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgekit_converters.data import arrays
from edgekit_converters.data.open import open_dataset
from edgekit_converters.recipe.conversion_errors import CalibrationError, UnlabelledError
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract

PIXELS = ImageSpec(4, 4, (0.0,) * 3, (255.0,) * 3)
OUTPUT = OutputContract("probs", (4,), "float32")
IMAGES = Contract("classification", (InputContract("image", (4, 4, 3), "float32", PIXELS),), (OUTPUT,))
NAMED = Contract("classification", IMAGES.inputs, (OUTPUT,), ("cat", "golden retriever", "crane", "crane"))
TENSORS = Contract("classification", (InputContract("features", (3,), "float32"),), (OUTPUT,))
TOKENS = Contract("raw", (InputContract("tokens", (3,), "int32"),), (OUTPUT,))
PAIR = Contract("raw", (InputContract("left", (3,), "float32"), InputContract("right", (2,), "float32")), (OUTPUT,))


def picture(path: Path, value: int = 0, size: tuple[int, int] = (6, 5)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)
    return path


class TestFolder:
    def test_files_come_sorted_from_every_depth_in_any_case(self, tmp_path):
        for name in ("b/2.png", "b/10.JPG", "a.PNG", "c.txt.bmp", "._a.png", ".hidden/a.png"):
            picture(tmp_path / name)
        (tmp_path / "notes.txt").write_text("no picture")
        dataset = open_dataset(tmp_path, IMAGES)
        assert [Path(e.origin).relative_to(tmp_path).as_posix() for e in dataset] == [
            "a.PNG", "b/10.JPG", "b/2.png", "c.txt.bmp"
        ]  # fmt: skip
        assert len(dataset) == 4
        for example in dataset:
            assert example.inputs["image"].shape == (4, 4, 3)
            assert example.inputs["image"].dtype == np.uint8
            assert example.label is None

    def test_sub_folders_are_labels_by_name_or_index_when_all_images_are_in_one(self, tmp_path):
        for folder, value in (("cat", 1), ("golden retriever/deep", 2), ("003", 3)):
            picture(tmp_path / folder / "a.png", value)
        dataset = open_dataset(tmp_path, NAMED)
        assert {e.label: e.inputs["image"][0, 0, 0] for e in dataset} == {0: 1, 1: 2, 3: 3}
        assert [e.label for e in open_dataset(tmp_path, NAMED, labelled=False)] == [None] * 3
        picture(tmp_path / "loose.png")
        assert [e.label for e in open_dataset(tmp_path, NAMED)] == [None] * 4

    def test_one_folder_that_names_no_class_among_others_that_do_is_a_plain_error(self, tmp_path):
        for folder in ("cat", "golden retreiver"):
            picture(tmp_path / folder / "a.png")
        with pytest.raises(
            CalibrationError, match=r"no class is called 'golden retreiver'.*golden retriever"
        ) as caught:
            open_dataset(tmp_path, NAMED)
        assert not isinstance(caught.value, UnlabelledError)

    def test_folders_of_which_none_names_a_class_are_an_error_of_their_own(self, tmp_path):
        for folder in ("morning", "evening"):
            picture(tmp_path / folder / "a.png")
        with pytest.raises(UnlabelledError, match="no class is called 'evening'"):
            open_dataset(tmp_path, NAMED)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are POSIX")
    def test_what_is_no_regular_file_is_passed_over(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.png")
        picture(tmp_path / "a.png")
        assert [Path(e.origin).name for e in open_dataset(tmp_path, IMAGES)] == ["a.png"]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are POSIX")
    def test_a_folder_of_nothing_else_is_refused_with_a_name(self, tmp_path):
        for name in ("b.png", "a.png"):
            os.mkfifo(tmp_path / name)
        with pytest.raises(CalibrationError, match=r"none of its 2 files can be read: a.png is not a regular file"):
            open_dataset(tmp_path, IMAGES)

    def test_a_label_that_is_a_number_wins_over_the_index(self, tmp_path):
        picture(tmp_path / "1" / "a.png")
        contract = Contract("classification", IMAGES.inputs, (OUTPUT,), ("3", "2", "1", "0"))
        assert [e.label for e in open_dataset(tmp_path, contract)] == [2]

    def test_a_raw_model_has_no_labels(self, tmp_path):
        picture(tmp_path / "monday" / "a.png")
        contract = Contract("raw", IMAGES.inputs, (OUTPUT,))
        assert [e.label for e in open_dataset(tmp_path, contract)] == [None]

    @pytest.mark.parametrize(
        ("folder", "contract", "message"),
        [
            ("golden_retriever", NAMED, "no class is called 'golden_retriever'. Did you mean 'golden retriever'?"),
            ("Cat", NAMED, "Did you mean 'cat'"),
            ("crane", NAMED, "'crane' is the label of the classes 2 and 3. Name the folder after the index"),
            ("zebra", NAMED, "no class is called 'zebra'. Name the folder after a label or a class index"),
            ("cat", IMAGES, "add `labels` to a contract file (--contract)"),
            ("4", NAMED, "4 is not a class: they run from 0 to 3"),
        ],
    )
    def test_a_folder_that_is_no_class_is_refused_with_the_near_ones(self, tmp_path, folder, contract, message):
        picture(tmp_path / folder / "a.png")
        with pytest.raises(CalibrationError) as caught:
            open_dataset(tmp_path, contract)
        assert message in str(caught.value)
        assert str(tmp_path / folder) in str(caught.value)

    def test_folders_as_many_as_the_classes_are_proposed_as_labels(self, tmp_path):
        for name in ("dog", "cat", 'a "b"', "eel"):
            picture(tmp_path / name / "a.png")
        with pytest.raises(CalibrationError, match=r"folders, add to a contract file \(--contract\): la") as caught:
            open_dataset(tmp_path, IMAGES)
        labels = ['a "b"', "cat", "dog", "eel"]
        assert tomllib.loads(caught.value.do.partition("(--contract): ")[2]) == {"labels": labels}

    @pytest.mark.parametrize(
        ("contract", "do"),
        [
            (IMAGES, "Put some there: .bmp"),
            (TENSORS, "Give a .npz with the array 'features' or 'x'"),
            (PAIR, "Give a .npz with the arrays 'left', 'right'"),
        ],
        ids=["pictures", "one input", "two inputs"],
    )
    def test_a_folder_with_no_images_says_what_it_has_and_what_the_model_takes(self, tmp_path, contract, do):
        with pytest.raises(CalibrationError, match="no files in this folder") as caught:
            open_dataset(tmp_path, contract)
        assert caught.value.do.startswith(do)
        (tmp_path / "readme.txt").write_text("empty")
        with pytest.raises(CalibrationError, match=r"no images in this folder, only \.txt") as caught:
            open_dataset(tmp_path, contract)
        assert caught.value.do.startswith(do)

    @pytest.mark.parametrize("contract", [TENSORS, PAIR])
    def test_images_for_a_model_that_takes_tensors_are_refused(self, tmp_path, contract):
        picture(tmp_path / "a.png")
        with pytest.raises(CalibrationError, match="a folder of images does not fit a model that takes") as caught:
            open_dataset(tmp_path, contract)
        assert "what pixels are" not in caught.value.do  # nothing there can be a picture

    def test_images_for_a_tensor_that_can_be_a_picture_say_how_pixels_are_declared(self, tmp_path):
        picture(tmp_path / "a.png")
        pixels = replace(TENSORS, inputs=(InputContract("image", (3, 8, 8), "float32"),))
        with pytest.raises(CalibrationError, match=r"say in a contract file \(--contract\) what pixels are"):
            open_dataset(tmp_path, pixels)

    @pytest.mark.parametrize("content", [b"", b"no image at all", b"\x89PNG\r\n\x1a\n truncated"])
    def test_a_file_that_is_no_image_is_named_when_it_is_read(self, tmp_path, content):
        picture(tmp_path / "a.png")
        (tmp_path / "b.png").write_bytes(content)
        with pytest.raises(CalibrationError) as caught:
            list(open_dataset(tmp_path, IMAGES))
        assert caught.value.where == str(tmp_path / "b.png")
        assert ("not an image" if content else "is empty") in caught.value.what

    def test_a_link_back_to_the_folder_ends(self, tmp_path):
        picture(tmp_path / "a.png")
        (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
        assert len(open_dataset(tmp_path, IMAGES)) == 1


class TestArrays:
    def test_npz_gives_items_and_labels_under_x_or_the_models_name(self, tmp_path):
        x, y = np.arange(15, dtype=np.float64).reshape(5, 3), np.array([0, 1, 2, 3, 0], np.uint8)
        for name in ("x", "features"):
            np.savez(tmp_path / "set.npz", **{name: x}, y=y)
            examples = list(open_dataset(tmp_path / "set.npz", TENSORS))
            assert [e.label for e in examples] == [0, 1, 2, 3, 0]
            assert all(e.inputs["features"].dtype == np.float32 for e in examples)
            np.testing.assert_array_equal([e.inputs["features"] for e in examples], x)
            assert examples[3].origin == f"{tmp_path / 'set.npz'}, item 3"

    def test_labels_may_be_the_contracts_names_as_scikit_learn_has_them(self, tmp_path):
        named = replace(TENSORS, labels=("cat", "golden retriever", "3", "dog"))
        np.savez(tmp_path / "set.npz", x=np.ones((4, 3), np.float32), y=np.array(["dog", "cat", "3", "1"]))
        assert [e.label for e in open_dataset(tmp_path / "set.npz", named)] == [3, 0, 2, 1]

    @pytest.mark.parametrize(
        ("y", "contract", "what", "do"),
        [
            (["cat", "retriever"], NAMED, "no class is called 'retriever'", "Did you mean 'golden retriever'?"),
            (["cat", "crane"], NAMED, "'crane' is the label of the classes 2 and 3", "Save the classes as integers"),
            (["cat", "dog"], IMAGES, "no class is called 'cat'", "add `labels` to a contract file (--contract)"),
            (["cat", "9"], NAMED, "9 is not a class", "Count classes from 0"),
        ],
    )
    def test_a_name_that_is_no_class_is_refused_with_the_nearest(self, tmp_path, y, contract, what, do):
        np.savez(tmp_path / "set.npz", x=np.zeros((2, 4, 4, 3), np.uint8), y=np.array(y))
        with pytest.raises(CalibrationError) as caught:
            open_dataset(tmp_path / "set.npz", contract)
        assert what in caught.value.what
        assert do in caught.value.do

    def test_several_inputs_come_by_name(self, tmp_path):
        np.savez(tmp_path / "set.npz", left=np.ones((2, 3), np.float32), right=np.zeros((2, 2), np.float32))
        (first, _) = open_dataset(tmp_path / "set.npz", PAIR)
        assert {name: array.shape for name, array in first.inputs.items()} == {"left": (3,), "right": (2,)}

    def test_npy_is_mapped_and_gives_items(self, tmp_path):
        np.save(tmp_path / "set.npy", np.arange(6, dtype=np.int64).reshape(2, 3))
        dataset = open_dataset(tmp_path / "set.npy", TOKENS)
        assert isinstance(dataset.inputs["tokens"], np.memmap)
        assert [e.inputs["tokens"].tolist() for e in dataset] == [[0, 1, 2], [3, 4, 5]]
        assert next(iter(dataset)).inputs["tokens"].dtype == np.int32

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_npz_is_mapped_where_it_can_be_and_gives_the_same_either_way(self, tmp_path, save, order):
        x = np.asarray(np.random.default_rng(0).normal(size=(6, 3)), order=order)
        save(tmp_path / "set.npz", x=x, y=np.arange(6) % 4)
        dataset = open_dataset(tmp_path / "set.npz", TENSORS)
        assert isinstance(dataset.inputs["features"], np.memmap) == (save is np.savez)
        np.testing.assert_array_equal([e.inputs["features"] for e in dataset], x.astype(np.float32))
        assert [e.label for e in dataset] == [0, 1, 2, 3, 0, 1]

    def test_an_npz_cut_short_is_refused(self, tmp_path):
        path = tmp_path / "set.npz"
        np.savez(path, x=np.ones((50, 3)))
        whole = path.read_bytes()
        for keep in (10, 200, len(whole) - 30):
            path.write_bytes(whole[:keep])
            with pytest.raises(CalibrationError, match="cannot be read as NumPy arrays"):
                open_dataset(path, TENSORS)

    @pytest.mark.parametrize("name", ["set.npy", "set.npz"])
    def test_a_file_of_another_kind_is_not_called_a_damaged_zip(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"no numpy at all")
        with pytest.raises(CalibrationError, match=r"it is neither a \.npy nor a \.npz of NumPy"):
            open_dataset(tmp_path / name, TENSORS)

    @pytest.mark.parametrize("name", ["set.npy", "stored.npz", "packed.npz"])
    def test_damage_anywhere_is_a_calibration_error_or_other_numbers(self, tmp_path, name):
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        np.save(tmp_path / "set.npy", x)
        np.savez(tmp_path / "stored.npz", x=x)
        np.savez_compressed(tmp_path / "packed.npz", x=x)
        path = tmp_path / name
        whole = path.read_bytes()
        for at in range(0, len(whole), 2):
            for value in (0, 41, 255):
                path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
                with contextlib.suppress(CalibrationError):
                    list(open_dataset(path, TENSORS))

    @pytest.mark.parametrize("shape", [(4, 4, 3), (9, 7, 3), (9, 7), (9, 7, 1), (9, 7, 4)])
    def test_an_image_input_takes_pixels_of_any_size(self, tmp_path, shape):
        np.savez(tmp_path / "set.npz", x=np.full((2, *shape), 255, np.uint8))
        for example in open_dataset(tmp_path / "set.npz", IMAGES):
            assert example.inputs["image"].shape == (4, 4, 3)
            assert example.inputs["image"].dtype == np.uint8
            assert example.inputs["image"].min() == 255

    @pytest.mark.parametrize("shape", [(4, 4, 3), (3, 4, 4)])
    def test_an_image_input_takes_floats_as_the_model_does_in_either_layout(self, tmp_path, shape):
        np.savez(tmp_path / "set.npz", x=np.full((2, *shape), 0.5, np.float64))
        for example in open_dataset(tmp_path / "set.npz", IMAGES):
            assert example.inputs["image"].shape == (4, 4, 3)
            assert example.inputs["image"].dtype == np.float32

    def test_pick_gives_just_these_and_reading_again_gives_the_same(self, tmp_path):
        np.savez(tmp_path / "set.npz", x=np.arange(30, dtype=np.float32).reshape(10, 3))
        dataset = open_dataset(tmp_path / "set.npz", TENSORS)
        assert [e.inputs["features"][0] for e in dataset.pick([1, 4])] == [3, 12]
        assert [e.origin for e in dataset] == [e.origin for e in dataset]

    X = np.ones((5, 3), np.float32)
    REFUSED = {
        "no x": ({"images": X}, TENSORS, "has no array 'features' or 'x'; it holds images"),
        "an array nobody reads": ({"x": X, "labels": np.zeros(5, int)}, TENSORS, "holds an unused array 'labels'"),
        "a missing input": ({"left": X}, PAIR, "has no array 'right'; it holds left"),
        "inputs of different lengths": ({"left": X, "right": X[:4, :2]}, PAIR, "different lengths: left 5, right 4"),
        "labels of another length": ({"x": X, "y": np.zeros(4, int)}, TENSORS, "there are 5 items and 4 labels"),
        "one-hot labels": (
            {"x": X, "y": np.eye(5)[:, :4]},
            TENSORS,
            'y.argmax(axis=1) if it is one-hot. Set `task = "raw"`',
        ),
        "float labels": ({"x": X, "y": np.zeros(5)}, TENSORS, "Labels are integers [N]"),
        "a label out of range": ({"x": X, "y": np.array([0, 1, 4, 1, 0])}, TENSORS, "y[2]: 4 is not a class"),
        "a negative label": ({"x": X, "y": np.array([0, 1, 3, -1, 0])}, TENSORS, "y[3]: -1 is not a class"),
        "no items": ({"x": X[:0]}, TENSORS, "holds no items"),
        "another shape": ({"x": np.ones((5, 4), np.float32)}, TENSORS, "has shape [5, 4] and the model takes [N, 3]"),
        "a scalar": ({"x": np.float32(3)}, TENSORS, "has shape [] and the model takes [N, 3]"),
        "floats for integers": ({"x": X}, TOKENS, "takes int32, not float32"),
        "text": ({"x": np.array([["a", "b", "c"]])}, TENSORS, "takes float32, not"),
        "objects": ({"x": np.array([None, {}], object)}, TENSORS, "which edgekit never unpickles"),
        "pixels of another type": ({"x": np.zeros((2, 4, 4, 3), np.int64)}, IMAGES, "cannot be int64"),
        "floats of another size": ({"x": np.zeros((2, 5, 4, 3), np.float32)}, IMAGES, "model takes [N, 4, 4, 3]"),
    }

    @pytest.mark.parametrize(("arrays", "contract", "message"), REFUSED.values(), ids=REFUSED)
    def test_arrays_that_do_not_fit_are_refused_at_once(self, tmp_path, arrays, contract, message):
        np.savez(tmp_path / "set.npz", **arrays)
        with pytest.raises(CalibrationError) as caught:
            open_dataset(tmp_path / "set.npz", contract)
        assert message in str(caught.value)
        assert str(tmp_path / "set.npz") in caught.value.where

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
    def test_nan_infinity_and_overflow_name_their_item(self, tmp_path, bad):
        x = np.ones((5, 3))
        x[3, 1] = bad
        np.save(tmp_path / "set.npy", x)
        with pytest.raises(CalibrationError) as caught:
            list(open_dataset(tmp_path / "set.npy", TENSORS))
        assert caught.value.where == f"{tmp_path / 'set.npy'}, item 3"
        assert ("outside float32" if bad == 1e300 else "NaN or infinity") in caught.value.what

    def test_integers_that_do_not_fit_name_their_item(self, tmp_path):
        np.save(tmp_path / "set.npy", np.array([[1, 2, 3], [4, 5, 1 << 40]]))
        with pytest.raises(CalibrationError, match="item 1: input 'tokens': it has values outside int32"):
            list(open_dataset(tmp_path / "set.npy", TOKENS))

    @pytest.mark.parametrize("name", ["set.npz", "set.npy"])
    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x93NUMPY\x01\x00", b"no array"])
    def test_a_broken_file_is_refused(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CalibrationError) as caught:
            open_dataset(tmp_path / name, TENSORS)
        assert caught.value.where == str(tmp_path / name)

    def test_an_array_under_the_other_name_is_told(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=self.X)
        (tmp_path / "a.npz").rename(tmp_path / "a.npy")
        with pytest.raises(CalibrationError, match=r"Rename it to \.npz"):
            open_dataset(tmp_path / "a.npy", TENSORS)
        np.save(tmp_path / "b.npy", self.X)
        (tmp_path / "b.npy").rename(tmp_path / "b.npz")
        with pytest.raises(CalibrationError, match=r"Rename it to \.npy"):
            open_dataset(tmp_path / "b.npz", TENSORS)

    def test_what_fills_the_memory_when_unpacked_is_refused_before_it_is(self, tmp_path, monkeypatch):
        x = np.zeros((1000, 3))
        np.savez_compressed(tmp_path / "packed.npz", x=x)
        np.savez(tmp_path / "stored.npz", x=x)
        monkeypatch.setattr(arrays, "memory_bytes", lambda: 3 * x.nbytes - 3)
        with pytest.raises(CalibrationError, match=r"packed.npz: is 24.0 kB when unpacked. Save the array as .npy"):
            open_dataset(tmp_path / "packed.npz", TENSORS)
        assert len(open_dataset(tmp_path / "stored.npz", TENSORS)) == 1000
        monkeypatch.undo()
        assert len(open_dataset(tmp_path / "packed.npz", TENSORS)) == 1000

    def test_a_header_that_promises_more_than_its_file_holds_asks_for_no_memory(self, tmp_path):
        with (tmp_path / "lie.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 3)})
        with pytest.raises(CalibrationError, match=r"its header promises 26.4 TB, and there are 0.1 kB"):
            open_dataset(tmp_path / "lie.npy", TENSORS)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are POSIX")
    @pytest.mark.parametrize("name", ["set.npy", "set.npz"])
    def test_a_pipe_is_no_regular_file(self, tmp_path, name):
        os.mkfifo(tmp_path / name)
        with pytest.raises(CalibrationError, match="is not a regular file"):
            open_dataset(tmp_path / name, TENSORS)

    def test_an_empty_npy_and_one_for_two_inputs_are_refused(self, tmp_path):
        np.save(tmp_path / "set.npy", self.X[:0])
        with pytest.raises(CalibrationError, match="holds no items"):
            open_dataset(tmp_path / "set.npy", TENSORS)
        with pytest.raises(CalibrationError, match="arrays left, right"):
            open_dataset(tmp_path / "set.npy", PAIR)


class TestFunction:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        """Write a module in the current folder and return its name."""
        monkeypatch.chdir(tmp_path)
        names = []

        def write(body: str) -> str:
            name = f"examples_{tmp_path.name.replace('-', '_')}_{len(names)}"
            names.append(name)
            Path(tmp_path, f"{name}.py").write_text("import numpy as np\n" + textwrap.dedent(body))
            return name

        yield write
        for name in names:
            sys.modules.pop(name, None)

    @pytest.mark.parametrize(
        ("value", "label"),
        [
            ('{"features": np.full(3, i), "label": i}', [0, 1]),
            ('{"features": np.full(3, i)}', [None, None]),
            ("(np.full(3, i), np.int64(i))", [0, 1]),
            ("np.full(3, i)", [None, None]),
            ('({"features": np.full(3, i)}, i)', [0, 1]),
            ("[i, i, i]", [None, None]),
        ],
    )
    def test_dicts_pairs_and_bare_values_are_examples(self, module, value, label):
        name = module(f"def give():\n    for i in range(2):\n        yield {value}\n")
        dataset = open_dataset(f"{name}:give", TENSORS)
        for _ in range(2):
            assert [e.label for e in dataset] == label
            assert [e.inputs["features"].tolist() for e in dataset] == [[0.0] * 3, [1.0] * 3]
        assert len(dataset) == 2
        assert [e.origin for e in dataset.pick([1])] == [f"{name}:give, item 1"]

    def test_paths_and_pictures_are_decoded(self, module, tmp_path):
        picture(tmp_path / "a.png", 7)
        name = module('def give():\n    yield "a.png", 2\n')
        (example,) = open_dataset(f"{name}:give", IMAGES)
        assert (example.inputs["image"][0, 0, 0], example.label) == (7, 2)

    REFUSED = {
        "nothing": ("def give():\n    return []\n", "yields no items"),
        "an unknown key": ("def give():\n    yield {'feature': [1, 2, 3]}\n", "has a key 'feature'"),
        "a missing input": ("def give():\n    yield {'label': 1}\n", "has no value for the input 'features'"),
        "a wrong shape": ("def give():\n    yield np.ones(4)\n", "does not fit"),
        "a label out of range": ("def give():\n    yield np.ones(3), 4\n", "item 0: 4 is not a class"),
        "a label that is text": ("def give():\n    yield np.ones(3), 'cat'\n", "has a label of type str"),
        "NaN": ("def give():\n    yield np.full(3, np.nan)\n", "item 0: input 'features': it holds NaN"),
        "an exception": (
            "def give():\n    yield [1, 2, 3]\n    raise OSError('disk gone')\n",
            "raised OSError: disk gone",
        ),
        "arguments": ("def give(folder):\n    yield 1\n", "raised TypeError"),
        "no iterable": ("def give():\n    return 3\n", "gave a value of type int, which is not a set of examples"),
        "a broken module": ("import nowhere_at_all\n", "raised ModuleNotFoundError: No module named 'nowhere_at_all'"),
        "another name": ("def gives():\n    yield 1\n", "has no function 'give'. Did you mean"),
        "a constant": ("give = 3\n", "'give' is not a function: its type is int"),
        "an exit": ("import sys\ndef give():\n    yield [1, 2, 3]\n    sys.exit(0)\n", "raised SystemExit: 0"),
        "an exit of the module": ("raise SystemExit\n", "raised SystemExit: no message"),
    }

    @pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
    def test_a_function_that_misbehaves_is_refused_with_its_own_line(self, module, body, message):
        name = module(body)
        with pytest.raises(CalibrationError) as caught:
            list(open_dataset(f"{name}:give", TENSORS))
        assert message in str(caught.value)
        assert name in caught.value.where
        if "disk gone" in message:
            assert f"{name}.py, line 4" in str(caught.value)

    def test_a_pass_that_gives_fewer_items_is_refused(self, module):
        name = module("left = [3, 2, 2]\ndef give():\n    return [[1, 2, 3]] * left.pop()\n")
        dataset = open_dataset(f"{name}:give", TENSORS)
        assert len(list(dataset)) == 2
        name = module("left = [1, 2]\ndef give():\n    return [[1, 2, 3]] * left.pop()\n")
        with pytest.raises(CalibrationError, match="gave 2 items the first time and fewer now"):
            list(open_dataset(f"{name}:give", TENSORS))

    def test_an_endless_function_is_stopped(self, module, monkeypatch):
        monkeypatch.setattr("edgekit_converters.data.open.MAX_ITEMS", 50)
        name = module("import itertools\ndef give():\n    return itertools.repeat([1, 2, 3])\n")
        with pytest.raises(CalibrationError, match="yields more than 50 items"):
            open_dataset(f"{name}:give", TENSORS)

    def test_one_value_for_two_inputs_is_refused(self, module):
        name = module("def give():\n    yield np.ones(3)\n")
        with pytest.raises(CalibrationError, match="Yield a dict with the keys left, right"):
            list(open_dataset(f"{name}:give", PAIR))

    def test_a_module_that_is_not_there_is_named(self, module):
        with pytest.raises(CalibrationError, match="there is no module 'nowhere_to_be_found'"):
            open_dataset("nowhere_to_be_found:give", TENSORS)


@pytest.mark.parametrize("name", ["nothing", "photos/none.npz", "a:b:c", "/no/where:give"])
def test_a_place_that_does_not_exist_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CalibrationError,
        match=r"does not exist. Give an image folder, a .npy, .*, a data.yaml, COCO's .json or module:function",
    ):
        open_dataset(name, TENSORS)


def test_a_file_of_another_kind_is_refused(tmp_path):
    picture(tmp_path / "a.png")
    with pytest.raises(CalibrationError, match="not a set of examples"):
        open_dataset(tmp_path / "a.png", IMAGES)
