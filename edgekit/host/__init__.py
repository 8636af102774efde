"""The server that answers for devices: Open Inference Protocol v2 over a board's Runtime.

with bind("127.0.0.1", 8000) as sock, Repository.open(["digits-host-cpu.ekb"]) as repository:
    code, said = serve(repository, sock, ready=lambda: print("listening"))
"""
