"""The build: a trained model in, for each board a checked bundle or the reasons why not."""
