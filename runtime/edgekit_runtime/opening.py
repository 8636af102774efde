"""`open_bundle`: from a file to a model that is ready. Verify, choose the engine, self-test, warm up.

An application that imports this name pays for no more than the name; what opening needs is imported when it opens.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Bundle
    from edgekit_runtime.bundle.secrets import Given
    from edgekit_runtime.cache import Semantic
    from edgekit_runtime.memory import MemoryBudget
    from edgekit_runtime.model import Model
    from edgekit_runtime.opened import Opened
    from edgekit_runtime.options import Options
    from edgekit_runtime.remote.hosts import Hosts
    from edgekit_runtime.telemetry import Reporting
    from edgekit_runtime.trust import Trust
    from edgekit_runtime.tuning import Pin

__all__ = ["open_bundle"]

_DISK_CACHE_MB, _WINDOW_S = 256.0, 60.0
_DEFAULTS = {"disk_cache_mb": _DISK_CACHE_MB, "window_s": _WINDOW_S}


def open_bundle(
    path: str | os.PathLike[str],
    *,
    trust: Trust = (),
    allow_unsigned: bool = False,
    secret: Given = None,
    cache_mb: float = 64.0,
    ttl_s: float | None = None,
    threads: int | None = None,
    engine: str | None = None,
    budget_ms: float | None = None,
    use: str | None = None,
    batching: bool | None = None,
    queue_limit: int = 1024,
    disk_cache: str | os.PathLike[str] | None = None,
    disk_cache_mb: float = _DISK_CACHE_MB,
    similar: float | None = None,
    semantic: Semantic | None = None,
    delegate: str | os.PathLike[str] | None = None,
    isolate: bool = False,
    memory: MemoryBudget | None = None,
    hang_s: float | None = None,
    pin: Pin | None = None,
    hosts: Sequence[str] = (),
    telemetry: str | None = None,
    device: str | None = None,
    window_s: float = _WINDOW_S,
    spool: str | os.PathLike[str] | None = None,
) -> Model:
    """Open a bundle and return a model that is ready to answer.

    path: an .ekb file, or the root that `edgekit install` made: then what is installed there is opened (see `install`).
    trust: a root.json, or a PEM file, or several, of Ed25519 public keys, by which the bundle must be signed; empty for what
    this machine trusts (`edgekit keys list`), and where that is nothing, signatures are not checked. allow_unsigned: a file that
    nobody vouches for is opened all the same, and `describe()` says so; of an install root, its own record decides. secret: of an encrypted
    bundle, where its key is: `file:PATH`, `env:NAME`, `cmd:COMMAND`, a path, or the 32 bytes; None to look where EDGEKIT_SECRET
    says, in ~/.config/edgekit/secret and in /etc/edgekit/secret. cache_mb: bound of the exact cache in MiB, 0 for none. ttl_s: seconds an answer stays good, None for ever. threads: engine threads, None for what the
    bundle says, at most the cores there are. engine: a name of the table ENGINES, None to choose.
    budget_ms: of requests that name none themselves, None for as long as it takes; use: the same by its purpose, a key of
    `budget.PRESETS_MS`. batching: whether requests that wait may share an inference where that pays, None for yes unless
    EDGEKIT_BATCH=off. queue_limit: how many requests may wait.
    disk_cache: a file that keeps answers across restarts, at most disk_cache_mb MiB of them; it holds hashes and outputs,
    never inputs. similar: answer a picture that differs from an earlier one by no more than this (the mean difference of
    its parts, in grey levels) with that one's answer. semantic: answer what lies near an earlier request by its vector.
    delegate: path of a TFLite delegate's library, None for what EDGEKIT_DELEGATE says; it is measured like any other way
    of running the bundle, and where it does not load `describe()` says why. isolate: run the engine in a process of its
    own, which is ended and started again where it hangs or dies. memory: a budget that several models share. hang_s: how
    long an inference may take before the engine counts as hung, None for the larger of 10 s and 20 times the slowest.
    pin: `primary` for the bundle's primary artifact on its preferred engine, so that machines give the same answers; None for
    the artifact and engine that are the fastest here.
    hosts: http(s)://name:port of hosts that serve the same contract; a request whose budget the device would miss goes
    to one of them, and is refused at once with BudgetExceeded where none would make it either.
    telemetry: mqtt(s)://[user:password@]host[:port] of a broker to report to, None for nowhere. device: this board's id
    there, 3 to 63 of a-z, 0-9 and -. window_s: seconds between two reports. spool: the file that keeps reports until they
    are confirmed, None for one in the state folder. What is sent stands in docs/telemetry-format.md.

    An option that does nothing without another one (device, window_s, spool without telemetry; disk_cache_mb without
    disk_cache) is a UserWarning: which broker, and whether there is a disk, is often a setting that may be absent.
    Raises BundleError, IntegrityError, SignatureError, SecretError, MissingExtraError, EngineError, SelfTestError, MemoryExceeded;
    TelemetryError, TelemetryError (telemetry-spool), CacheFileError, HostError (host-address); ValueError, which names the option, for one that
    makes no sense.
    """
    from edgekit_runtime.memory import scarce

    with scarce(path):
        from edgekit_runtime.bundle.secrets import check_given
        from edgekit_runtime.model import Model
        from edgekit_runtime.options import Options, budget_of, check_path, check_paths

    if isinstance(hosts, (str, bytes)) or not isinstance(hosts, Sequence) or not all(isinstance(u, str) for u in hosts):
        raise ValueError(f"hosts must be a list of URLs, not {hosts!r:.80}")
    check_paths("trust", trust)
    if not isinstance(allow_unsigned, bool):
        raise ValueError(f"allow_unsigned must be True or False, not {allow_unsigned!r:.40}")  # noqa: TRY004 - as all options
    check_given(secret)
    if spool is not None:
        check_path("spool", spool)
    _warn_of_idle("telemetry", telemetry, {"device": device, "window_s": window_s, "spool": spool})
    _warn_of_idle("disk_cache", disk_cache, {"disk_cache_mb": disk_cache_mb})
    reporting = _reporting(telemetry, device, window_s, spool) if telemetry is not None else None
    if reporting is not None and disk_cache is not None and _same(reporting.spool, disk_cache):
        raise ValueError(f"spool and disk_cache name the same file, {reporting.spool}: pass one for each")
    options = Options(
        cache_mb,
        ttl_s,
        threads,
        engine,
        budget_of(use, budget_ms),
        os.environ.get("EDGEKIT_BATCH") != "off" if batching is None else batching,
        queue_limit,
        disk_cache,
        disk_cache_mb,
        similar,
        semantic,
        (os.fspath(delegate) if isinstance(delegate, os.PathLike) else delegate)
        or os.environ.get("EDGEKIT_DELEGATE")
        or None,
        isolate,
        memory,
        hang_s,
        pin,
    )

    def opener(another: str | os.PathLike[str]) -> Opened:
        check_path("path", another)
        with scarce(another):
            return _open(another, (trust, allow_unsigned, secret), options, hosts)

    opened = opener(path)
    try:
        with scarce(path):
            model = Model(opened, options, opener)
            if reporting is not None:
                model.report(reporting)
        if os.environ.get("EDGEKIT_NOTIFY") and os.environ.get("NOTIFY_SOCKET"):
            from edgekit_runtime.systemd import notify_open

            notify_open(model)
        return model
    except BaseException:
        opened.close()
        raise


def _warn_of_idle(need: str, wanted: object, given: Mapping[str, object]) -> None:
    """Say which of these options were given for nothing, because the one that they need was not."""
    idle = [name for name, value in given.items() if value != _DEFAULTS.get(name)]
    if wanted is None and idle:
        does = "does" if len(idle) == 1 else "do"
        warnings.warn(f"open_bundle: {', '.join(idle)} {does} nothing without {need}=", stacklevel=3)


def _open(
    path: str | os.PathLike[str], who: tuple[Trust, bool, Given], options: Options, hosts: Sequence[str]
) -> Opened:
    from edgekit_runtime.bundle import read_vouched
    from edgekit_runtime.bundle.secrets import find_secret

    trust, allow_unsigned, secret = who
    secret = find_secret if secret is None else secret
    if _rooted(path):
        from edgekit_runtime.install.opening import open_root

        return open_root(path, trust, secret, lambda bundle: _ready(bundle, options, hosts))
    bundle = read_vouched(path, trust, secret=secret, allow_unsigned=allow_unsigned)
    return _ready(bundle, options, hosts)


def _rooted(path: str | os.PathLike[str]) -> bool:
    """Whether it is an install root; what cannot be looked at is opened as a file, which says why it cannot."""
    try:
        folder = Path(path)
        return (folder / "slot.json").is_file() or (
            (folder / "journal.json").is_file() and (folder / "generations").is_dir()
        )
    except (OSError, ValueError):
        return False


def _ready(bundle: Bundle, options: Options, hosts: Sequence[str]) -> Opened:
    from edgekit_runtime.opened import Opened
    from edgekit_runtime.readiness import Preparation, prepare
    from edgekit_runtime.tuning import Wanted

    how = Preparation(
        Wanted(options.engine, options.threads, options.delegate, options.pin),
        batching=options.batching,
        isolate=options.isolate,
        hang_s=options.hang_s,
        memory=options.memory,
        cache_mb=options.cache_bytes / 1e6 if bundle.manifest.contract.state == "none" else 0.0,
    )
    prepared = prepare(bundle, how)
    try:
        return Opened(bundle, prepared, _hosts(bundle, hosts) if hosts else None)
    except BaseException:
        prepared.close()
        raise


def _reporting(url: str, device: str | None, window_s: float, spool: str | os.PathLike[str] | None) -> Reporting:
    """Raises TelemetryError for what makes no sense and TelemetryError (telemetry-spool) for a file of something else, before anything is loaded."""
    from edgekit_runtime.board import state_dir
    from edgekit_runtime.telemetry import Reporting

    file = Path(spool) if spool is not None else state_dir() / "telemetry" / f"{device}.db"
    reporting = Reporting.checked(url, device, file, window_s)
    if spool is not None:  # the state folder is our own
        from edgekit_runtime.telemetry.spool import refuse_foreign

        refuse_foreign(file)
    return reporting


def _same(one: Path, other: str | os.PathLike[str]) -> bool:
    try:
        return one.resolve() == Path(other).resolve()
    except (OSError, RuntimeError, TypeError, ValueError):  # links in a circle, a NUL: whoever opens them says so
        return False


def _hosts(bundle: Bundle, urls: Sequence[str]) -> Hosts:
    from edgekit_runtime.errors import BundleError
    from edgekit_runtime.remote.hosts import Hosts

    manifest = bundle.manifest
    if manifest.contract.state != "none" or not manifest.golden:
        unfit = BundleError(
            "it cannot be answered by a host: it keeps state or holds no example", where=str(bundle.path)
        )
        unfit.of_the_caller = True
        raise unfit
    return Hosts(urls, manifest, bundle.golden_items(manifest.golden[0]))
