"""The ground: processes, threads, memory, files, JSON and errors.

Nothing here knows a model.
"""
