"""edgekit keys: make keys, decide which are trusted, sign.

Rules:
- each change of root.json is its next version, signed by the keys of --sign, else by the user's own that may sign it;
- the keys that sign the first version sign all later ones: a user with several keys must choose with --sign.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result
from edgekit.cli.signing import (
    DAY_S,
    RootEditor,
    folder,
    folder_of,
    new_passphrase,
    print_written,
    signing_of,
    store_json,
    store_lines,
    warn_open,
)
from edgekit.packaging.bundle_options import SigningOptions
from edgekit_runtime.system.errors import SignatureError

if TYPE_CHECKING:
    from edgekit.packaging.key_folder import KeyEntry
    from edgekit.packaging.roots import RoleName

_DAYS = click.IntRange(1, 3650)
_SIGNATURES = click.IntRange(1, 64)
_SIGNING = opt.options_of(SigningOptions)

_root_json = opt.shared(
    "--root-json",
    "root",
    type=opt.PATH,
    metavar="FILE",
    help="The root.json to change. Default: your own, edgekit/trust/root.json in ~/.config.",
)
_days = click.option(
    "--days", type=_DAYS, default=365, show_default=True, metavar="N",
    help="Days until the new root.json expires. Boards then accept no new bundles; installed ones stay active.",
)  # fmt: skip

_threshold = opt.shared("--threshold", type=_SIGNATURES, metavar="K")


@click.group()
def keys() -> None:
    """Signing keys, and the keys that a machine trusts.

    \b
    edgekit keys new alice                        make a key pair
    edgekit keys trust alice                      root.json: bundles must be signed by alice
    edgekit build ... --sign alice                sign what you build
    edgekit keys update root.json                 on a board: trust the keys of this root.json
    """


@keys.command()
@click.argument("name")
@click.option("--secret", is_flag=True, help="Make NAME.secret instead, a key for encrypting bundles.")
@click.option("--passphrase", "ask", is_flag=True, help="Ask for a passphrase to protect the key.")
@opt.options_of(SigningOptions, "passphrase_file")
@folder
@opt.as_json
def new(
    name: str, secret: bool, ask: bool, passphrase_file: Path | None, folder: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Make the Ed25519 key pair NAME.

    Keep NAME.pem private; give NAME.pub.pem to everyone who should trust it.

    With --secret, make a key for encrypting bundles. Boards that run them need the same file. Anyone who has it
    can read those bundles, and without it no one can, you included: keep a backup in a safe place.

    \b
    edgekit keys new alice
    edgekit keys new camera --secret
    """
    if secret:
        if ask or passphrase_file:
            raise click.UsageError("A secret has no passphrase: leave out --passphrase and --passphrase-file.")
        _new_secret(name, folder, as_json)
        return
    given = new_passphrase(passphrase_file, f"passphrase for {name}") if ask or passphrase_file else None
    if ask and given is None:
        raise click.UsageError("--passphrase needs a terminal: use --passphrase-file or $EDGEKIT_PASSPHRASE.")
    made = folder_of(folder).create(name, given)
    state = "needs its passphrase to sign" if made.encrypted else "has no passphrase: anyone with a copy can sign"
    key, trusted = (name, name) if folder is None else (made.private, made.public)
    lines = [
        f"key '{name}' {made.keyid[:8]}",
        f"  private  {made.private}   {state}",
        f"  public   {made.public}   give it to everyone who should trust it",
        f"next: edgekit keys trust {trusted}; then edgekit build ... --sign {key}",
    ]
    print_result(_key_json(made), lines, as_json)


def _new_secret(name: str, folder: Path | None, as_json: bool) -> None:
    made = folder_of(folder).create_secret(name)
    lines = [
        f"secret '{name}' {made.id:.12}",
        f"  file     {made.path}   anyone who has it can read the bundles; keep a backup",
        f"next: edgekit build ... --encrypt {made.path}",
        "      on each board: the same file as /etc/edgekit/secret or ~/.config/edgekit/secret, mode 0600",
    ]
    print_result({"name": made.name, "id": made.id, "file": str(made.path)}, lines, as_json)


@keys.command("list")
@folder
@_root_json(help="Show this root.json. Default: the one this machine trusts.")
@opt.as_json
def list_(folder: Path | None, root: Path | None, as_json: bool) -> None:
    """List your keys, and the keys that this machine trusts.

    Exits 1 if other users can read a private key, or if the trusted keys cannot be read.

    \b
    edgekit keys list
    """
    from edgekit_runtime.bundle.trust_finding import find_trust, read_trusted
    from edgekit_runtime.bundle.trust_root import parse_root

    own = folder_of(folder)
    entries, secrets = own.entries(), own.secrets()
    store, unreadable = None, None
    try:
        store = parse_root(read_trusted(root), str(root)) if root else find_trust()
    except SignatureError as error:  # the user's own keys are listed all the same
        unreadable = error
    record = {
        "folder": str(own.path),
        "keys": [_key_json(e) for e in entries],
        "secrets": [{"name": one.name, "id": one.id or None, "file": str(one.path)} for one in secrets],
        "trust": store_json(store),
        **({"error": unreadable.as_json()} if unreadable is not None else {}),
    }
    lines = [f"keys in {own.path}", *([] if entries else ["  none: edgekit keys new NAME makes one"])]
    width = max(map(len, [*(one.name for one in entries), *(one.name for one in secrets)]), default=0)
    for entry in entries:
        state = "passphrase" if entry.encrypted else "no passphrase" if entry.private else "public half only"
        lines.append(f"  {entry.name:<{width}}  {entry.keyid[:16]}  {state}")
    lines += ["secrets, which encrypt bundles"] if secrets else []
    lines += [f"  {one.name:<{width}}  {one.id[:16] or one.trouble}" for one in secrets]
    print_result(record, [*lines, *(store_lines(store) if unreadable is None else ())], as_json)
    if loose := [entry.private for entry in entries if entry.private is not None and entry.open_to_others]:
        for private in loose:
            warn_open(private)
    if unreadable is not None and not as_json:
        raise unreadable
    if loose or unreadable is not None:
        raise click.exceptions.Exit(1)


def _authoring(command: Any) -> Any:
    """The options of every command that writes a version of root.json."""
    return _root_json()(_days(_SIGNING(folder(opt.as_json(command)))))


@keys.command()
@click.argument("names", nargs=-1, metavar="[KEY]...", shell_complete=opt.COMPLETE["keys"])
@click.option("--role", type=click.Choice(["bundle", "root"]), default="bundle", show_default=True,
              help="What the keys may sign: bundles, or the next versions of root.json.")  # fmt: skip
@_threshold(help="Number of keys of that role that must sign. Default: 1, or unchanged.")
@click.option("--root-threshold", type=_SIGNATURES, metavar="K",
              help="First version only: number of --sign keys that must sign the next version.")  # fmt: skip
@click.option("--name", metavar="NAME", help="The key's name in root.json. Default: its file name.")
@click.option(
    "--key-days", type=_DAYS, metavar="N", help="Accept new bundles of these keys for N days. Default: as --days."
)
@click.option(
    "--replace",
    "old",
    metavar="OLD",
    shell_complete=opt.COMPLETE["keys"],
    help="Replace the key OLD by KEY in its roles.",
)
@click.option("--grace-days", type=click.IntRange(0, 3650), default=90, show_default=True, metavar="N",
              help="With --replace: days for which new bundles signed by OLD are still accepted.")  # fmt: skip
@click.option("--renew", is_flag=True, help="Extend the expiry date of root.json; its keys stay the same.")
@_authoring
def trust(
    names: tuple[str, ...], role: RoleName, name: str | None, key_days: int | None, old: str | None, grace_days: int,
    renew: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Trust each KEY to sign bundles, in the next root.json.

    KEY is a name or a public PEM file.

    The keys of --sign sign version 1 and all later ones: they decide which keys boards trust. Without --sign that is
    your own key among KEY; if several are yours, choose. If more keys must sign a version, it stays next to root.json
    until `edgekit keys sign` has added the others.

    With --replace, existing signatures of OLD stay valid. For a stolen key use `edgekit keys revoke`.

    \b
    edgekit keys trust alice                                             one person
    edgekit keys trust ci alice --root-threshold 2 --sign alice --sign bob    two of you change it, either signs bundles
    edgekit keys trust bob.pub.pem --threshold 2                         from now on two keys sign every bundle
    edgekit keys trust alice-2027 --replace alice                        rotate a key
    edgekit keys trust --renew                                           the same keys for another year
    """
    from edgekit.packaging.roots import Member, first_root, rotate, with_keys
    from edgekit.packaging.roots import renew as renewed

    if bool(names) == renew:
        raise click.UsageError("Name a KEY, or pass --renew, and not both.")
    if (name or old) and len(names) != 1:
        raise click.UsageError(f"{'--name' if name else '--replace'} goes with one KEY.")
    if old is None and opt.options_given("grace_days"):
        raise click.UsageError("--grace-days goes with --replace.")
    kept = ("role", "threshold", "root_threshold", *["key_days"] * renew) if renew or old else ()
    if idle := opt.options_given(*kept):
        raise click.UsageError(
            f"Leave out {', '.join(idle)}: {'--renew' if renew else '--replace'} changes none of it."
        )
    own, now = folder_of(options["folder"]), time.time()
    threshold, root_threshold = options.pop("threshold"), options.pop("root_threshold")
    public = [own.public(each) for each in names]
    until = now + key_days * DAY_S if key_days else None
    members = [Member(name or entry.name, entry.raw, until) for entry in public]
    editor = RootEditor(options)
    if renew:
        return editor.write(renewed(editor.existing(), editor.dates), as_json)
    if old is not None:
        signed = rotate(
            editor.existing(), editor.keyid_of(old), members[0], editor.dates, until_s=now + grace_days * DAY_S
        )
        return editor.write(signed, as_json)
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


@keys.command()
@click.argument("key", shell_complete=opt.COMPLETE["keys"])
@click.option("--why", default="", metavar="TEXT", help="Reason, shown when a signature of the key is refused.")
@_threshold(help="Number of keys that must sign a bundle from now on.")
@_authoring
def revoke(key: str, why: str, threshold: int | None, as_json: bool, **options: Any) -> int:
    """Remove KEY from root.json for good.

    Its signatures are no longer accepted, including old ones.

    KEY is a name or the first digits of a keyid. A board refuses it once it has the new version (`edgekit keys
    update`), even for the bundle that is active there.

    \b
    edgekit keys revoke alice --why "laptop stolen" --sign bob
    """
    from edgekit.packaging.roots import revoke

    editor = RootEditor(options)
    return editor.write(revoke(editor.existing(), editor.keyid_of(key), why, editor.dates, threshold), as_json)


@keys.command("sign")
@click.argument("file", type=opt.PATH)
@_SIGNING
@click.option(
    "--openssf",
    is_flag=True,
    help="Write an OpenSSF Model Signing signature next to the bundle. KEY is a P-256, P-384 or P-521 private key.",
)
@folder
@opt.output("FILE", "Write the signed bundle there. Default: FILE itself; with --openssf, FILE.sig.")
@opt.as_json
def sign_(
    file: Path, sign: tuple[str, ...], openssf: bool, signer: str | None, passphrase_file: Path | None,
    folder: Path | None, output: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Add signatures to FILE, a bundle or a root.json.

    Existing signatures are kept. With --openssf, write the signature that model registries expect, and the public
    key to verify it with. Boards only read the signatures in the bundle.

    \b
    edgekit keys sign net-raspberry-pi-4.ekb --sign bob
    edgekit keys sign root-4.json --sign bob
    edgekit keys sign net-raspberry-pi-4.ekb --sign release.pem --openssf
    """
    from edgekit.packaging.roots import add_signatures, is_root
    from edgekit.packaging.signers import endorse, open_signers, sign_openssf

    if not sign:
        raise click.UsageError("Name a signing key: --sign KEY.")
    own, signing = folder_of(folder), signing_of(sign, signer, passphrase_file)
    if openssf:
        if len(sign) != 1 or signer is not None:
            raise click.UsageError(
                "--openssf signs with one private key; for a token run: model_signing sign pkcs11-key"
            )
        signature, public = sign_openssf(file, signing, own, output)
        check = f"verify with: model_signing verify key {file} --signature {signature} --public_key {public}"
        lines = [f"{signature}: {file.name}", check]
        print_result({"signature": str(signature), "public": str(public)}, lines, as_json)
        return 0
    if is_root(file):
        if output is not None:
            raise click.UsageError("-o is for bundles; a version of root.json keeps its name.")
        return print_written(add_signatures(file, open_signers(signing, own)), as_json)
    done = endorse(file, open_signers(signing, own), output)
    what = f"{done.manifest.name} version {done.manifest.version} for {done.manifest.target.profile}"
    added = [(own.of(keyid), keyid) for keyid in done.added]
    new = ", ".join(f"{entry.name} ({keyid[:8]})" if entry else keyid[:16] for entry, keyid in added)
    by = new or "no new key: these keys had signed it"
    line = f"{done.path}: {what}, digest {done.digest[:16]}, signed by {by}; {len(done.signed_by)} in all"
    keyids = {"added": list(done.added), "signed_by": list(done.signed_by)}
    print_result({"bundle": str(done.path), "digest": done.digest, **keyids}, [line], as_json)
    return 0


@keys.command()
@click.argument("files", nargs=-1, required=True, type=opt.PATH, metavar="ROOT.json...")
@click.option(
    "--to",
    type=opt.PATH,
    metavar="FILE",
    help="Where to store it. Default: its current place, else /etc/edgekit for root, ~/.config for other users.",
)
@click.option(
    "--expect", metavar="SHA256", help="Expected fingerprint of the first root.json, as `edgekit keys list` shows it."
)
@opt.as_json
def update(files: tuple[Path, ...], to: Path | None, expect: str | None, as_json: bool) -> None:
    """Trust the keys of ROOT.json on this machine.

    The first one is accepted unverified: compare its fingerprint with its author's. Each later one must be the next
    version, signed by the one in force; pass all that came in between.

    \b
    edgekit keys update root.json
    """
    from edgekit.packaging.roots import take_over
    from edgekit_runtime.bundle.trust_finding import trust_paths

    paths = trust_paths()
    there = (path for path in paths if os.path.exists(path))  # noqa: PTH110 - False, too, where it may not be looked at
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0 and not os.environ.get("EDGEKIT_TRUST")
    place = to or next(there, paths[-1] if is_root else paths[0])
    taken = take_over(files, place, expect=expect)
    if taken.before == taken.store.version:
        lines = [f"{taken.path}: version {taken.before} is already in force"]
    else:
        after = f"follows version {taken.before}" if taken.before else "is the first one here: compare its fingerprint"
        lines = [f"{taken.path}: version {taken.store.version} {after}", *store_lines(taken.store)]
    record = {"root": str(taken.path), "before": taken.before, "trust": store_json(taken.store)}
    print_result(record, lines, as_json)


def _key_json(entry: KeyEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "keyid": entry.keyid,
        "public": str(entry.public),
        "private": str(entry.private) if entry.private else None,
        "passphrase": entry.encrypted,
        "open_to_others": entry.open_to_others,
    }
