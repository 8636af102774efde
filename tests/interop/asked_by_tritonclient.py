"""Run in an environment that has tritonclient: asks a server what a client of the protocol asks, prints JSON.

python asked_by_tritonclient.py HOST:PORT INPUT.npy
"""

import json
import sys

import numpy as np
import tritonclient.http as triton


def main(url, path):
    x = np.load(path)
    client = triton.InferenceServerClient(url, concurrency=2)
    found = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("tiny"),
        "version_ready": client.is_model_ready("tiny", "1"),
        "other_ready": client.is_model_ready("other"),
        "server": client.get_server_metadata(),
        "model": client.get_model_metadata("tiny"),
        "index": client.get_model_repository_index(),
    }
    for form, binary_in, binary_out in (("binary", True, True), ("json", False, False), ("mixed", True, False)):
        tensor = triton.InferInput("image", list(x.shape), "UINT8")
        tensor.set_data_from_numpy(x, binary_data=binary_in)
        wanted = triton.InferRequestedOutput("probs", binary_data=binary_out)
        answer = client.infer("tiny", [tensor], outputs=[wanted], request_id=form, timeout=20_000_000)
        found[form] = {"probs": answer.as_numpy("probs").tolist(), "id": answer.get_response()["id"]}
    found["async"] = client.async_infer("tiny", [tensor]).get_result().as_numpy("probs").tolist()
    found["errors"] = [
        said(client.infer, "other", [tensor]),
        said(client.infer, "tiny", [named("x", x)]),
        said(client.infer, "tiny", [named("image", x[:, :4])]),
        said(client.infer, "tiny", [tensor], timeout=1),
        said(client.get_model_metadata, "other"),
        said(client.load_model, "tiny"),
    ]
    print(json.dumps(found))


def named(name, x):
    tensor = triton.InferInput(name, list(x.shape), "UINT8")
    tensor.set_data_from_numpy(x)
    return tensor


def said(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except triton.InferenceServerException as error:
        return [error.status(), error.message()]
    return None


main(*sys.argv[1:])
