"""edgekit keys trust, rotate, revoke and renew: versions of root.json, and shared options.

Rules:
- a version is signed by the keys of --sign, else by the user's own keys that may sign it;
- the keys that sign the first version sign all later ones: a user with several keys must choose with --sign;
- a passphrase is never given on a command line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.cli import options as completion
from edgekit.cli.options import PATH, as_json, print_json

if TYPE_CHECKING:
    from edgekit.packaging.key_folder import KeyEntry, KeyFolder
    from edgekit.packaging.roots import Dates, Member, WrittenRoot
    from edgekit.packaging.signers import SigningOptions
    from edgekit.packaging.writer import Signer
    from edgekit_runtime.bundle.trust_store import TrustStore

Command = TypeVar("Command", bound=Callable[..., Any])

PASSPHRASE = "EDGEKIT_PASSPHRASE"

sign = click.option(
    "--sign",
    "sign",
    shell_complete=completion.keys,
    multiple=True,
    metavar="KEY",
    help="Sign with this key: a name from `edgekit keys list`, or the PEM file of an Ed25519 private key; repeatable.",
)
signer = click.option(
    "--signer",
    metavar="CMD",
    help="A command that signs for the keys of --sign that are public ones: it reads the bytes on its standard "
    "input, or in "
    "the file that {} stands for, and prints the signature.",
)
passphrase_file = click.option(
    "--passphrase-file",
    type=PATH,
    metavar="FILE",
    help=f"The passphrase of the keys is the first line of FILE. Else it is ${PASSPHRASE}, or asked for on a terminal.",
)
folder = click.option(
    "--folder",
    type=PATH,
    metavar="DIR",
    help="Where keys are kept. Default: $EDGEKIT_KEYS, or edgekit/keys in ~/.config.",
)
_DAY_S = 86_400
_YEAR = 365
_GRACE = 90

root_option = click.option(
    "--root-json",
    "root",
    type=PATH,
    metavar="FILE",
    help="The root.json to change. Default: this user's own, edgekit/trust in ~/.config.",
)
days_option = click.option(
    "--days", type=click.IntRange(1, 3650), default=_YEAR, show_default=True, metavar="N",
    help="How long the new root.json is good for what is new; what a board accepted in time stays active.",
)  # fmt: skip


def _authoring(command: Command) -> Command:
    """The options of every command that writes a version of root.json."""
    for option in (as_json, folder, passphrase_file, signer, sign, days_option, root_option):
        command = option(command)
    return command


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="KEY...", shell_complete=completion.keys)
@click.option("--role", type=click.Choice(["bundle", "root"]), default="bundle", show_default=True,
              help="What their signature is for: bundles, or the versions of root.json that come after.")  # fmt: skip
@click.option(
    "--threshold",
    type=click.IntRange(1, 64),
    metavar="K",
    help="How many keys of that role must sign. Default: 1, or as before.",
)
@click.option(
    "--root-threshold",
    type=click.IntRange(1, 64),
    metavar="K",
    help="Of the first version: how many of --sign must sign the next.",
)
@click.option("--name", metavar="NAME", help="What to call the key there. Default: as its file.")
@click.option(
    "--key-days",
    type=click.IntRange(1, 3650),
    metavar="N",
    help="Accept new bundles of these keys for N days. Default: as long as the root.json.",
)
@_authoring
def trust(
    names: tuple[str, ...], role: Any, name: str | None, key_days: int | None, as_json: bool, **options: Any
) -> int:
    """Trust each KEY to sign bundles, in root.json.

    KEY is a name, or a public PEM file.

    The first time this makes version 1, and the keys of --sign sign the versions after it: they decide which keys
    boards trust. Without --sign that is your own key among KEY; where several are your own, say which. Later each
    change is a new version, signed by the one before. Where several keys must sign, the version lies beside
    root.json until `edgekit keys sign` has added the others.

    \b
    edgekit keys trust alice                                             one person
    edgekit keys trust ci alice --root-threshold 2 --sign alice --sign bob    two of you change it, either signs bundles
    edgekit keys trust bob.pub.pem --threshold 2                         from now on two keys sign every bundle
    """
    from edgekit.packaging.roots import Member, first_root, with_keys

    if name is not None and len(names) != 1:
        raise click.UsageError("--name goes with one KEY.")
    own, threshold = folder_of(options["folder"]), options.pop("threshold")
    until = time.time() + key_days * _DAY_S if key_days else None
    public = [own.public(each) for each in names]
    members = [Member(name or entry.name, entry.raw, until) for entry in public]
    editor, root_threshold = _RootEditor(own, options), options.pop("root_threshold")
    if editor.signed is None:
        if role == "root":
            raise click.UsageError("The first version says who signs bundles; the keys of --sign have the role root.")
        signers = editor.first_signers(public)
        heads = [Member(editor.name_of(one, members), one.public) for one in signers]
        signed = first_root(heads, members, editor.dates, root_threshold=root_threshold or 1, threshold=threshold or 1)
        return editor.write(signed, as_json, signers)
    if root_threshold is not None:
        raise click.UsageError("--root-threshold is for the first version; later: --role root --threshold K.")
    return editor.write(with_keys(editor.signed, members, role, editor.dates, threshold), as_json)


@click.command()
@click.argument("old", shell_complete=completion.keys)
@click.argument("new", shell_complete=completion.keys)
@click.option("--grace-days", type=click.IntRange(0, 3650), default=_GRACE, show_default=True, metavar="N",
              help="How long new bundles that the old key signed are still accepted.")  # fmt: skip
@_authoring
def rotate(old: str, new: str, grace_days: int, as_json: bool, **options: Any) -> int:
    """Replace the key OLD by NEW in a new root.json.

    What OLD signed before stays valid, and new bundles of it are accepted for --grace-days. For a key that was
    stolen use `edgekit keys revoke`.

    \b
    edgekit keys rotate alice alice-2027 --sign alice
    """
    from edgekit.packaging.roots import Member, rotate

    own = folder_of(options["folder"])
    editor, entry = _RootEditor(own, options), own.public(new)
    signed = rotate(
        editor.existing(),
        editor.keyid_of(old),
        Member(entry.name, entry.raw),
        editor.dates,
        time.time() + grace_days * _DAY_S,
    )
    return editor.write(signed, as_json)


@click.command()
@click.argument("key", shell_complete=completion.keys)
@click.option("--why", default="", metavar="TEXT", help="Shown wherever something that it signed is refused.")
@click.option(
    "--threshold", type=click.IntRange(1, 64), metavar="K", help="How many keys must sign a bundle from now on."
)
@_authoring
def revoke(key: str, why: str, threshold: int | None, as_json: bool, **options: Any) -> int:
    """Remove KEY from root.json for good.

    Nothing that it signed is accepted any more, whenever that was.

    KEY is a name or the first digits of a keyid. A board refuses it as soon as it has taken the new version over
    (`edgekit keys update`), also what runs there already.

    \b
    edgekit keys revoke alice --why "laptop stolen" --sign bob
    """
    from edgekit.packaging.roots import revoke

    editor = _RootEditor(folder_of(options["folder"]), options)
    return editor.write(revoke(editor.existing(), editor.keyid_of(key), why, editor.dates, threshold), as_json)


@click.command()
@_authoring
def renew(as_json: bool, **options: Any) -> int:
    """Give root.json a later date, with the same keys.

    \b
    edgekit keys renew --sign alice
    """
    from edgekit.packaging.roots import renew

    editor = _RootEditor(folder_of(options["folder"]), options)
    return editor.write(renew(editor.existing(), editor.dates), as_json)


class _RootEditor:
    """Writes versions of root.json. signed: the version in force, None before the first."""

    def __init__(self, own: KeyFolder, options: dict[str, Any]) -> None:
        from edgekit.packaging.output_errors import KeysError
        from edgekit.packaging.roots import Dates, read_signed
        from edgekit_runtime.bundle.trust_finding import config_dir

        self.own, base = own, config_dir()
        if options["root"] is None and base is None:
            raise KeysError("this user has no home to keep a root.json in", do="Name one with --root FILE")
        self.root: Path = options["root"] or (base or Path()) / "trust" / "root.json"
        self.signed = read_signed(self.root) if self.root.exists() else None
        now = float(int(time.time()))
        self.dates: Dates = Dates(now, now + options["days"] * _DAY_S)
        self._asked = signing_of(options["sign"], options["signer"], options["passphrase_file"])

    def existing(self) -> dict[str, Any]:
        from edgekit.packaging.output_errors import KeysError

        if self.signed is None:
            raise KeysError("there is no root.json yet", where=str(self.root), do="Make it: edgekit keys trust KEY")
        return self.signed

    def signers(self, keyids: Sequence[str]) -> list[Signer]:
        """Signers of --sign, else of those `keyids` whose private keys are in the folder."""
        from edgekit.packaging.output_errors import KeysError
        from edgekit.packaging.signers import open_signers

        if self._asked.keys:
            return open_signers(self._asked, self.own)
        mine = [entry for keyid in keyids if (entry := self.own.of(keyid)) is not None and entry.private is not None]
        if not mine:
            raise KeysError(
                f"none of the keys that could sign it is in {self.own.path}",
                do="Name one that is elsewhere with --sign KEY",
            )
        asked = replace(self._asked, keys=tuple(str(entry.private) for entry in mine), signer=None)
        return open_signers(asked, self.own)

    def first_signers(self, entries: Sequence[KeyEntry]) -> list[Signer]:
        """Who signs the first version and the next ones. Raises UsageError if several keys could."""
        own = [found.name for each in entries if (found := self.own.of(each.keyid)) is not None and found.private]
        if not self._asked.keys and len(own) > 1:
            raise click.UsageError(
                f"{', '.join(own)} are all yours: say with --sign which of them sign the next versions of root.json, "
                f"and so decide which keys boards trust, such as --sign {own[0]}."
            )
        return self.signers([entry.keyid for entry in entries])

    def name_of(self, one: Signer, members: Sequence[Member]) -> str:
        from edgekit_runtime.bundle.signature import keyid_of

        keyid = keyid_of(one.public)
        named = next((member.name for member in members if member.keyid == keyid), None)
        found = self.own.of(keyid)
        return named or (found.name if found else keyid[:8])

    def keyid_of(self, named: str) -> str:
        """A key of the root by its name, the start of its keyid, or a file. Raises KeysError."""
        known = self.existing()["keys"]
        for keyid, key in known.items():
            if key["name"] == named:
                return str(keyid)
        short = [keyid for keyid in known if len(named) >= 8 and keyid.startswith(named)]
        return str(short[0]) if len(short) == 1 else self.own.public(named).keyid

    def write(self, signed: dict[str, Any], as_json: bool, signers: Sequence[Signer] | None = None) -> int:
        """signers: None for all that may sign versions before or after this one."""
        from edgekit.packaging.roots import write_root

        if signers is None:
            may = [*self.existing()["roles"]["root"]["keyids"], *signed["roles"]["root"]["keyids"]]
            signers = self.signers(list(dict.fromkeys(may)))
        return print_written(write_root(self.root, signed, signers), as_json)


def print_written(written: WrittenRoot, as_json: bool) -> int:
    """Print the version; exit code 0, also for a draft."""
    if as_json:
        print_json(
            {
                "version": written.version,
                "file": str(written.path),
                "root": str(written.root) if written.root else None,
                "signed_by": list(written.signers),
                "missing": list(written.missing),
                "roles": _roles_json(written.store),
            }
        )
        return 0
    by = ", ".join(written.signers) or "no key yet"
    click.echo(f"{written.path}: version {written.version}, signed by {by}")
    _print_roles(written.store)
    if written.root is None:
        click.echo(f"not in force: more of these must sign it: {', '.join(written.missing)}")
        click.echo(f"next: edgekit keys sign {written.path} --sign KEY")
        return 0
    click.echo(
        f"{written.root}: is this version now; boards take it over with: edgekit keys update {written.path.name}"
    )
    return 0


def print_keys(own: KeyFolder, entries: Sequence[KeyEntry]) -> None:
    click.echo(f"keys in {own.path}")
    if not entries:
        click.echo("  none: edgekit keys new NAME makes one")
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        state = "public half only" if entry.private is None else "passphrase" if entry.encrypted else "no passphrase"
        click.echo(f"  {entry.name:<{width}}  {entry.keyid[:16]}  {state}")


def print_store(store: TrustStore | None) -> None:
    from edgekit_runtime.bundle.trust_finding import trust_paths
    from edgekit_runtime.bundle.trust_store import judge, tell_time

    if store is None:
        click.echo(f"trust: none on this machine (looked for {', '.join(map(str, trust_paths()))})")
        return
    if store.root is None:
        click.echo(f"trust: {store.where}, any one of {len(store.keys)} public keys")
        return
    late = store.expires_s is not None and judge(issued_s=store.issued_s).at_s >= store.expires_s
    click.echo(
        f"trust: {store.where}, version {store.version}, {'EXPIRED' if late else 'good until'} "
        f"{tell_time(store.expires_s or 0)}"
    )
    click.echo(f"  fingerprint {store.fingerprint}")
    _print_roles(store)
    for gone in store.revoked.values():
        click.echo(f"  revoked  {gone.name} ({gone.keyid[:8]})" + (f": {gone.why}" if gone.why else ""))


def _print_roles(store: TrustStore) -> None:
    """Which keys have each role, and how many of them must sign."""
    from edgekit_runtime.bundle.trust_store import tell_time

    for title, role in (("bundles", store.bundle), ("root", store.root)):
        if role is not None:
            names = []
            for keyid in role.keyids:
                until = store.keys[keyid].expires_s
                names.append(store.name_of(keyid) + (f" until {tell_time(until)}" if until is not None else ""))
            click.echo(f"  {title:<8} {role.threshold} of {len(role.keyids)}: {', '.join(names)}")


def key_json(entry: KeyEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "keyid": entry.keyid,
        "public": str(entry.public),
        "private": str(entry.private) if entry.private else None,
        "passphrase": entry.encrypted,
        "open_to_others": entry.open_to_others,
    }


def store_json(store: TrustStore | None) -> dict[str, Any] | None:
    from edgekit_runtime.bundle.trust_store import tell_time

    if store is None:
        return None
    return {
        "path": store.where,
        "version": store.version,
        "expires": tell_time(store.expires_s) if store.expires_s is not None else None,
        "fingerprint": store.fingerprint or None,
        "roles": _roles_json(store),
        "revoked": [{"keyid": gone.keyid, "name": gone.name, "why": gone.why} for gone in store.revoked.values()],
    }


def _roles_json(store: TrustStore) -> dict[str, Any]:
    from edgekit_runtime.bundle.trust_store import tell_time

    found = {}
    for name, role in (("bundle", store.bundle), ("root", store.root)):
        if role is not None:
            keys = [(keyid, store.keys[keyid]) for keyid in role.keyids]
            members = [
                {"keyid": keyid, "name": key.name, "until": None if key.expires_s is None else tell_time(key.expires_s)}
                for keyid, key in keys
            ]
            found[name] = {"threshold": role.threshold, "keys": members}
    return found


def folder_of(path: Path | None) -> KeyFolder:
    from edgekit.packaging.key_folder import KeyFolder, default_folder

    return KeyFolder(path or default_folder())


def signing_of(keys: tuple[str, ...], signer: str | None, passphrase_file: Path | None) -> SigningOptions:
    from edgekit.packaging.signers import SigningOptions

    if signer is not None and not keys:
        raise click.UsageError("--signer signs for a public key: name that with --sign.")
    return SigningOptions(keys, signer, lambda key: passphrase(passphrase_file, f"passphrase of {key}"), warn_open)


def warn_open(key: Path) -> None:
    """On stderr, where it spoils no --json."""
    click.echo(f"warning: other users can read {key}. Run: chmod 600 {key}", err=True)


def passphrase(file: Path | None, prompt: str, *, twice: bool = False) -> bytes | None:
    """From the file, the environment or a prompt, in this order; else None. Raises KeysError."""
    if file is not None:
        from edgekit.packaging.output_errors import KeysError

        try:
            with file.open("rb") as stream:
                line = stream.readline(4096).rstrip(b"\r\n")
        except OSError as error:
            raise KeysError(f"the passphrase cannot be read: {error.strerror or error}", where=str(file)) from error
        if not line:
            raise KeysError("the first line is empty, and should be a passphrase", where=str(file))
        return line
    if given := os.environ.get(PASSPHRASE):
        return given.encode()
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)).encode()
