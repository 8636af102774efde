"""`open_bundle`: from a file to a model that is ready: verify, choose, self-test, warm up.
Importing this name imports little; everything else is imported when a bundle is opened."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit_runtime.bundle.reader import Bundle
    from edgekit_runtime.bundle.secrets import SecretArgument
    from edgekit_runtime.bundle.trust_finding import Trust
    from edgekit_runtime.loading.candidates import Pin
    from edgekit_runtime.loading.readiness import Preparation, PreparedEngine
    from edgekit_runtime.policy.budget import Use
    from edgekit_runtime.policy.options import CacheOptions, EngineName, Host, ModelLimits, Options
    from edgekit_runtime.remote.hosts import Hosts
    from edgekit_runtime.serving.model import Model
    from edgekit_runtime.serving.opened import OpenedBundle
    from edgekit_runtime.telemetry.reporter import TelemetryOptions


def open_bundle(
    path: str | os.PathLike[str],
    *,
    trust: Trust = (),
    allow_unsigned: bool = False,
    secret: SecretArgument = None,
    engine: EngineName | None = None,
    threads: int | None = None,
    delegate: str | os.PathLike[str] | None = None,
    pin: Pin | None = None,
    isolate: bool = False,
    budget_ms: float | None = None,
    use: Use | None = None,
    cache: CacheOptions | bool = True,
    limits: ModelLimits | None = None,
    hosts: Sequence[str | Host] | None = None,
    telemetry: TelemetryOptions | None = None,
    settled: bool = False,
) -> Model:
    """Open a bundle and return a model that is ready to use.

    path: an .ekb file, or an install root, whose active bundle is opened (see `install`).
    trust: a root.json, or one or several PEM files of Ed25519 public keys, that must have signed the bundle. Empty for
    the machine's trusted keys (`edgekit keys list`); without any, signatures are not checked.
    allow_unsigned: accept a bundle that no trusted key has signed; `describe()` says so. An install root keeps its own
    record.
    secret: source of an encrypted bundle's key (`file:PATH`, `env:NAME`, `cmd:COMMAND`, a path), or its 32 bytes.
    None for EDGEKIT_SECRET, ~/.config/edgekit/secret, then /etc/edgekit/secret.
    engine: name of an engine, "gpu" for any GPU engine, None for the fastest installed.
    threads: engine threads, 1 to 256, None for the fastest number.
    delegate: path of a TFLite delegate's library, measured like any other candidate. None for EDGEKIT_DELEGATE.
    pin: `primary` for the primary artifact on its preferred engine; None for the fastest on this machine.
    isolate: run the engine in its own process, which is restarted if it hangs or dies.
    budget_ms: default budget of requests, milliseconds, None for no limit.
    use: the budget by purpose, a key of `budget.PRESETS_MS`; budget_ms takes precedence.
    cache: True for the defaults of CacheOptions, False for no cache.
    limits: queue, batches, hung inferences and memory; None for the defaults of ModelLimits.
    hosts: fallback for requests that would be late on the device: http(s)://name:port of an edgekit host, or a `Host`
    for any Open Inference Protocol server.
    telemetry: where to report, None for no reports. docs/telemetry-format.md lists what is sent.
    settled: measure before the first answer, instead of in the background. Always so for a model that keeps state,
    shares a memory budget, or has a degraded artifact.

    Raises BundleError, IntegrityError, SignatureError, SecretError, MissingExtraError, EngineError, SelfTestError,
    MemoryExceeded; TelemetryError (telemetry-spool), CacheFileError, HostError (host-address, host-secret);
    OptionError, a ValueError, which names the invalid option.
    """
    from edgekit_runtime.system.memory import scarce

    with scarce(path), _without_collecting():
        from edgekit_runtime.bundle.secrets import check_argument
        from edgekit_runtime.loading.readiness import choose_beside
        from edgekit_runtime.policy.options import CacheOptions, ModelLimits, Options, check_path
        from edgekit_runtime.serving.model import Model

    if isinstance(cache, bool):
        cache = CacheOptions() if cache else CacheOptions(memory_mb=0)
    limits = ModelLimits() if limits is None else limits
    options = Options(
        trust, allow_unsigned, secret, engine, threads, delegate, pin, isolate, budget_ms, use, hosts, cache, limits
    )
    check_argument(secret)
    if telemetry is not None:
        _check_spool(telemetry, cache.disk)

    def opener(another: str | os.PathLike[str], *, later: bool = False) -> OpenedBundle:
        check_path("path", another, "open_bundle")
        with scarce(another):
            return _open(another, options, later=later)

    opened = opener(path, later=not settled)
    try:
        with scarce(path):
            model = Model(opened, options, opener)
            if telemetry is not None:
                model.report(telemetry)
            if opened.prepared.verdict.pending:
                how = _preparation(opened.bundle, options)
                model.choose_beside(lambda prepared, bundle, run: choose_beside(prepared, bundle, how, run))
        if os.environ.get("EDGEKIT_NOTIFY") and os.environ.get("NOTIFY_SOCKET"):
            from edgekit_runtime.system.systemd import notify_open

            notify_open(model)
        return model
    except BaseException:
        opened.close()
        raise


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Imports make many objects and no garbage; collecting would be a sixth of their time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _check_spool(telemetry: TelemetryOptions, disk_cache: str | os.PathLike[str] | None) -> None:
    """Raise TelemetryError (telemetry-spool) for a foreign file, before anything loads."""
    from edgekit_runtime.system.errors import OptionError
    from edgekit_runtime.telemetry.reporter import TelemetryOptions
    from edgekit_runtime.telemetry.spool import refuse_foreign

    if not isinstance(telemetry, TelemetryOptions):
        raise OptionError("telemetry", f"must be TelemetryOptions, not {telemetry!r:.40}", "open_bundle")
    try:
        same = disk_cache is not None and telemetry.file.resolve() == Path(disk_cache).resolve()
    except (OSError, RuntimeError):  # links in a circle: opening the file says so
        same = False
    if same:
        raise OptionError(
            "telemetry", f"and cache use the same file, {telemetry.file}: give each its own", "open_bundle"
        )
    if telemetry.spool is not None:  # the state folder is our own
        refuse_foreign(telemetry.file)


def _open(path: str | os.PathLike[str], options: Options, *, later: bool) -> OpenedBundle:
    from edgekit_runtime.bundle.reader import read_verified
    from edgekit_runtime.bundle.secrets import find_secret

    secret = find_secret if options.secret is None else options.secret
    if _is_root(path):
        from edgekit_runtime.install.open_active import open_root

        return open_root(path, options.trust, secret, lambda bundle: _ready(bundle, options, later=later))
    bundle = read_verified(path, options.trust, secret=secret, allow_unsigned=options.allow_unsigned)
    return _ready(bundle, options, later=later)


def _is_root(path: str | os.PathLike[str]) -> bool:
    """Whether it is an install root. An unreadable path is opened as a file, which raises why."""
    try:
        folder = Path(path)
        return (folder / "slot.json").is_file() or (
            (folder / "journal.json").is_file() and (folder / "generations").is_dir()
        )
    except (OSError, ValueError):
        return False


def _preparation(bundle: Bundle, options: Options, *, later: bool = False) -> Preparation:
    from edgekit_runtime.loading.candidates import TuningOptions
    from edgekit_runtime.loading.readiness import Preparation
    from edgekit_runtime.loading.tuning import Tuner

    delegate = os.fspath(options.delegate or os.environ.get("EDGEKIT_DELEGATE") or "") or None
    contract = bundle.manifest.contract
    stateless, generates = contract.state == "none", contract.task == "generation"
    return Preparation(
        TuningOptions(options.engine, options.threads, delegate, options.pin),
        batching=options.limits.may_batch,
        isolate=options.isolate and not generates,  # which has a process of its own in any case
        hang_s=options.limits.hang_s,
        memory=options.limits.memory,
        cache_mb=options.cache.memory_bytes / 1e6 if stateless else 0.0,
        tuning=Tuner(0.0) if generates else None,  # memory decides how fast it is, and its threads are the board's
        later=later and stateless and not options.limits.degraded,
        kv_mb=options.limits.kv_mb,
    )


def _ready(bundle: Bundle, options: Options, *, later: bool) -> OpenedBundle:
    from edgekit_runtime.loading.readiness import prepare
    from edgekit_runtime.serving.opened import OpenedBundle

    how = _preparation(bundle, options, later=later)
    if bundle.manifest.contract.text is not None:
        _take_tokenizer(bundle)
    with ExitStack() as undo:
        prepared = prepare(bundle, how)
        undo.callback(prepared.close)
        degraded = _degraded(bundle, how) if options.limits.degraded else None
        if degraded is not None:
            undo.callback(degraded.close)
        hosts = _hosts(bundle, options.hosts) if options.hosts else None
        bundle.release(*[prepared.entry.blob] if bundle.manifest.contract.state == "internal" else [])  # for sessions
        undo.pop_all()
        return OpenedBundle(bundle, prepared, hosts, degraded=degraded)


def _take_tokenizer(bundle: Bundle) -> None:
    """Register the tokenizer, and try it on the golden texts if its package is installed.

    Raises IntegrityError, SelfTestError, ContractError."""
    from importlib.util import find_spec

    from edgekit_runtime.contract.text import TextInput, register
    from edgekit_runtime.system.errors import IntegrityError, SelfTestError

    manifest, where = bundle.manifest, str(bundle.path)
    assert manifest.contract.text is not None
    assert manifest.tokenizer is not None
    if register(bundle.blob(manifest.tokenizer)) != manifest.contract.text.tokenizer:
        raise IntegrityError("its tokenizer is not the contract's", where=where, do="Build the bundle again")
    if find_spec("tokenizers") is None:
        return
    encode = TextInput(manifest.contract)
    for number, golden in enumerate(manifest.golden):
        if golden.text is not None:
            found, wanted = encode(bundle.blob(golden.text)), bundle.golden_items(golden)
            if any(found[name].tolist() != wanted[name].tolist() for name in wanted):
                what = f"golden example {number}: this tokenizers package makes other tokens of its text"
                raise SelfTestError(what, where=where, do="Upgrade tokenizers, or build the bundle with this version")


def _degraded(bundle: Bundle, how: Preparation) -> PreparedEngine:
    """The bundle's degraded artifact, ready to answer. Raises BundleError without one."""
    from edgekit_runtime.loading.readiness import prepare
    from edgekit_runtime.system.errors import BundleError

    recipe = next((entry.recipe for entry in bundle.manifest.artifacts if entry.role == "degraded"), None)
    if recipe is None or bundle.manifest.contract.state != "none":
        unfit = BundleError(
            "it has no degraded artifact, or it keeps state",
            where=str(bundle.path),
            do="Add one with: edgekit build MODEL --degraded SMALL.ekb, or omit ModelLimits(degraded=True)",
        )
        unfit.of_the_caller = True
        raise unfit
    return prepare(
        bundle, replace(how, wanted=replace(how.wanted, engine=None, pin=recipe), batching=False, cache_mb=0.0)
    )


def _hosts(bundle: Bundle, hosts: Sequence[str | Host]) -> Hosts:
    from edgekit_runtime.loading.replay import clearest_example
    from edgekit_runtime.remote.hosts import Hosts
    from edgekit_runtime.system.errors import BundleError, OptionError

    manifest = bundle.manifest
    if manifest.contract.state != "none" or not manifest.golden:
        unfit = BundleError(
            "a host cannot answer for it: it keeps state, or has no golden examples", where=str(bundle.path)
        )
        unfit.of_the_caller = True
        raise unfit
    protocol = "openai" if manifest.contract.task == "generation" else "oip"
    for host in hosts:
        if ("oip" if isinstance(host, str) else host.protocol) != protocol:
            url = host if isinstance(host, str) else host.url
            what = (
                f"holds {url!r:.200}, and the model's task, {manifest.contract.task}, needs Host(protocol={protocol!r})"
            )
            raise OptionError("hosts", what, "open_bundle")
    return Hosts(hosts, manifest, clearest_example(bundle))
