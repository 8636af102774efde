"""A folder in Hugging Face's layout becomes a bundle that answers sentences, and refuses what is no text."""

from __future__ import annotations

import io
import json
import shutil
import sys

import numpy as np
import pytest
import sentencepiece
import worded

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.data.open import open_dataset
from edgekit_converters.recipe.conversion_errors import CalibrationError, ContractFileError, SourceError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.transformer import read_transformer
from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.bundle import manifest as manifest_module
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.cache.similar import Semantic
from edgekit_runtime.contract import text as text_module
from edgekit_runtime.contract.text import TextInput
from edgekit_runtime.system.errors import BundleError, InputError, MissingExtraError, SelfTestError

pytestmark = pytest.mark.convert
pytest.importorskip("tokenizers")
LENGTH = 12


@pytest.fixture(scope="module")
def drafted(tmp_path_factory):
    """A folder with `mini/`, mini.onnx, its contract file and 24 sentences."""
    from edgekit.cli.main import main

    folder = tmp_path_factory.mktemp("text")
    worded.write_folder(folder / "mini")
    with pytest.raises(SystemExit) as left:
        main(["contract", str(folder / "mini"), "--length", str(LENGTH)])
    assert not left.value.code
    (folder / "lines.txt").write_text("\n".join(worded.LINES) + "\n")
    return folder


@pytest.fixture(scope="module")
def built(drafted):
    from edgekit import build

    report = build(
        drafted / "mini.onnx",
        profiles=["host-cpu"],
        calibration=drafted / "lines.txt",
        recipes=["onnx-f32"],
        output=drafted / "out",
        cache=False,
    )
    return report.bundles[0].path


def contract_of(folder):
    return describe(load(folder / "mini.onnx"), folder / "mini.contract.toml")


def test_a_linked_folder_gives_both_files_its_own_name(tmp_path, edgekit):
    worded.write_folder(tmp_path / "snapshot")
    (tmp_path / "mini").symlink_to(tmp_path / "snapshot")
    assert edgekit("contract", "mini", "--length", str(LENGTH)).code == 0
    assert {"mini.onnx", "mini.contract.toml"} <= {file.name for file in tmp_path.iterdir()}


def test_a_sentencepiece_file_stands_for_a_tokenizer(tmp_path, edgekit):
    folder, made = worded.write_folder(tmp_path / "mini"), io.BytesIO()
    (folder / "tokenizer.json").unlink()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(worded.LINES), model_writer=made, vocab_size=40, model_type="unigram",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    (folder / "spiece.model").write_bytes(made.getvalue())
    ran = edgekit("contract", "mini", "--length", str(LENGTH))
    assert ran.code == 0, ran.err
    assert 'tokenizer = "mini/spiece.model"' in (tmp_path / "mini.contract.toml").read_text()
    ids = TextInput(contract_of(tmp_path))(worded.LINES[0])["input_ids"]
    own = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    spelt = [own.bos_id(), *own.encode(worded.LINES[0]), own.eos_id()]
    assert len(spelt) > LENGTH, "it is cut, and keeps its end"
    assert ids.tolist() == [*spelt[: LENGTH - 1], own.eos_id()]
    (folder / "spiece.model").write_bytes(b"another file")
    with pytest.raises(ContractFileError, match="cannot be read: it is not a SentencePiece model"):
        contract_of(tmp_path)


def test_the_current_folder_gives_both_files_its_own_name(tmp_path, monkeypatch):
    from edgekit.cli.main import main

    monkeypatch.chdir(worded.write_folder(tmp_path / "mini"))
    with pytest.raises(SystemExit, check=lambda end: not end.code):
        main(["contract", ".", "--length", str(LENGTH)])
    assert {file.name for file in tmp_path.iterdir()} == {"mini", "mini.onnx", "mini.contract.toml"}


def test_the_network_built_from_weights_computes_a_bert(drafted):
    contract, source = contract_of(drafted), load(drafted / "mini.onnx")
    found = worded.weights()
    for line in worded.LINES:
        items = TextInput(contract)(line)
        [vector] = source.predict([items[spec.name][None] for spec in source.inputs])
        ids = [2, *(worded.WORDS.index(word) for word in line.split()), 3]
        np.testing.assert_allclose(vector[0], worded.embedding(found, ids), atol=2e-5)


def test_a_classifier_gets_its_labels_from_the_config(tmp_path):
    folder = worded.write_folder(tmp_path / "mood", classes=3, labels=["bad", "fair", "good"])
    found = read_transformer(folder, 8)
    assert found.contract == {
        "task": "classification",
        "scores": "logits",
        "labels": ["bad", "fair", "good"],
        "text": {"pad": 0, "pooling": "none"},
    }
    (tmp_path / "mood.onnx").write_bytes(found.onnx)
    weights, ids = worded.weights(3), [2, worded.WORDS.index("red"), 3]
    [logits] = load(tmp_path / "mood.onnx").predict(
        [np.array([row + [0] * 5], np.int64) for row in (ids, [1, 1, 1], [0, 0, 0])]
    )
    first = np.tanh(worded.bert(weights, ids)[0] @ weights["pooler.dense.weight"].T + weights["pooler.dense.bias"])
    np.testing.assert_allclose(
        logits[0], first @ weights["classifier.weight"].T + weights["classifier.bias"], atol=1e-4
    )


def test_the_folders_own_onnx_goes_before_its_weights(tmp_path):
    folder = worded.write_folder(tmp_path / "mini")
    pooled = read_transformer(folder, 10)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(pooled.onnx)
    (folder / "model.safetensors").unlink()
    assert read_transformer(folder, 10).contract["text"] == {"pad": 0, "pooling": "none"}  # it answers one vector


def test_a_bundle_answers_sentences_and_carries_its_tokenizer(built, drafted):
    bundle = read_bundle(built)
    assert bundle.manifest.requires == ("text-input",)
    assert bundle.blob(bundle.manifest.tokenizer) == (drafted / "mini" / "tokenizer.json").read_bytes()
    assert all(bundle.blob(golden.text).decode() in worded.LINES for golden in bundle.manifest.golden)
    found = worded.weights()
    with open_bundle(built) as model:
        answer = model.predict("Where is the DEPOT")
        ids = [2, *(worded.WORDS.index(word) for word in ["where", "is", "the", "depot"]), 3]
        np.testing.assert_allclose(answer.vector, worded.embedding(found, ids), atol=2e-5)
        assert model.predict("Where is the DEPOT").source == "cache"
        assert model.predict(b"Where is the DEPOT").source == "cache"
        assert model.predict("where is the depot").source == "device"  # other bytes
        assert model.submit("red").result().source == "device"
        tokens = TextInput(model.contract)("red")
        np.testing.assert_array_equal(model.predict(tokens).vector, model.predict("red").vector)


BAD = {
    "empty": ("", "is empty"),
    "spaces": (" \n\t ", "is empty"),
    "a megabyte": ("word " * 200_000, "1,000,000 characters"),
    "NUL": ("red\0green", "NUL (character 3)"),
    "not UTF-8": (b"red \xff", "not UTF-8 (byte 4)"),
    "half a surrogate pair": ("red \ud83d", "surrogate"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_text_is_refused(built, name):
    value, why = BAD[name]
    with open_bundle(built) as model:
        for ask in (model.predict, model.submit):
            with pytest.raises(InputError) as refused:
                ask(value)
            assert why in str(refused.value)
        with pytest.raises(InputError, match="Pass a text, or a dict"):
            model.predict(3)
        assert model.predict("red").vector.shape == (16,)


@pytest.mark.parametrize("text", ["שלום עולם", "👩‍👩‍👧‍👦", "x" * 40_000, "red " * 10_000, "é", "e\u0301"])
def test_strange_but_honest_texts_are_answered(built, text):
    with open_bundle(built) as model:
        assert np.isfinite(model.predict(text).vector).all()


def test_a_long_text_is_cut_or_refused_as_the_contract_says(drafted):
    text = "red green one two " * 4
    said = (drafted / "mini.contract.toml").read_text()
    kept = {}
    for way in ("right", "left", "refuse"):
        (drafted / "cut.toml").write_text(said + f'truncation = "{way}"\n')
        kept[way] = TextInput(describe(load(drafted / "mini.onnx"), drafted / "cut.toml"))
    words = [worded.WORDS.index(word) for word in text.split()]
    assert kept["right"](text)["input_ids"].tolist() == [2, *words[: LENGTH - 2], 3]
    assert kept["left"](text)["input_ids"].tolist() == [2, *words[2 - LENGTH :], 3]
    with pytest.raises(InputError, match="16 tokens, more than 10"):
        kept["refuse"](text)
    short = kept["right"]("red")
    assert short["input_ids"].tolist() == [2, worded.WORDS.index("red"), 3, *[0] * (LENGTH - 3)]
    assert short["attention_mask"].tolist() == [1, 1, 1, *[0] * (LENGTH - 3)]


def test_a_tokenizer_that_does_not_fit_the_model_is_refused_at_build(drafted, tmp_path, edgekit):
    for name in ("mini.onnx", "mini.contract.toml", "lines.txt"):
        shutil.copy(drafted / name, tmp_path)
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "tokenizer.json").write_text(worded.tokenizer_json([*worded.WORDS, "zeppelin"]))
    ran = edgekit("build", "mini.onnx", "--profile", "host-cpu", "--calibration", "lines.txt", "--json")
    assert ran.code == 1
    error = json.loads(ran.out)["error"]
    assert "the tokenizer has 19 tokens, and the model has no row for the last one, 'zeppelin'" in error["what"]


@pytest.mark.parametrize(("data", "why"), [(b"{", "not a tokenizer.json"), (b"{}", "not a tokenizer.json")])
def test_a_broken_tokenizer_is_refused(drafted, tmp_path, data, why):
    (tmp_path / "tokenizer.json").write_bytes(data)
    (tmp_path / "c.toml").write_text('task = "embedding"\n[text]\ntokenizer = "tokenizer.json"\n')
    with pytest.raises(ContractFileError, match=why):
        describe(load(drafted / "mini.onnx"), tmp_path / "c.toml")


def test_lines_with_labels_are_an_evaluation_set(drafted, tmp_path):
    folder = worded.write_folder(tmp_path / "mood", classes=2, labels=["bad", "good"])
    found = read_transformer(folder, 8)
    (tmp_path / "mood.onnx").write_bytes(found.onnx)
    said = 'task = "classification"\nlabels = ["bad", "good"]\n[text]\ntokenizer = "mood/tokenizer.json"\n'
    (tmp_path / "mood.contract.toml").write_text(said)
    contract = describe(load(tmp_path / "mood.onnx"), tmp_path / "mood.contract.toml")
    (tmp_path / "set.tsv").write_bytes(b"\xef\xbb\xbfred one\tgood\r\n\r\ngreen\t0\nno tab\n\xff\tgood\n")
    dataset = open_dataset(tmp_path / "set.tsv", contract)
    assert len(dataset) == 4
    first, second = dataset.pick([0, 1])
    assert (first.label, second.label, first.text) == (1, 0, "red one")
    for index, why in ((2, "has no tab"), (3, "not UTF-8")):
        with pytest.raises(CalibrationError, match=why):
            list(dataset.pick([index]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda f: (f / "model.safetensors").unlink(), "neither model.onnx nor model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 100), "damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
        (
            lambda f: (f / "config.json").write_text('{"max_position_embeddings": 32, "model_type": "t5"}'),
            "only a BERT",
        ),
    ],
)
def test_a_folder_that_cannot_be_read_says_why(tmp_path, change, why):
    folder = worded.write_folder(tmp_path / "mini")
    change(folder)
    with pytest.raises(SourceError, match=why):
        read_transformer(folder, 8)


def test_weights_that_contradict_the_config_are_refused(tmp_path):
    with pytest.raises(
        SourceError, match=r"'embeddings.word_embeddings.weight' is \[18, 16\]; config.json says \[99, 16\]"
    ):
        read_transformer(worded.write_folder(tmp_path / "mini", vocab_size=99), 8)


def test_an_older_reader_refuses_the_bundle_by_name(built, monkeypatch):
    monkeypatch.setattr(manifest_module, "FEATURES", frozenset({"encrypted-blobs"}))
    with pytest.raises(BundleError, match="features that this reader lacks: text-input") as refused:
        read_bundle(built)
    assert refused.value.code == "bundle-newer"


def test_without_the_package_arrays_are_answered_and_texts_name_the_extra(built, monkeypatch):
    row = np.array([2, 5, 3, *[0] * (LENGTH - 3)])
    tokens = {"input_ids": row, "attention_mask": np.minimum(row, 1), "token_type_ids": 0 * row}
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(text_module, "_parsed", {})
    with open_bundle(built) as model:
        assert model.predict(tokens).vector.shape == (16,)
        with pytest.raises(MissingExtraError, match="'text' extra"):
            model.predict("red")


def test_a_tokenizers_package_that_reads_texts_otherwise_is_noticed(built, monkeypatch):
    real = TextInput.__call__

    def other(self, value):
        items = real(self, value)
        return {**items, "input_ids": items["input_ids"] + (items["input_ids"] > 3)}

    monkeypatch.setattr(TextInput, "__call__", other)
    with pytest.raises(SelfTestError, match="makes other tokens of its text"):
        open_bundle(built)


def test_the_command_answers_lines_and_texts(built, tmp_path, edgekit):
    (tmp_path / "q.txt").write_bytes(b"red one\n\ngreen\n\xff\n")
    ran = edgekit("run", built, "q.txt", "--text", "where is the depot", "--text", "", "--json")
    answers = json.loads(ran.out)["answers"]
    assert [one["input"] for one in answers][:3] == ["q.txt, line 1", "q.txt, line 3", "q.txt, line 4"]
    assert [("vector" in one, one.get("error", {}).get("code")) for one in answers] == [
        (True, None), (True, None), (False, "input"), (True, None), (False, "input"),
    ]  # fmt: skip
    assert ran.code == 1
    for made, there in ((2, 0), (0, 2)):
        filled = json.loads(edgekit("run", built, "q.txt", "--fill-cache", "answers.db", "--json").out)
        assert (filled["made"], filled["there"], len(filled["unreadable"])) == (made, there, 1)
    with open_bundle(built, cache=CacheOptions(disk=tmp_path / "answers.db")) as model:
        assert model.predict("red one").source == "cache"
    shown = edgekit("inspect", built).out
    assert "12 tokens, longer texts are cut on the right, mean pooling" in shown


def test_plain_files_come_with_the_tokenizer(built, drafted, tmp_path, edgekit):
    assert edgekit("export", built, "-o", "plain").code == 0
    exported, original = (folder / "tokenizer.json" for folder in (tmp_path / "plain", drafted / "mini"))
    assert json.loads(exported.read_text()) == json.loads(original.read_text())


def test_texts_that_are_not_there_are_an_error_with_advice(built, edgekit):
    ran = edgekit("run", built, "absent.txt")
    assert "absent.txt: cannot be read: No such file or directory. Check the path and its permissions" in ran.err


@pytest.mark.parametrize("more", [(), ("--fill-cache", "answers.db")])
@pytest.mark.parametrize("name", ["notes.md", "red.png", "absent.md"])
def test_the_name_of_a_file_is_not_taken_for_a_text(name, more, built, tmp_path, edgekit):
    if name != "absent.md":
        (tmp_path / name).write_bytes(b"red one")
    ran = edgekit("run", built, name, *more)
    assert ran.code == 1
    assert f"{name}: the model takes texts, and this is not a .txt file" in ran.err
    assert "vector" not in ran.out
    assert edgekit("run", built, "--text", name).code == 0


def test_a_semantic_cache_gets_the_text_itself(built):
    seen = []

    def embed(text):
        seen.append(text)
        return np.array([1.0, len(text)])

    with open_bundle(built, cache=CacheOptions(semantic=Semantic(embed, 0.01))) as model:
        assert model.predict("red one").source == "device"
        assert model.predict("two red").source == "similar"
        assert seen == ["red one", "two red"]
