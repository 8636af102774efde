"""The device's model on one host, asked about one item in the contract's terms.

    model = RemoteModel(Host("http://triton:8000", model="net"), manifest, example)
    model.prove(timeout_s=2.0)                             # the golden example comes back within tolerance
    outputs, answer = model.infer({"image": pixels}, timeout_s=0.05)

Rules:
- an edgekit host takes canonical items, and must serve the manifest's model_id, version and contract. Another server
  is accepted for a `Host` alone, never for a plain URL, and gets what its metadata asks for: UINT8 is the canonical
  picture, floats are what the original model took, channels first if its shape says so;
- a model is `proven` by a golden example until its host is gone. An edgekit host names its model in every answer;
  another server counts as gone once a kept connection ended;
- an output has the contract's shape and kind of numbers, and is finite; others are refused;
- an answer without an artifact's digest is named by server, model, version and proof, to keep it apart in a cache.
  After a wrong golden example answers get other names, so that earlier ones are found no more.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.adapt import Adapter, converts, taken
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.spec import Layout, TensorSpec
from edgekit_runtime.loading.replay import ReplayExample, differs
from edgekit_runtime.policy.options import Host
from edgekit_runtime.remote.client import (
    HostAnswer,
    HostClient,
    HostMetadata,
    ModelIdentity,
    TensorInfo,
    tls_context,
    token_reader,
)
from edgekit_runtime.remote.endpoint import Deadline
from edgekit_runtime.remote.oip import DATATYPES
from edgekit_runtime.system.errors import HostError, InputError

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import Manifest
    from edgekit_runtime.contract.spec import InputContract, OutputContract

Items = Mapping[str, NDArray[Any]]
_VALUE_BYTES = 32
_BESIDE_BYTES = 64 << 10


@dataclass(frozen=True)
class _Proof:
    """A golden example that came back.

    ours: from an edgekit host.
    changes, breaks: the client's then.
    version: of the model that answered.
    name: of the answers' origin if the server names no artifact.
    """

    ours: bool
    changes: int
    breaks: int
    version: str | None
    name: str


class RemoteModel:
    """Thread-safe. Raises HostError (host-address, host-secret).

    host: a plain URL is an edgekit host.
    example: proves the model.
    """

    def __init__(
        self,
        host: Host | str,
        manifest: Manifest,
        example: ReplayExample,
        clock: Callable[[], float] = time.monotonic,
        connections: int = 4,
    ) -> None:
        options = Host(host) if isinstance(host, str) else host
        values = sum(math.prod(output.shape) for output in manifest.contract.outputs)
        self._client = HostClient(
            options.url,
            model=options.model or manifest.name,
            expects=ModelIdentity(manifest.model_id, manifest.version, manifest.contract_digest),
            any_server=isinstance(host, Host),
            version=options.version,
            most_bytes=_BESIDE_BYTES + _VALUE_BYTES * values,  # of an answer to one item, as JSON
            token=token_reader(options),
            tls=tls_context(options),
            connections=connections,
            clock=clock,
        )
        self.url = self._client.url
        self._options, self._contract, self._example = options, manifest.contract, example
        self._clock = clock
        self._free = {spec.name: kind_of(spec).free_dtypes(spec) for spec in manifest.contract.inputs}
        self._random = np.random.default_rng()
        self._form: tuple[HostMetadata, Form] | None = None
        self._proof: _Proof | None = None
        self._renamed = ""  # since a golden example was wrong

    @property
    def proven(self) -> bool:
        """Whether the golden example came back, and the host has been there since."""
        proof = self._proof
        return proof is not None and self._is_still_valid(proof)

    def infer(self, items: Items, timeout_s: float, late_s: float = 0.0) -> tuple[dict[str, NDArray[Any]], HostAnswer]:
        """One item's outputs, no batch axis, read-only. Raises HostError, also if unproven.

        late_s: as of `HostClient.infer`.
        """
        proof = self._proof
        if proof is None:
            raise self._unproven_error()
        outputs, answer = self._ask(items, timeout_s, late_s)
        if self._proof is None or not self._is_still_valid(proof):  # also where it was found wrong meanwhile
            self._proof = None
            raise self._unproven_error()
        if answer.version != proof.version:
            self._proof = None
            what = f"version {answer.version} answered, and version {proof.version} the golden example"
            raise HostError(what, where=self.url, code="host-protocol")
        return outputs, self._with_name(answer, proof)

    def prove(self, timeout_s: float) -> HostAnswer:
        """Ask for the golden example, its last bits varied against caches. Raises HostError."""
        if not self.proven:
            self._client.forget()
        before = self._client.changes, self._client.breaks
        items = {name: self._vary(item, self._free[name]) for name, item in self._example.items.items()}
        outputs, answer = self._ask(items, timeout_s)
        apart = [differs(self._contract, outputs, wanted) for wanted in self._example.answers]
        if apart and all(apart):
            self._proof, self._renamed = None, secrets.token_hex(16)
            what = f"its answer to a golden example differs, so it is of another model: {apart[0]}"
            do = "Serve the artifact of the same build, with the bundle's own names and preprocessing"
            raise HostError(what, where=self.url, do=do, code="host-golden")
        known = self._proof
        if known is None or not self._is_still_valid(known) or known.version != answer.version:
            name = "\0".join((self.url, self._options.model or "", answer.version or "", secrets.token_hex(16)))
            ours = self._form is not None and self._form[0].edgekit is not None
            known = self._proof = _Proof(ours, *before, answer.version, hashlib.sha256(name.encode()).hexdigest())
        return self._with_name(answer, known)

    def _with_name(self, answer: HostAnswer, proof: _Proof) -> HostAnswer:
        if answer.artifact is None:
            return replace(answer, artifact=proof.name)
        if not self._renamed:
            return answer
        name = hashlib.sha256(f"{answer.artifact}\0{self._renamed}".encode())
        return replace(answer, artifact=name.hexdigest())

    def ping(self, timeout_s: float) -> float:
        """Milliseconds of a round trip. Raises HostError."""
        return self._client.ping(timeout_s)

    def close(self) -> None:
        self._client.close()

    def _is_still_valid(self, proof: _Proof) -> bool:
        return proof.changes == self._client.changes and (proof.ours or proof.breaks == self._client.breaks)

    def _unproven_error(self) -> HostError:
        return HostError(
            "it has not answered a golden example since it was connected", where=self.url, code="host-golden"
        )

    def _ask(self, items: Items, timeout_s: float, late_s: float = 0.0) -> tuple[dict[str, NDArray[Any]], HostAnswer]:
        deadline = Deadline(timeout_s + late_s, self._clock)
        try:
            found = self._client.greet(timeout_s + late_s)
            if self._form is None or self._form[0] is not found:  # made once for each server
                how = () if found.edgekit is not None else (self._options, found, self.url)
                self._form = found, Form(self._contract.inputs, *how)
            answer = self._client.infer(self._form[1].tensors(items), deadline.left() - late_s, late_s=late_s)
        except TimeoutError as error:
            raise HostError("no answer within the time given", where=self.url, code="host-late") from error
        return {output.name: self._item(output, answer) for output in self._contract.outputs}, answer

    def _item(self, output: OutputContract, answer: HostAnswer) -> NDArray[Any]:
        """One item's output as in the contract, or HostError (host-protocol)."""
        name = self._options.outputs.get(output.name, output.name)
        try:
            return taken(output, answer.outputs.get(name), name, (1,))
        except ValueError as error:
            raise HostError(str(error), where=self.url, code="host-protocol") from error

    def _vary(self, item: NDArray[Any], free: Sequence[np.dtype[Any]]) -> NDArray[Any]:
        """The item with random last bits in its first values, except for possible indexes."""
        varied = np.array(item)
        first = varied.reshape(-1)[:32]
        if varied.dtype.kind == "f":
            first[:] = np.nextafter(first, first.dtype.type(0), where=self._random.random(first.size) < 0.5, out=first)
        elif varied.dtype in free:
            first ^= self._random.integers(0, 2, first.size, np.uint8)
        return varied


class Form:
    """How one item becomes a server's tensors; canonical without metadata.

    Raises HostError (host-refused) if the server takes something else than the contract has.
    """

    def __init__(
        self,
        inputs: Sequence[InputContract],
        options: Host | None = None,
        found: HostMetadata | None = None,
        url: str = "",
    ) -> None:
        self._inputs: list[tuple[str, str, TensorSpec | None, Adapter | None]] = []
        self._url = url
        taken = {info.name: info for info in found.inputs} if found is not None else {}
        for spec in inputs:
            if options is None or found is None:
                self._inputs.append((spec.name, spec.name, None, None))
                continue
            name = options.inputs.get(spec.name, spec.name)
            tensor = _tensor(spec, taken.get(name))
            if tensor is None:
                has = ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in found.inputs)
                what = f"it takes no input '{name}' that '{spec.name}' ({kind_of(spec).describe(spec)}) can become"
                raise HostError(what, where=url, do=f"It takes: {has}; name them in Host(inputs=)", code="host-refused")
            pixels = tensor.dtype == "uint8" and kind_of(spec).free_dtypes(spec)
            self._inputs.append((spec.name, name, tensor, None if pixels else Adapter(spec, tensor)))
        extra = taken.keys() - {name for _, name, _, _ in self._inputs}
        if extra:
            raise HostError(
                f"it also requires '{min(extra)}', which the contract does not have", where=url, code="host-refused"
            )

    def tensors(self, items: Items) -> dict[str, NDArray[Any]]:
        """Server's name -> tensor with a batch axis."""
        return {theirs: self._tensor(items[ours], tensor, adapter) for ours, theirs, tensor, adapter in self._inputs}

    def _tensor(self, item: NDArray[Any], tensor: TensorSpec | None, adapter: Adapter | None) -> NDArray[Any]:
        if tensor is None:
            return item[None]
        if adapter is None:
            if item.dtype != np.uint8:
                raise HostError(
                    f"it takes pixels, and the request holds {item.dtype}", where=self._url, code="host-refused"
                )
            return np.ascontiguousarray(item.transpose(2, 0, 1) if tensor.layout == "NCHW" else item)[None]
        try:
            return adapter(item)
        except InputError as error:
            raise HostError(error.what, where=self._url, do=error.do, code="host-refused") from error


def _tensor(spec: InputContract, info: TensorInfo | None) -> TensorSpec | None:
    """The server's input as an artifact's; None if the contract's item cannot become it."""
    dtype = DATATYPES.get(info.datatype) if info is not None else None
    if info is None or dtype is None or not info.shape or info.shape[0] not in (-1, 1):
        return None
    layouts: list[tuple[Layout | None, tuple[int, ...]]] = [(None, spec.shape)]
    if len(spec.shape) == 3:
        layouts = [("NHWC", spec.shape), ("NCHW", (spec.shape[2], *spec.shape[:2]))]
    for layout, shape in layouts:
        wanted = info.shape[1:]
        if len(wanted) == len(shape) and all(has in (-1, size) for has, size in zip(wanted, shape, strict=True)):
            fits = dtype in kind_of(spec).free_dtypes(spec) or converts(np.dtype(spec.dtype), dtype)
            return TensorSpec(spec.name, info.name, dtype.name, (1, *shape), layout) if fits else None
    return None
