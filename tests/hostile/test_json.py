"""Group 26: JSON that is small on the wire and large in memory, against each reader of a stranger's JSON, in a child
with a limit of its memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from edgekit_runtime.system.strict_json import MOST_VALUES, JsonSizeError, load_json

MB = 1 << 20
FILLS = {
    "lists": ("[", "[],", "0]"),
    "objects": ("[", "{},", "0]"),
    "names": ("{", '"%d":0,', '"":0}'),
    "numbers": ("[", "1.5,", "0]"),
    "texts": ("[", '"ab",', "0]"),
}


def within(limit_mb: int, body: str, work: str) -> list[str]:
    """What a child prints that makes `body` and then runs `work` with so much memory beyond what it has by then."""
    code = f"""
    import resource
    from edgekit_runtime.system.strict_json import load_json, strict_json
    from edgekit_runtime.remote.oip import decode_request, decode_response
    def filled(begin, piece, end, count):
        pieces = piece * count if "%d" not in piece else "".join([piece % n for n in range(count)])
        return (begin + pieces + end).encode()
    body = filled({body})
    most = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + {limit_mb} * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    """
    script = textwrap.dedent(code) + textwrap.dedent(work)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


linux = pytest.mark.skipif(sys.platform != "linux", reason="the limit is read from /proc")


@linux
@pytest.mark.parametrize("fill", FILLS)
def test_group_26_a_body_of_the_largest_size_takes_no_more_than_its_text_to_refuse(fill):
    begin, piece, end = FILLS[fill]
    count = 31 * MB // (len(piece) + 5 * ("%d" in piece))
    work = """
    for read in (decode_request, decode_response, strict_json, load_json):
        try:
            read(body)
        except Exception as error:
            print(type(error).__name__)
    """
    refusals = within(32 + 8, f"{begin!r}, {piece!r}, {end!r}, {count}", work)
    assert refusals == ["WireError", "WireError", "JsonSizeError", "JsonSizeError"]


@linux
@pytest.mark.parametrize("fill", FILLS)
def test_group_26_what_is_just_allowed_stays_within_what_is_stated(fill):
    """200 MB, see MOST_VALUES, beside the text."""
    each = {"lists": 2, "objects": 2, "names": 5}.get(fill, 1)
    within(200 + 16, ", ".join(map(repr, FILLS[fill])) + f", {MOST_VALUES // each - 4}", "load_json(body)")


def test_group_26_what_is_counted_is_never_less_than_what_is_there():
    def there(value):
        if isinstance(value, dict):
            return 1 + sum(4 + there(one) for one in value.values())
        return 1 + sum(map(there, value)) if isinstance(value, list) else 1

    for text in ('[[1,2],{"a":[3]},"x,y",{}]', "[]", "7", '{"a":{"b":1.5},"c":[null,true]}', "[" * 50 + "]" * 50):
        value = load_json(text.encode())
        enough = next(n for n in range(400) if _fits(text, n))
        assert enough >= there(value) - text.count("{") - text.count("[") - 1


def _fits(text: str, most: int) -> bool:
    try:
        load_json(text.encode(), most_values=most)
    except JsonSizeError:
        return False
    return True
