"""A host's model by the device's contract: its form, its proof by a golden example, and what lets the device in."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import pytest
import tiny
from certificates import authority, certificate, lock
from hypothesis import given
from hypothesis import strategies as st
from refusing import has_code
from scripted import Scripted, http

from edgekit_runtime import Host, OptionError, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.loading.replay import clearest_example
from edgekit_runtime.remote.client import HostMetadata, TensorInfo
from edgekit_runtime.remote.oip import DATATYPES, HEADER_LENGTH, InferResponse, decode_request, encode_response
from edgekit_runtime.remote.remote_model import Form, RemoteModel
from edgekit_runtime.system.errors import HostError

LONG = 20.0
pytestmark = pytest.mark.skipif("litert" not in available(), reason="the bundle's engine here is LiteRT")


@dataclass
class Server:
    """Another server of the protocol with the tiny classifier, in NumPy. shape, datatype: of its input.

    outputs: what it gives instead of its answer. token: what it asks for.
    """

    datatype: str = "FP32"
    shape: tuple = (-1, 8, 8, 3)
    input: str = "image"
    output: str = "probs"
    order: tuple = (0, 1, 2)
    version: str = "1"
    outputs: dict | None = None
    token: str | None = None
    tokens: list = field(default_factory=list)

    def __call__(self, asked, _):
        self.tokens.append(asked.headers.get("authorization"))
        if self.token is not None and self.tokens[-1] != f"Bearer {self.token}":
            return http(401, {"error": f"not {self.tokens[-1]}"})
        path = asked.line.split()[1]
        if path == "/v2":
            return http(200, {"name": "triton", "extensions": ["binary_tensor_data"]})
        if not path.startswith("/v2/models/net"):
            return http(404, {"error": "unknown model"})
        if asked.line.startswith("GET"):
            taken = {"name": self.input, "datatype": self.datatype, "shape": list(self.shape)}
            return http(200, {"name": "net", "inputs": [taken], "outputs": []})
        request = decode_request(asked.body, asked.headers.get(HEADER_LENGTH.lower()))
        x = request.inputs[self.input]
        assert x.dtype == DATATYPES[self.datatype]
        outputs = self.outputs or {self.output: self.answer(x)}
        wire = encode_response(InferResponse(outputs, "net", self.version), binary=list(outputs))
        return http(200, wire.body(), *(f"{k}: {v}" for k, v in wire.headers.items()))

    def answer(self, x):
        x = x.transpose(0, 2, 3, 1) if x.shape[1] == 3 else x
        x = x / 255 if x.dtype == np.uint8 else x.astype(np.float32)
        assert 0.01 < x.max() <= 1.0  # normalised, as the original took it
        colours = x.mean((1, 2))[:, list(self.order)]
        scores = np.concatenate([8 * colours, np.full((len(x), 1), 2.0)], axis=1)
        return (np.exp(scores) / np.exp(scores).sum(1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("bundle")))


@pytest.fixture
def remote(bundle):
    """Makes a RemoteModel of a URL, or of a Host with these options."""
    made = []

    def make(url, **options):
        host = Host(url, **{"model": "net", **options})
        made.append(RemoteModel(host, bundle.manifest, clearest_example(bundle)))
        return made[-1]

    yield make
    for one in made:
        one.close()


FORMS = {
    "canonical pixels": Server("UINT8"),
    "pixels, channels first": Server("UINT8", (-1, 3, 8, 8)),
    "floats": Server(),
    "floats, channels first": Server(shape=(-1, 3, 8, 8)),
    "half floats of any size": Server("FP16", (-1, 3, -1, -1)),
    "one at a time": Server(shape=(1, 8, 8, 3)),
}


@pytest.mark.parametrize("form", FORMS)
def test_another_server_gets_what_its_metadata_asks_for(form, remote):
    with Scripted(FORMS[form]) as server:
        model = remote(server.url)
        assert not model.proven
        model.prove(LONG)
        assert model.proven
        for picture, best in ((tiny.RED, 0), (tiny.GREEN, 1), (tiny.BLUE, 2)):
            outputs, _ = model.infer({"image": picture}, LONG)
            assert (outputs["probs"].shape, outputs["probs"].argmax()) == ((4,), best)
            assert not outputs["probs"].flags.writeable


def test_floats_of_the_original_travel_to_who_takes_floats_and_to_nobody_else(remote):
    item = {"image": (tiny.BLUE / 255).astype(np.float32)}
    with Scripted(Server()) as server:
        model = remote(server.url)
        model.prove(LONG)
        assert model.infer(item, LONG)[0]["probs"].argmax() == 2
    with Scripted(Server("UINT8")) as server:
        model = remote(server.url)
        model.prove(LONG)
        with pytest.raises(HostError, match="it takes pixels", check=has_code("host-refused")):
            model.infer(item, LONG)


def test_names_are_mapped_both_ways(remote):
    with Scripted(Server(input="input_1", output="Identity:0")) as server:
        model = remote(server.url, inputs={"image": "input_1"}, outputs={"probs": "Identity:0"})
        model.prove(LONG)
        assert model.infer({"image": tiny.BLUE}, LONG)[0]["probs"].argmax() == 2


MISFITS = {
    "another name": Server(input="x"),
    "another size": Server(shape=(-1, 9, 9, 3)),
    "no batch axis": Server(shape=(8, 8, 3)),
    "integers": Server("INT32"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_server_that_takes_something_else_is_refused_with_what_it_takes(misfit, remote):
    with Scripted(MISFITS[misfit]) as server:
        with pytest.raises(HostError, match="no input 'image'", check=has_code("host-refused")) as caught:
            remote(server.url).prove(LONG)
        assert MISFITS[misfit].datatype in caught.value.do


# Who may answer.


def test_a_model_that_is_not_proven_answers_nothing(remote):
    with Scripted(Server()) as server, pytest.raises(HostError, check=has_code("host-golden")):
        remote(server.url).infer({"image": tiny.RED}, LONG)


def test_another_model_with_the_same_tensors_is_found_out_by_the_golden_example(remote):
    with Scripted(Server(order=(2, 0, 1))) as server:
        model = remote(server.url)
        why = "golden example differs, so it is of another model: the best class is"
        with pytest.raises(HostError, match=why, check=has_code("host-golden")):
            model.prove(LONG)
        assert not model.proven


def test_after_the_host_was_gone_its_model_is_proven_again(remote):
    with Scripted(Server()) as server:
        model = remote(server.url)
        model.prove(LONG)
        port = server.port
    with Scripted(Server(order=(2, 0, 1)), port=port):
        assert not model.proven
        with pytest.raises(HostError, check=has_code("host-golden")):
            model.infer({"image": tiny.RED}, LONG)
        with pytest.raises(HostError, check=has_code("host-golden")):
            model.prove(LONG)
    with Scripted(Server("UINT8"), port=port):  # and asked again what it takes
        model.prove(LONG)
        assert model.infer({"image": tiny.BLUE}, LONG)[0]["probs"].argmax() == 2


def test_another_version_than_the_proven_one_is_no_answer(remote):
    serves = Server()
    with Scripted(serves) as server:
        model = remote(server.url)
        model.prove(LONG)
        serves.version = "2"
        with pytest.raises(HostError, match="version 2 answered", check=has_code("host-protocol")):
            model.infer({"image": tiny.RED}, LONG)
        assert not model.proven


def test_an_edgekit_host_that_says_409_is_proven_again_before_it_answers(bundle, remote):
    serves, manifest, replaced = Server(), bundle.manifest, [False]

    def ours(asked, connection):
        if asked.line.startswith("POST"):
            return http(409, {"error": "another model by now"}) if replaced[0] else serves(asked, connection)
        if asked.line.split()[1] == "/v2":
            return serves(asked, connection)
        said = {"model_id": "f" * 64 if replaced[0] else manifest.model_id, "contract_digest": manifest.contract_digest}
        return http(200, {"name": "net", "edgekit": said})

    serves.datatype = "UINT8"
    with Scripted(ours) as server:
        model = remote(server.url)
        model.prove(LONG)
        replaced[0] = True
        with pytest.raises(HostError, match="another model by now", check=has_code("host-refused")):
            model.infer({"image": tiny.RED}, LONG)
        assert not model.proven
        with pytest.raises(HostError, match="it serves another model", check=has_code("host-refused")):
            model.prove(LONG)


def test_a_ping_that_finds_nobody_ends_the_proof(remote):
    with Scripted(Server()) as server:
        model = remote(server.url)
        model.prove(LONG)
        assert model.ping(LONG) > 0
        assert model.proven
    with pytest.raises(HostError, check=has_code("host-unreachable")):
        model.ping(LONG)
    assert not model.proven


INFO = st.builds(
    TensorInfo,
    st.sampled_from(["image", "x", ""]),
    st.sampled_from([*DATATYPES, "BYTES", "", "FP8"]),
    st.lists(st.sampled_from([-(2**62), -1, 0, 1, 3, 8, 2**62]), max_size=5).map(tuple),
)


@given(st.lists(INFO, max_size=3))
def test_whatever_a_server_says_of_its_inputs_becomes_a_tensor_or_a_refusal(infos):
    found = HostMetadata(False, tuple(infos), None)
    try:
        form = Form(tiny.CONTRACT.inputs, Host("http://a"), found)
    except HostError:
        return
    (sent,) = form.tensors({"image": tiny.RED}).values()
    assert sent.size == tiny.RED.size
    assert sent.shape[0] == 1


def test_a_plain_url_is_an_edgekit_host_and_nothing_else(bundle):
    with Scripted(Server()) as server:
        model = RemoteModel(server.url, bundle.manifest, clearest_example(bundle))
        with pytest.raises(HostError, check=has_code("host-refused")):
            model.prove(LONG)
        model.close()


GOOD = np.array([[1, 0, 0, 0]], np.float32)
ODD = {
    "NaN": {"probs": GOOD * np.nan},
    "infinity": {"probs": GOOD + np.inf},
    "another type": {"probs": GOOD.astype(np.int32)},
    "another shape": {"probs": GOOD[:, :3]},
    "two items": {"probs": np.concatenate([GOOD, GOOD])},
    "another name": {"scores": GOOD},
    "more than a float32 holds": {"probs": GOOD.astype(np.float64) * 1e300},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_answer_of_the_contract_is_refused(odd, remote):
    serves = Server()
    with Scripted(serves) as server:
        model = remote(server.url)
        model.prove(LONG)
        serves.outputs = ODD[odd]
        with pytest.raises(HostError, match="output 'probs'", check=has_code("host-protocol")):
            model.infer({"image": tiny.RED}, LONG)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_floats_of_another_width_become_the_contracts(dtype, remote):
    serves = Server(outputs={"probs": np.array([[0.9, 0.05, 0.03, 0.02]], dtype)})
    with Scripted(serves) as server:
        model = remote(server.url)
        assert model._contract.outputs[0].dtype == "float32"
        model._example = type(model._example)({"image": tiny.RED}, ({"probs": GOOD[0]},))
        model.prove(LONG)
        assert model.infer({"image": tiny.RED}, LONG)[0]["probs"].dtype == np.float32


def test_answers_are_named_by_the_proof_where_the_server_names_no_artifact(remote):
    with Scripted(Server()) as server:
        model = remote(server.url)
        model.prove(LONG)
        first, again = (model.infer({"image": tiny.RED}, LONG)[1].artifact for _ in range(2))
        port = server.port
    assert first == again
    with Scripted(Server(), port=port):
        model.prove(LONG)
        assert model.infer({"image": tiny.RED}, LONG)[1].artifact != first


# What lets the device in.


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("s3cr3t\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("kind", ["env", "file"])
def test_a_token_goes_with_every_request(kind, remote, secret_file, monkeypatch):
    monkeypatch.setenv("GPU_TOKEN", "s3cr3t")
    source = "env:GPU_TOKEN" if kind == "env" else f"file:{secret_file}"
    serves = Server(token="s3cr3t")
    with Scripted(serves) as server:
        model = remote(server.url, token=source)
        model.prove(LONG)
        model.infer({"image": tiny.RED}, LONG)
    assert set(serves.tokens) == {"Bearer s3cr3t"}


def test_a_replaced_token_is_read_again_after_a_refusal_and_no_error_repeats_it(remote, secret_file):
    serves = Server(token="s3cr3t")
    with Scripted(serves) as server:
        model = remote(server.url, token=f"file:{secret_file}")
        model.prove(LONG)
        serves.token = "n3w3r"
        with pytest.raises(HostError, match=r"401 not Bearer \*\*\*", check=has_code("host-refused")) as caught:
            model.infer({"image": tiny.RED}, LONG)
        assert "s3cr3t" not in str(caught.value)
        secret_file.write_text("n3w3r")
        model.infer({"image": tiny.RED}, LONG)


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_a_token_that_everybody_reads_is_refused(remote, secret_file):
    secret_file.chmod(0o644)
    with pytest.raises(HostError, match="every user of this machine", check=has_code("host-secret")):
        remote("http://127.0.0.1:9", token=f"file:{secret_file}")


@pytest.mark.parametrize("url", ["http://gpu-box:8000", "http://10.0.0.5:8000"])
def test_a_token_never_travels_unencrypted(url, remote, secret_file):
    with pytest.raises(HostError, match="unencrypted", check=has_code("host-secret")):
        remote(url, token=f"file:{secret_file}")
    remote(url.replace("http:", "https:"), token=f"file:{secret_file}")


@pytest.mark.parametrize("content", ["", "two words", "line\nline", "töken"])
def test_what_is_no_token_is_refused_and_not_repeated(content, remote, secret_file):
    secret_file.write_text(content)
    with pytest.raises(HostError, check=has_code("host-secret")) as caught:
        remote("https://gpu-box", token=f"file:{secret_file}")
    assert not content or content not in str(caught.value)


def test_a_token_in_place_of_its_source_is_refused_and_not_repeated():
    with pytest.raises(OptionError) as caught:
        Host("https://gpu-box", token="eyJhbGciOi")
    assert "eyJ" not in str(caught.value)


BAD = {
    "url": 5, "model": "", "version": 1, "inputs": ["image"], "outputs": {"probs": "a", "boxes": "a"},
    "ca": 5, "certificate": "",
}  # fmt: skip


@pytest.mark.parametrize("option", BAD)
def test_an_option_that_makes_no_sense_is_named(option):
    with pytest.raises(OptionError, match=f"Host: {option} must be"):
        Host(**{"url": "http://a", option: BAD[option]})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, and for server and device a PEM file of certificate and key; locked.pem has a passphrase."""
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder)
    for name in ("server", "device"):
        certificate(folder, name)
    lock(folder, "device")
    return folder


def test_tls_with_a_ca_and_a_certificate_of_the_device(remote, certificates):
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    secure.verify_mode = ssl.CERT_REQUIRED
    secure.load_cert_chain(certificates / "server.pem")
    both = {"ca": certificates / "ca.pem", "certificate": certificates / "device.pem"}
    with Scripted(Server(), tls=secure) as server:
        model = remote(server.url, **both)
        model.prove(LONG)
        for _ in range(3):
            assert model.infer({"image": tiny.BLUE}, LONG)[0]["probs"].argmax() == 2
        assert len({asked.connection for asked in server.asked}) == 1
        model.close()
        for option, file in both.items():
            with pytest.raises(HostError, check=has_code("host-unreachable")):
                remote(server.url, **{option: file}).prove(LONG)


@pytest.mark.parametrize(
    ("option", "file", "why"),
    [
        ("ca", "nowhere.pem", "No such file"),
        ("ca", "device.key", "."),
        ("certificate", "device.crt", "."),
        ("certificate", "locked.pem", "its private key has a passphrase"),
    ],
)
def test_a_file_that_is_of_no_use_for_tls_is_refused_at_once(option, file, why, remote, certificates):
    with pytest.raises(HostError, match=why, check=has_code("host-secret")):
        remote("https://127.0.0.1:9", **{option: certificates / file})


def test_a_device_is_let_in_by_our_own_server_with_token_and_certificate(bundle, certificates, secret_file, tmp_path):
    host = pytest.importorskip("edgekit.host.server")
    from served import Serving

    tokens = tmp_path / "tokens.txt"
    tokens.write_text(f"board {sha256(b's3cr3t').hexdigest()} 1000\n")
    protection = host.Protection(
        certificate=certificates / "server.pem", client_ca=certificates / "ca.pem", tokens=tokens
    )
    with Serving(bundle.path, protection=protection) as serving:
        ours = {"ca": certificates / "ca.pem", "certificate": certificates / "device.pem"}
        model = RemoteModel(
            Host(serving.url, token=f"file:{secret_file}", **ours), bundle.manifest, clearest_example(bundle)
        )
        model.prove(LONG)
        outputs, answer = model.infer({"image": tiny.BLUE}, LONG)
        assert (outputs["probs"].argmax(), answer.artifact) == (2, bundle.artifact().blob)
        model.close()
        stranger = RemoteModel(Host(serving.url, **ours), bundle.manifest, clearest_example(bundle))
        with pytest.raises(HostError, match="401", check=has_code("host-refused")):
            stranger.prove(LONG)
        stranger.close()


def test_a_device_falls_back_to_another_server(bundle):
    with (
        Scripted(Server("UINT8")) as server,
        open_bundle(bundle.path, hosts=[Host(server.url, model="net")], cache=False) as model,
    ):
        while model.describe()["hosts"][0]["p90_ms"] is None:
            time.sleep(0.005)
        assert model.describe()["hosts"][0]["proven"]
        model.throttle(250.0)
        while (model.stats().device_p90_ms or 0) < 200.0:
            model.predict(tiny.RED)
        answer = model.predict(tiny.BLUE, budget_ms=200.0)
    assert (answer.source, answer.top(1)[0].label) == ("host", "blue")


def test_a_server_that_hangs_up_on_binary_once_stays_proven(remote):
    serves = Server()

    def hang_up(asked, connection):
        if asked.line.split()[1] == "/v2":
            return http(200, {"name": "mlserver", "extensions": []})
        if HEADER_LENGTH.lower() in asked.headers:
            connection.sendall(http(422, {"detail": "bad"}))
            return None  # ends the connection without having said so
        return serves(asked, connection)

    with Scripted(hang_up) as server:
        model = remote(server.url)
        model.prove(LONG)
        for _ in range(2):
            model.infer({"image": tiny.RED}, LONG)
            assert model.proven


def test_every_request_has_an_id_because_kserve_wants_one(remote):
    with Scripted(Server()) as server:
        model = remote(server.url)
        model.prove(LONG)
        model.infer({"image": tiny.RED}, LONG)
    ids = [asked.json["id"] for asked in server.asked if asked.line.startswith("POST")]
    assert ids == ["0", "1"]
