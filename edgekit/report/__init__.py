"""The HTML report of a build: one file that a person who did not build it can read, offline.

    page = html(report)          # report: what `edgekit build --json` prints

Rules:
- everything on the page comes out of the report's own JSON: nothing is computed again, nothing is fetched;
- what is not known is left out or written as a dash, never as a zero;
- the plotting script is inside the file, so it works without a network.
"""
