"""`[state]` in a contract file: what is carried, what it begins with, how frames follow each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from linear import linear

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.recipe.conversion_errors import ContractFileError
from edgekit_runtime.contract.spec import CarriedState, TensorSpec


def spec(name, *shape, dtype="float32"):
    return TensorSpec(name, name, dtype, (1, *shape))


RECURRENT = replace(
    linear(),
    inputs=(spec("x", 3), spec("h0", 2, 2)),
    outputs=(spec("hn", 2, 2), spec("y", 4), spec("gate", 2, 2), spec("count", 2, 2, dtype="int64")),
    state="explicit",
    state_pairs=(("h0", "hn"),),
)
INSIDE = replace(linear(), state="internal")


def written(folder, text):
    file = folder / "model.contract.toml"
    file.write_text(text)
    return file


def test_without_a_file_the_model_tells():
    contract = describe(RECURRENT, None)
    assert (contract.state, contract.carried) == ("explicit", (CarriedState("h0", "hn"),))
    assert [out.name for out in contract.caller_outputs] == ["y", "gate", "count"]
    assert describe(INSIDE, None).state == "internal"
    assert describe(linear(), None).carried is None


def test_the_state_is_no_output_when_the_task_is_guessed():
    two = replace(RECURRENT, outputs=RECURRENT.outputs[:2])
    assert describe(two, None).task == "classification"


def test_a_file_names_pairs_beginnings_and_the_hop(tmp_path):
    text = '[state]\ncarried = { h0 = "gate" }\ninitial = { h0 = [1, 2, 3, 4] }\nhop = 160\n'
    contract = describe(RECURRENT, written(tmp_path, text))
    assert contract.carried == (CarriedState("h0", "gate", (1.0, 2.0, 3.0, 4.0)),)
    assert contract.hop == 160
    one = describe(RECURRENT, written(tmp_path, "[state]\ninitial = { h0 = 0.5 }\n"))
    assert one.carried == (CarriedState("h0", "hn", (0.5,)),)


def test_a_file_may_say_that_nothing_is_carried(tmp_path):
    contract = describe(RECURRENT, written(tmp_path, "[state]\ncarried = {}\n"))
    assert (contract.state, contract.carried) == ("none", None)


def test_a_state_inside_may_have_a_hop(tmp_path):
    assert describe(INSIDE, written(tmp_path, "[state]\nhop = 10\n")).hop == 10


@pytest.mark.parametrize(
    ("source", "text", "why"),
    [
        (RECURRENT, '[state]\ncarried = { h1 = "hn" }', "the model has no input 'h1'"),
        (RECURRENT, '[state]\ncarried = { h0 = "hm" }', "the model has no output 'hm'"),
        (RECURRENT, '[state]\ncarried = { h0 = "y" }', r"'h0' is float32 \[2, 2\] and 'y' is float32 \[4\]"),
        (RECURRENT, '[state]\ncarried = { h0 = "count" }', "'count' is int64"),
        (RECURRENT, "[state]\ninitial = { h0 = [1, 2] }", "has 2 values, and the state has 4"),
        (RECURRENT, '[state]\ninitial = { h0 = "zero" }', "zero is not a finite number"),
        (RECURRENT, "[state]\ninitial = { x = 0 }", "is not a key of the format"),
        (RECURRENT, "[state]\nhop = 0", "is 0, and must be above zero"),
        (RECURRENT, "[state]\nhop = 1.5", "hop: is a number, not a whole number"),
        (RECURRENT, "[state]\nhopp = 1", "Did you mean 'hop'"),
        (RECURRENT, "state = 3", "is a whole number, not a table"),
        (linear(), "[state]\nhop = 10", "has no meaning for a model without state"),
        (INSIDE, "[state]\ninitial = { x = 0 }", "keeps its state inside"),
    ],
)
def test_what_does_not_fit_is_refused_with_file_and_key(tmp_path, source, text, why):
    with pytest.raises(ContractFileError, match=why):
        describe(source, written(tmp_path, text))
