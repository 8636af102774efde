"""Bundles of other kinds: with a state, encrypted; and a download over TLS."""

from __future__ import annotations

from dataclasses import replace

import memory
import pytest
from downloads import Script, serving
from installed import UNSIGNED, current

from edgekit_runtime import EdgekitError, open_bundle
from edgekit_runtime.install import DownloadLimits, FetchOptions


def test_a_model_that_keeps_a_state_is_tried_frame_by_frame(put, root, tmp_path):
    done = put(memory.bundle(tmp_path, next(kind for kind in memory.HERE if kind != "inside")))
    assert done.trial.seen.answers == 25
    with open_bundle(root) as model, model.session() as session:
        assert session.frames == 0


def test_an_encrypted_one_needs_its_key_to_be_installed_and_to_be_opened(put, root, tmp_path):
    import tiny

    from edgekit_runtime.bundle.secrets import Secret

    key = bytes(range(7, 39))
    path = tiny.bundle(tmp_path, "tflite-int8", secret=Secret([key]))
    with pytest.raises(EdgekitError) as caught:
        put(path)
    assert caught.value.code == "secret-missing"
    assert current(root) is None
    put(path, secret=key)
    assert path.read_bytes() in [entry.read_bytes() for entry in (root / "objects").iterdir()], "it stays encrypted"
    with pytest.raises(EdgekitError):
        open_bundle(root)
    with open_bundle(root, secret=key) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"


ONCE = replace(UNSIGNED, fetching=FetchOptions(DownloadLimits(tries=1)))


def test_https_is_checked_against_the_systems_certificates(made, put, root, certificate, monkeypatch):
    monkeypatch.setenv("no_proxy", "localhost")
    script = Script(made("1").read_bytes(), moved={"/down": "http://localhost/net.ekb"})
    with serving(script, certificate) as url:
        with pytest.raises(EdgekitError, match=r"its certificate is not accepted .* a wrong clock") as caught:
            put(url, ONCE)
        assert caught.value.code == "download"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert put(url, ONCE).state == "committed"
        with pytest.raises(EdgekitError, match="redirect from https to http refused"):
            put(url.replace("net.ekb", "down"), ONCE)
    assert current(root) == "generations/1"
