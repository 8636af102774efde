"""What most requests need, as one function that is compiled when a bundle is opened.

    predict = compile_fast_path(journey)
    answer = predict(array, None, perf_counter())

Rules:
- it answers one array of the input's own shape, from the cache or by the device, as the journey would;
- any other request leaves by `journey.travel`, which continues from there: before the look-up or after it;
- a request with a budget stays only if no other waits or runs, and the slowest of the last inferences would be in time;
- an inference empties the processor's caches, and then a call, or an object, costs a microsecond: there are few here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from edgekit_runtime.cache.identity import kind_digest
from edgekit_runtime.contract.adapt import CLIP_EVERY, top_score
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.serving.request import Answer, Predict, Request, Source

if TYPE_CHECKING:
    from edgekit_runtime.serving.journey import Journey

_KEPT: tuple[Source, tuple[str, ...]] = "cache", ("prepare",)
_RAN: tuple[Source, tuple[str, ...]] = "device", ("prepare", "queue", "infer", "finish")
_in_order: Callable[[Any], Any] = np.ascontiguousarray


def compile_fast_path(journey: Journey) -> Predict:
    """journey: complete but for this."""
    contract, device, cache, travel = journey.contract, journey.device, journey.cache, journey.travel
    if contract.state != "none" or len(contract.inputs) > 1 or (cache is not None and cache.compares):
        return lambda inputs, budget_ms, start: travel(Request(budget_ms, start=start), inputs)
    spec, (_, adapter) = contract.inputs[0], device.adapters[0]
    ways, shape, array, in_order = adapter.shortcuts(journey.intake.as_it_is), spec.shape, np.ndarray, _in_order
    kinds = {dtype: kind_digest((journey.namespace, spec.name, dtype, shape)) for dtype in ways}
    geometry = kind_of(spec).geometry(spec) if contract.task == "detection" else None
    exact = cache if cache is not None and cache.exact else None
    digest, clock, join, alone = xxhash.xxh3_128_digest, perf_counter, journey.flights.join, journey.fallback is None
    guard, note, record, by = journey.guard, journey.faults.note, journey.meter.add, journey.by
    learned, numbers, outputs_of, batcher = device.learned, device.numbers, device.finisher, device.batcher
    runs, gate, queue, lanes = batcher.runs, batcher.gate, batcher.queue, batcher.queue.lanes
    away, acquire = queue.returns.away, gate.acquire if batcher.inline else lambda _: False

    def predict(inputs: Any, budget_ms: float | None, start: float) -> Answer:
        way = ways.get(inputs.dtype) if type(inputs) is array and inputs.shape == shape else None
        if way is None or guard.forked or journey.closed:
            return travel(Request(budget_ms, start=start), inputs)
        due, identify_ms = math.inf if budget_ms is None else start + budget_ms / 1e3, 0.0
        key = hit = request = flight = tensor = None
        clipped: tuple[int, int, float | None] | None = None
        if exact is not None:
            try:
                worth = exact.worth
                if worth.looking or worth.pays(start):
                    key = kinds[inputs.dtype] + digest(inputs if inputs.flags.c_contiguous else in_order(inputs))
                    now = clock()
                    identify_ms = (now - start) * 1e3
                    hit = exact.lookup(key, hash_s=now - start, left_s=due - now)
            except Exception as error:  # noqa: BLE001 - the engine answers without a cache
                key = note("cache", error)
        if hit is not None:
            (source, stages), outputs, timings = _KEPT, hit.outputs, {"identify": identify_ms}
            spent: tuple[float, ...] = (identify_ms,)
        else:
            try:
                if key is not None:
                    looked = {"identify": identify_ms}
                    request = Request(budget_ms, start=start, key=key, geometry=geometry, timings=looked)
                    flight, request.leads = join(key)
                if (request is None or request.leads) and (
                    budget_ms is None
                    or (alone and not lanes.live and runs.started is None and clock() + learned.most_ms / 1e3 <= due)
                ):
                    tensor = way(inputs)
                if tensor is not None:
                    number = next(numbers)
                    if not number % CLIP_EVERY:
                        clipped = *adapter.clipped(tensor, number // CLIP_EVERY), None
                    asked = clock()
                    if gate.line or lanes.live or away or not acquire(False):
                        raw, queued, ran, _ = batcher.call([tensor], due=due)
                    else:
                        try:  # as the batcher does, without a call
                            if queue.refusal is not None:
                                raise copy(queue.refusal)
                            runs.started = began = clock()
                            raw, queued = runs.one([tensor]), 0.0
                            ran = clock() - began
                            runs.alone = count = runs.alone + 1
                            if not count & runs.unlearnt or ran < runs.quick_s:
                                runs.learn(began, ran)
                            if lanes.live and batcher.batches:
                                batcher.left(began + ran)
                        finally:
                            runs.started = None
                            gate.leave()
                    before = clock()
                    outputs = outputs_of(raw)
                    now, engine_ms = clock(), ran * 1e3
                    if learned.outdated_ms <= engine_ms <= learned.most_ms:
                        learned.put((now, engine_ms))
                    else:
                        learned.add(engine_ms)
                    device.slowest_s = max(device.slowest_s, ran)
                    source, stages = _RAN
                    prepare_ms, queue_ms, finish_ms = (asked - start) * 1e3, queued * 1e3, (now - before) * 1e3
                    spent, adapt_ms = (prepare_ms, queue_ms, engine_ms, finish_ms), prepare_ms - identify_ms
                    timings = {"adapt": adapt_ms, "queue": queue_ms, "engine": engine_ms, "finish": finish_ms}
                    if clipped is not None:
                        clipped = *clipped[:2], top_score(outputs, contract)
            except BaseException as error:
                journey.fail(request or Request(budget_ms), error)
                raise
            if tensor is None:
                if request is None or request.leads or journey.relay.now:  # what this thread would do is not waited for
                    flight = None
                return travel(request or Request(budget_ms, start=start), inputs, looked=True, flight=flight)
            if request is not None:
                request.clipped = clipped
                request.timings |= timings
                return journey.deliver(request, outputs)
        timings["total"] = total_ms = (clock() - start) * 1e3
        met = None if budget_ms is None else total_ms <= budget_ms
        try:
            record((source, stages, (total_ms, *spent), met, clipped))
        except Exception as error:  # noqa: BLE001 - the answer is there already
            note("meter", error)
        return Answer(outputs, source, timings, met, contract, None, geometry, *by)

    return predict
