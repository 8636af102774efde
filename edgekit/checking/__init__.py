"""Will it load on that board, and answer there as it did here: known before owning one.

    checked = check(CheckRequest(Path("net.ekb"), load("raspberry-pi-4")))
    checked.ok, [(finding.code, finding.what) for finding in checked.findings]

Rules: first what the files alone show, in under a second and without an engine; then the golden examples
are replayed on that very version of the runtime, beside this environment or under emulation. Every finding has a code
of the catalogue, and `explain` knows each of them.
"""
