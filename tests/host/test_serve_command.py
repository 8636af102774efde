"""`edgekit host serve` as a person or a unit file runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import tiny
from ports import closed_port
from redis_server import RedisServer

from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.cache.identity import identify
from edgekit_runtime.install import BoardIdentity, InstallOptions, install
from edgekit_runtime.remote.client import HostClient
from edgekit_runtime.system.board import cores

LONG = 60.0
EDGEKIT = [sys.executable, "-c", "from edgekit.cli import main; main()"]
RED = {"image": tiny.RED[None]}


def start(*arguments, command=EDGEKIT):
    return subprocess.Popen(
        [*command, "host", "serve", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
@pytest.mark.parametrize(("told", "code", "installed"), [(signal.SIGINT, 130, False), (signal.SIGTERM, 0, True)])
def test_it_says_when_it_is_ready_answers_and_ends_when_told(bundle, tmp_path, told, code, installed):
    if installed:  # an install root is taken in a bundle's place
        install(
            bundle,
            tmp_path / "root",
            InstallOptions(allow_unsigned=True, board=BoardIdentity(("x86-64",)), trial="app"),
        )
    child = start(tmp_path / "root" if installed else bundle, "--listen", "127.0.0.1:0", "--json", "--threads", "1")
    try:
        said = json.loads(child.stdout.readline())
        assert [m["name"] for m in said["models"]] == ["tiny"]
        with HostClient(said["listening"], model="tiny") as client:
            assert client.infer(RED, LONG).outputs["probs"].argmax() == 0
            child.send_signal(told)  # the idle connection of a client holds nothing up
            out, err = child.communicate(timeout=LONG)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, out) == (code, ""), err
    assert "stopped: 2 answered" in err  # greeted, then asked
    assert "Traceback" not in err


def test_for_people_it_says_where_it_listens_and_what_answers(bundle):
    address = "[::1]:0" if socket.has_ipv6 and _ipv6() else "127.0.0.1:0"
    child = start(bundle, "--listen", address, "--instances", "2")
    try:
        said = child.stdout.readline()
        assert said.startswith("tiny version 1: tflite-int8 with ")
        assert said.endswith(f", threads {max(1, cores() // 2)}, 2 instances\n")
        assert child.stdout.readline().startswith("listening on http://")
    finally:
        child.terminate()
        child.communicate(timeout=LONG)


def _ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_help_imports_no_framework_and_no_server():
    script = (
        "import sys\nfrom edgekit.cli import main\ntry: main(['host', 'serve', '--help'])\nexcept SystemExit as end: "
        "code = end.code\nprint([m for m in ('numpy', 'asyncio', 'edgekit.host', 'onnxruntime') if m in sys.modules], "
        "code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == "[] 0", done.stdout + done.stderr


def test_a_port_in_use_is_one_clear_error(edgekit, bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = edgekit("host", "serve", bundle, "--listen", f"127.0.0.1:{port}", "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "serve"
    assert "in use" in ran.json["error"]["what"]
    assert "--listen" in ran.json["error"]["do"]


def test_an_address_of_another_machine_is_one_clear_error(edgekit, bundle):
    assert "cannot listen" in edgekit("host", "serve", bundle, "--listen", "192.0.2.1:8000").err
    assert "is not an address" in edgekit("host", "serve", bundle, "--listen", "nobody.invalid:8000").err


@pytest.mark.parametrize("listen", ["8000", ":8000", "::1:8000", "box:", "box:many", "box:70000", "box:-1"])
def test_a_wrong_address_is_wrong_usage(edgekit, bundle, listen):
    assert edgekit("host", "serve", bundle, f"--listen={listen}").code == 2


def test_a_file_that_is_no_bundle_and_no_bundle_at_all(edgekit, tmp_path):
    (tmp_path / "x.ekb").write_text("hello")
    ran = edgekit("host", "serve", "x.ekb", "--listen", "127.0.0.1:0", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "bundle-format")
    assert edgekit("host", "serve").code == 2


def test_an_unsigned_bundle_is_refused_where_a_signature_is_wanted(edgekit, bundle, tmp_path):
    made = subprocess.run(
        f"openssl genpkey -algorithm ed25519 -out {tmp_path}/k.pem && openssl pkey -in {tmp_path}/k.pem -pubout -out "
            f"{tmp_path}/p.pem",
        shell=True, capture_output=True,
    )  # fmt: skip
    assert made.returncode == 0
    ran = edgekit("host", "serve", bundle, "--listen", "127.0.0.1:0", "--trust", tmp_path / "p.pem", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "unsigned")


def test_a_cache_that_is_no_url_is_wrong_usage(edgekit, bundle, monkeypatch):
    monkeypatch.setenv("CACHE_URL", "http://cache")
    for given in ("cache:6379", "env:CACHE_URL", "env:NOT_SET", "http://cache"):
        assert edgekit("host", "serve", bundle, "--cache", given).code == 2


def test_hosts_that_share_a_cache_serve_though_it_is_away(bundle):
    with closed_port() as port:
        child = start(bundle, "--listen", "127.0.0.1:0", "--json", "--cache", f"redis://127.0.0.1:{port}")
        try:
            with HostClient(json.loads(child.stdout.readline())["listening"], model="tiny") as client:
                assert [int(client.infer(RED, LONG).outputs["probs"].argmax()) for _ in range(8)] == [0] * 8
        finally:
            child.terminate()
            child.communicate(timeout=LONG)


PATIENT = "from edgekit_runtime.cache.shared import SharedCache as C; C.__init__.__kwdefaults__['wait_s'] = 30.0; "
"""The tests judge what comes out, not how soon."""
PLANTED = {"probs": np.array([0.0, 0.0, 0.0, 1.0], np.float32)}
"""What the model itself never answers to red."""


@pytest.mark.parametrize(("secret", "believed"), [("CACHE_KEY", True), ("OTHER_KEY", False)])
def test_a_host_believes_what_was_sealed_with_its_secret_and_nothing_else(
    bundle, tmp_path, monkeypatch, secret, believed
):
    monkeypatch.setenv("CACHE_KEY", bytes(range(100, 132)).hex())
    monkeypatch.setenv("OTHER_KEY", bytes(range(32)).hex())
    with RedisServer(tmp_path) as redis:
        with open_bundle(bundle, cache=CacheOptions(shared=redis.url, shared_secret="env:CACHE_KEY")) as model:
            tier = model._journey.cache._disk
            key, _ = identify({"image": tiny.RED}, model.kept_form.namespace)
            assert tier.put(key, PLANTED)
            assert tier.sync()
        child = start(
            bundle, "--listen", "127.0.0.1:0", "--json", "--cache-mb", "0", "--cache", redis.url, "--cache-secret",
            f"env:{secret}", command=[*EDGEKIT[:2], PATIENT + EDGEKIT[2]],
        )  # fmt: skip
        try:
            url = json.loads(child.stdout.readline())["listening"]
            with HostClient(url, model="tiny") as client:
                found = int(client.infer(RED, LONG).outputs["probs"].argmax())
            with urllib.request.urlopen(f"{url}/metrics", timeout=LONG) as page:
                (line,) = re.findall(r"edgekit_cache_refused_total\{.*shared.*\} (\d+)", page.read().decode())
        finally:
            child.terminate()
            child.communicate(timeout=LONG)
    assert (found, line) == ((3, "0") if believed else (0, "1"))


def test_a_secret_without_a_cache_is_wrong_usage(edgekit, bundle):
    ran = edgekit("host", "serve", bundle, "--cache-secret", "env:CACHE_KEY")
    assert (ran.code, "--cache-secret needs --cache" in ran.err) == (2, True)
