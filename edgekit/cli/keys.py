"""edgekit keys: make keys and secrets, say whom to trust, sign what is there already."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.cli import completion
from edgekit.cli.key_text import (
    folder,
    folder_of,
    key_json,
    passphrase,
    passphrase_file,
    print_keys,
    print_store,
    say_written,
    sign,
    signer,
    signing_of,
    store_json,
    warn_open,
)
from edgekit.cli.options import PATH, as_json, print_json

if TYPE_CHECKING:
    from edgekit.keys import Dates, KeyEntry, KeyFolder, Member
    from edgekit.keys.folder import SecretEntry
    from edgekit.packaging import Signer
    from edgekit_runtime.errors import SignatureError
    from edgekit_runtime.trust import TrustStore

__all__ = ["keys", "openssf", "print_secrets", "renew", "revoke", "rotate", "secret", "trust"]

Command = TypeVar("Command", bound=Callable[..., Any])

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
    help="How long the new root.json is good for what is new; what a board accepted in time goes on answering.",
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
    """Say in root.json that each KEY (a name, or a public PEM file) is trusted to sign bundles.

    The first time this makes version 1, and the keys of --sign sign the versions after it: they decide whom boards
    trust. Without --sign that is your own key among KEY; where several are your own, say which. Later each change is a
    new version, signed by the one before. Where several keys must sign, the version lies beside root.json until
    `edgekit keys sign` has added the others.

    \b
    edgekit keys trust alice                                             one person
    edgekit keys trust ci alice --root-threshold 2 --sign alice --sign bob    two of you change it, either signs bundles
    edgekit keys trust bob.pub.pem --threshold 2                         from now on two keys sign every bundle
    """
    from edgekit.keys import Member, first_root, with_keys

    if name is not None and len(names) != 1:
        raise click.UsageError("--name goes with one KEY.")
    own, threshold = folder_of(options["folder"]), options.pop("threshold")
    until = time.time() + key_days * _DAY_S if key_days else None
    public = [own.public(each) for each in names]
    members = [Member(name or entry.name, entry.raw, until) for entry in public]
    desk, root_threshold = _Desk(own, options), options.pop("root_threshold")
    if desk.signed is None:
        if role == "root":
            raise click.UsageError("The first version says who signs bundles; the keys of --sign have the role root.")
        signers = desk.first_signers(public)
        heads = [Member(desk.name_of(one, members), one.public) for one in signers]
        signed = first_root(heads, members, desk.dates, root_threshold=root_threshold or 1, threshold=threshold or 1)
        return desk.write(signed, as_json, signers)
    if root_threshold is not None:
        raise click.UsageError("--root-threshold is for the first version; later: --role root --threshold K.")
    return desk.write(with_keys(desk.signed, members, role, desk.dates, threshold), as_json)


@click.command()
@click.argument("old", shell_complete=completion.keys)
@click.argument("new", shell_complete=completion.keys)
@click.option("--grace-days", type=click.IntRange(0, 3650), default=_GRACE, show_default=True, metavar="N",
              help="How long new bundles that the old key signed are still accepted.")  # fmt: skip
@_authoring
def rotate(old: str, new: str, grace_days: int, as_json: bool, **options: Any) -> int:
    """Put the key NEW where OLD was, in a new version of root.json.

    What OLD signed before goes on answering, and new bundles of it are accepted for --grace-days. For a key that was
    stolen use `edgekit keys revoke`.

    \b
    edgekit keys rotate alice alice-2027 --sign alice
    """
    from edgekit.keys import Member, rotated

    own = folder_of(options["folder"])
    desk, entry = _Desk(own, options), own.public(new)
    signed = rotated(
        desk.existing(),
        desk.keyid_of(old),
        Member(entry.name, entry.raw),
        desk.dates,
        time.time() + grace_days * _DAY_S,
    )
    return desk.write(signed, as_json)


@click.command()
@click.argument("key", shell_complete=completion.keys)
@click.option("--why", default="", metavar="TEXT", help="Shown wherever something that it signed is refused.")
@click.option(
    "--threshold", type=click.IntRange(1, 64), metavar="K", help="How many keys must sign a bundle from now on."
)
@_authoring
def revoke(key: str, why: str, threshold: int | None, as_json: bool, **options: Any) -> int:
    """Take KEY out of root.json for good: nothing that it signed is accepted any more, whenever that was.

    KEY is a name or the first digits of a keyid. A board refuses it as soon as it has taken the new version over
    (`edgekit keys update`), also what runs there already.

    \b
    edgekit keys revoke alice --why "laptop stolen" --sign bob
    """
    from edgekit.keys import revoked

    desk = _Desk(folder_of(options["folder"]), options)
    return desk.write(revoked(desk.existing(), desk.keyid_of(key), why, desk.dates, threshold), as_json)


@click.command()
@_authoring
def renew(as_json: bool, **options: Any) -> int:
    """The same keys with a later date: a new version of root.json.

    \b
    edgekit keys renew --sign alice
    """
    from edgekit.keys import renewed

    desk = _Desk(folder_of(options["folder"]), options)
    return desk.write(renewed(desk.existing(), desk.dates), as_json)


class _Desk:
    """What the commands that write a version have in common. signed: the version in force, None where there is none
    yet.
    """

    def __init__(self, own: KeyFolder, options: dict[str, Any]) -> None:
        from edgekit.keys import Dates, read_signed

        self.own = own
        self.root: Path = options["root"] or _own_root()
        self.signed = read_signed(self.root) if self.root.exists() else None
        now = float(int(time.time()))
        self.dates: Dates = Dates(now, now + options["days"] * _DAY_S)
        self._asked = signing_of(options["sign"], options["signer"], options["passphrase_file"])

    def existing(self) -> dict[str, Any]:
        from edgekit.keys import KeysError

        if self.signed is None:
            raise KeysError("there is no root.json yet", where=str(self.root), do="Make it: edgekit keys trust KEY")
        return self.signed

    def signers(self, keyids: Sequence[str]) -> list[Signer]:
        """Those of --sign; without it, those of `keyids` whose private keys are in the folder."""
        from edgekit.keys import KeysError, open_signers

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
        """Who signs the first version signs the next ones. Of several keys of one's own none gets that role unasked: it
        is another than signing bundles, and the one that everything hangs on."""
        own = [found.name for each in entries if (found := self.own.of(each.keyid)) is not None and found.private]
        if not self._asked.keys and len(own) > 1:
            raise click.UsageError(
                f"{', '.join(own)} are all yours: say with --sign which of them sign the next versions of root.json, "
                f"and so decide whom boards trust, such as --sign {own[0]}."
            )
        return self.signers([entry.keyid for entry in entries])

    def name_of(self, one: Signer, members: Sequence[Member]) -> str:
        from edgekit_runtime.trust.signature import keyid_of

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
        """signers: None for whoever may sign versions now or from this one on."""
        from edgekit.keys import write_root

        if signers is None:
            may = [*self.existing()["roles"]["root"]["keyids"], *signed["roles"]["root"]["keyids"]]
            signers = self.signers(list(dict.fromkeys(may)))
        return say_written(write_root(self.root, signed, signers), as_json)


def _own_root() -> Path:
    from edgekit.keys import KeysError
    from edgekit_runtime.trust import config_dir

    base = config_dir()
    if base is None:
        raise KeysError("this user has no home to keep a root.json in", do="Name one with --root FILE")
    return base / "trust" / "root.json"


@click.command()
@click.argument("name")
@folder
@as_json
def secret(name: str, folder: Path | None, as_json: bool) -> None:
    """Make NAME.secret, a key to encrypt bundles with; the boards that shall run them need the same file.

    Whoever has it can read those bundles, and without it nobody can, you included: keep a copy where it is safe.

    \b
    edgekit keys secret camera
    """
    from edgekit.keys.folder import create_secret

    made = create_secret(folder_of(folder), name)
    if as_json:
        print_json({"name": made.name, "id": made.id, "file": str(made.path)})
        return
    click.echo(f"secret '{name}' {made.id:.12}")
    click.echo(f"  file     {made.path}   who has it can read the bundles; keep a copy")
    click.echo(f"next: edgekit build ... --encrypt {made.path}")
    click.echo("      on each board: the same file as /etc/edgekit/secret or ~/.config/edgekit/secret, mode 0600")


def print_secrets(entries: Sequence[SecretEntry]) -> None:
    if not entries:
        return
    click.echo("secrets, which encrypt bundles")
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        click.echo(f"  {entry.name:<{width}}  {entry.id[:16] or entry.trouble}")


@click.command()
@click.argument("bundle", type=PATH)
@click.option(
    "--sign",
    shell_complete=completion.keys,
    required=True,
    metavar="KEY",
    help="The PEM file of a P-256, P-384 or P-521 key, or its name where it lies among the others; edgekit's own "
    "keys are of another kind, which that format does not know.",
)
@signer
@passphrase_file
@folder
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Default: BUNDLE.sig.")
@as_json
def openssf(
    bundle: Path, sign: str, signer: str | None, passphrase_file: Path | None, folder: Path | None,
    output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write an OpenSSF Model Signing signature of BUNDLE beside it, and the public key to check it with.

    \b
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.pem
    edgekit keys openssf net.ekb --sign release.pem

    A board asks for the signatures in the bundle itself (`edgekit keys sign`); this one is for registries and archives.
    """
    from edgekit.keys.openssf import model_signature, open_elliptic
    from edgekit.packaging import write_whole
    from edgekit_runtime.bundle import read_bundle

    by = open_elliptic(sign, signing_of((sign,), signer, passphrase_file), folder_of(folder))
    read_bundle(bundle)  # what is damaged is not signed
    beside = output or bundle.with_name(f"{bundle.name}.sig")
    key = beside.with_name(f"{Path(sign).name.removesuffix('.pem').removesuffix('.pub')}.openssf.pub.pem")
    write_whole(beside, model_signature(bundle.name, bundle.read_bytes(), by).encode(), "the signature")
    write_whole(key, by.public_pem, "the public key")
    if as_json:
        print_json({"signature": str(beside), "public": str(key)})
        return
    click.echo(f"{beside}: {bundle.name}")
    click.echo(
        f"check it with: model_signing verify key {bundle.absolute().parent} --signature {beside} --public_key {key} "
        "--ignore_unsigned_files"
    )


@click.group()
def keys() -> None:
    """Keys, and whom a machine trusts.

    \b
    edgekit keys new alice                        a key pair of your own
    edgekit keys trust alice                      root.json: bundles must be signed by alice
    edgekit build ... --sign alice                sign what you build
    edgekit keys update root.json                 on a board: trust what this root.json says
    """


for _command in (trust, rotate, revoke, renew, openssf, secret):
    keys.add_command(_command)


@keys.command()
@click.argument("name")
@click.option("--passphrase", "ask", is_flag=True, help="Ask for a passphrase, without which the key cannot be used.")
@passphrase_file
@folder
@as_json
def new(name: str, ask: bool, passphrase_file: Path | None, folder: Path | None, as_json: bool) -> None:
    """Make the Ed25519 key pair NAME: NAME.pem signs and stays with you, NAME.pub.pem goes to who should trust it.

    \b
    edgekit keys new alice
    """
    secret = passphrase(passphrase_file, f"passphrase for {name}", twice=True) if ask or passphrase_file else None
    if ask and secret is None:
        raise click.UsageError(
            "--passphrase asks on a terminal, and there is none: use --passphrase-file or $EDGEKIT_PASSPHRASE."
        )
    made = folder_of(folder).create(name, secret)
    if as_json:
        print_json(key_json(made))
        return
    state = "needs its passphrase to sign" if made.encrypted else "has no passphrase: who copies it can sign"
    click.echo(f"key '{name}' {made.keyid[:8]}")
    click.echo(f"  private  {made.private}   {state}")
    click.echo(f"  public   {made.public}   for those who should trust it")
    key, trusted = (name, name) if folder is None else (made.private, made.public)
    click.echo(f"next: edgekit keys trust {trusted}; then edgekit build ... --sign {key}")


@keys.command("list")
@folder
@click.option(
    "--root-json", "root", type=PATH, metavar="FILE", help="Show this root.json. Default: the one this machine trusts."
)
@as_json
def list_(folder: Path | None, root: Path | None, as_json: bool) -> None:
    """Your keys, and whom this machine trusts.

    Exits 1 where a private key can be read by other users of this machine, and where whom it trusts cannot be told.

    \b
    edgekit keys list
    """
    from edgekit.keys.folder import secrets_in

    own = folder_of(folder)
    entries, (store, untold) = own.entries(), _trusted(root)
    if as_json:
        print_json(
            {
                "folder": str(own.path),
                "keys": [key_json(e) for e in entries],
                "secrets": [{"name": one.name, "id": one.id or None, "file": str(one.path)} for one in secrets_in(own)],
                "trust": store_json(store),
                **({"error": untold.as_json()} if untold is not None else {}),
            }
        )
    else:
        print_keys(own, entries)
        print_secrets(secrets_in(own))
        if untold is None:
            print_store(store)
    if loose := [entry.private for entry in entries if entry.private is not None and entry.open_to_others]:
        for private in loose:
            warn_open(private)
    if untold is not None and not as_json:
        raise untold
    if loose or untold is not None:
        raise click.exceptions.Exit(1)


def _trusted(root: Path | None) -> tuple[TrustStore | None, SignatureError | None]:
    """Whom this machine trusts, or why that cannot be told: one's own keys are listed all the same."""
    from edgekit_runtime.errors import SignatureError
    from edgekit_runtime.trust import find_trust, parse_root, read_trusted

    try:
        return parse_root(read_trusted(root), str(root)) if root else find_trust(), None
    except SignatureError as error:
        return None, error


@keys.command("sign")
@click.argument("file", type=PATH)
@sign
@signer
@passphrase_file
@folder
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the signed bundle there. Default: FILE itself.")
@as_json
def sign_(
    file: Path, sign: tuple[str, ...], signer: str | None, passphrase_file: Path | None, folder: Path | None,
    output: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Add signatures to FILE, a bundle or a version of root.json; those that are there stay.

    \b
    edgekit keys sign net-raspberry-pi-4.ekb --sign bob
    edgekit keys sign root-4.json --sign bob
    """
    from edgekit.keys import add_signatures, endorse, is_root, open_signers

    if not sign:
        raise click.UsageError("Name who signs: --sign KEY.")
    own = folder_of(folder)
    if is_root(file):
        if output is not None:
            raise click.UsageError("-o is for bundles; a version of root.json keeps its name.")
        return say_written(add_signatures(file, open_signers(signing_of(sign, signer, passphrase_file), own)), as_json)
    signers = open_signers(signing_of(sign, signer, passphrase_file), own)
    done = endorse(file, signers, output)
    if as_json:
        print_json(
            {
                "bundle": str(done.path),
                "digest": done.digest,
                "added": list(done.added),
                "signed_by": list(done.signed_by),
            }
        )
        return 0
    what = f"{done.manifest.name} version {done.manifest.version} for {done.manifest.target.profile}"
    new = ", ".join(_short(own, keyid) for keyid in done.added) or "nobody new: these keys had signed it"
    click.echo(f"{done.path}: {what}, digest {done.digest[:16]}, signed by {new}; {len(done.signed_by)} in all")
    return 0


@keys.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="ROOT.json...")
@click.option(
    "--to",
    type=PATH,
    metavar="FILE",
    help="Where this machine keeps it. Default: where it is now; else /etc/edgekit for root, ~/.config for others.",
)
@click.option(
    "--expect",
    metavar="SHA256",
    help="Of the first one: the fingerprint it must have, as `edgekit keys list` shows it.",
)
@as_json
def update(files: tuple[Path, ...], to: Path | None, expect: str | None, as_json: bool) -> None:
    """Trust what ROOT.json says, on this machine.

    The first one is taken on your word: compare its fingerprint with whoever made it. Every later one must be the next
    version, signed by the one in force; bring all that came in between.

    \b
    edgekit keys update root.json
    """
    from edgekit.keys import take_over

    taken = take_over(files, to or _place(), expect=expect)
    if as_json:
        print_json({"root": str(taken.path), "before": taken.before, "trust": store_json(taken.store)})
        return
    if taken.before == taken.store.version:
        click.echo(f"{taken.path}: version {taken.before} was in force already")
        return
    after = f"follows version {taken.before}" if taken.before else "is the first here, taken on your word"
    click.echo(f"{taken.path}: version {taken.store.version} {after}")
    print_store(taken.store)


def _place() -> Path:
    """Where this machine's root.json is, or should be."""
    from edgekit_runtime.trust import trust_paths

    paths = trust_paths()
    there = next((path for path in paths if os.path.exists(path)), None)  # noqa: PTH110 - False, too, where it may not be looked at
    if there is not None:
        return there
    return (
        paths[-1] if hasattr(os, "geteuid") and os.geteuid() == 0 and not os.environ.get("EDGEKIT_TRUST") else paths[0]
    )


def _short(own: KeyFolder, keyid: str) -> str:
    entry = own.of(keyid)
    return f"{entry.name} ({keyid[:8]})" if entry else keyid[:16]
