"""`model.generate` on llama.cpp itself, with a model of 130 kB whose answers are known."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
from dataclasses import replace

import alphabet
import numpy as np
import pytest
from refusing import has_code

from edgekit.packaging.writer import BundleDraft, write_bundle
from edgekit_runtime import ModelLimits, OptionError, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import (
    BudgetExceeded,
    ClosedError,
    ContractError,
    EngineError,
    EngineHung,
    InputError,
    SelfTestError,
    SessionError,
)

pytestmark = pytest.mark.skipif("llama.cpp" not in available(), reason="xllamacpp is not installed: make test-llm")
LONG = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("alphabet")


@pytest.fixture(scope="module")
def bundle(folder):
    return alphabet.bundle(folder)


@pytest.fixture(scope="module")
def model(bundle):
    with open_bundle(bundle) as opened:
        yield opened


@pytest.fixture(scope="module")
def chat(folder):
    with open_bundle(alphabet.bundle(folder, chat=True)) as opened:
        yield opened


def test_a_text_is_continued_piece_by_piece(model):
    answer = model.generate("abc", max_tokens=10)
    pieces = list(answer)
    assert len(pieces) == 10
    assert "".join(pieces) == answer.text == alphabet.continued("abc", 10) == "defghijklm"
    assert (answer.finish, answer.source, answer.tokens, answer.met_budget) == ("length", "device", 10, None)
    assert answer.first_ms > 0
    assert answer.tokens_per_s > 0


def test_the_model_itself_ends_an_answer(model):
    answer = model.generate("abc!", max_tokens=10)
    assert answer.read() == ""
    assert answer.finish == "stop"


def test_the_same_answer_for_asyncio(model):
    async def two():
        one, other = model.generate("abc", max_tokens=5), model.generate("xyz", max_tokens=5)
        return await asyncio.gather(one.aread(), other.aread())

    assert asyncio.run(two()) == ["defgh", " abcd"]


def test_leaving_the_loop_ends_the_work(model):
    answer = model.generate("abc", max_tokens=400)
    for piece in answer:
        assert piece == "d"
        break
    assert answer.finish == "cancelled"
    assert model.generate("abc", max_tokens=3).read() == "def"
    assert model.stats().generation.active == 0


def test_an_answer_is_ended_from_another_thread(model):
    answer, begun = model.generate("abc", max_tokens=450), threading.Event()

    def read():
        for _ in answer:
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(LONG)
    answer.close()
    reader.join(LONG)
    assert not reader.is_alive()
    assert answer.finish in ("cancelled", "length")


def test_a_cancelled_task_ends_the_work(model):
    async def cancel():
        answer = model.generate("abc", max_tokens=400)

        async def read():
            async for _ in answer:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return answer

    assert asyncio.run(cancel()).finish == "cancelled"
    assert model.generate("abc", max_tokens=3).read() == "def"


def test_stop_strings_end_the_answer_and_are_no_part_of_it(model):
    answer = model.generate("abc", max_tokens=30, stop=["xx", "hij", "mno"])
    assert answer.read() == "defg"
    assert answer.finish == "stop"


def test_a_prompt_that_shares_a_beginning_uses_what_is_there(model):
    beginning = "the quick brown fox jumps over the lazy dog " * 4
    model.generate(beginning, max_tokens=1).read()
    answer = model.generate(beginning + "abc", max_tokens=3)
    assert answer.read() == "def"
    assert answer.reused >= len(beginning) - 1


def test_many_answers_at_once_are_each_ones_own(model):
    starts = list("abcdefghijkl")
    answers = {}

    def ask(start):
        answers[start] = model.generate(start, max_tokens=20).read()

    threads = [threading.Thread(target=ask, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert answers == {start: alphabet.continued(start, 20) for start in starts}


NO_PROMPTS = [
    ("", "empty"),
    ("   \n", "empty"),
    ("a\0b", "NUL"),
    (b"\xff\xfeab", "UTF-8"),
    ("\ud800", "surrogate"),
    ("a" * 1_000_000, "characters"),
    (7, "neither"),
    ([], "neither"),
    ([{"role": "user", "content": "a"}], "no messages"),
]


@pytest.mark.parametrize(("prompt", "words"), NO_PROMPTS)
def test_what_is_no_prompt_is_refused_at_the_call(model, prompt, words):
    with pytest.raises(InputError, match=words):
        model.generate(prompt)


NO_MESSAGES = [{"role": "robot", "content": "a"}, {"role": "user"}, "abc", {"role": "user", "content": 7}]


@pytest.mark.parametrize("message", NO_MESSAGES)
def test_what_is_no_message_is_refused(chat, message):
    with pytest.raises(InputError, match="message 0"):
        chat.generate([message])


UNUSUAL = ["\u05e9\u05dc\u05d5\u05dd", "\U0001f468\u200d\U0001f469\u200d\U0001f467 a", "e\u0301 a"]


@pytest.mark.parametrize("prompt", UNUSUAL)
def test_right_to_left_and_joined_signs_are_answered(model, prompt):
    assert len(model.generate(prompt, max_tokens=4).read()) >= 3


def test_a_word_of_ten_thousand_tokens_does_not_fit_and_is_told(model):
    with pytest.raises(InputError, match=r"1000\d tokens", check=has_code("context-full")):
        model.generate("a" * 10_000).read()
    assert model.generate("abc", max_tokens=3).read() == "def"


NO_OPTIONS = [
    *({"max_tokens": count} for count in (0, 1.5, 10**9)),
    *({"stop": stop} for stop in ("", ["a"] * 17, [7], 7)),
    *({"temperature": value} for value in (-1, "warm")),
    {"seed": -1},
]


@pytest.mark.parametrize("options", NO_OPTIONS)
def test_options_that_make_no_sense_are_named(model, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        model.generate("abc", **options)


def test_a_full_cache_ends_an_answer(bundle):
    with open_bundle(bundle, limits=ModelLimits(kv_mb=0.04)) as small:
        context = small.stats().generation.context
        answer = small.generate("abc", max_tokens=5000)
        answer.read()
        assert answer.finish == "length"
        assert answer.tokens <= context
        assert small.stats().generation.kv_mb <= 0.04


def test_a_cache_that_holds_nothing_is_refused(folder, bundle):
    with pytest.raises(EngineError, match="kv_mb"):
        open_bundle(bundle, limits=ModelLimits(kv_mb=0.02))


def test_who_asks_for_less_time_than_a_piece_takes_is_refused_at_once(bundle):
    with open_bundle(bundle) as fresh:
        with pytest.raises(BudgetExceeded, match="first token"):
            fresh.generate("abc" * 100, budget_ms=0.001)
        stats = fresh.stats()
        assert (stats.meter.refused, stats.meter.errors) == (1, {"budget": 1})


def test_answers_are_counted_with_the_time_to_their_first_token(bundle):
    with open_bundle(bundle) as fresh:
        answer = fresh.generate("abc", max_tokens=10, budget_ms=60_000)
        answer.read()
        stats = fresh.stats()
        assert answer.met_budget
        assert (stats.meter.answers, stats.meter.met) == ({"device": 1}, 1)
        assert stats.generation.tokens == 10
        assert stats.meter.stages_ms["token"].p50 == pytest.approx(1000 / answer.tokens_per_s, rel=0.05)
        assert stats.meter.device_ms.maximum == pytest.approx(answer.first_ms, rel=0.05)


def test_a_dialogue_keeps_what_was_said(chat):
    with chat.dialogue() as dialogue:
        assert dialogue.say("abc", max_tokens=3).read() == "def"
        assert dialogue.say("x", max_tokens=2).read() == "yz"
        assert [one["content"] for one in dialogue.messages] == ["abc", "def", "x", "yz"]
        assert dialogue.say("a", max_tokens=1).read() == "b"


def test_a_dialogue_that_is_longer_than_the_cache_forgets_its_beginning(folder):
    with open_bundle(alphabet.bundle(folder, chat=True), limits=ModelLimits(kv_mb=0.04)) as small:
        dialogue = small.dialogue(system="abc")
        for _ in range(6):
            assert dialogue.say("a" * 60, max_tokens=3).read() == "bcd"
        assert dialogue.forgotten > 0
        assert dialogue.messages[0] == {"role": "system", "content": "abc"}
        with pytest.raises(InputError, check=has_code("context-full")):
            dialogue.say("a" * 300).read()
        assert dialogue.say("a", max_tokens=1).read() == "b"


def test_a_dialogue_has_one_answer_at_a_time(chat):
    dialogue = chat.dialogue()
    turn = dialogue.say("abc", max_tokens=3)
    with pytest.raises(SessionError, match="still open"):
        dialogue.say("x")
    turn.close()
    assert dialogue.say("x", max_tokens=1).read() == "y"


def test_a_model_without_a_template_has_no_dialogue(model):
    with pytest.raises(ContractError, match="messages"):
        model.dialogue()


def test_a_process_that_dies_fails_its_answers_and_the_next_one_starts_it_again(bundle):
    with open_bundle(bundle) as fresh:
        pid = fresh._journey.generator._engine.host.pid
        answer = iter(fresh.generate("abc", max_tokens=450))
        next(answer)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            list(answer)
        assert fresh.generate("abc", max_tokens=3).read() == "def"
        assert fresh.stats().engine_restarts == 1


def test_a_process_that_was_stopped_blocks_no_caller_and_is_replaced(bundle, monkeypatch):
    with open_bundle(bundle) as fresh:
        monkeypatch.setattr("edgekit_runtime.engines.llamacpp.SILENCE_S", 1.0)
        engine = fresh._journey.generator._engine
        os.kill(engine.host.pid, signal.SIGSTOP)
        streams = [engine.stream("text", {"prompt": "a" * 100_000}) for _ in range(3)]  # more than the pipe holds
        streams[1].cancel()
        with pytest.raises(EngineHung, match="said nothing"):
            list(streams[0])
        with pytest.raises(EngineError, match="SIGKILL"):
            list(streams[2])
        assert fresh.generate("abc", max_tokens=3).read() == "def"
        os.kill(engine.host.pid, signal.SIGSTOP)
        engine.stream("text", {"prompt": "a" * 100_000})  # and closing does not wait for it


def test_closing_ends_the_process_and_open_answers(bundle):
    fresh = open_bundle(bundle)
    process = fresh._journey.generator._engine.host
    child, answer = process._child.process, iter(fresh.generate("abc", max_tokens=450))
    next(answer)
    fresh.close(timeout_s=0.0)
    assert child.poll() is not None
    assert len("".join(answer)) < 450
    with pytest.raises(ClosedError):
        fresh.generate("abc")


def test_swapping_lets_open_answers_end(folder, bundle):
    with open_bundle(bundle) as fresh:
        answer = iter(fresh.generate("abc", max_tokens=100))
        next(answer)
        reader = threading.Thread(target=lambda: said.extend(answer))
        said = []
        reader.start()
        fresh.swap(bundle)
        reader.join(LONG)
        assert "d" + "".join(said) == alphabet.continued("abc", 100)
        assert fresh.generate("abc", max_tokens=3).read() == "def"


def test_golden_tokens_are_compared_when_a_bundle_is_opened(tmp_path, bundle):
    """The same bundle, of which one golden token is another."""
    opened = read_bundle(bundle)
    manifest, draft = opened.manifest, BundleDraft()
    entry = replace(manifest.artifacts[0], blob=draft.add(opened.blob(manifest.artifacts[0].blob)))
    goldens = []
    for golden in manifest.golden:
        (answer,) = golden.answers
        tokens = np.frombuffer(opened.blob(answer.outputs["tokens"]), np.int32).copy()
        tokens[0] += 1
        changed = replace(answer, outputs={"tokens": draft.add(tokens.tobytes())})
        inputs = {name: draft.add(opened.blob(blob)) for name, blob in golden.inputs.items()}
        goldens.append(replace(golden, inputs=inputs, answers=(changed,)))
    wrong = tmp_path / "wrong.ekb"
    write_bundle(wrong, draft, replace(manifest, artifacts=(entry,), golden=tuple(goldens)))
    with pytest.raises(SelfTestError, match="golden example"):
        open_bundle(wrong)


def test_an_encrypted_model_answers(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    path = alphabet.bundle(tmp_path, encrypt=f"file:{secret}")
    assert b"tokenizer.ggml" not in path.read_bytes()
    with open_bundle(path, secret=f"file:{secret}") as sealed:
        assert sealed.generate("abc", max_tokens=3).read() == "def"


def test_a_tensors_model_generates_nothing_and_says_what_to_do(tmp_path):
    import tiny

    with open_bundle(tiny.bundle(tmp_path)) as net, pytest.raises(ContractError, match="predict"):
        net.generate("abc")


def test_the_bundle_needs_a_reader_that_generates(bundle):
    manifest = read_bundle(bundle).manifest
    assert manifest.requires == ("text-generation",)
    assert manifest.contract.generation.context == alphabet.CONTEXT
    assert manifest.artifacts[0].recipe == "gguf-f32"


def test_the_memory_of_a_model_is_that_of_its_process(model):
    assert model._journey.opened.prepared.ready.memory_mb == pytest.approx(
        model._journey.generator._engine.host.resident_mb, rel=0.5
    )


def test_inspect_says_how_to_ask_and_no_tensor_or_setting(bundle):
    from click.testing import CliRunner

    from edgekit.cli.main import cli

    shown = CliRunner().invoke(cli, ["inspect", str(bundle)]).stdout
    assert "model.generate()" in shown
    assert "uint8 [257]" not in shown
    assert "settings" not in shown


def test_run_counts_a_prompt_that_is_refused_once(bundle, tmp_path):
    from click.testing import CliRunner

    from edgekit.cli.main import cli

    done = CliRunner().invoke(cli, ["run", str(bundle), "--text", "abc", "--text", " ", "--max-tokens", "3"])
    assert done.stdout.splitlines()[0] == "def"
    assert "1 of 2 inputs got no answer" in done.stderr
