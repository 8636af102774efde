"""What a person asks about: files, folders of files, and files as they come into a folder."""
