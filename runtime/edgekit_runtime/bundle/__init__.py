"""The .ekb format: manifest types, opening and checking.

Writing is the workstation's business (`edgekit.packaging`).
"""
