"""Where the device would begin too late, a server generates: llama.cpp's own, and scripted ones that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import alphabet
import llama_server
import pytest
from ports import closed_port
from refusing import has_code
from scripted import Scripted, http

from edgekit_runtime import BudgetExceeded, Host, OptionError, open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.errors import HostError

pytestmark = pytest.mark.skipif("llama.cpp" not in available(), reason="xllamacpp is not installed: make test-llm")
LONG = 30.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
BUDGET_MS = 20_000.0
"""A server has it, the device that was made slow has not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("alphabet")


@pytest.fixture(scope="module")
def bundle(folder):
    return alphabet.bundle(folder, chat=True)


@pytest.fixture(scope="module")
def real(folder):
    with llama_server.serving(alphabet.model_file(folder, chat=True)) as url:
        yield url


def event(text="", finish=None):
    value = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    return f"data: {json.dumps(value)}\n\n".encode()


END = event(finish="stop") + b"data: [DONE]\n\n"


def opened(bundle, *urls):
    """A model whose device is slow, and whose hosts were tried."""
    model = open_bundle(bundle, hosts=[Host(url, protocol="openai") for url in urls])
    model.throttle(3_600_000)
    deadline = time.monotonic() + LONG
    while any(not (one["proven"] or one["last_error"]) for one in model.describe()["hosts"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return model


def server(*parts, then=lambda asked: None):
    """Is proven by one token, and answers what follows with these parts; then: called before its connection ends."""

    def answer(asked, connection):
        if asked.line.startswith("GET"):
            return http(200, {"data": [{"id": "big"}]})
        proving = asked.json["max_tokens"] == 1
        for part in (HEAD, event("x"), END) if proving else parts:
            connection.sendall(part)
        if not proving:
            then(asked)
        return None

    return Scripted(answer)


def test_a_server_answers_where_the_device_would_begin_too_late(bundle, real):
    with opened(bundle, real) as model:
        answer = model.generate("abc", max_tokens=5, budget_ms=BUDGET_MS)
        assert answer.read() == "defgh"
        assert (answer.source, answer.met_budget, answer.finish) == ("host", True, "length")
        assert answer.tokens == 5
        assert model.stats().meter.answers == {"host": 1}
        model.throttle(0)
        local = model.generate("abc", max_tokens=5)
        assert local.read() == "defgh"
        assert local.source == "device"


def test_the_device_answers_where_it_is_fast_enough(bundle, real):
    with open_bundle(bundle, hosts=[Host(real, protocol="openai")]) as model:
        answer = model.generate("abc", max_tokens=5, budget_ms=600_000)
        answer.read()
        assert answer.source == "device"


def test_many_devices_share_the_batches_of_one_server(bundle, real):
    """All are answered rightly, and each one's pieces come between the others'."""
    models = [opened(bundle, real) for _ in range(4)]
    order, lock, gate = [], threading.Lock(), threading.Barrier(4)
    said = {}

    def ask(number, model):
        answer = model.generate("abcd"[number], max_tokens=120, budget_ms=BUDGET_MS)
        gate.wait(LONG)
        for _ in answer:
            with lock:
                order.append(number)
        said[number] = answer.text, answer.source

    threads = [threading.Thread(target=ask, args=one) for one in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    for model in models:
        model.close()
    assert said == {n: (alphabet.continued("abcd"[n], 120), "host") for n in range(4)}
    spans = [(order.index(n), len(order) - order[::-1].index(n)) for n in range(4)]
    assert max(first for first, _ in spans) < min(last for _, last in spans)


def test_a_dialogue_goes_to_a_server_and_back(bundle, real):
    with opened(bundle, real) as model:
        dialogue = model.dialogue()
        assert dialogue.say("abc", max_tokens=3, budget_ms=BUDGET_MS).read() == "def"
        model.throttle(0)
        turn = dialogue.say("x", max_tokens=2)
        assert (turn.read(), turn.source) == ("yz", "device")


def test_a_stream_that_is_cut_is_told_and_what_came_is_kept(bundle):
    with server(HEAD, event("de"), event("fg")) as host, opened(bundle, host.url) as model:
        answer = model.generate("abc", budget_ms=BUDGET_MS)
        with pytest.raises(HostError, check=has_code("host-cut")):
            answer.read()
        assert (answer.text, answer.finish) == ("defg", "error")
        assert model.stats().meter.errors == {"host-cut": 1}


def test_a_stream_that_is_cut_goes_on_at_home_if_wanted(bundle):
    parts = HEAD, event("de"), event("fg")

    def then_fast(asked):
        model.throttle(0)

    with server(*parts, then=then_fast) as host, opened(bundle, host.url) as model:
        answer = model.generate("abc", max_tokens=6, budget_ms=BUDGET_MS, resume=True)
        assert answer.read() == "defghijk"  # two pieces of the server count as two tokens
        assert (answer.source, answer.finish) == ("device", "length")
        assert "ended before the answer did" in answer.cut


def test_a_server_that_fails_before_its_first_token_makes_way(bundle, real):
    with server(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") as host, opened(bundle, host.url, real) as model:
        for _ in range(4):
            answer = model.generate("abc", max_tokens=3, budget_ms=BUDGET_MS)
            assert (answer.read(), answer.source) == ("def", "host")


def test_without_a_server_in_time_the_request_is_refused(bundle):
    with server(HEAD, event("a")[:10]) as host, opened(bundle, host.url) as model:
        with pytest.raises(BudgetExceeded) as refused:
            model.generate("abc", budget_ms=BUDGET_MS).read()
        assert isinstance(refused.value.__cause__, HostError)


def test_a_server_that_is_away_leaves_the_device(bundle):
    with closed_port() as port, opened(bundle, f"http://127.0.0.1:{port}") as model:
        with pytest.raises(BudgetExceeded, match="first token"):
            model.generate("abc", budget_ms=BUDGET_MS)
        model.throttle(0)
        assert model.generate("abc", max_tokens=3).read() == "def"


def test_a_stop_string_across_two_events_of_a_server(bundle):
    with server(HEAD, event("de#"), event("## no"), END) as host, opened(bundle, host.url) as model:
        answer = model.generate("abc", budget_ms=BUDGET_MS, stop="###")
        assert (answer.read(), answer.finish) == ("de", "stop")


def test_leaving_the_loop_ends_the_servers_work(bundle):
    ended = threading.Event()

    def answer(asked, connection):
        if asked.line.startswith("GET"):
            return http(200, {"data": [{"id": "big"}]})
        connection.sendall(HEAD + event("a") + (END if asked.json["max_tokens"] == 1 else b""))
        if asked.json["max_tokens"] > 1 and connection.recv(1) == b"":
            ended.set()
        return None

    with Scripted(answer) as host, opened(bundle, host.url) as model:
        for _ in model.generate("abc", budget_ms=BUDGET_MS):
            break
        assert ended.wait(LONG)


def test_hosts_of_tensors_and_of_text_are_not_mixed_up(bundle, tmp_path):
    with pytest.raises(OptionError, match="openai"):
        open_bundle(bundle, hosts=["http://gpu-box:8000"])
    import tiny

    with pytest.raises(OptionError, match="oip"):
        open_bundle(tiny.bundle(tmp_path), hosts=[Host("http://gpu-box:8000", protocol="openai")])


def chatted(lines, bundle, *options):
    command = [sys.executable, str(Path(__file__).parents[3] / "examples" / "chat.py"), str(bundle), *options]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_the_example_streams_from_the_device(bundle):
    said, _ = chatted("abc\n\nx\n", bundle, "--max-tokens", "4")
    assert [said[0], said[2]] == ["defg", "yz a"]
    assert said[1].startswith("  [device, first token after ")


def test_the_example_streams_from_a_server_under_a_budget_that_the_device_cannot_keep(bundle, real):
    options = "--max-tokens", "4", "--server", real, "--budget-ms", str(BUDGET_MS), "--drill-ms", "3600000"
    said, errors = chatted("abc\nx\n", bundle, *options)
    assert [said[0], said[2]] == ["defg", "yz a"], errors
    assert said[1].startswith("  [host, first token after ")
