"""Keys and roots on the workstation.
Making them, signing with them, naming the trusted ones.

files = KeyFolder(default_folder()).create("alice")              # alice.pem, 0600 in a folder 0700, and alice.pub.pem
signed = first_root([Member("alice", files.raw)], [Member("alice", files.raw)], Dates(issued_s, expires_s))
"""
