"""The fleet: what boards report, stored, and shown.

broker -> ingest -> store commits -> acknowledgement -> the boards forget
                    store -> device rows and roll-ups -> pages
"""
