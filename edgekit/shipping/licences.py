"""The licences of everything that travels in a package: one readable list, and every text that the wheels carry.

Rules: what a wheel says of itself is repeated, not judged; a wheel that carries no text is named as such; what Debian brings
has its texts on the board already, in /usr/share/doc.

    write(folder, wheels=[...], debian=("python3-numpy",), model="digits: CC-BY-4.0")
"""

from __future__ import annotations

import email.message
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LIST", "Licence", "of_wheel", "write"]

LIST = "LICENCES.txt"
_TEXT = re.compile(r"(^|/)(licen[cs]es?/|[^/]*(licen[cs]e|copying|notice|authors)[^/]*$)", re.IGNORECASE)
_HEAD = """\
What is in this package, and under which licence. The words are those of each package; their texts lie beside this list.
"""


@dataclass(frozen=True)
class Licence:
    """name, version: of the distribution. says: the licence in its own words. texts: path in the wheel's dist-info -> text."""

    name: str
    version: str
    says: str
    home: str
    texts: dict[str, bytes]


def of_wheel(wheel: Path) -> Licence:
    """Read from its METADATA (PEP 639's License-Expression, else License, else classifiers) and its dist-info."""
    import email.parser

    with zipfile.ZipFile(wheel) as archive:
        info = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
        folder = info.removesuffix("METADATA")
        metadata = email.parser.BytesParser().parsebytes(archive.read(info))
        inside = sorted(n for n in archive.namelist() if n.startswith(folder) and not n.endswith("/"))
        texts = {n.removeprefix(folder): archive.read(n) for n in inside if _TEXT.search(n.removeprefix(folder))}
    return Licence(metadata["Name"], metadata["Version"], _said(metadata), _home(metadata), texts)


def write(folder: Path, wheels: Sequence[Path], debian: Sequence[str], model: str) -> list[Licence]:
    """Fill `folder`, which is made, with the list and the texts. model: the bundle's line. Returns what it found."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted((of_wheel(wheel) for wheel in wheels), key=lambda one: one.name.lower())
    for one in found:
        for name, text in one.texts.items():
            place = folder / f"{one.name}-{one.version}" / name.replace("/", "_")
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(text)
    lines = [_HEAD, f"model   {model}", *(line for one in found for line in _lines(one)), *map(_debian_line, debian)]
    (folder / LIST).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return found


def _lines(one: Licence) -> Iterator[str]:
    yield f"\n{one.name} {one.version}: {one.says}"
    if one.home:
        yield f"    {one.home}"
    files = [f"{one.name}-{one.version}/{name.replace('/', '_')}" for name in one.texts]
    yield f"    {', '.join(files) or 'its wheel carries no text'}"


def _debian_line(package: str) -> str:
    return f"\n{package}: from Debian, see /usr/share/doc/{package}/copyright on the board"


def _said(metadata: email.message.Message) -> str:
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = [c for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    short = (metadata["License"] or "").strip().splitlines()
    if short and len(short[0]) <= 80 and short[0].upper() != "UNKNOWN":
        return short[0]
    return "; ".join(c.rpartition(" :: ")[2] for c in classifiers) or "it does not say"


def _home(metadata: email.message.Message) -> str:
    links = [metadata["Home-page"], *(url.partition(",")[2].strip() for url in metadata.get_all("Project-URL", []))]
    return next((link for link in links if link), "")
