"""The fleet's pages.

Import `edgekit.fleet.pages.app` to serve them: it needs the `fleet` extra.
"""
