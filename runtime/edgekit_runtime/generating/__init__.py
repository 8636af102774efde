"""Text from a language model, piece by piece: of the device, or of a server in its place."""
