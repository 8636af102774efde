"""Ways to share one engine among many callers: ours, what people write by hand, and what packages bring.

Each is a function of an engine that returns `ask(item) -> result` and `close()`. All run the artifacts of one bundle
that `edgekit build` made. Nothing is tuned against anybody: batches up to 32, everything else as the package's own
default unless said here.

- ours: `predict()` of the opened bundle, as an application calls it (8-bit input, cache off, all else by default): it
  also checks the input, dequantizes the output, counts, and makes an Answer, which none of the others does.
- lock: the interpreter behind a `threading.Lock`, as written by hand: set, invoke, get; the baseline.
- window: the tutorials' batcher; a thread collects for 20 ms or until the batch is full.
- greedy: a queue and a worker thread that takes whatever is there.
- batched: `batched.dynamically` (its default: looks every 5 ms).
- litserve: LitServe's own `BatchedLoop`, in a thread of this process with a plain queue; the web server, the processes
  and the sockets around it are left out, which favours it. `batch_timeout` 5 ms: its default of 0 spins on an empty
  queue.
- mlserver: MLServer's `AdaptiveBatcher` in an event loop of this process, without its server; `max_batch_time` 5 ms.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.loading.warming import batches_offered

LIMIT = 32
WINDOW_S = 0.020
Array = np.ndarray


class Way(NamedTuple):
    ask: Callable[[Array], Array]
    close: Callable[[], object]
    described: Callable[[], dict[str, Any]] = dict


class Variants:
    """One interpreter a batch size of the bundle, one thread each; a batch is padded to the next size. What every peer
    calls.
    """

    def __init__(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.path = path
        bundle = read_bundle(path)
        single = bundle.artifact()
        artifacts = {1: single} | batches_offered(bundle, single)
        self.sizes = sorted(artifacts)
        self._one, self._many = None, {}
        for size in self.sizes:
            interpreter = Interpreter(model_content=bundle.blob(artifacts[size].blob), num_threads=1)
            (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()
            shape = [size, *given["shape"][1:]]
            if list(given["shape"]) != shape:
                interpreter.resize_tensor_input(given["index"], shape)
            interpreter.allocate_tensors()
            self._many[size] = interpreter, given["index"], wanted["index"], np.zeros(shape, given["dtype"])
        self._one = self._many[1][:3]
        self.item = np.random.default_rng(0).integers(-128, 128, (1, *shape[1:])).astype(np.int8)

    def one(self, item: Array) -> Array:
        interpreter, given, wanted = self._one
        interpreter.set_tensor(given, item)
        interpreter.invoke()
        return interpreter.get_tensor(wanted)

    def run(self, items: Sequence[Array]) -> list[Array]:
        count = len(items)
        if count == 1:
            return [self.one(items[0])]
        if count > self.sizes[-1]:
            most = self.sizes[-1]
            return [one for n in range(0, count, most) for one in self.run(items[n : n + most])]
        size = next(size for size in self.sizes if size >= count)
        interpreter, given, wanted, joined = self._many[size]
        for n, item in enumerate(items):
            joined[n] = item[0]
        interpreter.set_tensor(given, joined)
        interpreter.invoke()
        output = interpreter.get_tensor(wanted)
        return [output[n : n + 1] for n in range(count)]


def lock(engine: Variants) -> Way:
    mutex = threading.Lock()

    def ask(item: Array) -> Array:
        with mutex:
            return engine.one(item)

    return Way(ask, lambda: None)


def ours(engine: Variants) -> Way:
    model = open_bundle(engine.path, threads=1, cache=False, settled=True)
    ready = np.ascontiguousarray(engine.item[0])

    def described() -> dict[str, Any]:
        stats = model.stats().batching
        return model.describe()["batching"] | {"batches": stats.batches, "held": stats.held, "held_s": stats.held_s}

    return Way(lambda _: model.predict(ready), model.close, described)


def window(engine: Variants) -> Way:
    return _worker(engine, WINDOW_S)


def greedy(engine: Variants) -> Way:
    return _worker(engine, 0.0)


def _worker(engine: Variants, window_s: float) -> Way:
    waiting: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        while (first := waiting.get()) is not None:
            batch, end = [first], time.perf_counter() + window_s
            while len(batch) < engine.sizes[-1]:
                try:
                    left = end - time.perf_counter()
                    more = waiting.get(timeout=left) if left > 0 else waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    waiting.put(None)
                    break
                batch.append(more)
            for (_, future), result in zip(batch, engine.run([item for item, _ in batch]), strict=True):
                future.set_result(result)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def ask(item: Array) -> Array:
        future: Future[Array] = Future()
        waiting.put((item, future))
        return future.result()

    return Way(ask, lambda: (waiting.put(None), thread.join(5)))


def batched(engine: Variants) -> Way:
    from batched import dynamically

    @dynamically(batch_size=LIMIT)
    def run(items: list[Array]) -> list[Array]:
        return engine.run(items)

    return Way(run, run.shutdown)


def litserve(engine: Variants) -> Way:
    import itertools

    from litserve import LitAPI
    from litserve.callbacks import CallbackRunner
    from litserve.loops.simple_loops import BatchedLoop

    class Api(LitAPI):
        def setup(self, device: str) -> None: ...
        def decode_request(self, request: Array) -> Array:
            return request

        def batch(self, inputs: list[Array]) -> list[Array]:
            return list(inputs)

        def predict(self, x: list[Array]) -> list[Array]:
            return engine.run(x)

        def unbatch(self, output: list[Array]) -> list[Array]:
            return output

        def encode_response(self, output: Array) -> Array:
            return output

    class Answers:
        """Where the loop sends what it computed."""

        def __init__(self) -> None:
            self.futures: dict[int, Future[Array]] = {}

        def send(self, message: Any, consumer_id: int) -> None:
            uid, (data, *_) = message
            self.futures.pop(uid).set_result(data)

    api = Api(max_batch_size=LIMIT, batch_timeout=0.005)
    api.request_timeout = -1
    answers, requests, numbers = Answers(), queue.Queue(), itertools.count()
    loop = BatchedLoop()
    thread = threading.Thread(
        target=loop.run_batched_loop, args=(api, requests, answers, CallbackRunner([])), daemon=True
    )
    thread.start()

    def ask(item: Array) -> Array:
        uid, future = next(numbers), Future()
        answers.futures[uid] = future
        requests.put((0, uid, time.monotonic(), item))
        return future.result()

    return Way(ask, lambda: (requests.put((None, None, None, None)), thread.join(5)))


def mlserver(engine: Variants) -> Way:
    from mlserver import MLModel, ModelSettings
    from mlserver.batching.adaptive import AdaptiveBatcher
    from mlserver.context import model_context
    from mlserver.types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput

    class Model(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            (given,) = payload.inputs
            data = np.asarray(getattr(given.data, "root", given.data), np.int8).reshape(given.shape)
            results = np.concatenate(engine.run([data[n : n + 1] for n in range(len(data))]))
            output = ResponseOutput(name="y", shape=list(results.shape), datatype="INT8", data=results.ravel().tolist())
            return InferenceResponse(model_name="m", outputs=[output])

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    settings = ModelSettings(name="m", implementation=Model, max_batch_size=LIMIT, max_batch_time=0.005)
    batcher = AdaptiveBatcher(Model(settings))

    async def asked(request: InferenceRequest) -> InferenceResponse:
        with model_context(settings):
            return await batcher.predict(request)

    def ask(item: Array) -> Array:
        given = RequestInput(name="x", shape=list(item.shape), datatype="INT8", data=item.ravel().tolist())
        answer = asyncio.run_coroutine_threadsafe(asked(InferenceRequest(inputs=[given])), loop).result()
        data = answer.outputs[0].data
        return np.asarray(getattr(data, "root", data), np.int8)

    return Way(ask, lambda: (loop.call_soon_threadsafe(loop.stop), thread.join(5)))


WAYS: dict[str, Callable[[Variants], Way]] = {
    "lock": lock,
    "ours": ours,
    "window": window,
    "greedy": greedy,
    "batched": batched,
    "litserve": litserve,
    "mlserver": mlserver,
}
