"""What a command printed, as the picture of a terminal.

    make demo | tee build/demo.txt && python docs/images/terminal.py build/demo.txt docs/images/demo.svg

Lines that begin with `edgekit` and their continuations are the commands; "Ship it" and what edgekit made stand out.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="make demo in a terminal">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main(printed: Path, picture: Path) -> None:
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    text = printed.read_text(encoding="utf-8")
    lines = text[text.index("edgekit build") :].rstrip().splitlines()
    width = min(150, max(map(len, lines)))
    console = Console(record=True, file=io.StringIO(), width=width)
    command = False
    for line in lines:
        command = line.startswith("edgekit ") or (command and line.startswith("    -"))
        shown = Text(f"$ {line}" if line.startswith("edgekit ") else line, style="bold" if command else "")
        shown.highlight_regex(re.compile("Ship it"), "bold green")
        if line.strip().startswith("edgekit,"):
            shown.stylize("green")
        console.print(shown)
    picture.write_text(console.export_svg(title="make demo", theme=MONOKAI, code_format=_FORMAT), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
