"""The stream of an OpenAI-compatible server, over real sockets: good, cut, endless, or rubbish."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest
from ports import closed_port
from refusing import has_code
from scripted import Scripted, http

from edgekit_runtime import Host, OptionError
from edgekit_runtime.contract.spec import GenerationSpec
from edgekit_runtime.remote import openai
from edgekit_runtime.remote.chunks import Chunk, StopStrings, read_chunk
from edgekit_runtime.remote.client import HostAnswer
from edgekit_runtime.remote.hosts import TEXT_PROBE_S, Hosts
from edgekit_runtime.remote.openai import OpenAiModel
from edgekit_runtime.system.errors import HostError, WireError

LONG = 20.0
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
MANIFEST = SimpleNamespace(name="net", contract=SimpleNamespace(generation=GenerationSpec(512, chat=True)))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text="", finish=None, **more):
    value = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}
    return f"data: {json.dumps(value)}\n\n".encode()


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


END = event(finish="stop") + b"data: [DONE]\n\n"


def server(*parts, models=("big",)):
    """Answers completions with these bytes, each sent by itself."""

    def answer(asked, connection):
        if asked.line.startswith("GET"):
            return http(200, {"object": "list", "data": [{"id": name} for name in models]})
        for part in parts:
            connection.sendall(part() if callable(part) else part)
        return None

    return Scripted(answer)


def model_of(url, **options):
    return OpenAiModel(Host(url, protocol="openai", **options), MANIFEST, None)


def said(url, timeout_s=LONG, **options):
    model = model_of(url, **options)
    try:
        stream, _ = model.open("chat", BODY, timeout_s)
        return "".join(one.text for one in stream)
    finally:
        model.close()


def test_pieces_come_as_they_are_sent_with_their_counts():
    usage = {"usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 7}}, "choices": []}
    last = f"data: {json.dumps(usage)}\n\n".encode() + b"data: [DONE]\n\n"
    with server(HEAD, event("Hel"), event("lo"), event(finish="stop"), last) as host:
        model = model_of(host.url)
        stream, answer = model.open("chat", BODY, LONG)
        chunks = list(stream)
        model.close()
    assert [one.text for one in chunks] == ["Hel", "lo", "", ""]
    assert chunks[2].finish == "stop"
    assert (chunks[3].tokens, chunks[3].reused) == (2, 7)
    assert answer.total_ms > 0
    sent = host.asked[-1].json
    assert (sent["model"], sent["stream"], sent["max_tokens"]) == ("big", True, 8)


def test_the_models_name_and_a_path_in_front_are_the_callers():
    with server(HEAD, event("a"), END) as host:
        assert said(f"{host.url}/v1", model="small") == "a"
    assert host.asked[-1].line == "POST /v1/chat/completions HTTP/1.1"
    assert host.asked[-1].json["model"] == "small"


def test_events_may_be_cut_anywhere_between_packets_and_have_other_lines():
    whole = b": a comment\r\nevent: message\r\n" + event("a").replace(b"\n", b"\r\n") + b"data:" + event("b")[6:] + END
    with server(CHUNKED, *[chunk(whole[at : at + 1]) for at in range(len(whole))], b"0\r\n\r\n") as host:
        assert said(host.url) == "ab"


def test_a_connection_is_kept_after_an_answer_that_was_read_to_its_end():
    with server(CHUNKED + chunk(event("a") + END) + b"0\r\n\r\n") as host:
        model = model_of(host.url, model="m")
        for _ in range(2):
            stream, _ = model.open("chat", BODY, LONG)
            assert "".join(one.text for one in stream) == "a"
        model.close()


def test_a_token_travels_and_never_unencrypted_to_another_machine(monkeypatch):
    monkeypatch.setenv("LLM_TOKEN", "sesame")
    with server(HEAD, event("a"), END) as host:
        assert said(host.url, token="env:LLM_TOKEN") == "a"
    assert host.asked[-1].headers["authorization"] == "Bearer sesame"
    with pytest.raises(HostError, check=has_code("host-secret")):
        model_of("http://gpu-box:8000", token="env:LLM_TOKEN")


CUT = {
    "at once": [HEAD],
    "between two events": [HEAD, event("a")],
    "inside an event": [HEAD, event("a"), event("b")[:20]],
    "inside a chunk": [CHUNKED, chunk(event("a")), b"ff\r\ndata: "],
    "done without a reason": [HEAD, event("a"), b"data: [DONE]\n\n"],
}


@pytest.mark.parametrize("case", CUT)
def test_a_stream_that_ends_early_is_told_as_cut(case):
    with server(*CUT[case]) as host, pytest.raises(HostError, check=has_code("host-cut")):
        said(host.url)


RUBBISH = {
    "no HTTP": [b"hello\r\n\r\n"],
    "no event": [HEAD, b"<html>no</html>\n\n"],
    "no JSON": [HEAD, b"data: {\n\n"],
    "a list": [HEAD, b"data: []\n\n"],
    "deep": [HEAD, b"data: " + b"[" * 100_000 + b"\n\n"],
    "choices of another kind": [HEAD, b'data: {"choices": [7]}\n\n'],
    "text of another kind": [HEAD, b'data: {"choices": [{"delta": {"content": 7}}]}\n\n'],
    "no UTF-8": [HEAD, b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'],
    "an error": [HEAD, event("a"), b'data: {"error": {"message": "out of memory"}}\n\n'],
    "a line without end": [HEAD, b"data: ", b"a" * ((1 << 20) + 1)],
    "an event without end": [HEAD, *[b"data: " + b"a" * 9000 + b"\n"] * 200],
}


@pytest.mark.parametrize("case", RUBBISH)
def test_rubbish_is_refused_with_its_kind(case):
    with server(*RUBBISH[case]) as host, pytest.raises(HostError, check=has_code("host-protocol")):
        said(host.url)


def test_a_server_that_streams_for_ever_is_left_after_max_tokens():
    with server(HEAD, *[event("a")] * 1000) as host, pytest.raises(HostError, match="max_tokens"):
        said(host.url)


def test_a_server_that_sends_comments_for_ever_is_left_at_the_deadline(monkeypatch):
    monkeypatch.setattr(openai, "SILENCE_S", 0.2)

    def drip():
        time.sleep(0.01)
        return b": still here\n\n"

    with server(HEAD, event("a"), *[drip] * 2000) as host, pytest.raises(HostError, check=has_code("host-cut")):
        said(host.url)
    with server(HEAD, *[drip] * 2000) as host, pytest.raises(HostError, check=has_code("host-late")):
        said(host.url, timeout_s=0.2)


@pytest.mark.parametrize(
    ("status", "code"), [(503, "host-busy"), (429, "host-busy"), (404, "host-refused"), (500, "host-protocol")]
)
def test_a_status_is_an_error_with_the_servers_words(status, code):
    def answer(asked, _):
        return http(status, {"error": {"message": "no model is loaded", "type": "x"}})

    with Scripted(answer) as host, pytest.raises(HostError, match="no model is loaded", check=has_code(code)):
        said(host.url, model="m")


def test_nothing_listens_there():
    with closed_port() as port, pytest.raises(HostError, check=has_code("host-unreachable")):
        said(f"http://127.0.0.1:{port}", model="m")


def test_a_server_without_models_must_have_one_named():
    with server(models=()) as host, pytest.raises(HostError, match="lists no model"):
        said(host.url)


def test_cancelling_from_another_thread_ends_a_read_that_waits():
    gate = threading.Event()
    with server(HEAD, event("a"), lambda: gate.wait(LONG) and b"") as host:
        model = model_of(host.url, model="m")
        stream, _ = model.open("chat", BODY, LONG)
        pieces = iter(stream)
        assert next(pieces).text == "a"
        threading.Timer(0.05, stream.cancel).start()
        assert list(pieces) == []
        gate.set()
        model.close()


def test_a_server_is_proven_by_one_token_and_pinged_by_its_models():
    with server(HEAD, event("a"), END) as host:
        model = model_of(host.url)
        assert not model.proven
        assert model.ping(LONG) > 0
        model.prove(LONG)
        assert model.proven
        model.close()
    assert host.asked[-1].json["max_tokens"] == 1


@pytest.mark.parametrize("protocol", ["grpc", None, 7])
def test_a_protocol_is_one_of_two(protocol):
    with pytest.raises(OptionError, match="protocol"):
        Host("http://a:1", protocol=protocol)


def test_events_of_every_form():
    assert read_chunk('{"choices": [{"text": "a", "finish_reason": null}]}') == Chunk("a")
    assert read_chunk('{"choices": [{"delta": {"role": "assistant", "content": null}}]}') == Chunk()
    assert read_chunk('{"choices": [{"delta": {"reasoning_content": "hm"}}]}') == Chunk()
    assert read_chunk('{"choices": [], "timings": {"predicted_n": 3, "cache_n": 5}}') == Chunk("", None, 3, 5)
    assert read_chunk('{"usage": {"completion_tokens": -1}, "choices": null}') == Chunk()
    with pytest.raises(WireError, match="reports"):
        read_chunk('{"error": "no"}')


def test_a_stop_string_across_two_events_is_found_and_no_text_is_lost():
    stop = StopStrings(("###", "\nUser:"))
    assert [stop.feed(piece) for piece in ("Hello #", "# not", " yet\nUs", "ed. \nUser", ": more")] == [
        "Hello ", "## not", " yet", "\nUsed. ", "",
    ]  # fmt: skip
    assert stop.found == "\nUser:"
    stop = StopStrings(("###",))
    assert stop.feed("a##") + stop.rest() == "a##"
    assert StopStrings(()).feed("a") == "a"
    first = StopStrings(("bc", "abcd"))
    assert first.feed("xabcd") == "x"


def test_a_server_that_begins_after_seconds_is_proven_all_the_same(monkeypatch):
    waits, asked = [], threading.Event()

    def prove(_, timeout_s):
        waits.append(timeout_s)
        asked.set()
        return HostAnswer({}, 2500.0, 2500.0, None, None)

    monkeypatch.setattr(OpenAiModel, "ping", lambda _, timeout_s: 1.0)
    monkeypatch.setattr(OpenAiModel, "prove", prove)
    manifest = SimpleNamespace(name="net", contract=SimpleNamespace(task="generation", generation=None))
    hosts = Hosts([Host("http://gpu-box:8000", protocol="openai")], manifest, SimpleNamespace(items={}))
    assert asked.wait(LONG)
    hosts.close()
    assert waits == [TEXT_PROBE_S]
